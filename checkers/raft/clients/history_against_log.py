"""The history against the log: what was answered to clients must agree with the log.

In every log that has caught up at the end, each acknowledged write stands exactly once.  In no log, of any copy, stands
a write that certainly failed, or any write twice, or a change of a client's object that no client asked for: each entry
has exactly one cause.  (The last is a violation only if the history shows its own end; else the write may be missing
from the history, and the verdict is unknown.)  And the order of the log respects real time over all keys: if one
write had completed before another was invoked, it stands before it.

This sees what registers hide.  A register shows only its last value, so a lost acknowledged write disappears as soon as
somebody overwrites it; and judging key by key shows no order between keys.

*Caught up* = the final copy of a node reaches the largest mark that any node had committed when its own final copy was
taken, and either holds that very prefix or has an entry of its epoch or a later one.  (A node cut off to the end may
carry a longer tail of an older epoch; it has not caught up.)  A part is the log of one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import (
    BeyondBudget,
    conclude,
    gaps,
    log_rows,
    not_judged,
    numbers,
    over_budget,
    present,
    read_entries,
    read_trace,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.raft.rows import Log, Marks, holds, out_of_order
from checkers.raft.client_writes import Writes, join, operations, read_writes, without_cause
from checkers.raft.commits.high_watermarks import read_log
from checkers.raft.trace_checks import nothing_of

MISSING = "acknowledged write missing from a log"
FAILED = "failed write in a log"
TWICE = "write in a log twice"
DISORDER = "log order against real time"
ORPHAN = "entry that no client wrote"

_RANK = {MISSING: 0, FAILED: 1, TWICE: 2, DISORDER: 3, ORPHAN: 4}


@dataclass(frozen=True, slots=True)
class Clash:
    """One disagreement of one log with the history.  writes: history indexes of the invokes.  offsets: in log order."""

    kind: str
    node: str
    copy: int
    writes: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogFinding:
    """clashes: the first of each kind per copy, with the count of all in `counts`."""

    clashes: tuple[Clash, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    caught_up: int = 0
    logs: int = 0
    acknowledged: int = 0
    repeated: int = 0
    orphans: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    logs = node_files(run.log)
    if not logs or not run.history.exists():
        return []
    copied = [c for c in run.copies if not c["error"]]
    last = max((c["copy"] for c in copied), default=-1)
    final_seq = {c["node"]: c["trace_seq"] for c in copied if c["copy"] == last and c["when"] == "final"}
    return [
        Part(
            (str(run.history), path, *node_files(run.trace).values()),
            {
                "node": node,
                "copies": [c for c in copied if c["node"] == node],
                "final_seq": final_seq,
                "only_writes": run.demands.writes == {"write"},
            },
        )
        for node, path in logs.items()
    ]


def _judge(part: Part, budget: Budget) -> LogFinding:
    try:
        return _judge_log(part, budget)
    except BeyondBudget as problem:
        return LogFinding(unknown=str(problem))


def _judge_log(part: Part, budget: Budget) -> LogFinding:
    if excess := over_budget(part, budget, ("index", "process", "type", "key", "value", "offset", "epoch", "copy")):
        return LogFinding(unknown=excess)
    history, log_path, *traces = part.paths
    writes = read_writes(history)
    top = _largest_marks(traces, part.params["final_seq"])
    repeated = 0
    clashes: list[Clash] = []
    counts: dict[str, int] = {}
    caught_up = orphans = 0
    for copy in part.params["copies"]:
        log = read_log(log_path, copy["copy"], budget)
        entries = read_entries(log_path, copy["copy"], columns=("key", "value"))
        entries = entries.filter(pc.is_valid(entries["key"]))
        which, twice = join(writes, entries["key"], entries["value"])
        repeated = len(twice)
        ours = which >= 0
        complete = copy["when"] == "final" and _caught_up(log, top)
        caught_up += complete
        offsets_there = numbers(entries, "offset")
        found = _clashes(writes, which[ours], offsets_there[ours], complete, twice)
        if part.params["only_writes"]:
            alone = offsets_there[without_cause(writes, entries["key"], entries["value"])]
            orphans = max(orphans, len(alone))
            found += [(ORPHAN, len(alone), (), (int(alone[0]),))] if len(alone) and writes.whole else []
        for kind, count, indexes, offsets in found:
            counts[kind] = counts.get(kind, 0) + count
            invoked = tuple(int(writes.invoked[i]) for i in indexes)
            clashes.append(Clash(kind, part.params["node"], copy["copy"], invoked, offsets))
    acknowledged = int(np.count_nonzero(writes.outcome == Type.OK))
    return LogFinding(
        tuple(clashes),
        tuple(counts.items()),
        caught_up,
        len(part.params["copies"]),
        acknowledged,
        repeated,
        0 if writes.whole else orphans,
    )


def _caught_up(log: Log, top: Marks) -> bool:
    """Whether this final log reaches the largest committed mark, and not by a tail of an older epoch.

    One that begins above 0 has not: what stands below that is in a snapshot, and cannot be asked for.
    """
    if len(top.offset) == 0 or log.end < top.offset[0] or log.start > 0:
        return False
    return bool(holds(log, top)[0].any() or log.last_epoch >= top.epoch.min())


def _largest_marks(traces: Sequence[str], until: dict[str, int]) -> Marks:
    """The marks of the largest offset that any node reported up to its final copy; until: node -> seq."""
    found: list[tuple[int, int, bool, int]] = []
    for path in traces:
        said = read_trace(path, ("high-watermark",), ("offset", "hash", "epoch"))
        offsets = np.where(numbers(said, "seq") <= until.get(Path(path).stem, -1), numbers(said, "offset"), 0)
        largest = np.flatnonzero((offsets > 0) & (offsets == offsets.max(initial=0)))
        rows = said.take(pa.array(largest))
        columns = (numbers(rows, "offset"), numbers(rows, "hash", 0), present(rows, "hash"), numbers(rows, "epoch"))
        found += zip(*(column.tolist() for column in columns), strict=True)
    end = max((offset for offset, *_ in found), default=0)
    rows_there = [mark for mark in found if mark[0] == end]
    offset, hashes, known, epoch = (np.array([mark[i] for mark in rows_there]) for i in range(4))
    return Marks(offset, hashes, known.astype(np.bool_), epoch)


Found = tuple[str, int, tuple[int, ...], tuple[int, ...]]


def _clashes(writes: Writes, which: Int64, offsets: Int64, complete: bool, repeated: Int64) -> list[Found]:
    """Of each kind in which one log disagrees with the history: (kind, how often, writes and offsets of the first).

    which: the write of each entry, in offset order.  complete: the log has caught up.
    """
    found: list[Found] = []
    times = np.bincount(which, minlength=len(writes))
    if complete:
        acknowledged = writes.outcome == Type.OK
        acknowledged[repeated] = False
        missing = np.flatnonzero(acknowledged & (times == 0))
        found += [(MISSING, len(missing), (i,), ()) for i in missing[:1].tolist()]
    failed = np.flatnonzero(writes.outcome[which] == Type.FAIL)
    found += [(FAILED, len(failed), (int(which[i]),), (int(offsets[i]),)) for i in failed[:1].tolist()]
    twice = np.flatnonzero(times > 1)
    found += [(TWICE, len(twice), (i,), tuple(offsets[which == i].tolist())) for i in twice[:1].tolist()]
    _, first = np.unique(which, return_index=True)
    first.sort()
    once, at = which[first], offsets[first]
    disorder = out_of_order(writes.invoked[once], writes.completed[once])
    if disorder is not None:
        found.append((DISORDER, 1, tuple(int(once[i]) for i in disorder), tuple(int(at[i]) for i in disorder)))
    return found


def _combine(run: StoredRun, findings: Sequence[LogFinding]) -> Verdict:
    if (verdict := not_judged(run, "logs", "traces")) is not None:
        return verdict
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    if not run.history.exists():
        unknown.append("there is no sealed history")
    elif not any(f.caught_up for f in findings):
        unknown.append("no node's final log had caught up with the largest committed mark")
    if repeated := max((f.repeated for f in findings), default=0):
        unknown.append(
            f"{repeated} writes share their key and value with another, so no log entry can be told as theirs"
        )
    if orphans := max((f.orphans for f in findings), default=0):
        unknown.append(f"no write in the history explains {orphans} entries of a log, and the history lacks its end")
    clashes = [c for f in findings for c in f.clashes]
    witnesses = [_witness(run, c) for c in _one_per_write(clashes)]
    looked_at = {
        "acknowledged writes": max((f.acknowledged for f in findings), default=0),
        "logs": sum(f.logs for f in findings),
        "logs caught up at the end": sum(f.caught_up for f in findings),
    }
    for kind in _RANK:
        if count := sum(n for f in findings for k, n in f.counts if k == kind):
            looked_at[f"{kind} (all logs)"] = count
    unknown += nothing_of(looked_at, "acknowledged writes", "logs")
    return conclude(witnesses, looked_at, unknown)


def _one_per_write(clashes: list[Clash]) -> list[Clash]:
    """The latest copy for each kind and write, one of each kind before the second of any."""
    latest = {(c.kind, c.writes or c.offsets): c for c in sorted(clashes, key=lambda c: (c.copy, c.node))}
    seen: dict[str, int] = {}
    ranked = []
    for clash in sorted(latest.values(), key=lambda c: c.writes):
        seen[clash.kind] = seen.get(clash.kind, -1) + 1
        ranked.append((seen[clash.kind], _RANK[clash.kind], clash))
    return [clash for _, _, clash in sorted(ranked, key=lambda r: r[:2])]


def _witness(run: StoredRun, clash: Clash) -> Witness:
    events = operations(str(run.history), clash.writes) if clash.writes else []
    path = node_files(run.log)[clash.node]
    rows = log_rows(path, clash.copy, clash.offsets) if clash.offsets else []
    log = f"the log of {clash.node} (copy {clash.copy})"
    calls = [e for e in events if e["type"] == Type.INVOKE]
    named = {e["index"]: f"the write of {e['value']} to {e['key']}" for e in calls}
    if clash.kind == ORPHAN:
        entry = rows[0]
        why = [f"{log} sets {entry['key']} to {entry['value']} at offset {clash.offsets[0]}, and no client wrote that."]
        expected = "each entry has exactly one cause: a client's operation, set-up, or the system's own record"
    else:
        first = named[clash.writes[0]]
        why, expected = _words(clash, first, named.get(clash.writes[-1], first), log)
    return Witness(
        kind=clash.kind,
        summary=why[-1][0].upper() + why[-1][1:],
        events=tuple(events),
        rows=tuple(rows),
        facts={
            "nodes": [clash.node],
            "copies": [clash.copy],
            "epoch": rows[0]["epoch"] if rows else None,
            "offset": clash.offsets[0] if clash.offsets else None,
            "offsets": list(clash.offsets),
            "key": (calls or rows)[0]["key"],
            "value": (calls or rows)[0]["value"],
            "why": why,
            "expected": expected,
        },
    )


def _words(clash: Clash, first: str, last: str, log: str) -> tuple[list[str], str]:
    """(what happened, sentence by sentence, the last one being the summary; what was expected)."""
    at = [str(offset) for offset in clash.offsets]
    if clash.kind == MISSING:
        return [f"{first} was acknowledged, but {log}, which has caught up, does not have it."], "it stands there once"
    if clash.kind == FAILED:
        return [f"{first} failed for certain, but it stands in {log} at offset {at[0]}."], "it stands in no log"
    if clash.kind == TWICE:
        return [f"{first} stands in {log} {len(at)} times, at offsets {', '.join(at)}."], "a write stands in a log once"
    return [
        f"{last} had completed before {first} was invoked, but in {log} it stands after it ({at[1]} after {at[0]})."
    ], "the log keeps the order that clients could observe"


HISTORY_LOG = Checker(
    name="history-against-log",
    title="History against log",
    question="Does every log hold each acknowledged write once, no failed one, and in an order clients could observe?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "unique-values"}),
)
