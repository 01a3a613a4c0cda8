"""Registers behind TCP: the first node holds them, the others forward to it."""

import json
import socket

from krucible import Client, System

SERVER = """
import json, socketserver, sys, socket
me, first, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
held = {}

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if me != first:
                with socket.create_connection((first, port), timeout=1) as there:
                    there.sendall(line)
                    self.wfile.write(there.makefile('rb').readline())
                continue
            f, key, value = json.loads(line)
            if f == 'write':
                held[key] = value
            self.wfile.write(json.dumps(held.get(key)).encode() + b'\\n')

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

Server((me, port), Handler).serve_forever()
"""


class Registers(System):
    port = 7000

    async def start(self, node, nodes):
        await node.write("server.py", SERVER)
        await node.write("starts", str(node.starts))
        server = ["python3", "server.py", node.address, nodes[0].address, str(self.port)]
        return {"server": server, "beside": "exec sleep 1000"} if node.index else server

    async def caught_up(self, nodes):
        return None if len(nodes) > 1 else "a node is dead"


class RegisterClient(Client):
    def open(self, server):
        self.socket = socket.create_connection((server.host, server.port))
        self.lines = self.socket.makefile("rb")

    def close(self):
        self.socket.close()

    def ask(self, *words):
        self.socket.sendall(json.dumps(words).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise EOFError("the server closed the connection")
        return json.loads(line)

    def read(self, key):
        return self.ask("read", key, None)

    def write(self, key, value):
        self.ask("write", key, value)
