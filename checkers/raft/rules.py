"""The rows of traces, and the rules of Raft that these rows can violate, with the texts of each violation.

The rows of one node, in the order of `seq`, decide most rules.  Such a rule has a predicate over a `NodeState` (the
facts of earlier rows) and the next row.  The other rules compare rows of several nodes; `monitor.py` evaluates them.
No rule compares clocks, except two: a `TimedMonitor` evaluates them in the order of one shared clock.

The rules come from Ongaro & Ousterhout 2014 (sections 5.2 to 5.4, figures 2, 3 and 8), KIP-595 (fetch, epochs), KIP-630
(snapshots) and KIP-853 (voters and disks that change).

A node whose disk was replaced is another replica (KIP-853): the votes, the log and the reports of the previous replica
do not apply to it.  This is so only if the new disk has a new id.

This module does not import pyarrow, because the swarm and the explorer use it, too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from checkers.base.verdict import Witness

# Kinds of violations that several packages use.
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

CURRENT_EPOCH_EVENTS = frozenset({"disk", "start", "vote", "role", "high-watermark"})
"""Trace events whose epoch is the current epoch of the node.  The epoch of an append is that of the batch."""

_REFUSED_TRUNCATION = re.compile(r"truncat.*high.?watermark", re.IGNORECASE | re.DOTALL)

Row = dict[str, Any]
"""A row of a table in the form of a witness."""

WITNESSES_PER_PART = 100
"""Maximum number of witnesses of one kind in one part.  Further violations are only counted, to save memory."""


class TraceRow(NamedTuple):
    """One row of a node's trace, as `checkers.base.columns.TRACE` defines its columns."""

    seq: int
    incarnation: int
    event: str
    epoch: int
    offset: int | None = None
    hash: int | None = None
    peer: str | None = None
    role: str | None = None
    detail: str | None = None
    time_ns: int = 0
    node: str = ""

    @property
    def where(self) -> str:
        """Return the position of this row: the file in the run's folder, and the field `seq` of its line."""
        return f"trace/{self.node}.jsonl, seq {self.seq}"

    @property
    def hash_word(self) -> str:
        """Return the hash in the form that the texts of `rules.toml` show."""
        return hash_words(self.hash or 0)

    def as_row(self) -> Row:
        """Return the row in the form of a witness."""
        return {"table": "trace", **{name: getattr(self, name) for name in _IN_ORDER}}


_IN_ORDER = ("node", "incarnation", "seq", "time_ns", "event", "epoch", "offset", "hash", "peer", "role", "detail")
"""The columns of TRACE."""


def in_trace(trace: Row) -> str:
    """Return the position of a row of a trace, in the form of `TraceRow.where`."""
    return f"trace/{trace['node']}.jsonl, seq {trace['seq']}"


def hash_words(value: int) -> str:
    """Return a hash as 16 hexadecimal digits.

    value: the hash as a signed 64-bit number, as traces contain it
    """
    return f"{value & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def of_row(row: Row) -> TraceRow:
    """Convert a row in the form of a witness to a trace row."""
    return TraceRow(**{name: row[name] for name in TraceRow._fields})


def copy_row(copy: Row) -> Row:
    """Convert a row of COPIES to the form of a witness."""
    return {"table": "copies", **copy}


class LogAt(NamedTuple):
    """A node's log at one row of its trace: its end, and the lowest and highest possible epoch of its last entry."""

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
    a restart may find an entry whose row is missing because the process was killed before it wrote the row.  Then only
    an interval of epochs is known.

    A piece is (first end, last end, lowest epoch, highest epoch): every entry whose end lies from `first end` to
    `last end` has an epoch from `lowest epoch` to `highest epoch`.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int, int, int]] = []

    @property
    def now(self) -> LogAt:
        return LogAt(*self._pieces[-1][1:]) if self._pieces else LogAt(0, 0, 0)

    def append(self, end: int, epoch: int) -> None:
        """Process an append.

        end: end offset of the log after it
        epoch: epoch of its last batch
        """
        if self._pieces and self._pieces[-1][2:] == (epoch, epoch):
            first = self._pieces.pop()[0]
            self._pieces.append((first, end, epoch, epoch))
        else:
            self._pieces.append((end, end, epoch, epoch))

    def ends_at(self, end: int, epoch: int) -> None:
        """Process a start, a truncation or a fetched snapshot.

        end: end offset of the log after it
        epoch: current epoch of the node
        """
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
    """State of one node that the rows of its trace have shown so far.

    disk: the latest row that named the node's disk
    life: the incarnation of the process
    last: the latest row
    votes: epoch -> the row that showed the vote
    highest_epoch: the first row with the highest epoch on this disk
    mark: the row with the largest high watermark of this incarnation
    committed: the row of this incarnation with the largest offset known to be committed (high watermark, or snapshot
    that was loaded)
    applied: the row with the largest applied offset of this incarnation
    office: the row in which the node became leader; None if it is not the leader
    office_mark: the largest high watermark since the node became leader
    held: the row with the largest committed prefix that the node must keep
    owed: the row with the largest committed prefix that is flushed, too
    unflushed: rows with committed prefixes that are not known to be flushed
    flushed: end of the part of the log that is certainly durable
    named: (offset, names) of the latest record with voters in the log, in this incarnation; None if there is none
    told: (rule, its epoch, incarnation or disk) of each violation that was reported already
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
        """Return True if this row names another disk than the previous `disk` row."""
        return row.event == "disk" and self.disk is not None and self.disk.detail != row.detail

    def begin_life(self, incarnation: int) -> None:
        """Forget the state that a process loses when it ends."""
        self.life = incarnation
        self.mark = self.committed = self.applied = None

    def begin_disk(self) -> None:
        """Forget the promises of the replica with the previous disk."""
        self.votes, self.highest_epoch, self.held, self.owed, self.flushed = {}, None, None, None, 0
        self.unflushed = []
        self.told = set()

    def follow(self, row: TraceRow, at_mark: bool = False) -> None:
        """Process a row after the rules have been evaluated on it.

        at_mark: True if the row is an append after which the log is a committed prefix
        """
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
                self.log.ends_at(offset, row.epoch)  # a fetched snapshot replaces a log that ends before it


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
    """Evidence for the violation of a rule.

    rows: the rows that violate the rule, in order
    words: values for the placeholders in the rule's texts
    facts: additional facts of the witness
    """

    rows: tuple[TraceRow, ...]
    words: Mapping[str, object] = {}
    facts: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class RaftRule:
    """A rule, and the texts of its violation.

    kind: kind of the violation
    checker: name of the checker that reports the violation
    summary, why, expected: texts in which {a} is the first and {b} the last row of the evidence
    nodes: names of the nodes concerned
    events: events of the rows that can violate the rule
    once: the rule is reported once per "epoch", "life" (incarnation) or "disk"; "" for every violation
    broken: the predicate over the rows of one node; None if `monitor.py` evaluates the rule
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
    """A violated rule."""

    rule: RaftRule
    evidence: RuleEvidence

    @property
    def kind(self) -> str:
        return self.rule.kind

    @property
    def summary(self) -> str:
        """Return the violation in one sentence."""
        rows = self.evidence.rows
        return self.rule.summary.format(a=rows[0], b=rows[-1], **self.evidence.words)

    def witness(self, more_rows: Sequence[Mapping[str, Any]] = ()) -> Witness:
        """Return the witness of the violation.

        more_rows: further rows, of other tables than traces
        """
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


