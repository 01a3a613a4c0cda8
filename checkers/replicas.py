"""Verify that the replicas of one object at several servers agree, by their answers, files and positions.

*Answers.*  All servers must give the same answers after the system has recovered (eventual convergence, Shapiro et al.
2011).

Systems without linearizable reads promise convergence: after writes have ended and faults were healed, all replicas
reach the same state.  The workload reads every key at every server, again and again until the answers agree or the time
is over.  Only the last answer of each server and key counts.

If two answers for one key differ, the promise is broken.  The witness names both answers, because nothing shows which
one is wrong.  A value that no client wrote breaks the promise, too.  If a server did not answer for a key, the verdict
is unknown.  The answers of f = "members" are sets, so the order of their elements does not matter.

Cost: the rows of the final phase, and one more pass over the history for the values that were read.

*Partitions.*  The replicas of each partition must be equal below their high watermarks.

A replica writes its high watermark to a checkpoint file every few seconds.  All batches below a high watermark were in
every in-sync replica, and no clean election loses them.  So any two copies of replicas have the same batches below the
lower one of their high watermarks, at whatever times the copies were taken.  Two batches are equal if base offset, end,
leader epoch and CRC are equal, because followers copy batches unchanged, compressed or not.

Compaction rewrites batches, and each replica compacts its own log.  So batches of a replica are not compared below its
`cleaner-offset-checkpoint` or below its first batch.

The file leader-epoch-checkpoint contains the start of each leader epoch.  A restarted follower uses this file to find
the offset from which on its log may differ.  Each batch must lie between the start of its own epoch and the start of
the next one.

Cost: one pass over the table.  Memory: one partition at a time.

*Two implementations.*  Two implementations of one format must agree.

A system with two implementations compares the files that both wrote, and the results of both reading the same file
(`System.comparisons`).  Each implementation is an oracle for the other: a mistake in only one of them shows as a
difference.

*Positions.*  The order that a system shows must explain every answer, and equal positions must have equal states.

Many systems number their states: etcd's revision, ZooKeeper's zxid, an LSN, an offset.  An answer with such a
*position* names the state of the whole system that the answer shows.  So no search is needed: the writes are replayed
in the order of their positions, and every read must return the value that the replay has at the read's position.

* **Replay.**  A value *reigns* over its key from the position of its write to the last position at which the value was
  read.  Reigns of different values of one key must not overlap.  If the position of a write is unknown, it may be any
  position up to the first read of its value.  This needs no search, because the latest possible position is the best.
* **Real time.**  If an operation begins after another one was answered, its position is not smaller.  If it is a write,
  its position is greater.
* **Digests.**  All replicas must answer the same digest of the state at one position.  Two different digests prove that
  replicas have diverged, whatever clients read.

The check is sound and complete if there may be any number of positions between two others
(`tests/checkers/replicas/test_shown_order.py` compares it with brute force).  Cost: O(n log n) for n operations, and
one pass over the history.

Rows: `write` is ok with the payload [value, position], `read` with [value, position], `digest` with [position, digest].
A write that was answered without a position counts as a write of unknown outcome.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part, no_finding, no_parts
from checkers.base.columns import HISTORY
from checkers.base.history import Type, paired
from checkers.base.stored_rows import over_budget
from checkers.base.stored_run import READS_OF_A_SERVER, StoredRun, by_number, node_files
from checkers.base.values import canonical, parse
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.sealing.sealed_history import chunks_of_groups, dicts, history_tables

DIFFER = "servers that differ"
INVENTED = "a value that nobody wrote"
MEMBERS = "members"
_FINAL_READS = "final reads"

Row = Mapping[str, Any]


_LAST = """
SELECT * FROM final QUALIFY row_number() OVER (PARTITION BY key, node ORDER BY "index" DESC) = 1"""
_WRITTEN = """
SELECT DISTINCT key, value FROM events WHERE type = 0 AND list_contains(?, f) AND list_contains(?, value)"""


def values_of(row: Row) -> list[int]:
    """Return the values that an answer shows; a register shows at most one."""
    if row["payload"] is not None:
        shown = parse(row["payload"])
        return [value for value in shown if isinstance(value, int)] if isinstance(shown, list) else []
    return [] if row["value"] is None else [int(row["value"])]


def state_of(row: Row) -> str:
    """Return the answer as a text, to compare and to show."""
    if row["payload"] is None:
        return "nothing" if row["value"] is None else str(row["value"])
    shown = parse(row["payload"])
    return canonical(sorted(shown) if row["f"] == MEMBERS else shown)


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    final = run.outcome.phase(_FINAL_READS)
    if final is None:
        return Verdict(Validity.UNKNOWN, reason="the run did not come to its final reads")
    with history_tables(run.history) as sql:
        answered = "SELECT * FROM events WHERE type = 1 AND time_ns >= ? AND list_contains(?, f)"
        sql.execute(f"CREATE TEMP TABLE final AS {answered}", [final.start_ns, sorted(run.demands.reads)])
        [(reads,)] = sql.execute("SELECT count(*) FROM final").fetchall()
        last = dicts(sql, _LAST)
        values = sorted({int(v) for row in last for v in values_of(row) if -(2**63) <= v < 2**63})  # int64
        found = sql.execute(_WRITTEN, [sorted(run.demands.writes), values]).fetchall()
    written = {(str(key), value) for key, value in found}
    by_key: dict[str, dict[str, Row]] = {}
    for row in last:
        by_key.setdefault(str(row["key"]), {})[str(row["node"])] = row
    witnesses = [w for key in sorted(by_key, key=by_number) for w in _of_key(key, by_key[key], written)]
    keys = list(dict.fromkeys(str(key) for _, key in run.demands.final_reads))
    everywhere = {str(key) for _, key in run.demands.final_reads[:READS_OF_A_SERVER]}
    unknown = []
    if missing := [key for key in keys if key not in by_key]:
        unknown.append(f"no final read of {', '.join(missing)} was answered")
    for server in run.demands.servers:
        if unread := sorted(key for key in everywhere if key in by_key and server not in by_key[key]):
            shown = ", ".join(unread[:5]) + (" and others" if len(unread) > 5 else "")
            unknown.append(f"{server} answered no final read of {shown}")
    looked_at = {"keys": len(by_key), "servers": len({row["node"] for row in last}), "final reads": reads}
    return conclude(witnesses, looked_at, unknown)


def _of_key(key: str, answers: Mapping[str, Row], written: set[tuple[str, int]]) -> Iterator[Witness]:
    nodes = sorted(answers, key=by_number)
    states = {node: state_of(answers[node]) for node in nodes}
    if len(set(states.values())) > 1:
        one = nodes[0]
        other = next(node for node in nodes if states[node] != states[one])
        rest = [f"{node} answered {states[node]}." for node in nodes]
        yield Witness(
            DIFFER,
            f"after recovery {one} answered {_short(states[one])} for {key}, and {other} answered "
            f"{_short(states[other])}",
            events=tuple(sorted((answers[one], answers[other]), key=lambda row: int(row["index"]))),
            facts={"key": key, "nodes": [one, other], "why": rest, "expected": "the same answer of every server"},
        )
    for node in nodes:
        if invented := [value for value in values_of(answers[node]) if (key, value) not in written]:
            yield Witness(
                INVENTED,
                f"{node} answered {invented[0]} for {key}, and no client wrote this value",
                events=(answers[node],),
                facts={"key": key, "nodes": [node], "why": [], "expected": "a value that a client wrote"},
            )


def _short(state: str) -> str:
    return state if len(state) <= 60 else f"{state[:40]}… ({len(parse(state))} elements)"


CONVERGENCE = Checker(
    name="convergence",
    title="Convergence",
    question="Do all servers give the same answers once the system has recovered?",
    split=no_parts,
    judge=no_finding,
    combine=_combine,
    needs=frozenset({"history", "model"}),
    rests_on=frozenset({"answerers"}),
)


REPLICAS_DIFFER, LACKS, WRONG_EPOCH = "replicas differ", "replica lacks a batch", "epoch checkpoint contradicts the log"
_EXPECTED = "the same batches in every replica, up to the lowest high watermark"

Batch = tuple[int, int, int]
"""(end, leader epoch, CRC)."""


@dataclass(slots=True)
class Replica:
    """One copy of one replica.

    batches: base offset -> batch
    epochs: (leader epoch, its first offset) from leader-epoch-checkpoint
    high_watermark: the high watermark in the checkpoint file; 0 if there is none
    cleaned: the offset in cleaner-offset-checkpoint
    unreadable_from: first unreadable offset; -1 if the whole log is readable
    """

    node: str
    copy: int
    batches: dict[int, Batch] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0
    cleaned: int = 0
    unreadable_from: int = -1

    @property
    def committed(self) -> range:
        """Return the offsets that can be compared with other replicas."""
        start = max(self.cleaned, min(self.batches, default=0))
        return range(start, max(start, min(self.high_watermark, max((b[0] for b in self.batches.values()), default=0))))


@dataclass(slots=True)
class ReplicasFinding:
    """Finding on the replicas of partitions.

    held: number of replicas with a batch or with a high watermark above 0
    compared: number of comparisons of two batches
    epochs: number of entries in leader-epoch-checkpoint files
    """

    partitions: int = 0
    held: int = 0
    compared: int = 0
    epochs: int = 0
    witnesses: list[Witness] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def _split_copies(run: StoredRun) -> list[Part]:
    files = node_files(run.topics)
    usable = [[node, copy["copy"]] for node in files for copy in run.copies if copy["node"] == node]
    return [Part(tuple(files.values()), {"copies": usable})] if files else []


def judge_copies(part: Part, budget: Budget) -> ReplicasFinding:
    """Compare the replicas of all partitions.

    part: its parameter `copies` lists (node, copy) of the copies that no fault had corrupted
    """
    found = ReplicasFinding()
    usable = {(node, copy) for node, copy in part.params["copies"]}
    names = {name for path in part.paths for name in pc.unique(pq.read_table(path)["partition"]).to_pylist()}
    for name in sorted(names):
        replicas = [r for path in part.paths for r in _replicas(path, name) if (r.node, r.copy) in usable]
        found.partitions += 1
        for replica in replicas:
            found.held += bool(replica.batches) or replica.high_watermark > 0
            found.epochs += len(replica.epochs)
            found.witnesses += _look_at_epochs(name, replica)
            if 0 <= replica.unreadable_from < replica.high_watermark:
                words = f"{name} of {replica.node} cannot be read from offset {replica.unreadable_from} on"
                found.unknown.append(f"copy {replica.copy}: {words}; its high watermark is {replica.high_watermark}")
        found.witnesses += _compare(name, replicas, found)
    return found


def _replicas(path: str, name: str) -> Sequence[Replica]:
    found: dict[int, Replica] = {}
    for row in pq.read_table(path, filters=[("partition", "==", name)], partitioning=None).to_pylist():
        replica = found.setdefault(row["copy"], Replica(row["node"], row["copy"]))
        match row["kind"]:
            case "batch":
                replica.batches[row["offset"]] = (row["end"], row["epoch"], row["crc"])
            case "epoch":
                replica.epochs.append((row["epoch"], row["offset"]))
            case "high-watermark":
                replica.high_watermark = row["offset"]
            case "cleaned":
                replica.cleaned = row["offset"]
            case "unreadable":
                replica.unreadable_from = row["offset"]
    return [*found.values()]


def _compare(name: str, replicas: Sequence[Replica], found: ReplicasFinding) -> Iterator[Witness]:
    """Yield a witness of the first batch of each node that contradicts a committed batch of another node."""
    known: dict[int, tuple[Batch, Replica]] = {}
    for replica in replicas:
        committed = replica.committed
        for base in sorted(base for base in replica.batches if base in committed):
            known.setdefault(base, (replica.batches[base], replica))
    told: set[str] = set()
    for replica in replicas:
        committed = replica.committed
        for base in sorted(base for base in known if base in committed):
            batch, other = known[base]
            if replica.node == other.node:
                continue
            found.compared += 1
            mine = replica.batches.get(base)
            if mine != batch and replica.node not in told:
                told.add(replica.node)
                yield _witness(name, base, replica, mine, other, batch)


def _witness(name: str, base: int, one: Replica, mine: Batch | None, other: Replica, batch: Batch) -> Witness:
    topic = name.partition(" ")[0]
    summary = f"{one.node} and {other.node} hold different batches of {topic} at offset {base}"
    if mine is None:
        summary = f"{one.node} has no batch of {topic} at offset {base}, but {other.node} has one"
    why = [f"{one.node}: {_batch_words(mine)}; high watermark {one.high_watermark}, copy {one.copy}."]
    why.append(f"{other.node}: {_batch_words(batch)}; high watermark {other.high_watermark}, copy {other.copy}.")
    facts = {
        "nodes": [one.node, other.node],
        "copies": [one.copy, other.copy],
        "epoch": batch[1],
        "offset": base,
        "why": why,
        "expected": _EXPECTED,
    }
    return Witness(
        LACKS if mine is None else REPLICAS_DIFFER, f"{summary}, below the high watermarks of both.", facts=facts
    )


def _batch_words(batch: Batch | None) -> str:
    return "no batch begins there" if batch is None else f"epoch {batch[1]}, up to {batch[0]}, CRC {batch[2]}"


def _look_at_epochs(name: str, replica: Replica) -> Iterator[Witness]:
    """Yield a witness of the first batch that lies outside of its epoch according to the replica's own checkpoint."""
    entries = sorted(replica.epochs, key=lambda entry: entry[1])
    for base, (_, epoch, _) in sorted(replica.batches.items()):
        said = next((number for number, start in reversed(entries) if start <= base), None)
        if said is None or said == epoch:  # None: the entry of this epoch was already deleted by retention
            continue
        topic = name.partition(" ")[0]
        words = f"The batch of {topic} at offset {base} on {replica.node} is of epoch {epoch}"
        yield Witness(
            WRONG_EPOCH,
            f"{words}, but its leader-epoch-checkpoint has epoch {said} there.",
            facts={
                "nodes": [replica.node],
                "copies": [replica.copy],
                "epoch": epoch,
                "offset": base,
                "why": [f"Its entries are {_listed(entries)}."],
                "expected": "each batch between the start of its epoch and the start of the next one",
            },
        )
        return


