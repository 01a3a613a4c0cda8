"""A tiny replicated log that is correct by construction, and what a run of it leaves behind.

No messages and no clocks: a `Quorum` moves in whole steps (elect, write, replicate, cut, heal, crash, copy), each of
which obeys Raft's rules, and every node traces what it does in the order a real one must.  `Quorum.evidence()` is then
a run folder's content as plain rows, which a test may tamper with before it writes them out and judges them.

Whole runs are random ones that are correct, and ones in which a named rule was broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from journals import write_header, write_journal
from records_of_runs import whole

from checkers.base.columns import COPIES, HISTORY, LOG, TRACE
from checkers.base.history import Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Verdict
from checkers.catalog import CATALOG
from checkers.judging import judge_run
from system_under_test.kraft.log.batch import extend

Row = dict[str, Any]

OF_LOGS_AND_TRACES = (
    "history-against-log",
    "committed-never-lost",
    "high-watermark-majority",
    "commit-own-epoch",
    "leader-completeness",
    "log-matching",
    "election-safety",
    "vote-once",
    "vote-up-to-date",
    "monotonicity",
    "state-machine-safety",
    "snapshot-equals-prefix",
    "nodes-stay-up",
    "recovery",
    "vacuity",
)


@dataclass
class Evidence:
    """What a run folder holds, as rows that may be tampered with."""

    history: list[Row]
    logs: dict[str, list[Row]]
    traces: dict[str, list[Row]]
    copies: list[Row]
    faults: list[Row]
    outcome: Row
    test: Row
    demands: Demands = field(default_factory=Demands)
    rows: int = -1
    """How many rows the journal counts."""

    def answer(self, node: str, time_ns: int, type_: Type = Type.OK) -> None:
        """Add one more read of a client, which this node answers."""
        last = max(self.history, key=lambda row: row["index"])
        read = last | {"f": "read", "value": None, "node": "", "type": int(Type.INVOKE), "process": 90}
        for row in (read, read | {"node": node, "type": int(type_)}):
            self.history.append(row | {"index": last["index"] + 1, "time_ns": time_ns})
            last = self.history[-1]

    def ended(self) -> Evidence:
        """Set the journal's row count to that of the history, so that the run is whole."""
        self.rows = len(self.history)
        return self

    def write(self, folder: Path) -> StoredRun:
        """Write the evidence as a run folder.  Faults without measurements get those of a fault as ordered."""
        count = self.test.get("spec", {}).get("nodes", len(self.logs))
        servers = [f"n{i}" for i in range(1, count + 1)]
        files = StoredRun(folder, self.demands)
        for path in (files.log, files.trace):
            path.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self.history, HISTORY), files.history)
        for node, rows in self.logs.items():
            pq.write_table(pa.Table.from_pylist(rows, LOG), files.log / f"{node}.parquet")
        for node, rows in self.traces.items():
            pq.write_table(pa.Table.from_pylist(rows, TRACE), files.trace / f"{node}.parquet")
        pq.write_table(pa.Table.from_pylist(self.copies, COPIES), files.copies_table)
        faults = [whole(fault if "measured" in fault else measured(fault, servers)) for fault in self.faults]
        write_header(folder, **self.test)
        write_journal(folder, outcome=self.outcome or None, faults=faults, rows=max(self.rows, 0))
        return files

    def judge(self, folder: Path, *names: str) -> dict[str, Verdict]:
        """Verdicts of some checkers (all that judge logs, traces and runs, if none is named), judged in process."""
        return judge_run(self.write(folder), [CATALOG[name] for name in names or OF_LOGS_AND_TRACES])


def measured(fault: Row, servers: list[str]) -> Row:
    """The fault with measurements that show it as ordered, from inject to heal and after the heal.

    A fault on nodes stops their processes."""
    cut = {(a, b) for a, b in fault["cut"]}
    links = {f"{a}>{b}": [60, 0 if (a, b) in cut else 60] for a in servers for b in servers if a != b}
    healed = {pair: [sent, sent] for pair, (sent, _) in links.items()}
    held, running = dict.fromkeys(fault["nodes"], "stopped"), dict.fromkeys(fault["nodes"], "running")
    begin, end = fault["injected_ns"], fault["heal_ordered_ns"]
    return fault | {
        "ordered": {"held": {"states": held}, "healed": {"states": running}},
        "measured": [
            {"phase": "inject", "from_ns": begin, "to_ns": begin, "links": links, "states": held},
            {"phase": "before heal", "from_ns": end, "to_ns": end, "links": links, "states": held},
            {"phase": "heal", "from_ns": end, "to_ns": end, "links": healed, "states": running},
        ],
    }


