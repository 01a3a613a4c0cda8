"""PySyncObj, Raft as a library in Python, here with a dictionary and a small server around it."""

import json
import socket

from krucible import Client, Needs, System

SERVER = """
import json, os, socketserver, sys
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.batteries import ReplDict

me, others, entries = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
held = ReplDict()
files = {"journalFile": "journal", "fullDumpFile": "dump"}
conf = SyncObjConf(logCompactionMinEntries=entries, logCompactionMinTime=3600, **files)
raft = SyncObj(me + ":7001", [f"{other}:7001" for other in others], conf, consumers=[held])

def status():
    known = raft.getStatus()
    return {name: str(known[name]) for name in ("leader", "self", "raft_term", "commit_idx", "last_applied")}

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            f, key, value = json.loads(line)
            if f == "add":
                held.set(f"{key}/{value}", os.urandom(1000), sync=True)  # raises unless PySyncObj answers SUCCESS
                answer = value
            else:
                answer = status() if f == "status" else list(held.keys())
            self.wfile.write(json.dumps(answer).encode() + b"\\n")

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

Server((me, 7000), Handler).serve_forever()
"""
ENTRIES_UNTIL_COMPACTION = 100
ASK_STATUS = """exec 3<>/dev/tcp/{}/7000; echo '["status", "", 0]' >&3; head -n 1 <&3"""


class PySyncObj(System):
    port = 7000
    needs = Needs(wheels=("pysyncobj==0.3.17",))

    async def start(self, node, nodes):
        self.names = {f"{other.address}:7001": other.name for other in nodes}
        await node.write("server.py", SERVER)
        others = ",".join(other.address for other in nodes if other is not node)
        return [*node.python, "server.py", node.address, others, str(ENTRIES_UNTIL_COMPACTION)]

    async def status(self, node):
        answer = await node.output(ASK_STATUS.format(node.address))
        known = json.loads(answer) if answer else {}
        leader = self.names.get(known.get("leader"))
        return node.reports(int(known["raft_term"]), leader) if leader else None

    async def caught_up(self, nodes):
        known = {node.name: json.loads(await node.output(ASK_STATUS.format(node.address)) or "{}") for node in nodes}
        committed = max(int(each.get("commit_idx", 0)) for each in known.values())
        behind = [name for name, each in known.items() if int(each.get("last_applied", 0)) < committed]
        return f"{', '.join(behind)} has not applied what is committed" if behind else None


class DictionaryClient(Client):
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

    def add(self, key, value):
        self.ask("add", key, value)

    def members(self, key):
        return sorted(int(name.split("/")[1]) for name in self.ask("read", key, 0) if name.startswith(key + "/"))
