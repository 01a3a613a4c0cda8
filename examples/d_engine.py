"""d-engine 0.2.4, a key-value store with Raft in Rust, embedded in a program that speaks JSON lines."""

import json

from json_lines import JsonLines

from krucible import Crate, Needs, System


def built(**patches):
    """Return the crate with these patches.  d-engine-proto ships generated code, so a patch removes its call of protoc."""
    patches |= {"d-engine-proto": "mends/d-engine-proto.patch"}
    return Needs(crates={"d_engine_node": Crate("crates/d_engine_node", patches)})


CONFIGURATION = """
[cluster]
node_id = {number}
listen_address = "{node.address}:9081"
initial_cluster = [{members}]
db_root_dir = "{node.data_dir}/db"
log_dir = "{node.data_dir}/logs"
[raft]
general_raft_timeout_duration_in_ms = 1000
[raft.election]
election_timeout_min = 1000
election_timeout_max = 2000
[raft.read_consistency]
lease_duration_ms = 500
[raft.snapshot]
snapshots_dir = "{node.data_dir}/snapshots"
"""


class DEngine(System):
    port = 7000
    needs = built()

    async def start(self, node, nodes):
        member = '{ id = %d, address = "%s:9081", role = 1, status = 3 }'
        members = ", ".join(member % (each.index + 1, each.address) for each in nodes)
        await node.write("node.toml", CONFIGURATION, node=node, number=node.index + 1, members=members)
        return f"mkdir -p db; exec ./d_engine_node node.toml {node.address}:{self.port}"

    async def status(self, node):
        line = await node.ask(self.port, '["status"]')
        if not line or not (found := json.loads(line).get("ok")):
            return None
        term, leader = found
        return node.reports(term, f"n{leader}")


class DEngineClient(JsonLines):
    def leader(self):
        _, leader = next(self.known())
        return f"n{leader}"

    def read(self, key):
        text = self.ask("get", key)
        return None if text is None else int(text)

    def write(self, key, value):
        self.ask("put", key, str(value))


class ReadsMended(DEngine):
    """A lease begins when a majority had answered; a read waits for answers that arrive after the read."""

    needs = built(**{"d-engine-core": "mends/d-engine-core-reads.patch"})


class FatalMended(DEngine):
    """The node exits when its state machine cannot continue."""

    needs = built(**{"d-engine-core": "mends/d-engine-core-fatal.patch"})


class TermSaved(DEngine):
    """Term and vote are saved before a node requests or grants a vote."""

    needs = built(**{"d-engine-core": "mends/d-engine-core-term.patch"})
