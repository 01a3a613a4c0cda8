"""Delta Lake tables by delta-rs 1.0.2 (deltalake on PyPI) behind JSON lines: one folder, and a thread for each client.

A transfer reads two accounts at one version of the table, and replaces their rows in this version by an overwrite with
a predicate.  Promised in delta-rs' documentation, "Delta Lake transactions": ACID transactions by optimistic
concurrency control; a commit is refused if it conflicts with a commit made after the version that was read.
"""

from json_lines import JsonLines

from krucible import Needs, System

SERVER = """
import contextlib, json, os, socketserver, sys
from pathlib import Path

import pyarrow
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

synced = set()
SCHEMA = pyarrow.schema([("k", pyarrow.string()), ("v", pyarrow.int64())])

def held(table):
    return dict(zip(*table.to_pyarrow_table().to_pydict().values()))

def replace(table, rows):
    names = ", ".join(f"'{name}'" for name in rows)
    data = pyarrow.table({"k": list(rows), "v": list(rows.values())}, schema=SCHEMA)
    write_deltalake(table, data, mode="overwrite", predicate=f"k in ({names})")

def sync():
    for path in {Path("accounts"), *Path("accounts").rglob("*")} - synced:
        with contextlib.suppress(FileNotFoundError):
            opened = os.open(path, os.O_RDONLY)
            os.fsync(opened)
            os.close(opened)
            if path.is_file():
                synced.add(path)

def answer(f, *given):
    table = DeltaTable("accounts")
    balances = held(table)
    if f == "open" and given[0] not in balances:
        replace(table, {given[0]: given[1]})
    elif f == "transfer":
        source, target, amount = given
        if balances[source] < amount:
            return False
        replace(table, {source: balances[source] - amount, target: balances[target] + amount})
        return True
    return balances

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            try:
                said = {"ok": answer(*json.loads(line))}
            except CommitFailedError as problem:
                said = {"refused" if "a concurrent transaction" in str(problem) else "error": str(problem)}
            except Exception as problem:
                said = {"error": f"{type(problem).__name__}: {problem}"}
            if sys.argv[3]:
                sync()
            self.wfile.write(json.dumps(said).encode() + b"\\n")

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 100

write_deltalake("accounts", pyarrow.table({"k": [], "v": []}, schema=SCHEMA), mode="ignore")
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


class DeltaLake(System):
    port = 8000
    elections = False
    never_fsyncs = True
    sync = ""
    needs = Needs(wheels=["deltalake==1.0.2", "pyarrow==18.1.0"])

    async def start(self, node, nodes):
        await node.write("server.py", SERVER)
        return [*node.python, "server.py", node.address, str(self.port), self.sync]


class DeltaLake16(DeltaLake):
    """The same with delta-rs 1.6.6."""

    needs = Needs(wheels=["deltalake==1.6.6", "pyarrow==18.1.0"])


class Synced(DeltaLake16):
    """The server fsyncs all files of the table before it answers a request."""

    never_fsyncs = False
    sync = "files"


class Accounts(JsonLines):
    def open_account(self, account, balance):
        self.ask("open", account, balance)

    def balances(self):
        return self.ask("balances")

    def transfer(self, source, target, amount):
        return self.ask("transfer", source, target, amount)
