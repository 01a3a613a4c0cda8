"""The quorum as its nodes have reported it so far: voters, the logs of leaders, and derived facts.

*Logs.*  The leader of an epoch writes each offset of its epoch once.  So the epoch of the last entry and the end
determine a log; together they are its *position*.  A *branch* is the log of one leader.  It equals the branch of an
earlier leader, its parent, up to its start.

*Answers.*  A step returns None if the protocol explains the trace row, and otherwise `Blocked` or `Unexplained`.

*Processes.*  This module has the steps of a process and of its log: start, append, flush, truncation, and the permitted
order of rows.

A process writes a row after the effect that the row reports.  So a kill can hide the last effect of a process: an epoch
or a vote on disk, an append, a truncation, a fetched snapshot.  A start row shows the log and the epoch that a restart
found.  The model accepts everything that one hidden effect can explain, and a hidden vote counts for every candidate of
its epoch.

A process that starts on a replacement disk finds neither log nor epoch there: its node counts as another replica
(`raft/rules.py`).  The votes and the log of the previous replica remain in the model, because a leader's row that is
replayed later may depend on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from checkers.raft.rules import TraceRow, hash_words


class Blocked(NamedTuple):
    """A row that depends on a fact that no row has shown yet.

    missing: the fact, as a clause
    suppliers: the nodes whose rows can show the fact
    needed: minimum number of suppliers whose rows must show the fact
    shown: the part of the fact that rows have shown, as a clause, or ""
    """

    missing: str
    suppliers: tuple[str, ...]
    needed: int = 1
    shown: str = ""


class Unexplained(NamedTuple):
    """A row that no step of the protocol can write.

    kind: kind of the violation
    why: the contradiction, as a clause; "" if the state of the node already shows the contradiction
    """

    kind: str
    why: str = ""


Answer = Blocked | Unexplained | None


class NotModelled(Exception):
    """The traces contain a case that the model cannot replay; the message names it."""


def malformed(why: str = "") -> Unexplained:
    """Return the answer for a row that contradicts earlier rows under any protocol."""
    return Unexplained("row contradicts the rows before it", why)


class Position(NamedTuple):
    """The epoch of a log's last entry, and the log's end.  Positions are ordered as in votes: by epoch, then by end."""

    epoch: int
    end: int


EMPTY = Position(0, 0)


@dataclass(slots=True)
class Branch:
    """The log of the leader of one epoch: its parent's entries up to `start`, then entries of this epoch up to `end`.

    leader: name of the leader
    parent: epoch of the parent branch
    mark: the largest high watermark that this leader reported
    reached: node -> the offset below which its disk had the entries of this log
    """

    leader: str
    parent: int
    start: int
    end: int
    mark: int = -1
    reached: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ModelVoter:
    """State that one node has reported so far.

    members: the voters in the latest record of voters in the node's log; all nodes if the log has no such record
    disk: id of the node's disk; "" if the node does not report its disk
    role: "" if the process has started and has not reported a role yet
    flushed: end of the durable part of the log
    unflushed: ends that the log has had beyond `flushed`, ascending; the next flush must reach one of them
    names_voters: True if the voters can change but the log has no record of them yet.  If this node becomes leader, it
    writes a record with the voters of the configuration.
    named_at: offset of the record that names `members`; None if there is none
    must_name: True if that record was removed, so that the next row must report the voters that now count
    mark: the high watermark; -1 if it is unknown
    must_run: True if the node voted for itself, so that the next row must report the role of a candidate
    must_apply: offset up to which the next rows must apply entries; 0 if they need not
    must_load: end of the snapshot whose state the next row must report as applied; 0 if there is none
    reports_state: True if the node reports its quorum-state at each start and before each change of it.  Nodes of older
    versions did not.
    must_report_state: True if the process has started, so that the next row must report quorum-state
    stored_epoch: the epoch that the node has just stored, in which the next row must report a role; or None
    votes: epoch -> the node that it voted for
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
        """Return the size of the smallest majority of `members`."""
        return len(self.members) // 2 + 1

    @property
    def in_words(self) -> str:
        """Return the state of the node as a clause."""
        role = f"{self.role or 'starting'} in epoch {self.epoch}, and its leader {self.leader or 'not known'}"
        log = f"its log ended at {self.log.end} and was durable up to {self.flushed}"
        return f"it was {role}; {log}; its high watermark was {self.mark}, and it had applied {self.applied}"