def _listed(entries: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"epoch {epoch} from {start} on" for epoch, start in entries)


def _combine_copies(run: StoredRun, findings: Sequence[ReplicasFinding]) -> Verdict:
    there = node_files(run.topics)
    unknown = [why for finding in findings for why in finding.unknown]
    if silent := sorted({*run.servers} - {*there}, key=by_number):
        unknown.append(f"{', '.join(silent)} delivered no logs of topics")
    looked_at: Mapping[str, Any] = {
        "partitions": sum(each.partitions for each in findings),
        "batches compared": sum(each.compared for each in findings),
        "epochs": sum(each.epochs for each in findings),
    }
    nothing_wrong = not unknown and not any(each.witnesses for each in findings)
    if nothing_wrong and looked_at["partitions"] and not any(each.held for each in findings):
        return Verdict(Validity.NOT_APPLICABLE, reason="no topic holds a record")
    if not looked_at["batches compared"] and len(run.servers) > 1:
        unknown.append("no two replicas have a committed batch in common")
    return conclude([witness for each in findings for witness in each.witnesses], looked_at, unknown)


EQUAL_REPLICAS = Checker(
    "equal-replicas",
    "Replicas of topics are equal",
    "Do all replicas of a partition hold the same batches up to the lowest high watermark, with the epochs noted?",
    _split_copies,
    judge_copies,
    _combine_copies,
    frozenset({"logs", "topic-logs"}),
)