# Epochs, high watermarks and applied states of one node


def _epoch_fell(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    top = node.highest_epoch
    return RuleEvidence((top, row)) if top is not None and row.epoch < top.epoch else None


def _beyond(mark: TraceRow | None, row: TraceRow) -> RuleEvidence | None:
    if _end(row) <= _end(mark):
        return None
    known = "not known yet" if mark is None else mark.offset
    return RuleEvidence((row,) if mark is None else (mark, row), {"known": known})


def _fell(top: TraceRow | None, row: TraceRow) -> RuleEvidence | None:
    """Return evidence if the value decreased.

    A row without an offset reports an unknown value, and this is not a decrease.
    """
    return RuleEvidence((top, row)) if top is not None and row.offset is not None and row.offset < _end(top) else None


def _old_epoch_mark(node: NodeState, row: TraceRow) -> RuleEvidence | None:
    """Return evidence if a leader raised its high watermark without an entry of its own epoch below it.

    A leader may repeat a high watermark that it knew as a follower.
    """
    office = node.office
    if office is None or not 0 < _end(row) <= _end(office) or (node.mark is not None and _end(row) <= _end(node.mark)):
        return None
    return RuleEvidence((office, row))


# Files that a node removes


def _removed(node: NodeState, row: TraceRow) -> TraceRow | None:
    """Return the row of the committed prefix that a truncation or a start wrongly removed from the log, or None.

    A truncation must keep every committed entry, but a start only the flushed ones.
    """
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


# Voters that change


def _changed_voters(node: NodeState, row: TraceRow) -> bool:
    """Return True if a leader changes the voters.

    The first leader's record repeats the voters of the configuration, so it is not a change.
    """
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


_PREDICATES: Mapping[str, Callable[[NodeState, TraceRow], RuleEvidence | None]] = {
    "voted_twice": _voted_twice,
    "vote_not_kept": _vote_not_kept,
    "epoch_fell": _epoch_fell,
    "mark_fell": lambda node, row: _fell(node.mark, row),
    "applied_beyond": lambda node, row: _beyond(node.committed, row),
    "applied_fell": lambda node, row: _fell(node.applied, row),
    "old_epoch_mark": _old_epoch_mark,
    "cut_below_mark": _cut_below_mark,
    "entry_lost": _entry_lost,
    "refused": lambda node, row: RuleEvidence((row,)) if _REFUSED_TRUNCATION.search(row.detail or "") else None,
    "snapshot_beyond": lambda node, row: _beyond(node.mark, row) if row.peer is None else None,
    "early_change": _early_change,
    "two_changes": _two_changes,
}
"""Name in `rules.toml` -> the predicate over the rows of one node."""
RULES = tuple(
    RaftRule(
        **stated
        | {name: tuple(stated.get(name, ())) for name in ("why", "events")}
        | {"broken": _PREDICATES.get(stated.get("broken", ""))}
    )
    for stated in tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))["rule"]
)
"""Every rule, as `rules.toml` states it."""


def breach(
    kind: str, rows: tuple[TraceRow, ...], words: Mapping[str, object], facts: Mapping[str, object] = {}
) -> RuleBreach:
    """Return a violation of the first rule of this kind.

    rows, words, facts: fields of its `RuleEvidence`
    """
    return RuleBreach(next(rule for rule in RULES if rule.kind == kind), RuleEvidence(rows, words, facts))


BY_EVENT: dict[str, tuple[RaftRule, ...]] = {
    event: tuple(rule for rule in RULES if event in rule.events)
    for event in dict.fromkeys(event for rule in RULES for event in rule.events)
}
