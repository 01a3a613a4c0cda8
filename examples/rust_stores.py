"""Stores in Rust, embedded in a program that speaks JSON lines (docs/library-as-a-system.md).

Each promises that a transaction is on the disk when it returns, with the options that are set here:

* redb 4.6.0: "Fully ACID-compliant transactions", "Crash-safe by default".
* SurrealKV 1.2.0, the store of SurrealDB: with `Durability::Immediate` a commit waits "for a sync of the write-ahead log
  before it returns"; reads are of a snapshot, and of two transactions that write one key the second is refused.
* sled 0.34.7: transactions are serializable, and `flush` returns once they are on the disk.
* Persy 1.8.1: a transaction is fsynced when `commit` returns. Of two concurrent writes the last one wins by default.
* Canopydb 0.2.5: `commit_with(true)` waits for an fsync; ACID.
* LMDB through heed 0.22.1: "full ACID semantics", fsynced by default.
"""

from json_lines import Elements, Transactions

from krucible import Crate, Needs, System


class RustStore(System):
    port = 7000
    client = Transactions
    elections = False
    needs = Needs(crates={"stores_node": Crate("crates/stores_node")})
    complaints = "panicked at"
    store: str

    async def start(self, node, nodes):
        return ["./stores_node", self.store, f"{node.address}:{self.port}"]


class Redb(RustStore):
    store = "redb"


class SurrealKV(RustStore):
    store = "surrealkv"


class SurrealKV0212(RustStore):
    store = "surrealkv-0.21.2"


class Sled(RustStore):
    store = "sled"


class Persy(RustStore):
    client = Elements  # lists would lose elements, as documented
    store = "persy"


class CanopyDB(RustStore):
    store = "canopydb"


class LMDB(RustStore):
    store = "heed"


class SledMended(Sled):
    """Each write to the log is fsynced."""

    needs = Needs(crates={"stores_node": Crate("crates/stores_node", {"sled": "mends/sled.patch"})})
