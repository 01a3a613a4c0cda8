"""Every entry that no client's write explains has one cause of its own: the start of an epoch, or a `create`.

A leader opens its epoch with one LeaderChange record, and writes no other record by itself (KIP-595).  Set-up and
clients create objects, and a leader creates none that its log holds already.  So an object has at most one batch in a
log, however often clients tried, and none if every `create` failed.  In every copy of every log:

* the first entry of an epoch is no client's write;
* the batches without a client's write that do not open an epoch are no more than the objects that may exist.

A topic that is made twice, a second LeaderChange in an epoch, and a change that no function of the client makes are
each one batch too many.  (`history_against_log.py` looks at the entries that set or remove a client's object.)

A history that lacks its end may lack the create of an object, too.  Then an entry that nothing explains is no
violation, and the verdict is unknown.

Where brokers register, the log also holds records about brokers and partitions that no client asked for.  They are
judged by `checkers/cluster`, and left out here.

Where voters change (KIP-853), the log also holds their records, which a row of some trace names, and before the first
of them one with the level of `kraft.version`.  `quorum-intersection` judges them; they are left out here.

What opens an epoch is not known in the first entry of a log that begins above offset 0: such an entry is not judged.

A part is one node's log, or the history.  Cost: linear; memory: one range of a log, and a chunk of the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import conclude, gaps, log_rows, numbers, present, read_entries, read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.raft.client_writes import function_is, offset_ranges
from checkers.raft.reading import nothing_of
from checkers.sealing.history_rows import chunks_of_groups

NO_OPENING = "epoch without its opening entry"
NO_CAUSE = "entry without a cause"

CREATE = "create"
BY_ITSELF = (
    "register broker",
    "unregister broker",
    "fence broker",
    "unfence broker",
    "change broker",
    "change partition",
    "register controller",
    "unregister controller",
    "feature",
    "producer ids",
    "no-op",
)
"""Kinds of records in schema CLUSTER that a controller writes for brokers, or by itself."""
_WITH_A_FEATURE = ("config",)
"""Kinds that a batch with the level of a feature holds besides: eligible leaders need one `min.insync.replicas`."""
_COLUMNS = ("epoch", "batch_offset", "key")


@dataclass(frozen=True, slots=True)
class CopyOfLog:
    """One copy.  entries: how many.  opened: how many of them open an epoch.  wrong: offset of the first that opens one
    and is a client's write, -1 if there is none.  others: offsets of batches without a client's write that open none.
    """

    copy: int
    entries: int
    opened: int
    wrong: int
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EntriesFinding:
    """node: "" for the history.  creates: objects with a create that did not fail."""

    node: str = ""
    copies: tuple[CopyOfLog, ...] = ()
    creates: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    logs = node_files(run.log)
    if not logs or not run.history.exists():
        return []
    whole = [c for c in run.copies if not c["error"]]
    of_brokers = node_files(run.cluster) if run.demands.registers_brokers else {}
    traces = tuple(node_files(run.trace).values())
    parts = [
        Part(
            (path, *([of_brokers[node]] if node in of_brokers else ()), *traces),
            {"node": node, "traces": len(traces), "copies": [c["copy"] for c in whole if c["node"] == node]},
        )
        for node, path in logs.items()
    ]
    return [*parts, Part((str(run.history),))]


def _judge(part: Part, budget: Budget) -> EntriesFinding:
    if "node" not in part.params:
        return _creates(part.paths[0])
    node, path, rest = part.params["node"], part.paths[0], part.paths[1:]
    cluster = rest[: len(rest) - part.params["traces"]]
    of_voters = _of_voters(rest[len(cluster) :])
    copies = tuple(
        _copy(path, copy, np.concatenate((of_voters, _of_brokers(cluster, copy)))) for copy in part.params["copies"]
    )
    if sum(len(copy.others) for copy in copies) * 100 > budget.size_bytes:
        return EntriesFinding(node, unknown=f"{path}: more batches of the system than {budget.size_bytes} bytes hold")
    return EntriesFinding(node, copies)


def _creates(history: str) -> EntriesFinding:
    """Count the objects with a create that was invoked and did not fail."""
    left: Counter[str | None] = Counter()
    for rows in chunks_of_groups(history, ("process", "type", "f", "key")):
        mine, type_ = function_is(rows, CREATE), numbers(rows, "type")
        for of_type, sign in ((Type.INVOKE, 1), (Type.FAIL, -1)):
            keys = pc.cast(rows["key"].filter(pa.array(mine & (type_ == of_type))), pa.string())
            for name in keys.to_pylist():
                left[name] += sign
    return EntriesFinding(creates=sum(tries > 0 for tries in left.values()))


def _of_brokers(cluster: Sequence[str], copy: int) -> Int64:
    """The offsets of the records about brokers and partitions that no client asked for.  cluster: the file, if any."""
    if not cluster:
        return np.empty(0, np.int64)
    table = pq.read_table(cluster[0], columns=["copy", "offset", "batch_offset", "kind"], partitioning=None)
    table = table.filter(pc.equal(table["copy"], pa.scalar(copy, pa.int16())))
    of_features = table.filter(pc.equal(table["kind"], "feature"))["batch_offset"].unique()
    with_one = pc.and_(
        pc.is_in(table["kind"], value_set=pa.array(_WITH_A_FEATURE)),
        pc.is_in(table["batch_offset"], value_set=of_features),
    )
    return numbers(table.filter(pc.or_(pc.is_in(table["kind"], value_set=pa.array(BY_ITSELF)), with_one)), "offset")


def _of_voters(traces: Sequence[str]) -> Int64:
    """The offsets of the records that name voters, and of the record of `kraft.version` before the first of them."""
    named = [numbers(read_trace(path, ("voters",), ("offset",)), "offset") for path in traces]
    offsets = np.unique(np.concatenate(named)) if named else np.empty(0, np.int64)
    offsets = offsets[offsets >= 0]
    return np.concatenate((offsets[:1] - 1, offsets))


def _copy(path: str, copy: int, of_system: Int64) -> CopyOfLog:
    entries = opened = 0
    wrong, before = -1, -1
    others: list[Int64] = []
    for first, end in offset_ranges([path]):
        rows = read_entries(path, copy, first, _COLUMNS, end)
        if len(rows) == 0:
            continue
        offset, epoch, batch = (numbers(rows, name) for name in ("offset", "epoch", "batch_offset"))
        client = present(rows, "key")
        opens = np.empty(len(rows), np.bool_)
        opens[1:] = epoch[1:] != epoch[:-1]
        opens[0] = epoch[0] != before if entries else offset[0] == 0
        unknown = np.zeros(len(rows), np.bool_)
        unknown[0] = entries == 0 and offset[0] > 0
        if wrong < 0 and (opens & client).any():
            wrong = int(offset[np.argmax(opens & client)])
        unasked = np.isin(offset, of_system)
        others.append(_batches(batch, ~client & ~opens & ~unknown & ~unasked, batch[opens]))
        entries, opened, before = entries + len(rows), opened + int(opens.sum()), int(epoch[-1])
    known = np.unique(np.concatenate(others)) if others else np.empty(0, np.int64)
    return CopyOfLog(copy, entries, opened, wrong, tuple(known.tolist()))


def _batches(batch: Int64, chosen: Bools, opening: Int64) -> Int64:
    """Return the base offsets of the batches of some entries, except those that open an epoch."""
    return np.setdiff1d(batch[chosen], opening)


def _combine(run: StoredRun, findings: Sequence[EntriesFinding]) -> Verdict:
    creates = sum(f.creates for f in findings)
    copies = [(f.node, copy) for f in findings for copy in f.copies]
    looked_at = {
        "logs": len(copies),
        "entries": sum(copy.entries for _, copy in copies),
        "epochs opened": sum(copy.opened for _, copy in copies),
        "creates": creates,
    }
    lacking = gaps(run, "traces")
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs")
    if not run.history.exists():
        unknown.append("there is no sealed history")
    unknown += nothing_of(looked_at, "entries")
    whole = run.history_is_whole and not lacking
    witnesses = [_unopened(run, node, copy) for node, copy in copies if copy.wrong >= 0]
    beyond = [(node, copy) for node, copy in copies if len(copy.others) > creates]
    if whole:
        witnesses += [_without_cause(run, node, copy, creates) for node, copy in beyond]
    elif beyond:
        most = max(len(copy.others) - creates for _, copy in beyond)
        lacks = "traces are missing" if lacking else "the history lacks its end"
        unknown.append(f"no create in the history explains {most} entries of a log, and {lacks}")
    return conclude(_latest_of_each_kind(witnesses), looked_at, unknown)


def _latest_of_each_kind(witnesses: Sequence[Witness]) -> list[Witness]:
    """Return the last copy of each kind and offset, because the same entry is in many copies."""
    kept = {(witness.kind, witness.facts["offset"]): witness for witness in witnesses}
    return list(kept.values())


def _unopened(run: StoredRun, node: str, copy: CopyOfLog) -> Witness:
    [row] = log_rows(node_files(run.log)[node], copy.copy, [copy.wrong])
    summary = f"In the log of {node} epoch {row['epoch']} begins at offset {copy.wrong} with a client's write."
    facts = _facts(node, copy, row, [summary], "a leader opens its epoch with one LeaderChange")
    return Witness(kind=NO_OPENING, summary=summary, rows=(row,), facts=facts)


def _without_cause(run: StoredRun, node: str, copy: CopyOfLog, creates: int) -> Witness:
    """The first batch beyond the creates is shown: any of them may be the one without a cause."""
    beyond = copy.others[creates:]
    [row] = log_rows(node_files(run.log)[node], copy.copy, beyond[:1])
    summary = (
        f"The log of {node} holds {len(copy.others)} batches that no write explains and that open no epoch, but only "
        f"{creates} {'objects' if creates != 1 else 'object'} may have been created."
    )
    last = f"The last {len(beyond)} of these batches begin at offset {', '.join(map(str, beyond[:8]))}."
    expected = "each entry has exactly one cause: a client's operation, set-up, or the start of an epoch"
    facts = _facts(node, copy, row, [summary, last], expected)
    return Witness(kind=NO_CAUSE, summary=summary, rows=(row,), facts=facts)


def _facts(node: str, copy: CopyOfLog, row: dict[str, Any], why: list[str], expected: str) -> dict[str, Any]:
    where = {"nodes": [node], "copies": [copy.copy], "epoch": row["epoch"], "offset": row["offset"]}
    return where | {"why": why, "expected": expected}


SYSTEM_ENTRIES = Checker(
    name="system-entries",
    title="Entries of the system have a cause",
    question="Does each entry that no client wrote open an epoch, or follow from a create?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "kraft-steps"}),
)