@dataclass(frozen=True)
class Entry:
    epoch: int
    crc: int
    key: str | None = None
    value: int | None = None


@dataclass
class ToyNode:
    name: str
    log: list[Entry] = field(default_factory=list)
    epoch: int = 0
    role: str = ""
    leader: str | None = None
    led_from: int = 0
    voted_for: str | None = None
    mark: int | None = None
    applied: int = 0
    incarnation: int = 0
    snapshot_end: int = 0
    disk: str | None = None
    trace: list[Row] = field(default_factory=list)

    def hash_at(self, end: int) -> int:
        value = 0
        for offset, entry in enumerate(self.log[:end]):
            value = extend(value, offset, entry.epoch, entry.crc)
        return value

    def last(self) -> tuple[int, int]:
        return (self.log[-1].epoch if self.log else 0, len(self.log))


class Quorum:
    """Five voters n1 ... n5, and one register workload.  names_disks: each start names the disk of the node."""

    def __init__(self, seed: int = 0, size: int = 5, *, names_disks: bool = False) -> None:
        self.random = Random(seed)
        self.nodes = {f"n{i}": ToyNode(f"n{i}") for i in range(1, size + 1)}
        self.leader: str | None = None
        self.group = set(self.nodes)  # nodes that receive the leader's messages
        self.history: list[Row] = []
        self.copied: list[Row] = []
        self.logs: dict[str, list[Row]] = {name: [] for name in self.nodes}
        self.faults: list[Row] = []
        self.elected: list[Row] = []
        self.copy_count = 0
        self._time_ns = 0
        self._process = 0
        self._value = 0
        for node in self.nodes.values():
            node.disk = f"first disk of {node.name}" if names_disks else None
            self._start(node)
            self._become(node, "unattached")

    # What happens

    def elect(self, name: str, voters: set[str] | None = None, *, fair: bool = True) -> bool:
        """`name` asks `voters` (by default all nodes) for their vote in a new epoch; True if it won.

        fair: voters refuse a candidate whose log is behind their own, as they should.
        """
        voters = voters or set(self.nodes)
        candidate = self.nodes[name]
        self._campaign(candidate, max(self.nodes[v].epoch for v in voters))
        epoch = candidate.epoch + 1
        granted = 0
        for voter in (self.nodes[v] for v in sorted(voters, key=lambda v: v != name)):
            voter.voted_for = None
            if voter is candidate:
                voter.epoch = epoch
            else:
                self._become(voter, "unattached", epoch)
            if voter.last() <= candidate.last() or not fair:
                voter.voted_for = name
                self._say(voter, "vote", peer=name)
                granted += 1
            if voter is candidate:
                self._become(voter, "candidate")
        if 2 * granted <= len(self.nodes):
            return False
        self.leader, self.group = name, set(voters)
        candidate.led_from = len(candidate.log)
        self._become(candidate, "leader", peer=name, offset=len(candidate.log))
        self.elected.append({"time_ns": self._time_ns, "node": name, "epoch": epoch})
        for v in sorted(voters - {name}):
            self._become(self.nodes[v], "follower", peer=name)
        self._append(candidate, [Entry(epoch, self._crc())])
        return True

    def write(self, key: str = "k0", *, replicate: bool = True, followers: set[str] | None = None) -> str:
        """A client writes at the leader: "ok" if it was committed, else "info"."""
        self._value += 1
        process, self._process = self._process, self._process + 1
        leader = self.nodes[str(self.leader)]
        self._event(process, 0, key, self._value, "")
        self._append(leader, [Entry(leader.epoch, self._crc(), key, self._value)])
        if replicate:
            self.replicate(followers)
        done = (leader.mark or 0) >= len(leader.log)
        self._event(process, 1 if done else 3, key, self._value, leader.name)
        return "ok" if done else "info"

    def refuse(self, key: str = "k0") -> None:
        """A write that certainly does not happen."""
        self._value += 1
        process, self._process = self._process, self._process + 1
        self._event(process, 0, key, self._value, "")
        self._event(process, 2, key, self._value, "n1")

    def read_all(self) -> None:
        """Two overlapping final reads of every key (what they return is not judged here)."""
        for key in sorted({r["key"] for r in self.history}):
            process, self._process = self._process, self._process + 2
            for reader, type_ in ((process, 0), (process + 1, 0), (process, 1), (process + 1, 1)):
                self._event(reader, type_, key, None, str(self.leader), "read")

    def replicate(self, followers: set[str] | None = None) -> None:
        """Followers within reach fetch all; the mark rises if a majority has it; then they learn the mark."""
        leader = self.nodes[str(self.leader)]
        reached = [self.nodes[f] for f in sorted((followers or self.group) & self.group) if f != leader.name]
        for follower in reached:
            self._fetch(leader, follower)
        held = sum(len(n.log) >= len(leader.log) for n in [leader, *reached])
        if 2 * held > len(self.nodes) and leader.log and leader.log[-1].epoch == leader.epoch:
            self._commit(leader, len(leader.log))
        for follower in reached:
            if leader.mark is not None and leader.mark > leader.led_from:
                self._commit(follower, min(len(follower.log), leader.mark))

    def commit_alone(self, followers: set[str] | None = None) -> int:
        """The leader sends one entry to `followers` only, and commits it without a majority.  Returns its mark."""
        leader = self.nodes[str(self.leader)]
        self._append(leader, [Entry(leader.epoch, self._crc())])
        for follower in sorted((followers or set()) - {leader.name}):
            self._fetch(leader, self.nodes[follower])
        self._commit(leader, len(leader.log))
        return len(leader.log)

    def snapshot(self, name: str, peer: str | None = None, end: int | None = None) -> Row:
        """`name` writes a snapshot of all that it applied (or fetched one that ends at `end`), and cuts its log there
        in every later copy."""
        node = self.nodes[name]
        node.snapshot_end = node.applied if end is None else end
        self._say(node, "snapshot", offset=node.snapshot_end, hash=node.hash_at(node.snapshot_end) ^ 1, peer=peer)
        return node.trace[-1]

    def cut(self, away: set[str]) -> None:
        """Cut `away` off from the rest; the fault is proved to be in force."""
        links = [[a, b] for a in self.nodes for b in self.nodes if (a in away) != (b in away)]
        leader = self.leader if self.leader in away else None
        card = {"number": len(self.faults) + 1, "kind": "partition", "name": "halves", "at_s": 0.0, "heal_s": 1.0}
        fault = {"card": card, "achieved": "installed", "words": f"{sorted(away)} cut off", "reason": "", "nodes": []}
        times = {"injected_ns": self._tick(), "heal_ordered_ns": -1, "healed_ns": -1, "apply_ms": 0.0005}
        self.faults.append({**fault, "leader": leader, "epoch": 1, "cut": links, **times})
        self.group = {n for n in self.group if (n in away) == (self.leader in away)}

    def pass_time(self, ns: int) -> None:
        """Advance time without any event."""
        self._time_ns += ns

    def heal(self) -> None:
        """Copies are taken, then everybody hears the leader of the highest epoch again."""
        self.copy(f"before heal {len(self.faults)}")
        self.faults[-1]["heal_ordered_ns"] = self._tick()
        self.faults[-1]["healed_ns"] = self._tick()
        self.leader = str(max(self.elected, key=lambda e: e["epoch"])["node"])
        self.group = set(self.nodes)
        self.replicate()

    def crash(self, name: str, keep: int | None = None) -> None:
        """Kill and restart: what was flushed is there again, the mark and the applied state are not."""
        node = self.nodes[name]
        node.incarnation += 1
        node.mark, node.applied = None, 0
        del node.log[keep if keep is not None else len(node.log) :]
        self._start(node)
        led = node.role in ("leader", "resigned")
        self._become(node, "resigned" if led else "candidate" if node.voted_for == name else "unattached")

    def wipe(self, name: str, *, own_id: bool = True) -> None:
        """Kill a follower and restart it with an empty disk, which has an id of its own or passes for the old one."""
        node = self.nodes[name]
        node.epoch, node.voted_for, node.role = 0, None, ""
        node.disk = f"next disk of {name}" if own_id else node.disk
        self.crash(name, keep=0)

    def copy(self, when: str) -> None:
        for node in self.nodes.values():
            self.logs[node.name] += self._log_rows(node)
            copy = {"copy": self.copy_count, "node": node.name, "when": when, "state": "running", "error": None}
            files = {"log_end": len(node.log), "torn_bytes": 0, "disk": node.disk}
            state = {"quorum_epoch": node.epoch, "voted_for": node.voted_for, "trace_seq": len(node.trace) - 1}
            self.copied.append({**copy, **files, **state})
        self.copy_count += 1

    def evidence(self) -> Evidence:
        """Everything so far, after a final copy."""
        self.copy("final")
        keys = sorted({r["key"] for r in self.history})
        proof = {"verdict": "as ordered", "links": {}, "states": {}, "wrong": []}
        recovery = {"needed": True, "recovered": True, "seconds": 0.4, "limit_s": 60.0, "waiting_for": ""}
        outcome = {
            "phases": [{"name": "main", "start_ns": 0, "end_ns": self._time_ns}],
            "scheduled_rate_hz": 200.0,
            "achieved_rate_hz": 198.0,
            "loop_stalls": [],
            "steal_s": dict.fromkeys(self.nodes, 0.01),
            "recovery": {**recovery, "proof": proof},
            "deaths": [],
            "final_reads": dict.fromkeys(keys, "ok"),
            "leaders": self.elected,
            "interrupted": False,
        }
        traces = {name: node.trace for name, node in self.nodes.items()}
        test = {"spec": {"nodes": len(self.nodes), "backend": "docker"}}
        of_run: dict[str, Any] = {"servers": tuple(self.nodes), "keys": tuple(keys), "nemesis": "partition"}
        whole: dict[str, Any] = dict.fromkeys(("nodes", "logs", "traces", "elections", "faults"), True)
        demands = Demands(final_reads=tuple(("read", key) for key in keys), **of_run, **whole)
        return Evidence(self.history, self.logs, traces, self.copied, self.faults, outcome, test, demands)

    # How it happens

    def _start(self, node: ToyNode) -> None:
        if node.disk is not None:
            self._say(node, "disk", detail=node.disk)
        self._say(node, "start", offset=len(node.log), hash=node.hash_at(len(node.log)))
        self._say(node, "quorum-state", peer=node.voted_for)

    def _fetch(self, leader: ToyNode, follower: ToyNode) -> None:
        if follower.epoch < leader.epoch or follower.leader != leader.name:
            follower.voted_for = follower.voted_for if follower.epoch == leader.epoch else None
            self._become(follower, "follower", leader.epoch, peer=leader.name)
        same = 0
        while same < min(len(leader.log), len(follower.log)) and leader.log[same] == follower.log[same]:
            same += 1
        if same < len(follower.log):
            del follower.log[same:]
            self._say(follower, "truncate", offset=same)
        if same < len(leader.log):
            self._append(follower, leader.log[same:])

    def _append(self, node: ToyNode, entries: list[Entry]) -> None:
        node.log += entries
        self._say(node, "append", epoch=entries[-1].epoch, offset=len(node.log))
        self._say(node, "flush", offset=len(node.log))

    def _commit(self, node: ToyNode, mark: int) -> None:
        if node.mark is not None and mark <= node.mark:
            return
        node.mark = mark
        self._say(node, "high-watermark", offset=mark, hash=node.hash_at(mark))
        for end in range(node.applied + 1, mark + 1):
            self._say(node, "applied", offset=end, hash=node.hash_at(end) ^ 1)
        node.applied = max(node.applied, mark)

    def _campaign(self, node: ToyNode, epoch: int) -> None:
        """On the way to an election: a node that leads gives up first, and one that lags learns of the epoch."""
        if node.role == "leader":
            self._become(node, "resigned")
        if node.role == "resigned":
            epoch = max(epoch, node.epoch + 1)
        if node.epoch < epoch:
            self._become(node, "unattached", epoch)
        self._become(node, "prospective", peer=node.leader)

    def _become(self, node: ToyNode, role: str, epoch: int | None = None, **columns: Any) -> None:
        node.role, node.leader = role, columns.get("peer")
        raised = epoch is not None and epoch > node.epoch
        if epoch is not None and raised:
            node.epoch, node.voted_for = epoch, None
        if raised or role in ("follower", "leader"):
            self._say(node, "quorum-state", peer=node.voted_for)
        self._say(node, "role", role=role, **columns)

    def _say(self, node: ToyNode, event: str, **columns: Any) -> None:
        at = {"node": node.name, "incarnation": node.incarnation, "seq": len(node.trace), "time_ns": self._tick()}
        node.trace.append({**dict.fromkeys(TRACE.names), **at, "event": event, "epoch": node.epoch, **columns})

    def _log_rows(self, node: ToyNode) -> list[Row]:
        value = 0
        rows = []
        for offset, entry in enumerate(node.log):
            value = extend(value, offset, entry.epoch, entry.crc)
            if offset < node.snapshot_end:
                continue
            of_entry = {"epoch": entry.epoch, "checksum": entry.crc << 31, "key": entry.key, "value": entry.value}
            place = {"copy": self.copy_count, "node": node.name, "offset": offset}
            rows.append({**place, **of_entry, "batch_offset": offset, "batch_hash": value})
        return rows

    def _event(self, process: int, type_: int, key: str, value: int | None, node: str, f: str = "write") -> None:
        at = {"index": len(self.history), "time_ns": self._tick(), "process": process, "type": type_, "node": node}
        done = {"f": f, "key": key, "value": value, "error": "timeout" if type_ == 3 else None}
        self.history.append({**dict.fromkeys(HISTORY.names), **at, **done})

    def _tick(self) -> int:
        self._time_ns += 1000
        return self._time_ns

    def _crc(self) -> int:
        return self.random.getrandbits(32)