DISAGREE = "two implementations disagree"


def _combine_comparisons(run: StoredRun, _: Sequence[Any]) -> Verdict:
    rows = pq.read_table(run.comparisons).to_pylist() if run.comparisons.exists() else []
    unknown = [f"{row['nodes']}: {row['what']}: {row['missing']}" for row in rows if row["missing"]]
    if not rows:
        unknown.append("nothing was compared")
    looked_at: dict[str, int] = {"comparisons": len(rows)}
    for row in rows:
        looked_at[row["what"]] = looked_at.get(row["what"], 0) + row["compared"]
    witnesses = [
        Witness(
            DISAGREE,
            f"{row['nodes']}: {row['what']}: {row['differs']}",
            facts={"nodes": row["nodes"].split(", "), "why": [row["differs"]], "expected": "no difference"},
        )
        for row in rows
        if row["differs"]
    ]
    return conclude(witnesses, looked_at, unknown)


TWO_IMPLEMENTATIONS = Checker(
    "two-implementations",
    "Two implementations agree",
    "Did both implementations write the same bytes, and does each read the other's files as its own code does?",
    no_parts,
    no_finding,
    _combine_comparisons,
    frozenset({"logs", "two-implementations"}),
)


READ, WRITE, DIGEST = "read", "write", "digest"
ONE_POSITION = "two writes at one position"
OVERLAP = "an answer that its position contradicts"
UNWRITTEN = "a value that was never written"
BACKWARDS = "an order that goes back"
DIVERGED = "replicas that differ at one position"


