"""A high watermark is held by a majority: committed entries lie durably on more than half of the voters.

Ongaro & Ousterhout 2014, section 5.3; KIP-595: the leader of an epoch raises its mark to an offset once a majority of
voters, itself included, has reported *in that epoch* that its log durably reaches it.  A node writes its `flush` row
before it sends anything, so its trace holds everything that it ever claimed.  No clock is needed: a mark of epoch e is
violated iff fewer than a majority of voters ever durably held it while they were in an epoch up to e.

When does a node hold a mark?  If the mark lies beyond the epoch's start, the leader's log below it ends with a batch
of epoch e.  Any log whose last batch is of epoch e is a prefix of that leader's log (log matching).  So a node can have
held that mark only if its log durably reached it while its last batch was of epoch e.  A tail of an older epoch does
not count, however long it is.  For a mark that is not beyond the start of its epoch (a lagging follower reports
such marks), or whose leader is not known, only the length is compared.

Which voters count?  Where voters change (KIP-853), a leader counts those that its own log named last when it reported
the mark.  A follower repeats the mark of its leader, whose log may have named others by then.  So any set that any
trace names may excuse the mark of a follower.

Everything unknown counts as held: by a node without a trace, before the first row of a trace, in a recovered log.  Only
marks reported before their node's last copy was taken are judged, because all traces were collected after that.

A part is one node.  Cost: linear in its trace; memory: 40 bytes a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import coded, conclude, gaps, numbers, read_trace, trace_row
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.raft.compared_rows import lowest
from checkers.kernels.raft.node_logs import APPEND, FLUSH, MARK, OTHER, START, TRUNCATE, reaches
from checkers.raft.trace_findings_to_verdict import beyond_budget, nothing_of
from checkers.raft.voters_by_row import voters_by_row
from checkers.raft.witness_rows import Row, in_trace

_EVENTS = {
    "high-watermark": MARK,
    "append": APPEND,
    "flush": FLUSH,
    "truncate": TRUNCATE,
    "start": START,
    "vote": OTHER,
    "role": OTHER,
    "voters": OTHER,
}

ROW_SIZE_BYTES = 60


@dataclass(frozen=True, slots=True)
class Reach:
    """How far one node durably held its log; see `checkers.kernels.raft.node_logs.reaches`.

    held, own: epoch -> log end, `held` with every epoch in which it grew.
    """

    held: Mapping[int, int]
    own: Mapping[int, int]
    base: tuple[int, int]

    def may_have_held(self, offset: int, epoch: int, beyond_start: bool) -> bool:
        """Whether this node may have durably held everything below `offset` while it was in an epoch up to `epoch`.

        beyond_start: the last of these entries is of that epoch."""
        if offset <= self.base[0] and epoch <= self.base[1]:
            return True
        return offset <= (self.own.get(epoch, 0) if beyond_start else self.longest(epoch))

    def longest(self, epoch: int) -> int:
        """Return the largest durable log end while the node was in an epoch up to `epoch`."""
        return max((end for e, end in self.held.items() if e <= epoch), default=0)


@dataclass(frozen=True, slots=True)
class VoterFinding:
    """The finding on one node.

    marks: the largest mark it reported in each epoch under each set of voters (trace rows).  counted: for each of them,
    the voters that the node counted; None if it did not lead, or if its log names none.  named: all sets that its log
    named.  offices: epoch -> start offset, for each epoch that the node led.
    """

    node: str
    reach: Reach | None = None
    marks: tuple[Row, ...] = ()
    counted: tuple[frozenset[str] | None, ...] = ()
    named: frozenset[frozenset[str]] = frozenset()
    offices: Mapping[int, int] | None = None
    reported_marks: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    until: dict[str, int] = {}
    for copy in run.copies:
        until[copy["node"]] = max(copy["trace_seq"], until.get(copy["node"], -1))
    return [Part((path,), {"node": node, "until": until.get(node, -1)}) for node, path in node_files(run.trace).items()]


def _judge(part: Part, budget: Budget) -> VoterFinding:
    node, path = part.params["node"], part.paths[0]
    rows = read_trace(path, _EVENTS, ("epoch", "offset", "role", "detail"))
    if excess := beyond_budget(path, len(rows), ROW_SIZE_BYTES, budget):
        return VoterFinding(node, unknown=excess)
    events = coded(rows, "event", _EVENTS, OTHER)
    offset, epoch, seq = (numbers(rows, name) for name in ("offset", "epoch", "seq"))
    leads = coded(rows, "role", {"leader": 1}) == 1
    offices = dict(zip(epoch[leads].tolist(), offset[leads].tolist(), strict=True))
    is_mark = (events == MARK) & (seq <= part.params["until"]) & (offset > 0)
    segments = voters_by_row(rows)
    tops = _tops(np.flatnonzero(is_mark), epoch, offset, segments.number)
    marks = tuple(trace_row(path, int(seq[i])) for i in tops)
    counted = tuple(segments.at(i) if epoch[i] in offices else None for i in tops)
    reach = reach_of(events, offset, epoch)
    return VoterFinding(node, reach, marks, counted, segments.named, offices, int(np.count_nonzero(is_mark)))


def reach_of(events: Int64, offsets: Int64, epochs: Int64) -> Reach:
    """Apply `reaches` to columns with any epochs."""
    if len(epochs) == 0:
        return Reach({}, {}, (0, -1))
    known = np.unique(epochs[np.flatnonzero(np.diff(epochs, prepend=-1))])  # epochs come in long runs
    dense = np.searchsorted(known, epochs).astype(np.int64)
    held, own, base_end, base_epoch = reaches(events, offsets, dense, len(known))
    names = known.tolist()
    return Reach(
        dict(zip(names, held.tolist(), strict=True)),
        dict(zip(names, own.tolist(), strict=True)),
        (int(base_end), names[int(base_epoch)]),
    )


def _tops(rows: Int64, epoch: Int64, offset: Int64, segment: Int64) -> list[int]:
    """Return the row of the largest offset of each epoch and set of voters: if a majority of these voters holds it, a
    majority of them holds all below it."""
    if len(rows) == 0:
        return []
    order = rows[np.lexsort((segment[rows], epoch[rows]))]
    fresh = (np.diff(epoch[order], prepend=-1) != 0) | (np.diff(segment[order], prepend=-1) != 0)
    return [int(order[i]) for i in lowest(np.flatnonzero(fresh), -offset[order])]


def _combine(run: StoredRun, findings: Sequence[VoterFinding]) -> Verdict:
    named = sorted({names for f in findings for names in f.named}, key=sorted)
    reaches_of = {f.node: f.reach for f in findings if f.reach is not None}
    starts: dict[int, list[int]] = {}
    for finding in findings:
        for epoch, start in (finding.offices or {}).items():
            starts.setdefault(epoch, []).append(start)
    witnesses = []
    judged = [each for f in findings for each in zip(f.marks, f.counted, strict=True)]
    for mark, counted in judged:
        start_offsets = starts.get(mark["epoch"], [])
        beyond_start = len(start_offsets) == 1 and 0 <= start_offsets[0] < mark["offset"]
        lacks = {
            voter
            for voter, reach in reaches_of.items()
            if not reach.may_have_held(mark["offset"], mark["epoch"], beyond_start)
        }
        sets = [sorted(counted)] if counted else [sorted(names) for names in named] or [list(run.servers)]
        if all(2 * len(lacks.intersection(voters)) >= len(voters) for voters in sets):
            without = [voter for voter in sets[0] if voter in lacks]
            witnesses.append(_witness(mark, sets[0], without, reaches_of, beyond_start))
    looked_at = {
        "voters": len(run.servers),
        "high watermarks": sum(f.reported_marks for f in findings),
        "epochs with one": len({mark["epoch"] for mark, _ in judged}),
    }
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces")
    unknown += nothing_of(looked_at, "high watermarks")
    return conclude(_worst(witnesses), looked_at, unknown)


def _worst(witnesses: list[Witness]) -> list[Witness]:
    """Put one violation per epoch before any second one, because several nodes repeat the mark of their leader."""
    seen: dict[int, int] = {}
    ranked = []
    for witness in sorted(witnesses, key=lambda w: (w.facts["epoch"], -w.facts["offset"])):
        seen[witness.facts["epoch"]] = seen.get(witness.facts["epoch"], -1) + 1
        ranked.append((seen[witness.facts["epoch"]], witness))
    return [witness for _, witness in sorted(ranked, key=lambda pair: pair[0])]


def _witness(
    mark: Row, voters: Sequence[str], without: Sequence[str], reaches_of: Mapping[str, Reach], beyond_start: bool
) -> Witness:
    node, epoch, offset = mark["node"], mark["epoch"], mark["offset"]
    with_it = [voter for voter in voters if voter not in without]
    held = f"only {', '.join(with_it)} of {len(voters)} voters" if with_it else f"none of {len(voters)} voters"
    why = [f"{node} reported in epoch {epoch} ({in_trace(mark)}) that everything below {offset} is committed."]
    for voter in without:
        reach = reaches_of[voter]
        if beyond_start:
            end = reach.own.get(epoch, 0)
            what = f"held entries of epoch {epoch} only up to offset {end}" if end > 0 else "held none of its entries"
            why.append(f"{voter}: while it was in epoch {epoch}, its disk {what}.")
        else:
            why.append(f"{voter}: its log never durably reached beyond {reach.longest(epoch)} up to epoch {epoch}.")
    return Witness(
        kind="high watermark without a majority",
        summary=f"{node} called everything below offset {offset} committed in epoch {epoch}, but {held} had ever held "
        f"it durably by then.",
        rows=(mark,),
        facts={
            "nodes": list(dict.fromkeys([node, *without])),
            "epoch": epoch,
            "offset": offset - 1,
            "committed_below": offset,
            "may_have_held": with_it,
            "why": why,
            "expected": "a majority of voters holds on disk what is committed, so that every majority that elects a "
            "leader has it",
        },
    )


HELD_BY_MAJORITY = Checker(
    name="high-watermark-majority",
    title="High watermark held by a majority",
    question="Did a majority of voters durably hold everything that was ever called committed?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"logs", "traces"}),
)