class Quorum:
    """The state of all voters.

    names: names of all voters
    voters: name -> state of the node
    branches: epoch -> log of its leader
    marks: number of high watermarks that the model has processed
    named: (epoch, offset) of a record -> the voters that the record names
    epochs: epochs that some node entered
    granted: (epoch, candidate) -> the nodes that voted for the candidate
    hidden_votes: epoch -> the nodes whose vote a kill may have hidden
    candidacies: (epoch, candidate) -> position of the candidate's log
    prefixes: position -> prefix hash
    positions: prefix hash -> position
    states: offset -> hash of the applied state
    batch_starts: end of a batch -> start of the batch
    snapshots: (node, end) of each snapshot that a node has had
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
        """Return True if this log is a prefix of the log of that epoch's leader."""
        limit = self.branches[epoch].end
        while epoch > log.epoch:
            limit, epoch = self.branches[epoch].start, self.branches[epoch].parent
        return log.end == 0 or (epoch == log.epoch and log.end <= limit)

    def position(self, epoch: int, end: int) -> Position:
        """Return the position of the first `end` entries of a log whose last entry is of this epoch."""
        while epoch > 0 and self.branches[epoch].start >= end:
            epoch = self.branches[epoch].parent
        return Position(epoch, end)

    def common(self, epoch: int, log: Position) -> int:
        """Return the length of the common prefix of a log and the log of that epoch's leader."""
        one, other = Position(epoch, self.branches[epoch].end), log
        while one.epoch != other.epoch:
            if one.epoch > other.epoch:
                one = Position(self.branches[one.epoch].parent, self.branches[one.epoch].start)
            else:
                other = Position(self.branches[other.epoch].parent, self.branches[other.epoch].start)
        return min(one.end, other.end)

    def note_reach(self, voter: ModelVoter) -> None:
        """Record the end of the durable part of this voter's log if the log is a prefix of its leader's log.

        The leader may count this voter for entries below that end.
        """
        if voter.role in ("follower", "leader"):
            branch = self.branches[voter.epoch]
            durable = self.position(voter.log.epoch, min(voter.flushed, voter.log.end))
            if self.holds(voter.epoch, voter.log) and durable.end > branch.reached.get(voter.name, -1):
                branch.reached[voter.name] = durable.end

    def others(self, voter: ModelVoter) -> tuple[str, ...]:
        """Return the names of all other voters."""
        return tuple(name for name in self.voters if name != voter.name)

    def prefix(self, log: Position, value: int | None) -> Answer:
        """Verify that a position has only one prefix hash, and that a prefix hash has only one position."""
        if value is None:
            return None
        known = self.prefixes.setdefault(log, value)
        where = self.positions.setdefault(value, log)
        if known == value and where == log:
            return None
        there = log if known != value else where
        holds = f"have hash {hash_words(known)}" if known != value else "have that hash"
        entries = f"the entries below offset {there.end}, the last of which is of epoch {there.epoch},"
        return Unexplained("prefix hash contradicts the log", f"elsewhere {entries} {holds}")