@dataclass(frozen=True, slots=True)
class Shown:
    """An operation.

    value: the value that was written or read, None for nil; the digest for `digest`
    position: its position; None if no answer shows the position
    invoked: index of its invoke
    answered: index of its answer; None if `position` is None
    row: the row of its answer; without an answer, the row of its invoke
    """

    f: str
    key: str
    value: Any
    position: int | None
    invoked: int
    answered: int | None
    row: Row


@dataclass(slots=True)
class _Reign:
    first: float
    last: float
    by: Shown


@dataclass(slots=True)
class ShownOrderFinding:
    witnesses: list[Witness] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    unknown: str = ""


def operations(rows: Sequence[Row]) -> list[Shown]:
    """Return the operations of clients in the order of invocation; failed writes and unanswered reads are left out."""
    found: list[Shown] = []
    for invoke, answer in paired(rows, lambda row: Type(row["type"]), lambda row: int(row["process"])):
        f, ended = str(invoke["f"]), Type(answer["type"]) if answer is not None else Type.INFO
        if f not in (READ, WRITE, DIGEST) or ended is Type.FAIL or (ended is not Type.OK and f != WRITE):
            continue
        row, position, value = answer or invoke, None, invoke["value"]
        if ended is Type.OK and row["payload"] is not None:
            first, second = parse(row["payload"])
            value, position = (second, first) if f == DIGEST else (first, second)
        if position is None and f != WRITE:
            continue
        known = int(row["index"]) if position is not None else None
        found.append(Shown(f, str(invoke["key"]), value, position, int(invoke["index"]), known, row))
    return found


