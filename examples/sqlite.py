"""SQLite behind HTTP: one server with one file and a rollback journal; counters as rows.

A commit removes the journal.  With `synchronous=FULL`, the default, nothing makes that removal durable: after a power
loss the journal may exist again, and SQLite rolls the commit back.  `EXTRA` also syncs the folder.
"""

import http.client
import json

from krucible import Client, System

SERVER = """
import json, sqlite3, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host, port, synchronous = sys.argv[1], int(sys.argv[2]), sys.argv[3]
held = sqlite3.connect("counters.db", isolation_level=None, check_same_thread=False)
held.execute(f"PRAGMA synchronous={synchronous}")
held.execute("CREATE TABLE IF NOT EXISTS counters (k TEXT PRIMARY KEY, v INTEGER)")
one_at_a_time = threading.Lock()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        statement, values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with one_at_a_time:
            answer = json.dumps(held.execute(statement, values).fetchall()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass

ThreadingHTTPServer((host, port), Handler).serve_forever()
"""
ADD = "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET v = v + excluded.v"


class Full(System):
    port = 8000
    synchronous = "FULL"

    async def start(self, node, nodes):
        await node.write("server.py", SERVER)
        return ["python3", "server.py", node.address, str(self.port), self.synchronous]


class Extra(Full):
    synchronous = "EXTRA"


class Counters(Client):
    def open(self, server):
        connection = http.client.HTTPConnection(server.host, server.port)
        connection.connect()
        return connection

    def run(self, statement, *values):
        self.connection.request("POST", "/", json.dumps([statement, values]))
        answer = self.connection.getresponse()
        return json.loads(answer.read())

    def increment(self, key, value):
        self.run(ADD, key, value)

    def total(self, key):
        rows = self.run("SELECT v FROM counters WHERE k = ?", key)
        return rows[0][0] if rows else 0
