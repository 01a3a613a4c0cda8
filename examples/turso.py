"""Turso 0.8.3, SQLite's language and files written anew in Rust: one file behind a small server.

Promised in its docs/manual.md, "Transactions": atomicity, isolation from concurrent transactions, and
integrity "in the presence of errors, crashes, and concurrent access".  PRAGMA synchronous is FULL by default.
"""

import http.client
import json

from krucible import Client, Needs, System

SERVER = """
import json, sys, threading, turso
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host, port = sys.argv[1], int(sys.argv[2])
one_writer = threading.Lock()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        with one_writer:
            self.held = turso.connect("held.db", isolation_level=None)
            for table in ("kept (k text, v integer, primary key (k, v))", "lists (k text primary key, v text)",
                          "accounts (k text primary key, v integer)"):
                self.held.execute("create table if not exists " + table)

    def finish(self):
        self.held.close()
        super().finish()

    def do_POST(self):
        statements = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if all(statement.startswith("select") for statement, _ in statements):
            found = self.transaction("begin", statements)
        else:
            with one_writer:
                found = self.transaction("begin immediate", statements)
        answer = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def transaction(self, begin, statements):
        self.held.execute(begin)
        try:
            found = [self.held.execute(*statement).fetchall() for statement in statements]
            self.held.execute("commit")
        except turso.Error:
            self.held.execute("rollback")
            raise
        return found

    def log_message(self, *words):
        pass

ThreadingHTTPServer((host, port), Handler).serve_forever()
"""
APPEND = "insert into lists values (?, ?) on conflict (k) do update set v = v || ',' || excluded.v"
READ = "select v from lists where k = ?"
TAKE = "update accounts set v = v - ? where k = ? and v >= ? returning v"
"""Nothing is taken from an account that has not enough, and then nothing is given either."""
GIVE = "update accounts set v = v + ? where k = ? and exists (select 1 from accounts where k = ? and v >= ?)"


class Turso(System):
    port = 8000
    needs = Needs(wheels=("pyturso==0.8.3",))
    complaints = "(?i)panicked|corrupt|malformed"

    async def start(self, node, nodes):
        await node.write("server.py", SERVER)
        return [*node.python, "server.py", node.address, str(self.port)]


class Transactions(Client):
    def open(self, server):
        connection = http.client.HTTPConnection(server.host, server.port)
        connection.connect()
        return connection

    def run(self, *statements):
        self.connection.request("POST", "/", json.dumps(statements))
        answer = self.connection.getresponse()
        return json.loads(answer.read())

    def add(self, key, value):
        self.run(["insert into kept values (?, ?)", [key, value]])

    def members(self, key):
        (rows,) = self.run(["select v from kept where k = ?", [key]])
        return [v for (v,) in rows]

    def transact_lists(self, steps):
        found = self.run(*([READ, [k]] if f == "r" else [APPEND, [k, str(v)]] for f, k, v in steps))
        lists = ([int(part) for part in rows[0][0].split(",")] if rows else None for rows in found)
        return [[f, k, rows if f == "r" else v] for (f, k, v), rows in zip(steps, lists, strict=True)]

    def open_account(self, account, balance):
        self.run(["insert or ignore into accounts values (?, ?)", [account, balance]])

    def transfer(self, source, target, amount):
        given, taken = [GIVE, [amount, target, source, amount]], [TAKE, [amount, source, amount]]
        return bool(self.run(given, taken)[1])

    def balances(self):
        return dict(self.run(["select k, v from accounts", []])[0])
