"""OVSDB 3.1 of Open vSwitch as Debian packages it: a database with its own Raft, and sets stored as rows.

A server answers a plain select from its own copy, which may be old.  So each read is a transaction that also writes.

Promised in ovsdb(7): "atomic, consistent, isolated, durable transactions", while a majority of the servers works.
"""

import json
import socket

from krucible import Client, Needs, System

COLUMNS = {"k": {"type": "string"}, "v": {"type": "integer"}}
SCHEMA = {
    "name": "Krucible",
    "version": "1.0.0",
    "tables": {
        "Kept": {"columns": COLUMNS, "indexes": [["k", "v"]], "isRoot": True},
        "Reads": {"columns": {"reader": {"type": "string"}}, "isRoot": True},
    },
}


class OVSDB(System):
    port = 6640
    needs = Needs(debian=("openvswitch-common",))

    async def start(self, node, nodes):
        await node.write("schema", json.dumps(SCHEMA))
        own, first = f"tcp:{node.address}:6644", f"tcp:{nodes[0].address}:6644"
        make = f"join-cluster kept.db Krucible {own} {first}" if node.index else f"create-cluster kept.db schema {own}"
        server = f"ovsdb-server --remote=ptcp:{self.port}:{node.address} --unixctl=$PWD/control kept.db"
        return f"test -f kept.db || ovsdb-tool {make}; exec {server}"

    async def status(self, node):
        answer = await node.output("ovs-appctl -t $PWD/control cluster/status Krucible")
        words = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
        if words.get("Status") != "cluster member" or words["Leader"] == "unknown":
            return None
        return node.reports(int(words["Term"]), node.name if words["Role"] == "leader" else None)


class RowClient(Client):
    def open(self, server):
        self.received = ""
        return socket.create_connection((server.host, server.port), timeout=2)

    def send(self, **message):
        self.connection.sendall(json.dumps(message).encode())

    def next_message(self):
        while True:
            try:
                message, end = json.JSONDecoder().raw_decode(self.received)
            except ValueError:
                part = self.connection.recv(1 << 16).decode()
                if not part:
                    raise EOFError("the server closed the connection") from None
                self.received += part
            else:
                self.received = self.received[end:].lstrip()
                return message

    def transact(self, *operations):
        self.send(method="transact", params=["Krucible", *operations], id=1)
        while (message := self.next_message()).get("method") == "echo":
            self.send(result=message["params"], error=None, id=message["id"])
        for result in message["result"]:
            if result and "error" in result:
                raise RuntimeError(result["error"])
        return message["result"]

    def add(self, key, value):
        self.transact({"op": "insert", "table": "Kept", "row": {"k": key, "v": value}})

    def members(self, key):
        written = {"op": "insert", "table": "Reads", "row": {"reader": key}}
        select = {"op": "select", "table": "Kept", "where": [["k", "==", key]], "columns": ["v"]}
        _, found = self.transact(written, select)
        return sorted(row["v"] for row in found["rows"])
