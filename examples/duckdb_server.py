"""DuckDB 2.0.1 behind JSON lines: one file, and a cursor for each connection; accounts as rows.

A transfer is one transaction, at DuckDB's only level, snapshot isolation.  `UPDATE ... RETURNING` deletes the row and
inserts it again if the table has an index.  In DuckDB a delete and an in-place update of a row do not conflict, so one
of two concurrent transfers is lost although both were committed.
"""

import json
import socket

from krucible import Client, Needs, System

SERVER = """
import json, socketserver, sys
import duckdb

host, port, constraint = sys.argv[1], int(sys.argv[2]), sys.argv[3]
held = duckdb.connect("accounts.duckdb")
held.execute(f"CREATE TABLE IF NOT EXISTS accounts (name VARCHAR {constraint}, balance BIGINT)")

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        connection = held.cursor()
        for line in self.rfile:
            try:
                connection.begin()
                rows = [connection.execute(*step).fetchall() for step in json.loads(line)]
                connection.commit()
                answer = rows
            except duckdb.TransactionException as problem:
                connection.rollback()
                answer = str(problem)
            self.wfile.write(json.dumps(answer).encode() + b"\\n")

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 100

Server((host, port), Handler).serve_forever()
"""
OPEN = "INSERT INTO accounts SELECT ?, ? WHERE NOT EXISTS (FROM accounts WHERE name = ?)"
PAY_IN = (
    "UPDATE accounts SET balance = balance + ? WHERE name = ? AND (SELECT balance FROM accounts WHERE name = ?) >= ?"
)
DRAW = "UPDATE accounts SET balance = balance - ? WHERE name = ? AND balance >= ? RETURNING balance"


class DuckDB(System):
    port = 8000
    needs = Needs(wheels=["duckdb==2.0.1"])
    constraint = "PRIMARY KEY"

    async def start(self, node, nodes):
        await node.write("server.py", SERVER)
        return [*node.python, "server.py", node.address, str(self.port), self.constraint]


class NoIndex(DuckDB):
    """The same table without an index: updates are made in place, and two updates of one row conflict."""

    constraint = ""


class RolledBack(Exception):
    """The server rolled the transaction back, so it had no effect."""


class Accounts(Client):
    refused = (RolledBack,)

    def open(self, server):
        self.socket = socket.create_connection((server.host, server.port))
        self.lines = self.socket.makefile("rb")

    def close(self):
        self.socket.close()

    def run(self, *steps):
        self.socket.sendall(json.dumps(steps).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise EOFError("the server closed the connection")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise RolledBack(answer)
        return answer

    def open_account(self, account, balance):
        self.run((OPEN, [account, balance, account]))

    def balances(self):
        (rows,) = self.run(("FROM accounts", []))
        return dict(rows)

    def transfer(self, source, target, amount):
        _, drawn = self.run((PAY_IN, [amount, target, source, amount]), (DRAW, [amount, source, amount]))
        return bool(drawn)