def violations(shown: Sequence[Shown]) -> Iterator[Witness]:
    """Yield the violations in these operations; there are none if one order explains all operations.

    shown: in the order of invocation
    """
    floors = yield from _in_real_time(shown)
    digests: dict[int, Shown] = {}
    writes: dict[int, Shown] = {}
    for one in shown:
        if one.position is not None and one.f != READ:
            other = (digests if one.f == DIGEST else writes).setdefault(one.position, one)
            if one.f == WRITE and other is not one:
                yield _of_positions(
                    ONE_POSITION, f"two writes were acknowledged at position {one.position}", other, one
                )
            elif one.f == DIGEST and other.value != one.value:
                nodes = f"{other.row['node']} answered {other.value}, and {one.row['node']} {one.value}"
                yield _of_positions(DIVERGED, f"of the state at position {one.position} {nodes}", other, one)
    for key in sorted({one.key for one in shown if one.f != DIGEST}, key=by_number):
        yield from _reigns_of_key(key, [one for one in shown if one.key == key and one.f != DIGEST], floors)


def written_twice(shown: Sequence[Shown]) -> Shown | None:
    """Return the first write of a value that was already written to its key; None if all values differ."""
    seen: set[tuple[str, Any]] = set()
    for one in shown:
        if one.f == WRITE and (one.key, one.value) in seen:
            return one
        if one.f == WRITE:
            seen.add((one.key, one.value))
    return None


def _in_real_time(shown: Sequence[Shown]) -> Generator[Witness, None, dict[int, Shown | None]]:
    """Yield witnesses of positions that are too small.

    Returns index of an invoke -> the operation with the highest position among those answered before this invoke.
    """
    by_answer = sorted((one for one in shown if one.answered is not None), key=lambda one: one.answered or 0)
    floors: dict[int, Shown | None] = {}
    highest, at = None, 0
    for one in shown:
        while at < len(by_answer) and (by_answer[at].answered or 0) < one.invoked:
            if by_answer[at].f != DIGEST and (highest is None or _at(by_answer[at]) > _at(highest)):
                highest = by_answer[at]
            at += 1
        floors[one.invoked] = highest
        if highest is None or one.position is None or one.f == DIGEST:
            continue
        if one.position < _at(highest) or (one.f == WRITE and one.position == _at(highest)):
            words = f"position {one.position}, after an answer at position {highest.position} was given"
            yield _of_positions(BACKWARDS, f"a {one.f} of {one.key} has {words}", highest, one)
    return floors


