"""SQLite 3 and DuckDB 2.0.1 through the SQL kit: one file each, and a connection for every client.

Promised: SQLite's transactions are SERIALIZABLE (isolation.html), DuckDB's have snapshot isolation (its
documentation, "Transaction Management").  A commit is durable if the disk obeys fsync.
"""

from krucible import Needs, SqlClient, SqlSystem


class SqliteClient(SqlClient):
    begin = "begin immediate"


class SQLite(SqlSystem):
    driver = "sqlite3"
    connect_with = {"database": "held.db", "isolation_level": None, "timeout": 1.0}
    client = SqliteClient


class DuckDBClient(SqlClient):
    nothing_happened = ("TransactionException",)


class DuckDB(SqlSystem):
    """A conflict of two transactions ends one of them with an error, possibly at its COMMIT."""

    needs = Needs(wheels=["duckdb==2.0.1"])
    consistency = "snapshot-isolation"
    driver = "duckdb"
    connect_with = {"database": "held.duckdb"}
    client = DuckDBClient