def random_run(seed: int, steps: int = 40) -> Quorum:
    """Elections, committed and uncommitted writes, stale tails, crashes, cuts and heals, in random order; at the end
    everybody has caught up."""
    quorum = Quorum(seed)
    quorum.elect("n1")
    quorum.replicate()
    shake(quorum, steps)
    quorum.write()
    quorum.read_all()
    return quorum


def shake(quorum: Quorum, steps: int) -> None:
    """Some steps in random order, from and to a state in which everybody hears the leader."""
    random = quorum.random
    cut: set[str] = set()
    for _ in range(steps):
        match random.randrange(8):
            case 0 | 1 | 2:
                quorum.write(f"k{random.randrange(3)}")
            case 3:
                some = set(random.sample(sorted(quorum.nodes), random.randrange(1, 5)))
                quorum.write(f"k{random.randrange(3)}", followers=some | {str(quorum.leader)})
            case 4:
                quorum.refuse()
            case 5 if not cut:
                cut = set(random.sample(sorted(quorum.nodes), random.randrange(1, 3)))
                old = str(quorum.leader)
                quorum.cut(cut)
                for _ in range(random.randrange(3)):
                    quorum.write(f"k{random.randrange(3)}")
                if old in cut:
                    elect_any(quorum, set(quorum.nodes) - cut)
            case 6 if cut:
                cut = set()
                quorum.heal()
            case 7 if not cut:
                name = random.choice(sorted(quorum.nodes))
                quorum.crash(name)
                elect_any(quorum, set(quorum.nodes))
    if cut:
        quorum.heal()


