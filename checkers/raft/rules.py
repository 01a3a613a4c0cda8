"""The rules of Raft that rows of traces can break: one table, with the name of each violation and its words.

The rows of one node, in the order of `seq`, decide most rules.  Such a rule has a predicate over a `NodeState` (what
the rows before have shown) and the next row.  The other rules compare rows of several nodes; `monitor.py` evaluates
them.  No rule compares clocks, except the two that the monitor evaluates in the order of one shared clock.

The rules come from Ongaro & Ousterhout 2014 (sections 5.2 to 5.4, figures 2, 3 and 8), KIP-595 (fetch, epochs), KIP-630
(snapshots) and KIP-853 (voters and disks that change).

A node whose disk was replaced is another replica (KIP-853): what the replica before it voted, held and reported binds
it to nothing.  A disk that passes for the one before excuses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from checkers.base.verdict import Witness
from checkers.raft.trace_row import TraceRow

# Kinds of violations that several rooms name.
TWO_LEADERS = "two leaders in one epoch"
LEADER_AGAIN = "leader again after a restart"
VOTED_TWICE = "voted twice in one epoch"
VOTE_NOT_KEPT = "vote not kept"
EPOCH_BACK = "epoch went back"
MARK_BACK = "high watermark went back"
PREFIXES_DIFFER = "committed prefixes differ"
STATES_DIFFER = "applied states differ"
SNAPSHOT_DIFFERS = "snapshot differs from its prefix"
SNAPSHOT_BEYOND = "snapshot beyond the high watermark"
BEGINS_LATE = "log begins behind its snapshot"
CUT_BELOW_MARK = "truncation below the high watermark"
ENTRY_LOST = "committed entry lost"
OLD_EPOCH_MARK = "mark without an entry of its epoch"
NO_MAJORITY = "high watermark without a majority"
BEFORE_MAJORITY = "high watermark before its majority"
LACKING_LEADER = "leader without a committed entry"
LOGS_DIFFER = "logs differ below an equal epoch"
BEHIND_VOTE = "vote for a log that is behind"
TWO_CHANGES = "voters changed before the last change was committed"
EARLY_CHANGE = "voters changed before the epoch had committed"
FAR_SETS = "sets of voters differ by more than one"
TWO_SETS = "one offset names two sets of voters"
JOINED_EARLY = "voter joined before it had caught up"
DISK_REPLACED = "disk replaced without a fault"
APPLIED_BEYOND = "applied beyond the high watermark"
APPLIED_BACK = "applied offset went back"

CURRENT_EPOCH_EVENTS = frozenset({"disk", "start", "vote", "role", "high-watermark"})
"""Trace events whose epoch is the node's own epoch at that moment.  The epoch of an append is that of the batch."""

_REFUSED_TRUNCATION = re.compile(r"truncat.*high.?watermark", re.IGNORECASE | re.DOTALL)


class LogAt(NamedTuple):
    """A node's log at one of its rows: its end, and the lowest and the highest epoch that its last entry can have."""

    end: int
    lowest: int
    highest: int

    def behind(self, other: LogAt) -> bool:
        """Return True if this log is certainly less up to date than the other one."""
        if self.highest != other.lowest:
            return self.highest < other.lowest
        return self.end < other.end


