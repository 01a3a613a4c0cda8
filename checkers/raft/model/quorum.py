"""The quorum as its nodes have reported it so far: voters, the logs of leaders, and what followed from them.

Logs.  The leader of an epoch writes each offset of its epoch once.  So a log is determined by the epoch of its last
entry and by its end: a *position*.  A *branch* is the log of one leader; it leaves its parent's branch at its start.

Answers.  A step of the protocol explains a trace row (None), or it is `Blocked` or `Unexplained`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from checkers.raft.trace_row import hash_words


class Blocked(NamedTuple):
    """missing: the fact that no row has shown.  At least `needed` of the nodes in `suppliers` have to show it.

    shown: what rows do show of it, as a clause, or "".
    """

    missing: str
    suppliers: tuple[str, ...]
    needed: int = 1
    shown: str = ""


class Unexplained(NamedTuple):
    """kind: of the violation.  why: what contradicts the row.  expected: the rule."""

    kind: str
    why: str
    expected: str


Answer = Blocked | Unexplained | None


class NotModelled(Exception):
    """The traces hold something that the model cannot replay; the message names it."""


def malformed(why: str) -> Unexplained:
    """The row contradicts the rows before it, under any protocol."""
    return Unexplained("row contradicts the rows before it", why, "a row that follows from the rows before it")


class Position(NamedTuple):
    """A log as the epoch of its last entry and its end.  The order is that of votes: epoch first, then length."""

    epoch: int
    end: int


EMPTY = Position(0, 0)


@dataclass(slots=True)
class Branch:
    """The log of the leader of one epoch: that of its parent up to `start`, then entries of this epoch up to `end`.

    mark: the largest high watermark that this leader reported.  reached: node -> how far it durably held this log.
    """

    leader: str
    parent: int
    start: int
    end: int
    mark: int = -1
    reached: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ModelVoter:
    """State that one node has reported so far.  role "": its process has started and has not yet reported a role.

    members: the voters that its log names last; all nodes where it names none.  named_at: the offset that names them,
    None where its log names none.  must_name: that entry was removed, and its next row says who is named now.
    disk: the id of its disk; "" if it reports none.
    names_voters: its log names none yet, although they can change; as a leader it names those of the configuration.
    unflushed: the ends that its log has had beyond `flushed`, rising: a flush reaches one of them.
    votes: epoch -> for whom.  must_run: it voted for itself, and its next row is the role of a candidate.
    must_apply: the offset that the following rows reach by applying entries, 0 if none is due.
    must_load: the end of the snapshot whose state the next row reports as applied, 0 if none is due.
    reports_state: it reports what its quorum-state holds at each start, and before each change that is stored there.
    Nodes of older versions did not report it.  must_report_state: its process has started, and its next row reports
    what quorum-state holds.  stored_epoch: the epoch that it has just stored, in which its next row is a role; or None.
    """

    name: str
    members: frozenset[str]
    disk: str = ""
    incarnation: int = -1
    seq: int = -1
    ended: bool = True
    role: str = ""
    epoch: int = 0
    leader: str | None = None
    log: Position = EMPTY
    flushed: int = 0
    unflushed: list[int] = field(default_factory=list)
    names_voters: bool = False
    named_at: int | None = None
    must_name: bool = False
    mark: int = -1
    applied: int = 0
    must_run: bool = False
    must_apply: int = 0
    must_load: int = 0
    reports_state: bool = False
    must_report_state: bool = False
    stored_epoch: int | None = None
    votes: dict[int, str] = field(default_factory=dict)

    @property
    def majority(self) -> int:
        """The least number of the voters that it counts of which any two sets overlap."""
        return len(self.members) // 2 + 1


class Quorum:
    """The whole quorum.  names: every voter.

    epochs: those that a node entered.  granted: (epoch, candidate) -> the nodes that voted for it.
    hidden_votes: epoch -> the nodes whose vote a kill may have hidden.  candidacies: (epoch, candidate) -> its log.
    prefixes: position -> its prefix hash; positions: the reverse.  states: offset -> hash of the applied state.
    named: (epoch, offset) of an entry -> the voters that it names.
    batch_starts: end of a batch -> its start.  snapshots: (node, end) of each that a node has had.  marks: how many
    high watermarks were taken.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.voters = {name: ModelVoter(name, frozenset(names)) for name in names}
        self.branches: dict[int, Branch] = {0: Branch("", 0, 0, 0)}
        self.marks = 0
        self.named: dict[tuple[int, int], frozenset[str]] = {}
        self.epochs = {0}
        self.granted: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        self.hidden_votes: defaultdict[int, set[str]] = defaultdict(set)
        self.candidacies: dict[tuple[int, str], Position] = {}
        self.prefixes: dict[Position, int] = {}
        self.positions: dict[int, Position] = {}
        self.states: dict[int, int] = {}
        self.batch_starts: dict[int, int] = {}
        self.snapshots: set[tuple[str, int]] = set()

    def holds(self, epoch: int, log: Position) -> bool:
        """Return whether the log of that epoch's leader begins with this log."""
        limit = self.branches[epoch].end
        while epoch > log.epoch:
            limit, epoch = self.branches[epoch].start, self.branches[epoch].parent
        return log.end == 0 or (epoch == log.epoch and log.end <= limit)

    def position(self, epoch: int, end: int) -> Position:
        """The first `end` entries of a log whose last entry is of this epoch."""
        while epoch > 0 and self.branches[epoch].start >= end:
            epoch = self.branches[epoch].parent
        return Position(epoch, end)

    def common(self, epoch: int, log: Position) -> int:
        """Return how many entries a log shares with the log of that epoch's leader."""
        one, other = Position(epoch, self.branches[epoch].end), log
        while one.epoch != other.epoch:
            if one.epoch > other.epoch:
                one = Position(self.branches[one.epoch].parent, self.branches[one.epoch].start)
            else:
                other = Position(self.branches[other.epoch].parent, self.branches[other.epoch].start)
        return min(one.end, other.end)

    def note_reach(self, voter: ModelVoter) -> None:
        """Return what the leader may count: a follower's durable log, as far as it is the leader's own."""
        if voter.role in ("follower", "leader"):
            branch = self.branches[voter.epoch]
            durable = self.position(voter.log.epoch, min(voter.flushed, voter.log.end))
            if self.holds(voter.epoch, voter.log) and durable.end > branch.reached.get(voter.name, -1):
                branch.reached[voter.name] = durable.end

    def others(self, voter: ModelVoter) -> tuple[str, ...]:
        """Every voter but this one."""
        return tuple(name for name in self.voters if name != voter.name)

    def prefix(self, log: Position, value: int | None) -> Answer:
        """One position has one prefix hash, and one prefix hash one position."""
        if value is None:
            return None
        known = self.prefixes.setdefault(log, value)
        where = self.positions.setdefault(value, log)
        if known == value and where == log:
            return None
        return Unexplained(
            "prefix hash contradicts the log",
            f"elsewhere the entries below offset {log.end} (the last one of epoch {log.epoch}) have hash "
            f"{hash_words(known)}"
            if known != value
            else f"that hash belongs to the entries below offset {where.end} (the last one of epoch {where.epoch})",
            "equal logs have equal hashes, and other logs have others",
        )