def minority_commit(seed: int, steps: int = 20) -> tuple[Quorum, int, int]:
    """A correct run but for one mark that a leader, cut off with at most one follower, makes without a majority; the
    others elect another.  (the run, the epoch of that mark, the mark)."""
    quorum = Quorum(seed)
    quorum.elect("n1")
    quorum.replicate()
    shake(quorum, steps)
    quorum.replicate()
    leader = str(quorum.leader)
    follower = quorum.random.choice(sorted(set(quorum.nodes) - {leader}))
    with_it = {follower} if quorum.random.random() < 0.5 else set()
    epoch = quorum.nodes[leader].epoch
    quorum.cut({leader, *with_it})
    for _ in range(quorum.random.randrange(1, 4)):
        mark = quorum.commit_alone(with_it)
    elect_any(quorum, set(quorum.nodes) - {leader, *with_it})
    for _ in range(quorum.random.randrange(4)):
        quorum.write()
    quorum.heal()
    shake(quorum, steps)
    quorum.write()
    quorum.read_all()
    return quorum, epoch, mark


def unfair_leader(seed: int, steps: int = 20) -> tuple[Quorum, int]:
    """A correct run but for one leader whose log is long enough and of an older epoch: it was cut off with a tail, and
    is elected all the same.  (the run, the epoch it then leads)."""
    quorum = Quorum(seed)
    quorum.elect("n1")
    quorum.replicate()
    shake(quorum, steps)
    quorum.replicate()
    old = str(quorum.leader)
    quorum.cut({old})
    for _ in range(quorum.random.randrange(3, 6)):
        quorum.write(replicate=False)
    others = set(quorum.nodes) - {old}
    elect_any(quorum, others)
    quorum.write()
    quorum.copy("before it leads again")
    quorum.faults[-1]["heal_ordered_ns"] = quorum.faults[-1]["healed_ns"] = quorum._tick()
    assert quorum.elect(old, fair=False)
    quorum.replicate()
    shake(quorum, steps)
    quorum.write()
    quorum.read_all()
    return quorum, max(int(e["epoch"]) for e in quorum.elected if e["node"] == old)


def elect_any(quorum: Quorum, voters: set[str]) -> None:
    """Elect one of `voters`, which are a majority.  One of them has the longest log, so one of them can win."""
    order = sorted(voters)
    quorum.random.shuffle(order)
    for name in order * len(order):
        if quorum.elect(name, voters):
            quorum.replicate()
            return
    raise AssertionError("no voter of a majority was elected")
