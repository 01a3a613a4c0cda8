"""A leader raises its high watermark only after a majority durably holds what it covers.

`held_by_majority.py` compares no clocks, so a mark that a majority came to hold later in the same epoch looks right.
Servers of one machine share one monotonic clock.  There, a voter stamps its `flush` row before it writes the row, and
writes it before its next Fetch leaves; the leader stamps its mark after that Fetch arrived.  So each voter that the
leader may count has a `flush` row, of the mark's epoch and up to the mark, with a time at or before that of the mark.

Only marks of a leader beyond the start of its epoch are judged: the entries below end with one of this epoch, so a log
counts only if its last appended batch is of this epoch.  What is not known counts as held: by a node without a trace,
or in a log that a restart recovered.  Only marks reported before their node's last copy was taken are judged, because
all traces were collected after that.

Where voters change (KIP-853), a leader counts those that its own log named last when it reported the mark.

Not applicable where the servers do not share a clock.  One part.  Cost: linear; memory: 60 bytes a row of all traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.run_evidence import coded, conclude, gaps, numbers, read_trace, trace_row
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.trace_findings_to_verdict import nothing_of
from checkers.raft.voters_by_row import VotersByRow, voters_by_row
from checkers.raft.witness_rows import WITNESSES_PER_PART, Row

KIND = "high watermark before its majority"
ROW_SIZE_BYTES = 60

NEVER = np.iinfo(np.int64).max
START, APPEND, FLUSH, MARK, ROLE, VOTERS = 1, 2, 3, 4, 5, 6
EVENTS = {
    "start": START,
    "append": APPEND,
    "flush": FLUSH,
    "high-watermark": MARK,
    "role": ROLE,
    "voters": VOTERS,
}
ANY, NONE = -2, -3
"""In place of the epoch of a log's last batch: it may be any, or nothing was appended yet."""
_COLUMNS = ("epoch", "offset", "time_ns", "role", "detail")


@dataclass(frozen=True, slots=True)
class MarksFinding:
    """marks: how many were judged."""

    witnesses: tuple[Witness, ...] = ()
    marks: int = 0
    violations: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Durable:
    """How far one voter's log was durable, row by row in the order of time.

    epoch: of the last batch in the log by then; ANY for what a restart recovered, which may be of any epoch.
    """

    time_ns: Int64
    end: Int64
    epoch: Int64

    def since(self, epoch: int, marks: Int64) -> Int64:
        """When this voter first durably held everything below each of these marks, as entries of this epoch."""
        rows = np.flatnonzero((self.epoch == epoch) | (self.epoch == ANY))
        ends = np.maximum.accumulate(self.end[rows])
        return np.append(self.time_ns[rows], NEVER)[np.searchsorted(ends, marks)]


def durable(events: Int64, epochs: Int64, offsets: Int64, time_ns: Int64, last_epoch: int = NONE) -> Durable:
    """What these rows of one voter show; events as in EVENTS.  last_epoch: of the last batch appended before them."""
    appended = np.maximum.accumulate(np.where(events == APPEND, np.arange(len(events)), -1))
    of_last = np.where(appended >= 0, epochs[appended], last_epoch) if len(events) else epochs
    rows = np.flatnonzero((events == FLUSH) | (events == START))
    return Durable(time_ns[rows], offsets[rows], np.where(events[rows] == START, ANY, of_last[rows]))


def held_since(voters: Mapping[str, Durable], epoch: int, marks: Int64) -> dict[str, Int64]:
    """Voter -> when it first durably held everything below each of these marks of this epoch."""
    return {name: voter.since(epoch, marks) for name, voter in voters.items()}


def too_early(since: Mapping[str, Int64], time_ns: Int64, silent: int, voters: int) -> Int64:
    """The places of the marks that were reported, each at its time, before a majority of so many voters held them.

    silent: voters of which nothing is known; each counts as holding everything.
    """
    holders = silent + sum((times <= time_ns).astype(np.int64) for times in since.values())
    return np.flatnonzero(2 * np.asarray(holders) <= voters)


@dataclass(slots=True)
class _Voter:
    """Columns of one trace.  leads: the rows in which it becomes leader."""

    path: str
    event: Int64
    epoch: Int64
    offset: Int64
    time_ns: Int64
    seq: Int64
    leads: Int64
    durable: Durable
    members: VotersByRow


def _split(run: StoredRun) -> list[Part]:
    if not one_clock(run.header):
        return []
    until: dict[str, int] = {}
    for copy in run.copies:
        until[copy["node"]] = max(copy["trace_seq"], until.get(copy["node"], -1))
    files = node_files(run.trace)
    return [Part(tuple(files.values()), {"nodes": list(files), "voters": list(run.servers), "until": until})] * bool(
        files
    )


