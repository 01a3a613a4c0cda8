"""Turso's MVCC through the SQL kit: one file, and a connection for every client, each transaction BEGIN CONCURRENT.

Promised in Turso's docs/manual.md, "Multi-version concurrency control": snapshot isolation; a transaction is refused if
it wrote a row that another transaction has changed since.
"""

from krucible import Needs, SqlClient, SqlSystem


class Concurrent(SqlClient):
    begin = "begin concurrent"
    nothing_happened = ("Write-write conflict",)

    def connect(self, server):
        connection = super().connect(server)
        connection.execute("pragma journal_mode = mvcc")
        return connection


class TursoMvcc(SqlSystem):
    needs = Needs(wheels=["pyturso==0.8.3"])
    consistency = "snapshot-isolation"
    complaints = "(?i)panicked|corrupt|malformed"
    driver = "turso"
    connect_with = {"database": "held.db", "isolation_level": None}
    client = Concurrent


class OftenCheckpointed(Concurrent):
    def connect(self, server):
        connection = super().connect(server)
        connection.execute("pragma mvcc_checkpoint_threshold = 2000")
        return connection


class Passive(TursoMvcc):
    """Turso makes checkpoints during transactions, an experimental feature."""

    connect_with = {**TursoMvcc.connect_with, "experimental_features": "mvcc_passive_checkpoint"}
    client = OftenCheckpointed


class Turso05(TursoMvcc):
    """The first version in which the journal mode has this name."""

    needs = Needs(wheels=["pyturso==0.5.0"])