def _reigns_of_key(key: str, mine: Sequence[Shown], floors: Mapping[int, Shown | None]) -> Iterator[Witness]:
    writes = {one.value: one for one in mine if one.f == WRITE}
    reigns = {one.value: _Reign(_at(one), _at(one), one) for one in writes.values() if one.position is not None}
    for read in sorted((one for one in mine if one.f == READ), key=_at):
        write = writes.get(read.value)
        if read.value is not None and (write is None or (read.answered or 0) < write.invoked):
            yield _of_positions(UNWRITTEN, f"{key} held {read.value}, which no client had written", read)
            continue
        if read.value not in reigns:
            first = -math.inf if write is None else _at(read)
            reigns[read.value] = _Reign(first, _at(read), read)
            floor = floors[write.invoked] if write is not None else None
            if write is not None and floor is not None and _at(read) <= _at(floor):
                words = f"position {read.position}, but its write began after an answer at position {floor.position}"
                yield _of_positions(BACKWARDS, f"{key} held {read.value} at {words}", floor, write, read)
        reign = reigns[read.value]
        if _at(read) < reign.first:
            words = f"at position {read.position}, and it was written at position {reign.first:.0f}"
            yield _of_positions(OVERLAP, f"{key} held {read.value} {words}", read, reign.by)
        if _at(read) >= reign.last:
            reign.last, reign.by = _at(read), read
    before: _Reign | None = None
    for value, reign in sorted(reigns.items(), key=lambda each: each[1].first):
        if before is not None and reign.first <= before.last:
            words = f"{value} was there by position {reign.first:.0f}"
            yield _of_positions(
                OVERLAP, f"{key} held {before.by.value} at position {before.last:.0f}, but {words}", before.by, reign.by
            )
        before = reign if before is None or reign.last > before.last else before


def _at(one: Shown) -> float:
    return -math.inf if one.position is None else one.position


def _of_positions(kind: str, words: str, *ones: Shown) -> Witness:
    events = tuple(sorted((one.row for one in ones), key=lambda row: int(row["index"])))
    nodes = list(dict.fromkeys(str(row["node"]) for row in events if row["node"]))
    return Witness(kind, words, events, facts={"key": ones[0].key, "nodes": nodes, "why": []})


def _split_positions(run: StoredRun) -> list[Part]:
    return [Part((str(run.history),))]


def judge_positions(part: Part, budget: Budget) -> ShownOrderFinding:
    if why := over_budget(part, budget):
        return ShownOrderFinding(unknown=why)
    rows = [
        row
        for table in chunks_of_groups(part.paths[0], HISTORY.names)
        for row in table.to_pylist()
        if row["process"] >= 0 and row["f"] in (READ, WRITE, DIGEST)
    ]
    shown = operations(rows)
    counts = {f: sum(one.f == f and one.position is not None for one in shown) for f in (READ, WRITE, DIGEST)}
    compared = len([one for one in shown if one.f == DIGEST]) - len({o.position for o in shown if o.f == DIGEST})
    looked_at = {"writes": counts[WRITE], "reads": counts[READ], "digests compared": compared}
    if (twice := written_twice(shown)) is not None:
        why = f"{twice.value} was written twice to {twice.key}, so a read of it shows no write"
        return ShownOrderFinding(looked_at=looked_at, unknown=why)
    return ShownOrderFinding(list(violations(shown)), looked_at)


def _combine_positions(run: StoredRun, findings: Sequence[ShownOrderFinding]) -> Verdict:
    (found,) = findings
    lacking = [f"none of the {name} shows a position" for name in ("writes", "reads") if not found.looked_at.get(name)]
    return conclude(found.witnesses, found.looked_at, [found.unknown] if found.unknown else lacking)


SHOWN_ORDER = Checker(
    name="shown-order",
    title="Shown order",
    question="Do the reported positions explain every answer, and are replicas equal at equal positions?",
    split=_split_positions,
    judge=judge_positions,
    combine=_combine_positions,
    needs=frozenset({"history", "model"}),
    rests_on=frozenset({"times"}),
)
