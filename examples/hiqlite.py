"""hiqlite 0.15.3, SQLite replicated by Raft in Rust, embedded in a program that speaks JSON lines."""

import json

from json_lines import JsonLines

from krucible import Crate, Needs, System

NODE = "crates/hiqlite_node"


class Hiqlite(System):
    port = 7000
    needs = Needs(debian=("ca-certificates",), crates={"hiqlite_node": Crate(NODE)})
    complaints = "panicked at"
    raft = 0  # index of the database's Raft group; locks are in the Raft group of the cache

    async def start(self, node, nodes):
        return ["./hiqlite_node", str(node.index + 1), str(self.port), *(each.address for each in nodes)]

    async def status(self, node):
        line = await node.ask(self.port, '["status"]')
        if not line or "ok" not in (found := json.loads(line)):
            return None
        term, leader = found["ok"][2 * self.raft : 2 * self.raft + 2]
        return node.reports(term, f"n{leader}" if leader else None)


class HiqliteClient(JsonLines):
    def read(self, key):
        return next(iter(self.ask("query", "SELECT v FROM register WHERE k = $1", [key])), None)

    def write(self, key, value):
        self.ask("execute", "INSERT OR REPLACE INTO register (k, v) VALUES ($1, $2)", [key, value])

    def acquire(self, key):
        return self.ask("lock", key)

    def release(self, key):
        if not self.ask("unlock", key):
            raise RuntimeError("the lease of the lock had ended before")


class Locks(Hiqlite):
    """hiqlite's distributed locks."""

    raft = 1


def mended(**patches):
    return Needs(debian=("ca-certificates",), crates={"hiqlite_node": Crate(NODE, patches)})


class ReadsMended(Hiqlite):
    """openraft delays a read until all entries that a restarted leader finds in its log are committed."""

    needs = mended(openraft="mends/openraft.patch")


class LogMended(Hiqlite):
    """The write-ahead log rolls back a record that was not written before a power loss.  Stale reads are fixed, too,
    because power losses of a leader would also show that finding."""

    needs = mended(**{"hiqlite-wal": "mends/hiqlite-wal.patch", "openraft": "mends/openraft.patch"})


class LocksMended(Locks):
    """When a lock's lease has ended by the local clock, a waiting member claims the lock through Raft."""

    needs = mended(hiqlite="mends/hiqlite.patch")
