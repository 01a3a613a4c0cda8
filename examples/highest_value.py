"""The highest value of each key, behind TCP: an example with everything in one file.

It contains a system and its client, functions of its own (`put_value`, `highest`, `compare`), a workload with its own
generator and final phase, a model, and a checker.

    krucible run --subject examples/highest_value.py --nemesis none --nodes 3 --time-limit 10
    krucible run --subject examples/highest_value.py:EachForItself --nemesis none --nodes 3 --time-limit 10

The first run must be valid: all servers forward to one server.  In the second run each server keeps its own values,
and both the model and the checker find this bug.
"""

import json
import socket
from dataclasses import dataclass, replace

from krucible import REFUSED, Client, Function, Model, Request, System, Workload
from workloads.generators import Call, Generator, reserve, uniform

SERVER = """
import json, socketserver, sys, socket
me, holder, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
highest = {}

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if me != holder:
                with socket.create_connection((holder, port), timeout=1) as there:
                    there.sendall(line)
                    self.wfile.write(there.makefile('rb').readline())
                continue
            f, key, value = json.loads(line)
            if f == 'put':
                highest[key] = max(value, highest.get(key, 0))
            self.wfile.write(json.dumps(highest.get(key, 0)).encode() + b'\\n')

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

Server((me, port), Handler).serve_forever()
"""


class Forwarding(System):
    """All servers forward to the first server, which holds the values."""

    port = 7000

    def holder(self, node, nodes):
        return nodes[0]

    async def start(self, node, nodes):
        await node.write("server.py", SERVER)
        return ["python3", "server.py", node.address, self.holder(node, nodes).address, str(self.port)]


class EachForItself(Forwarding):
    """Each server holds its own values, a bug that the run must find."""

    def holder(self, node, nodes):
        return node


class HighestClient(Client):
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

    def put_value(self, key, value):
        return self.ask("put", key, value)

    def highest(self, key):
        return self.ask("get", key, 0)

    def compare(self, key):
        """Ask every server, one after another."""
        answers = {}
        for name, server in self.servers.items():
            with socket.create_connection((server.host, server.port), timeout=1) as connection:
                connection.sendall(json.dumps(["get", key, 0]).encode() + b"\n")
                answers[name] = json.loads(connection.makefile("rb").readline())
        return answers


def step(state, operation):
    """The highest value put so far.  The answer to a put is the highest value, including the value just put."""
    if operation.f == "compare":
        return state  # a comparison is not atomic, so only the checker below judges it
    after = max(state, operation.input) if operation.f == "put" else state
    return REFUSED if operation.returned and operation.output != after else after


MODEL = Model("highest-value", init=lambda: 0, step=step, observers=frozenset({"highest", "compare"}))


def servers_agree(seen):
    """Does every server return the same highest value in the end?"""
    for operation in seen.final:
        if operation.returned and len({value for _, value in operation.output}) > 1:
            values = ", ".join(f"{name} {value}" for name, value in operation.output)
            yield f"the servers differ about {operation.key}: {values}", [operation]


@dataclass(frozen=True)
class Climb(Generator):
    """Each thread puts growing values, and no two threads put the same value."""

    keys: tuple[str, ...]
    step: int = 0

    def next(self, turn):
        key = turn.rng.choice(self.keys)
        value = self.step * turn.threads + turn.placement.thread + 1
        return Request("put", key, value), replace(self, step=self.step + 1)


class HighestValue(Workload):
    name = "highest-value"
    summary = "values are put, and the highest of each key is read"
    checkers = (MODEL, servers_agree)
    own_functions = {
        "put_value": Function("put a value; the highest value then", "key value", "number"),
        "highest": Function("the highest value that was put", "key", "number", observes=True),
        "compare": Function("server -> its highest value, of all servers", "key", "anything", observes=True),
    }
    functions = {"put": "put_value", "highest": "highest", "compare": "compare"}
    reads, writes = frozenset({"highest", "compare"}), frozenset({"put"})
    real_test = "Values are put through several servers at once, and all servers are compared at the end."

    def generator(self, placement):
        key = uniform(self.names)
        read = Call(lambda turn: Request("highest", key(turn)))
        return reserve(placement, readers=read, others=Climb(self.names))

    def final(self):
        return [Request("compare", name) for name in self.names]