def _judge(part: Part, budget: Budget) -> MarksFinding:
    voters: dict[str, _Voter] = {}
    rows = 0
    for node, path in zip(part.params["nodes"], part.paths, strict=True):
        voters[node] = _read(path)
        rows += len(voters[node].seq)
        if rows * ROW_SIZE_BYTES > budget.size_bytes:
            return MarksFinding(unknown=f"{rows} rows of traces are beyond the budget of {budget.size_bytes} bytes")
    all_durable = {name: voter.durable for name, voter in voters.items()}
    witnesses: list[Witness] = []
    judged = violations = 0
    for node, leader in voters.items():
        until = part.params["until"].get(node, -1)
        for office in leader.leads.tolist():
            epoch, start = int(leader.epoch[office]), int(leader.offset[office])
            mine = (leader.event == MARK) & (leader.epoch == epoch) & (leader.seq <= until)
            at = np.flatnonzero(mine & (leader.offset > start) & (np.arange(len(mine)) > office))
            judged += len(at)
            for members, marks in by_members(leader.members, at, frozenset(part.params["voters"])):
                known = {name: each for name, each in all_durable.items() if name in members}
                since = held_since(known, epoch, leader.offset[marks])
                early = too_early(since, leader.time_ns[marks], len(members) - len(known), len(members))
                violations += len(early)
                for i in early[: WITNESSES_PER_PART - len(witnesses)].tolist():
                    held = {name: int(times[i]) for name, times in since.items()}
                    mark = trace_row(leader.path, int(leader.seq[marks[i]]))
                    witnesses.append(witness(mark, held, len(members)))
    return MarksFinding(tuple(witnesses), judged, violations)


def by_members(named: VotersByRow, marks: Int64, otherwise: frozenset[str]) -> Iterator[tuple[frozenset[str], Int64]]:
    """The marks of a leader, as rows, parted by the voters that it counted.  otherwise: where its log names none."""
    numbers_of = named.number[marks]
    for number in np.unique(numbers_of).tolist():
        here = marks[numbers_of == number]
        yield named.at(int(here[0])) or otherwise, here


def _read(path: str) -> _Voter:
    rows = read_trace(path, EVENTS, _COLUMNS)
    epoch, offset, time_ns, seq = (numbers(rows, name) for name in ("epoch", "offset", "time_ns", "seq"))
    event, leads = coded(rows, "event", EVENTS), np.flatnonzero(coded(rows, "role", {"leader": 1}) == 1)
    return _Voter(
        path, event, epoch, offset, time_ns, seq, leads, durable(event, epoch, offset, time_ns), voters_by_row(rows)
    )


def witness(mark: Row, since: Mapping[str, int], voters: int) -> Witness:
    """mark: the leader's row.  since: voter -> when it held everything below the mark."""
    node, time_ns = mark["node"], int(mark["time_ns"])
    holders = [name for name, held_ns in since.items() if held_ns <= time_ns]
    why = [f"{node} led epoch {mark['epoch']} and reported at {time_ns / 1e9:.6f} s that {mark['offset']} is its mark."]
    for name, held_ns in since.items():
        if held_ns > time_ns:
            when = f"only at {held_ns / 1e9:.6f} s" if held_ns != NEVER else "never in that epoch"
            why.append(f"{name} durably held everything below {mark['offset']} {when}.")
    held = f"only {', '.join(holders)} of {voters} voters" if holders else f"none of {voters} voters"
    return Witness(
        kind=KIND,
        summary=f"{node} called everything below offset {mark['offset']} committed in epoch {mark['epoch']}, but "
        f"{held} durably held it at that time.",
        rows=(mark,),
        facts={
            "nodes": [node, *(name for name in since if name not in holders and name != node)],
            "epoch": mark["epoch"],
            "offset": mark["offset"] - 1,
            "committed_below": mark["offset"],
            "may_have_held": holders,
            "why": why,
            "expected": "a leader counts what voters reported, and they report what their disks hold",
        },
    )


def _combine(run: StoredRun, findings: Sequence[MarksFinding]) -> Verdict:
    if not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock")
    marks, violations = sum(f.marks for f in findings), sum(f.violations for f in findings)
    looked_at = {"high watermarks": marks, **({"violations": violations} if violations else {})}
    unknown = (
        [f.unknown for f in findings if f.unknown] + gaps(run, "traces") + nothing_of(looked_at, "high watermarks")
    )
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown)


HELD_BEFORE_MARK = Checker(
    name="majority-before-mark",
    title="A majority holds it before it is called committed",
    question="Did a majority of voters durably hold everything at the time when its leader called it committed?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"logs", "traces"}),
)
