"""Clients of a program that embeds a library and speaks JSON lines (docs/library-as-a-system.md)."""

import json
import socket

from krucible import Client


class Refused(Exception):
    """The program certainly did nothing."""


class JsonLines(Client):
    refused = (Refused,)

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
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        if "ok" not in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def known(self):
        """Yield (term, leader) as reported by each program.  Raises LookupError if no program knows a leader."""
        found = False
        for server in self.servers.values():
            try:
                with socket.create_connection((server.host, server.port), timeout=0.3) as there:
                    there.sendall(b'["status"]\n')
                    term, leader = json.loads(there.makefile("rb").readline() or b"{}").get("ok") or (0, None)
            except OSError:
                continue
            if leader:
                found = True
                yield term, leader
        if not found:
            raise LookupError("no node knows a leader")


class Elements(JsonLines):
    """Sets whose elements are keys of a store."""

    def add(self, key, value):
        self.ask("add", key, value)

    def members(self, key):
        return [int(each) for each in self.ask("members", key)]


class Transactions(Elements):
    """Sets, and lists that a transaction reads and writes."""

    def transact_lists(self, steps):
        return self.ask("transact", steps)
