"""openraft 0.10.0-alpha.19, the Raft of Databend and hiqlite in Rust, embedded in a program that speaks JSON lines.

Promised in its docs/protocol/read.md: "Read operations within a Raft cluster are guaranteed to be linearizable".  A
leader hands its leadership over to the next node after two seconds, as `trigger().transfer_leader` allows.  The log
is kept in memory (openraft-memstore), so no fault may end a node.
"""

import json

from json_lines import JsonLines

from krucible import Crate, Needs, System

NODE = "crates/openraft_node"


class LeaseReads(System):
    """Reads by `ReadPolicy::LeaseRead`: a leader answers alone while its lease lasts."""

    port = 7000
    needs = Needs(crates={"openraft_node": Crate(NODE)})
    complaints = "panicked at"
    failover_s = 8.0
    reads = "lease"

    async def start(self, node, nodes):
        return ["./openraft_node", self.reads, str(node.index + 1), str(self.port), *(each.address for each in nodes)]

    async def status(self, node):
        line = await node.ask(self.port, '["status"]')
        if not line or "ok" not in (found := json.loads(line)):
            return None
        term, leader = found["ok"]
        return node.reports(term, f"n{leader}" if leader else None)

    async def caught_up(self, nodes):
        """Demand only that each node answers: the leader changes every two seconds, so nodes seldom agree on it."""
        for node in nodes:
            if await self.status(node) is None:
                return f"{node.name} does not answer"
        return None


class IndexReads(LeaseReads):
    """Reads by `ReadPolicy::ReadIndex`: a leader asks a majority for each read."""

    reads = "index"


class LeaseEnds(LeaseReads):
    """A leader gives up its lease when it hands its leadership over."""

    needs = Needs(crates={"openraft_node": Crate(NODE, {"openraft": "mends/openraft.patch"})})


class OpenraftClient(JsonLines):
    def leader(self):
        _, leader = max(self.known())
        return f"n{leader}"

    def read(self, key):
        text = self.ask("read", key)
        return None if text is None else int(text)

    def write(self, key, value):
        self.ask("write", key, str(value))