class KnownLog:
    """One node's log, as far as the rows of its trace show it.

    A trace does not always show the epoch of the last entry.  An append row names only the epoch of its last batch, and
    a restart may find an entry whose row a kill has hidden.  Then the epoch is known as an interval.

    A piece is (first end, last end, lowest epoch, highest epoch): every entry that ends from `first end` to `last end`
    has an epoch in this interval.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int, int, int]] = []

    @property
    def now(self) -> LogAt:
        return LogAt(*self._pieces[-1][1:]) if self._pieces else LogAt(0, 0, 0)

    def append(self, end: int, epoch: int) -> None:
        """Take an append that ended at this offset, with a last batch of this epoch."""
        if self._pieces and self._pieces[-1][2:] == (epoch, epoch):
            first = self._pieces.pop()[0]
            self._pieces.append((first, end, epoch, epoch))
        else:
            self._pieces.append((end, end, epoch, epoch))

    def ends_at(self, end: int, epoch: int) -> None:
        """Take a start, a truncation or a fetched snapshot: the log ends here.  epoch: of the node."""
        before = self.now
        if end > before.end:
            self._pieces.append((end, end, before.lowest, epoch))
            return
        highest = before.highest
        while self._pieces and self._pieces[-1][0] > end:
            highest = self._pieces.pop()[3]
        if end == 0:
            self._pieces = []
        elif self._pieces and end <= self._pieces[-1][1]:
            first, _, low, high = self._pieces.pop()
            self._pieces.append((first, end, low, high))
        else:
            self._pieces.append((end, end, self.now.lowest, highest))


@dataclass(slots=True)
class NodeState:
    """State that the rows of one node have shown so far.  Each row is the last, or the extreme, one of its kind.

    disk: the row that named its disk last.  life: the incarnation of its process.  last: its last row.
    votes: epoch -> the row that showed the vote.  highest_epoch: the first row of the highest epoch on this disk.
    mark, committed, applied: of this life, the largest high watermark, the largest offset known to be committed (by a
    mark, or a snapshot that was loaded), and the largest applied offset.
    office: the row in which it became the leader that it is; office_mark: the largest mark since then.
    held: the largest committed prefix that it must keep; owed: the largest that is flushed too; unflushed: the others.
    flushed: the end of its log that is certainly durable.
    named: (offset, names) of the voters that its log names last in this life; None if it names none.
    told: what was reported already.
    """

    name: str
    disk: TraceRow | None = None
    life: int = -1
    last: TraceRow | None = None
    votes: dict[int, TraceRow] = field(default_factory=dict)
    highest_epoch: TraceRow | None = None
    mark: TraceRow | None = None
    committed: TraceRow | None = None
    applied: TraceRow | None = None
    office: TraceRow | None = None
    office_mark: int = -1
    held: TraceRow | None = None
    owed: TraceRow | None = None
    unflushed: list[TraceRow] = field(default_factory=list)
    flushed: int = 0
    log: KnownLog = field(default_factory=KnownLog)
    named: tuple[int, frozenset[str]] | None = None
    told: set[object] = field(default_factory=set)

    def replaced(self, row: TraceRow) -> bool:
        """Return True if this row names another disk than the one before."""
        return row.event == "disk" and self.disk is not None and self.disk.detail != row.detail

    def begin_life(self, incarnation: int) -> None:
        """Forget what a process does not find again when it starts."""
        self.life = incarnation
        self.mark = self.committed = self.applied = None

    def begin_disk(self) -> None:
        """Forget what bound the replica with the disk before."""
        self.votes, self.highest_epoch, self.held, self.owed, self.flushed = {}, None, None, None, 0
        self.unflushed = []
        self.told = set()

    def follow(self, row: TraceRow, at_mark: bool = False) -> None:
        """Take a row, after the rules have looked at it.

        at_mark: what an append reached is a committed prefix."""
        event, offset = row.event, row.offset
        if event in CURRENT_EPOCH_EVENTS and (self.highest_epoch is None or row.epoch > self.highest_epoch.epoch):
            self.highest_epoch = row
        if offset is not None and (take := _TAKES.get(event)) is not None:
            take(self, row, offset)
        if at_mark:
            self._hold(row, offset or 0)
        if event in ("vote", "quorum-state"):
            if row.peer is not None:
                self.votes.setdefault(row.epoch, row)
        elif event == "role":
            self.office, self.office_mark = row if row.role == "leader" and offset is not None else None, -1
        elif event == "voters":
            self.named = None if offset is None else (offset, frozenset((row.detail or "").split()))
        elif event == "disk":
            self.disk = row
        self.last = row

    def _hold(self, row: TraceRow, offset: int) -> None:
        if offset > 0 and (self.held is None or offset >= (self.held.offset or 0)):
            self.held = row
            if offset <= self.flushed:
                self.owed = row
            else:
                self.unflushed.append(row)

    def _take_append(self, row: TraceRow, offset: int) -> None:
        self.log.append(offset, row.epoch)

    def _take_flush(self, row: TraceRow, offset: int) -> None:
        self.flushed = offset
        while self.unflushed and _end(self.unflushed[0]) <= offset:
            self.owed = self.unflushed.pop(0)
        if offset > self.log.now.end:
            self.log.ends_at(offset, row.epoch)

    def _take_mark(self, row: TraceRow, offset: int) -> None:
        self.mark = _larger(self.mark, row)
        self.committed = _larger(self.committed, row)
        self.office_mark = max(self.office_mark, offset)
        self._hold(row, offset)

    def _take_applied(self, row: TraceRow, offset: int) -> None:
        self.applied = _larger(self.applied, row)

    def _take_cut(self, row: TraceRow, offset: int) -> None:
        if self.held is not None and offset < (self.held.offset or 0):
            self.held, self.unflushed = None, []
        self.owed = self.owed if offset >= _end(self.owed) else None
        self.flushed = min(self.flushed, offset)
        self.log.ends_at(offset, row.epoch)
        if row.event == "start":
            self.office, self.named = None, None

    def _take_snapshot(self, row: TraceRow, offset: int) -> None:
        if row.peer is not None:
            self.committed = _larger(self.committed, row)
            if offset > self.log.now.end:
                self.log.ends_at(offset, row.epoch)  # a fetched snapshot replaces a log that ends below it


_TAKES: dict[str, Callable[[NodeState, TraceRow, int], None]] = {
    "append": NodeState._take_append,
    "flush": NodeState._take_flush,
    "high-watermark": NodeState._take_mark,
    "applied": NodeState._take_applied,
    "truncate": NodeState._take_cut,
    "start": NodeState._take_cut,
    "snapshot": NodeState._take_snapshot,
}


def _larger(known: TraceRow | None, row: TraceRow) -> TraceRow:
    return row if known is None or _end(row) > _end(known) else known


def _end(row: TraceRow | None) -> int:
    return 0 if row is None or row.offset is None else row.offset


class RuleEvidence(NamedTuple):
    """The rows that break a rule, in order, values for its words, and facts for its witness."""

    rows: tuple[TraceRow, ...]
    words: Mapping[str, object] = {}
    facts: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class RaftRule:
    """A rule, and what to write where it is broken.

    kind: of the violation.  checker: the one that reports it.  summary, why, expected: texts in which {a} is the first
    and {b} the last row of the evidence.  nodes: names of the nodes concerned.
    events: the rows that can break it.  once: it is reported once in each "epoch", "life" or "disk"; "" if always.
    broken: the predicate over the rows of one node.
    """

    kind: str
    checker: str
    summary: str
    why: tuple[str, ...]
    expected: str
    nodes: str = "{b.node}"
    events: tuple[str, ...] = ()
    once: str = ""
    broken: Callable[[NodeState, TraceRow], RuleEvidence | None] | None = None


@dataclass(frozen=True, slots=True)
class RuleBreach:
    """A rule that rows have broken."""

    rule: RaftRule
    evidence: RuleEvidence

    @property
    def kind(self) -> str:
        return self.rule.kind

    @property
    def summary(self) -> str:
        """Return what happened, in one sentence."""
        rows = self.evidence.rows
        return self.rule.summary.format(a=rows[0], b=rows[-1], **self.evidence.words)

    def witness(self, more_rows: Sequence[Mapping[str, Any]] = ()) -> Witness:
        """Return the violation with its words.  more_rows: of other tables."""
        rows, rule = self.evidence.rows, self.rule
        values = {"a": rows[0], "b": rows[-1], **self.evidence.words}
        nodes = rule.nodes.format(**values).split()
        return Witness(
            kind=rule.kind,
            summary=self.summary,
            rows=(*(row.as_row() for row in rows), *more_rows),
            facts={
                "nodes": list(dict.fromkeys(nodes)),
                "epoch": rows[-1].epoch,
                "offset": rows[-1].offset,
                "why": [sentence.format(**values) for sentence in rule.why],
                "expected": rule.expected,
                **self.evidence.facts,
            },
        )


# Votes


def _voted_twice(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    given = node.votes.get(row.epoch)
    if given is None or row.peer is None or row.peer == given.peer:
        return None
    restarted = ", restarted in between" if given.incarnation != row.incarnation else ""
    return RuleEvidence((given, row), {"restarted": restarted})


def _vote_not_kept(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    given = node.votes.get(row.epoch)
    return RuleEvidence((given, row)) if given is not None and row.peer is None else None


# Epochs, marks and applied states of one node


def _epoch_fell(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    top = node.highest_epoch
    return RuleEvidence((top, row)) if top is not None and row.epoch < top.epoch else None


def _mark_fell(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    return _fell(node.mark, row)


def _applied_beyond(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    return _beyond(node.committed, row)


def _snapshot_beyond(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    return _beyond(node.mark, row) if row.peer is None else None


def _beyond(mark: TraceRow | None, row: TraceRow) -> RuleEvidence | None:
    if _end(row) <= _end(mark):
        return None
    known = "not known yet" if mark is None else mark.offset
    return RuleEvidence((row,) if mark is None else (mark, row), {"known": known})


def _applied_fell(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    return _fell(node.applied, row)


def _fell(top: TraceRow | None, row: TraceRow) -> RuleEvidence | None:
    """A row without an offset reports that it is not known, which is no fall."""
    return RuleEvidence((top, row)) if top is not None and row.offset is not None and row.offset < _end(top) else None


def _old_epoch_mark(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    """A process that repeats what it learned as a follower raises nothing."""
    office = node.office
    if office is None or not 0 < _end(row) <= _end(office) or (node.mark is not None and _end(row) <= _end(node.mark)):
        return None
    return RuleEvidence((office, row))


# What a node removes


def _removed(node: NodeState, row: TraceRow) -> TraceRow | None:
    """Return the row of a mark that a truncation, or a recovery after a restart, removed although it had to stay.

    A truncation must keep every mark, a start only what was flushed."""
    held = node.held
    if held is None or row.offset is None or row.offset >= _end(held):
        return None
    kept = row.event == "start" and row.offset >= min(node.flushed, _end(held))
    return None if kept else held


def _own_mark(held: TraceRow, row: TraceRow) -> bool:
    same_life = held.incarnation == row.incarnation
    return row.event == "truncate" and held.event == "high-watermark" and same_life


def _cut_below_mark(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    held = _removed(node, row)
    return RuleEvidence((held, row), _DID[row.event]) if held is not None and _own_mark(held, row) else None


def _entry_lost(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    held = _removed(node, row)
    return RuleEvidence((held, row), _DID[row.event]) if held is not None and not _own_mark(held, row) else None


_DID = {
    "truncate": {"did": "truncated its log to"},
    "start": {"did": "came back from a restart with a log that ends at"},
}


def _refused(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    return RuleEvidence((row,)) if _REFUSED_TRUNCATION.search(row.detail or "") else None


# Voters that change


def _changed_voters(node: NodeState, row: TraceRow) -> bool:
    """Return True if a leader changes the voters.  The first leader writes those of the configuration: no change."""
    return node.office is not None and node.named is not None and _end(row) > node.named[0]


def _early_change(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    if not _changed_voters(node, row) or node.office is None or node.office_mark > _end(node.office):
        return None
    return RuleEvidence((node.office, row), _latest(node))


def _two_changes(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    if not _changed_voters(node, row) or node.office is None or node.named is None:
        return None
    early = node.office_mark <= _end(node.office)
    return None if early or _end(node.mark) > node.named[0] else RuleEvidence((node.office, row), _latest(node))


def _latest(node: NodeState) -> dict[str, object]:
    at, names = node.named or (0, frozenset())
    return {"latest": at, "names": ", ".join(sorted(names))}


_CHANGED = "{a.node}, leader of epoch {a.epoch}, changed the voters to {b.detail} at offset {b.offset} while "
_CHANGE_WHY = (
    "{a.node} became leader of epoch {a.epoch} ({a.where}).",
    "The voters were {names}, by the record at offset {latest}.",
)
_CHANGED_AT = "It changed them to {b.detail} at offset {b.offset} ({b.where}), and "
_ONE_CHANGE = (
    "one change at a time, and none before a record of the leader's epoch has committed: else two majorities need not "
    "overlap"
)
_REMOVED = "{a.node} lost committed entries: it {did} offset {b.offset}, and offsets below {a.offset} were committed."
_REMOVED_WHY = (
    "In epoch {a.epoch} {a.node} held everything below {a.offset}, which was committed ({a.where}).",
    "In epoch {b.epoch} its log ended at {b.offset} ({b.where}).",
)
_KEEP = "a log that holds all committed entries: what was flushed survives a crash"

RULES = (
    RaftRule(
        VOTED_TWICE,
        "vote-once",
        "{b.node} voted for {a.peer} and for {b.peer} in epoch {b.epoch}{restarted}.",
        (
            "{a.node} gave its vote in epoch {a.epoch} to {a.peer} ({a.where}, process life {a.incarnation}).",
            "{b.node} gave its vote in epoch {b.epoch} to {b.peer} ({b.where}, process life {b.incarnation}).",
        ),
        "one vote per voter and epoch, or two candidates can each have a majority",
        nodes="{b.node} {a.peer} {b.peer}",
        events=("vote", "quorum-state"),
        once="epoch",
        broken=_voted_twice,
    ),
    RaftRule(
        VOTE_NOT_KEPT,
        "vote-once",
        "{a.node} voted for {a.peer} in epoch {a.epoch}, but later its quorum-state held no vote in that epoch.",
        (
            "{a.node} held its vote for {a.peer} in epoch {a.epoch} ({a.where}).",
            "Its quorum-state held no vote of epoch {b.epoch} ({b.where}).",
        ),
        "a vote is kept for as long as its epoch lasts, or the voter can vote again",
        nodes="{a.node} {a.peer}",
        events=("vote", "quorum-state"),
        once="epoch",
        broken=_vote_not_kept,
    ),
    RaftRule(
        EPOCH_BACK,
        "monotonicity",
        "{b.node}: its epoch fell from {a.epoch} to {b.epoch}.",
        (
            "{a.node} reported that its epoch was {a.epoch} ({a.where}).",
            "{b.node} reported that its epoch was {b.epoch} ({b.where}).",
        ),
        "an epoch never goes back, restarts included",
        events=tuple(CURRENT_EPOCH_EVENTS),
        once="disk",
        broken=_epoch_fell,
    ),
    RaftRule(
        MARK_BACK,
        "monotonicity",
        "{b.node}: its high watermark fell from {a.offset} to {b.offset}.",
        (
            "{a.node} reported that its high watermark was {a.offset} ({a.where}).",
            "{b.node} reported that its high watermark was {b.offset} ({b.where}).",
        ),
        "a high watermark never goes back in one life of a process; a new leader's is unknown, not lower",
        events=("high-watermark",),
        once="life",
        broken=_mark_fell,
    ),
    RaftRule(
        APPLIED_BEYOND,
        "state-machine-safety",
        "{b.node} applied up to offset {b.offset}; its high watermark was {known}.",
        ("Before it applied offset {b.offset} its mark was {known} ({b.where}).",),
        "only committed entries are applied",
        events=("applied",),
        once="life",
        broken=_applied_beyond,
    ),
    RaftRule(
        APPLIED_BACK,
        "state-machine-safety",
        "{b.node} applied up to offset {a.offset}, and later only up to {b.offset}.",
        (
            "Everything below offset {a.offset} was applied ({a.where}).",
            "Everything below offset {b.offset} was applied ({b.where}).",
        ),
        "each entry is applied once, in order, in one life of a process",
        events=("applied",),
        once="life",
        broken=_applied_fell,
    ),
    RaftRule(
        OLD_EPOCH_MARK,
        "commit-own-epoch",
        "{a.node} led epoch {a.epoch} from offset {a.offset} on, and called everything below offset {b.offset} "
        "committed without an entry of its own epoch.",
        (
            "{a.node} became leader of epoch {a.epoch}, which starts at offset {a.offset} ({a.where}).",
            "It raised its high watermark to {b.offset} ({b.where}): all entries below are older.",
        ),
        "a leader commits older entries only together with one of its own epoch: a later leader may still replace them",
        events=("high-watermark",),
        broken=_old_epoch_mark,
    ),
    RaftRule(
        CUT_BELOW_MARK,
        "committed-never-lost",
        _REMOVED,
        _REMOVED_WHY,
        _KEEP,
        events=("truncate", "start"),
        broken=_cut_below_mark,
    ),
    RaftRule(
        ENTRY_LOST,
        "committed-never-lost",
        _REMOVED,
        _REMOVED_WHY,
        _KEEP,
        events=("truncate", "start"),
        broken=_entry_lost,
    ),
    RaftRule(
        CUT_BELOW_MARK,
        "committed-never-lost",
        "{b.node} was to truncate its log below its high watermark, and refused: {b.detail}",
        ("{b.node} stopped in epoch {b.epoch} ({b.where}): {b.detail}",),
        "a leader's log agrees with everything that a follower knows to be committed",
        events=("fatal",),
        broken=_refused,
    ),
    RaftRule(
        SNAPSHOT_BEYOND,
        "snapshot-equals-prefix",
        "{b.node} has a snapshot that ends at offset {b.offset}; what was known to be committed was {known}.",
        ("Before the snapshot the high watermark was {known} ({b.where}).",),
        "only committed entries go into a snapshot, for it cannot be truncated",
        events=("snapshot",),
        once="life",
        broken=_snapshot_beyond,
    ),
    RaftRule(
        EARLY_CHANGE,
        "quorum-intersection",
        _CHANGED + "it had committed no record of epoch {a.epoch}, which starts at offset {a.offset}.",
        (*_CHANGE_WHY, _CHANGED_AT + "it had committed no record of epoch {a.epoch}."),
        _ONE_CHANGE,
        events=("voters",),
        broken=_early_change,
    ),
    RaftRule(
        TWO_CHANGES,
        "quorum-intersection",
        _CHANGED + "the change at offset {latest} was not committed.",
        (*_CHANGE_WHY, _CHANGED_AT + "the change at offset {latest} was not committed."),
        _ONE_CHANGE,
        events=("voters",),
        broken=_two_changes,
    ),
    # Rows of two nodes
    RaftRule(
        PREFIXES_DIFFER,
        "committed-never-lost",
        "{both} both committed everything below offset {b.offset}, but not the same.",
        (
            "{a.node} reported in epoch {a.epoch} ({a.where}) that {a.offset} entries are committed; the hash of what "
            "it held there is {a.hash_word}.",
            "{b.node} reported in epoch {b.epoch} ({b.where}) that {b.offset} entries are committed; the hash of what "
            "it held there is {b.hash_word}.",
        ),
        "one committed log",
        nodes="{a.node} {b.node}",
    ),
    RaftRule(
        STATES_DIFFER,
        "state-machine-safety",
        "{both} applied everything below offset {b.offset} and are in different states.",
        (
            "State of {a.node} after offset {last}: hash {a.hash_word} ({a.where}).",
            "State of {b.node} after offset {last}: hash {b.hash_word} ({b.where}).",
        ),
        "the same entries in the same order lead to the same state",
        nodes="{a.node} {b.node}",
    ),
    # Rows of all nodes in the order of one clock
    RaftRule(
        BEFORE_MAJORITY,
        "majority-before-mark",
        "{b.node} called everything below offset {b.offset} committed in epoch {b.epoch}, but {held} durably held it "
        "at that time.",
        ("{b.node} led epoch {b.epoch} and reported that {b.offset} is its mark ({b.where}).", "{lacked}"),
        "a leader counts what voters reported, and they report what their disks hold",
        nodes="{b.node} {without}",
    ),
    RaftRule(
        JOINED_EARLY,
        "voters-caught-up",
        "{b.node}, leader of epoch {b.epoch}, made {voter} a voter while its log ended at offset {reached}; everything "
        "below {needed} had been there for it to fetch.",
        (
            "{b.node} named {b.detail} as voters at offset {b.offset} ({b.where}).",
            "By then the log of {voter} durably ended at offset {reached}.",
            "Epoch {b.epoch} began at offset {start}, and the log of {b.node} reached {needed} by {within:g} s before "
            "or with its first entry.",
        ),
        "a replica becomes a voter once it has caught up, or nothing may commit until it has",
        nodes="{b.node} {voter}",
    ),
    # Rows of one node, and the faults of the run
    RaftRule(
        DISK_REPLACED,
        "kept-disk",
        "{a.node} had the disk {a.detail} and then the disk {disk}, and no fault had taken its disk.",
        (
            "{a.node} named the disk {a.detail} ({a.where}).",
            "It had the disk {disk} {found}.",
            "No fault that wipes disks or damages data was in force on {a.node} in between.",
        ),
        "a node keeps the directory id of its disk, and with it its vote and its log",
        nodes="{a.node}",
    ),
)
"""Every rule with words of its own.  Two rules share a kind where two kinds of rows show the same violation."""


def rule_of(kind: str) -> RaftRule:
    """Return the first rule of this kind."""
    return next(rule for rule in RULES if rule.kind == kind)


BY_EVENT: dict[str, tuple[RaftRule, ...]] = {
    event: tuple(rule for rule in RULES if event in rule.events)
    for event in dict.fromkeys(event for rule in RULES for event in rule.events)
}
