"""fjall 3.1.7, a log-structured store in Rust, embedded in a program that speaks JSON lines.

Promised in its documentation: a batch is atomic, and with `PersistMode::SyncAll` durable once it is committed.
"""

from json_lines import Elements

from krucible import Crate, Needs, System

NODE = "crates/fjall_node"


class Fjall(System):
    port = 7000
    client = Elements
    elections = False
    needs = Needs(crates={"fjall_node": Crate(NODE)})
    complaints = "panicked at"

    async def start(self, node, nodes):
        return ["./fjall_node", f"{node.address}:{self.port}"]


class Mended(Fjall):
    """A batch that cannot be written completely poisons the database, as in fjall 3.1.9."""

    needs = Needs(crates={"fjall_node": Crate(NODE, {"fjall": "mends/fjall.patch"})})