def disk(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a disk row.  A process writes it right before its start row, and may be killed between the two."""
    if row.incarnation <= voter.incarnation or not row.detail:
        return malformed(f"incarnation {row.incarnation} follows incarnation {voter.incarnation}")
    if voter.disk not in ("", row.detail):
        voter.epoch, voter.log, voter.flushed, voter.unflushed = 0, EMPTY, 0, []
        voter.role, voter.leader, voter.votes = "", None, {}
    voter.disk, voter.incarnation, voter.ended = row.detail, row.incarnation - 1, True
    return None


def start(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process the start of a process, which finds the durable state of the previous process.  Raises NotModelled."""
    if row.incarnation != voter.incarnation + 1 or row.offset is None:
        return malformed(f"incarnation {row.incarnation} follows incarnation {voter.incarnation}")
    if voter.incarnation < 0 and row.offset > 0:
        raise NotModelled(f"{voter.name}: its trace begins with a log of {row.offset} entries")
    if row.epoch < voter.epoch:
        return Unexplained("epoch went back")
    if row.epoch > voter.epoch + 1 and row.epoch not in quorum.epochs:
        return Blocked(f"that any node entered epoch {row.epoch}", quorum.others(voter))
    log = _recovered(quorum, voter, row.offset, row.hash)
    if not isinstance(log, Position):
        return log
    if (wrong := quorum.prefix(log, row.hash)) is not None:
        return wrong
    quorum.epochs.add(row.epoch)
    if row.epoch not in voter.votes:
        quorum.hidden_votes[row.epoch].add(voter.name)
    voter.incarnation, voter.ended, voter.role, voter.leader = row.incarnation, False, "", None
    voter.epoch, voter.log, voter.flushed, voter.unflushed = row.epoch, log, log.end, []
    voter.mark, voter.applied, voter.must_run, voter.must_apply, voter.must_load = -1, 0, False, 0, 0
    voter.must_report_state, voter.stored_epoch = voter.reports_state, None
    voter.named_at, voter.must_name = None, False
    return None


def _recovered(quorum: Quorum, voter: ModelVoter, end: int, prefix_hash: int | None) -> Position | Answer:
    """Return the position of the log that a restart found, or the reason why a restart cannot find this log."""
    following = voter.role == "follower" and voter.epoch in quorum.branches
    if following and (voter.leader, end) in quorum.snapshots:  # it may have fetched that snapshot without reporting it
        behind = quorum.position(voter.epoch, end)
        if quorum.prefixes.get(behind) == prefix_hash:
            return behind
    if end > voter.log.end:
        if voter.role == "leader":
            branch = quorum.branches[voter.epoch]
            branch.end = max(branch.end, end)
            return Position(voter.epoch, end)
        if following and quorum.holds(voter.epoch, voter.log):
            if end > quorum.branches[voter.epoch].end:
                return Blocked(f"that {voter.leader} wrote offset {end - 1}", (str(voter.leader),))
            return quorum.position(voter.epoch, end)
        if following:
            return Blocked(f"that {voter.leader} had a snapshot that ends at {end}", (str(voter.leader),))
        return Unexplained("more recovered than written")
    was_cut = following and not quorum.holds(voter.epoch, voter.log) and end >= quorum.common(voter.epoch, voter.log)
    if end < voter.flushed and not was_cut:
        return Unexplained("flushed entries lost")
    return quorum.position(voter.log.epoch, end)


def end_of_process(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process the reported end of a process."""
    voter.ended = True
    return None


def in_order(voter: ModelVoter, row: TraceRow) -> Answer:
    """Reject a row if another row must come first."""
    event = row.event
    if voter.ended or row.incarnation != voter.incarnation:
        return malformed(f"its process had {'ended' if voter.ended else f'incarnation {voter.incarnation}'}")
    if event == "fatal":
        return None
    if voter.must_load and event != "applied":
        return malformed(f"it had a snapshot that ends at {voter.must_load}, and had not loaded its state")
    if voter.role == "" and event not in ("role", "flush", "quorum-state", "snapshot", "applied"):
        return malformed("its process had started, and had not reported a role")
    if voter.must_report_state and event != "quorum-state":
        return malformed("its process had started, and had not reported what its quorum-state holds")
    if voter.must_name and event != "voters":
        return malformed("an entry that named voters was removed, and who votes comes next")
    if voter.stored_epoch is not None and (event, row.epoch) != ("role", voter.stored_epoch):
        return malformed(f"it had stored epoch {voter.stored_epoch}, and a role in that epoch comes next")
    if voter.must_run and (event, row.role) != ("role", "candidate") and event != "vote":
        return malformed("it had voted for itself, and a candidate's role comes next")
    again = event == "high-watermark" and row.offset == voter.mark
    if voter.must_apply and event != "applied" and not again:
        return malformed("it had not applied the entries that it knew committed")
    return None


def append(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process an append: a leader writes entries, or a follower appends entries of its leader."""
    end = row.offset
    if end is None or end <= voter.log.end:
        return malformed()
    if voter.role == "leader":
        answer = _write(quorum, voter, row, end)
    elif voter.role == "follower":
        answer = _take(quorum, voter, row, end)
    else:
        answer = Unexplained("append out of turn")
    if answer is None:
        voter.unflushed.append(end)
    return answer


def _take(quorum: Quorum, follower: ModelVoter, row: TraceRow, end: int) -> Answer:
    branch = quorum.branches[follower.epoch]
    if not quorum.holds(follower.epoch, follower.log):
        shared = quorum.common(follower.epoch, follower.log)
        return Unexplained("append to another log than the leader's", f"the two logs share only {shared} entries")
    if branch.end < end:
        return Blocked(f"that {branch.leader} wrote offset {end - 1} in epoch {follower.epoch}", (branch.leader,))
    log = quorum.position(follower.epoch, end)
    if log.epoch != row.epoch:
        return Unexplained("entry of another epoch", f"{branch.leader}'s entry there is of epoch {log.epoch}")
    follower.log = log
    return None


def _write(quorum: Quorum, voter: ModelVoter, row: TraceRow, end: int) -> Answer:
    """Process an append of a leader, at the end of its own branch.

    Its first batch is one LeaderChange record.  If the voters can change, the first leader of a cluster adds two more
    records to this batch: `kraft.version` and the voters.
    """
    branch = quorum.branches[voter.epoch]
    opening = (1, 3) if voter.names_voters else (1,)
    if row.epoch != voter.epoch or (branch.end == branch.start and end - branch.start not in opening):
        return malformed(f"its entries of epoch {voter.epoch} began at {branch.start} and ended at {branch.end}")
    branch.end = end
    voter.log = Position(voter.epoch, end)
    return None


def flush(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a flush, after which the log is durable up to an offset.

    Entries that were appended during the flush are not durable yet.
    """
    if row.epoch != voter.epoch or row.offset is None or row.offset not in (voter.flushed, *voter.unflushed):
        return malformed()
    voter.flushed = row.offset
    voter.unflushed = [end for end in voter.unflushed if end > row.offset]
    quorum.note_reach(voter)
    return None


def truncate(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a truncation: a follower removes entries that its leader's log does not have."""
    if row.offset is None or row.epoch != voter.epoch or not 0 <= row.offset < voter.log.end:
        return malformed()
    if voter.role != "follower":
        return Unexplained("truncation out of turn")
    if row.offset < voter.mark:
        return Unexplained("truncation below the high watermark")
    shared = quorum.common(voter.epoch, voter.log)
    if row.offset < shared:
        return Unexplained("truncation of what the leader holds", f"the two logs share {shared} entries")
    voter.log = quorum.position(voter.log.epoch, row.offset)
    voter.must_name = voter.named_at is not None and voter.named_at >= row.offset
    voter.flushed = min(voter.flushed, row.offset)
    voter.unflushed = [end for end in voter.unflushed if end < row.offset]
    if row.offset > voter.flushed:
        voter.unflushed.append(row.offset)
    quorum.note_reach(voter)
    return None


def voters(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a change of voters in the log of a node.  The new voters count at once, before they are committed."""
    members = frozenset((row.detail or "").split())
    voter.names_voters = row.offset is None
    voter.must_name = False
    if row.offset is None and members <= quorum.voters.keys():
        voter.members, voter.named_at = members, None  # the voters of the configuration
        return None
    known = row.epoch == voter.epoch and members <= quorum.voters.keys()
    if row.offset is None or not known or not 0 <= row.offset < voter.log.end:
        return malformed()
    entry = (quorum.position(voter.log.epoch, row.offset + 1).epoch, row.offset)
    if (others := quorum.named.setdefault(entry, members)) != members:
        return Unexplained("other voters in one entry", f"elsewhere this entry names {', '.join(sorted(others))}")
    voter.members, voter.named_at = members, row.offset
    return None


def no_step(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Accept a row that does not change the model: a report about brokers, or about corrupt bytes."""
    return None
