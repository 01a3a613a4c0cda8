"""An executable model of KRaft that replays what nodes report: voters, epochs, votes, logs and marks.

Ongaro & Ousterhout 2014; KIP-595 (fetch), KIP-996 (pre-vote).  The model takes one trace row at a time.  `step` answers

    None         the row is a step of the protocol, and the model has taken it
    Blocked      the row needs a fact that other nodes have not yet reported
    Unexplained  no step of the protocol leads to this row, whatever the other nodes report later

Facts are only ever added (a vote, a leader, how far a log reached), so a row that can be explained stays explainable.
The order in which nodes are replayed therefore changes nothing, and no clock is compared (`trace_replay.py`).

Logs.  The leader of an epoch writes each offset of its epoch once.  So a log is determined by the epoch of its last
entry and by its end: a *position*.  A *branch* is the log of one leader; it leaves its parent's branch at its start.

What a kill may hide.  A row is written after its effect, so a kill can hide the last effect of a process: an epoch or
a vote on disk, an append, a truncation.  A start row shows the log and the epoch that were found again.  The model
accepts what one hidden effect can explain, and a hidden vote counts for every candidate of its epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class TraceRow(NamedTuple):
    """One row of a node's trace, as `checkers.base.columns.TRACE` defines its columns."""

    seq: int
    incarnation: int
    event: str
    epoch: int
    offset: int | None
    hash: int | None
    peer: str | None
    role: str | None


class Blocked(NamedTuple):
    """missing: the fact that no row has shown.  At least `needed` of the nodes in `suppliers` have to show it."""

    missing: str
    suppliers: tuple[str, ...]
    needed: int = 1


class Unexplained(NamedTuple):
    """kind: of the violation.  why: what contradicts the row.  expected: the rule."""

    kind: str
    why: str
    expected: str


Answer = Blocked | Unexplained | None


class NotModelled(Exception):
    """The traces hold something that the model cannot replay; the message says what."""


class EpochChange(Enum):
    """How a change of role may change the epoch."""

    SAME = "the same epoch"
    HIGHER = "a higher epoch"
    NOT_LOWER = "the same or a higher epoch"


ROLE_CHANGES: dict[tuple[str, str], EpochChange] = {
    ("unattached", "unattached"): EpochChange.HIGHER,
    ("unattached", "prospective"): EpochChange.SAME,
    ("unattached", "follower"): EpochChange.NOT_LOWER,
    ("prospective", "candidate"): EpochChange.SAME,  # its vote for itself has raised the epoch
    ("prospective", "follower"): EpochChange.NOT_LOWER,
    ("prospective", "unattached"): EpochChange.NOT_LOWER,
    ("candidate", "leader"): EpochChange.SAME,
    ("candidate", "prospective"): EpochChange.SAME,
    ("candidate", "follower"): EpochChange.NOT_LOWER,
    ("candidate", "unattached"): EpochChange.HIGHER,
    ("leader", "resigned"): EpochChange.SAME,
    ("leader", "follower"): EpochChange.HIGHER,
    ("leader", "unattached"): EpochChange.HIGHER,
    ("follower", "prospective"): EpochChange.SAME,
    ("follower", "follower"): EpochChange.HIGHER,
    ("follower", "unattached"): EpochChange.HIGHER,
    ("resigned", "unattached"): EpochChange.HIGHER,
    ("resigned", "follower"): EpochChange.HIGHER,
}
"""(role before, role after) -> what may happen to the epoch; every other change of role is impossible."""

ROLES_AFTER_START = frozenset({"unattached", "follower", "candidate", "resigned"})


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
class Voter:
    """What one node has reported so far.  role "": its process has started and has not yet reported a role.

    votes: epoch -> for whom.  must_run: it voted for itself, and its next row is the role of a candidate.
    must_apply: the offset up to which the following rows apply entries, 0 if none is due.
    """

    name: str
    incarnation: int = -1
    seq: int = -1
    ended: bool = True
    role: str = ""
    epoch: int = 0
    leader: str | None = None
    log: Position = EMPTY
    flushed: int = 0
    mark: int = -1
    applied: int = 0
    must_run: bool = False
    must_apply: int = 0
    votes: dict[int, str] = field(default_factory=dict)


class QuorumModel:
    """The whole quorum.  names: every voter."""

    def __init__(self, names: Sequence[str]) -> None:
        self.voters = {name: Voter(name) for name in names}
        self.branches: dict[int, Branch] = {0: Branch("", 0, 0, 0)}
        self.marks = 0
        self._majority = len(names) // 2 + 1
        self._epochs = {0}
        self._granted: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        self._hidden_votes: defaultdict[int, set[str]] = defaultdict(set)
        self._candidacies: dict[tuple[int, str], Position] = {}
        self._prefixes: dict[Position, int] = {}
        self._positions: dict[int, Position] = {}
        self._states: dict[int, int] = {}
        self._batch_starts: dict[int, int] = {}

    def step(self, name: str, row: TraceRow) -> Answer:
        """Take one row of a node.  Raises NotModelled."""
        voter = self.voters[name]
        if row.event == "start":
            answer = self._start(voter, row)
        else:
            answer = _order(voter, row) or _STEPS[row.event](self, voter, row)
        if answer is None:
            voter.seq = row.seq
        return answer

    def lost(self) -> tuple[int, int, int] | None:
        """Leader completeness, once all rows are taken: (epoch, mark, later epoch whose leader lacked it) or None."""
        epoch, mark = 0, 0
        for later in sorted(self.branches):
            branch = self.branches[later]
            if mark > 0 and not (branch.start >= mark and self.holds(later, self.position(epoch, mark))):
                return epoch, mark, later
            if branch.mark > mark:
                epoch, mark = later, branch.mark
        return None

    # Logs

    def holds(self, epoch: int, log: Position) -> bool:
        """Whether the log of that epoch's leader begins with this log."""
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
        """How many entries a log shares with the log of that epoch's leader."""
        one, other = Position(epoch, self.branches[epoch].end), log
        while one.epoch != other.epoch:
            if one.epoch > other.epoch:
                one = Position(self.branches[one.epoch].parent, self.branches[one.epoch].start)
            else:
                other = Position(self.branches[other.epoch].parent, self.branches[other.epoch].start)
        return min(one.end, other.end)

    def _note_reach(self, voter: Voter) -> None:
        """What the leader may count: a follower's durable log, as far as it is the leader's own."""
        if voter.role in ("follower", "leader"):
            branch = self.branches[voter.epoch]
            durable = self.position(voter.log.epoch, min(voter.flushed, voter.log.end))
            if self.holds(voter.epoch, voter.log) and durable.end > branch.reached.get(voter.name, -1):
                branch.reached[voter.name] = durable.end

    def _others(self, voter: Voter) -> tuple[str, ...]:
        return tuple(name for name in self.voters if name != voter.name)

    # Life of a process

    def _start(self, voter: Voter, row: TraceRow) -> Answer:
        if row.incarnation != voter.incarnation + 1 or row.offset is None:
            return _malformed(f"incarnation {row.incarnation} follows incarnation {voter.incarnation}")
        if voter.incarnation < 0 and row.offset > 0:
            raise NotModelled(f"{voter.name}: its trace begins with a log of {row.offset} entries")
        if row.epoch < voter.epoch:
            return Unexplained("epoch went back", f"it was in epoch {voter.epoch} before", "an epoch never goes back")
        if row.epoch > voter.epoch + 1 and row.epoch not in self._epochs:
            return Blocked(f"that anybody entered epoch {row.epoch}", self._others(voter))
        log = self._recovered(voter, row.offset)
        if not isinstance(log, Position):
            return log
        if (wrong := self._prefix(log, row.hash)) is not None:
            return wrong
        self._epochs.add(row.epoch)
        if row.epoch not in voter.votes:
            self._hidden_votes[row.epoch].add(voter.name)
        voter.incarnation, voter.ended, voter.role, voter.leader = row.incarnation, False, "", None
        voter.epoch, voter.log, voter.flushed = row.epoch, log, log.end
        voter.mark, voter.applied, voter.must_run, voter.must_apply = -1, 0, False, 0
        return None

    def _recovered(self, voter: Voter, end: int) -> Position | Answer:
        """The log that a restart found, or why it cannot be."""
        following = voter.role == "follower" and voter.epoch in self.branches
        if end > voter.log.end:
            if voter.role == "leader":
                branch = self.branches[voter.epoch]
                branch.end = max(branch.end, end)
                return Position(voter.epoch, end)
            if following and self.holds(voter.epoch, voter.log):
                if end > self.branches[voter.epoch].end:
                    return Blocked(f"that {voter.leader} wrote offset {end - 1}", (str(voter.leader),))
                return self.position(voter.epoch, end)
            return Unexplained(
                "more recovered than written",
                f"its log ended at {voter.log.end}, and a {voter.role or 'starting'} node appends nothing",
                "a restart finds what was written",
            )
        was_cut = following and not self.holds(voter.epoch, voter.log) and end >= self.common(voter.epoch, voter.log)
        if end < voter.flushed and not was_cut:
            return Unexplained(
                "flushed entries lost",
                f"everything below offset {voter.flushed} was flushed before",
                "a restart finds what was flushed",
            )
        return self.position(voter.log.epoch, end)

    def _end(self, voter: Voter, row: TraceRow) -> Answer:
        voter.ended = True
        return None

    # Elections

    def _vote(self, voter: Voter, row: TraceRow) -> Answer:
        peer, epoch = row.peer, row.epoch
        if peer not in self.voters:
            return Unexplained("vote for a stranger", f"{peer} is no voter", "votes go to voters")
        given = voter.votes.get(epoch)
        if given is not None and epoch <= voter.epoch:
            if given == peer and epoch == voter.epoch:
                return None  # the same vote, reported again
            return Unexplained(
                "voted twice in one epoch", f"it voted for {given} in epoch {epoch} before", "one vote in an epoch"
            )
        if peer == voter.name:
            if voter.role != "prospective" or epoch != voter.epoch + 1:
                why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
                return Unexplained("vote out of turn", why, "a prospective node votes for itself in the next epoch")
            self._stand(voter, epoch)
            voter.epoch, voter.must_run = epoch, True
            return None
        if voter.role not in ("unattached", "prospective") or epoch != voter.epoch or voter.leader is not None:
            why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}, its leader {voter.leader}"
            return Unexplained("vote out of turn", why, "a node votes in its own epoch, while it knows no leader")
        log = self._candidacies.get((epoch, peer))
        if log is None:
            return Blocked(f"that {peer} was a candidate of epoch {epoch}", (peer,))
        if log < voter.log:
            return Unexplained(
                "vote for a log that is behind",
                f"the log of {peer} ended at {log.end} in epoch {log.epoch}, its own at {voter.log.end} "
                f"in epoch {voter.log.epoch}",
                "a vote goes only to a log at least as up to date as the voter's own (Raft, section 5.4.1)",
            )
        voter.votes[epoch] = peer
        self._granted[epoch, peer].add(voter.name)
        return None

    def _stand(self, voter: Voter, epoch: int) -> None:
        self._epochs.add(epoch)
        voter.votes[epoch] = voter.name
        self._granted[epoch, voter.name].add(voter.name)
        known = self._candidacies.get((epoch, voter.name), EMPTY)
        self._candidacies[epoch, voter.name] = max(known, voter.log)

    def _role(self, voter: Voter, row: TraceRow) -> Answer:
        role, epoch = str(row.role), row.epoch
        answer = self._may_become(voter, role, epoch) or _ROLES[role](self, voter, row)
        if answer is not None:
            return answer
        self._epochs.add(epoch)
        voter.role, voter.epoch, voter.leader, voter.must_run = role, epoch, row.peer, False
        self._note_reach(voter)
        return None

    def _may_become(self, voter: Voter, role: str, epoch: int) -> Answer:
        if role not in _ROLES:
            return _malformed(f"there is no role {role}")
        if voter.role == "":
            if role in ROLES_AFTER_START and epoch == voter.epoch:
                return None
            why = f"its process had just started in epoch {voter.epoch}"
            return Unexplained("impossible change of role", why, f"one of {', '.join(sorted(ROLES_AFTER_START))}")
        change = ROLE_CHANGES.get((voter.role, role))
        same = change in (EpochChange.SAME, EpochChange.NOT_LOWER) and epoch == voter.epoch
        higher = change in (EpochChange.HIGHER, EpochChange.NOT_LOWER) and epoch > voter.epoch
        if not same and not higher:
            why = f"it was {voter.role} in epoch {voter.epoch} before"
            return Unexplained("impossible change of role", why, change.value if change else "another role")
        alone = (voter.role, role) == ("resigned", "unattached") and epoch == voter.epoch + 1
        if higher and not alone and epoch not in self._epochs:
            return Blocked(f"that anybody entered epoch {epoch}", self._others(voter))
        return None

    def _become_leader(self, voter: Voter, row: TraceRow) -> Answer:
        epoch = row.epoch
        if (branch := self.branches.get(epoch)) is not None:
            return Unexplained("two leaders in one epoch", f"{branch.leader} led epoch {epoch}", "one leader an epoch")
        if row.peer != voter.name or row.offset != voter.log.end:
            return _malformed(f"its log ended at {voter.log.end}, where its epoch begins")
        return self._win(voter, epoch)

    def _win(self, voter: Voter, epoch: int) -> Answer:
        """A new branch, if a majority voted."""
        hidden = {name for name in self._hidden_votes[epoch] if epoch not in self.voters[name].votes}
        granted = self._granted[epoch, voter.name] | hidden
        if (lacking := self._majority - len(granted)) > 0:
            voters = f"only {', '.join(sorted(granted))} voted for it"
            others = tuple(name for name in self.voters if name not in granted)
            return Blocked(f"that a majority voted for it in epoch {epoch} ({voters})", others, lacking)
        self.branches[epoch] = Branch(voter.name, voter.log.epoch, voter.log.end, voter.log.end)
        return None

    def _become_follower(self, voter: Voter, row: TraceRow) -> Answer:
        branch = self.branches.get(row.epoch)
        if row.peer is None or row.peer == voter.name or row.peer not in self.voters:
            return _malformed(f"{row.peer} cannot be its leader")
        if branch is None:
            return Blocked(f"that {row.peer} led epoch {row.epoch}", (row.peer,))
        if branch.leader != row.peer:
            return Unexplained(
                "two leaders in one epoch",
                f"{branch.leader} led epoch {row.epoch}, and it follows {row.peer}",
                "one leader an epoch",
            )
        return None

    def _become_candidate(self, voter: Voter, row: TraceRow) -> Answer:
        led = row.epoch in self.branches and self.branches[row.epoch].leader == voter.name
        if voter.role == "" and led:
            return Unexplained("impossible change of role", "it had led this epoch", "a restarted leader resigns")
        if voter.role == "" and voter.votes.get(row.epoch, voter.name) == voter.name:
            self._stand(voter, row.epoch)  # a vote for itself that the last process did not live to report
        if voter.votes.get(row.epoch) != voter.name:
            return Unexplained("candidate without its own vote", "it has not voted for itself", "its own vote first")
        return None

    def _become_resigned(self, voter: Voter, row: TraceRow) -> Answer:
        if voter.role == "" and voter.votes.get(row.epoch, voter.name) != voter.name:
            return Unexplained("impossible change of role", "it voted for another", "only a leader resigns")
        if row.peer is not None:
            return _malformed("a resigned node names no leader")
        branch = self.branches.get(row.epoch)
        if branch is None:  # its last process won, and did not live to report it
            return self._win(voter, row.epoch)
        if branch.leader != voter.name:
            return Unexplained("impossible change of role", f"{branch.leader} led that epoch", "only a leader resigns")
        return None

    def _become_unattached(self, voter: Voter, row: TraceRow) -> Answer:
        if voter.role == "" and voter.votes.get(row.epoch) == voter.name:
            return Unexplained("vote not kept", "it had voted for itself", "a vote survives a restart")
        return None if row.peer is None else _malformed("an unattached node names no leader")

    def _become_prospective(self, voter: Voter, row: TraceRow) -> Answer:
        return None if row.peer == voter.leader else _malformed(f"its leader was {voter.leader}")

    # The log

    def _append(self, voter: Voter, row: TraceRow) -> Answer:
        if row.offset is None or row.offset <= voter.log.end:
            return _malformed(f"its log ended at {voter.log.end} before")
        if voter.role == "leader":
            return self._write(voter, row, row.offset)
        if voter.role != "follower":
            why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
            return Unexplained("append out of turn", why, "only a leader and its followers append")
        branch = self.branches[voter.epoch]
        if not self.holds(voter.epoch, voter.log):
            return Unexplained(
                "append to another log than the leader's",
                f"its log shares only {self.common(voter.epoch, voter.log)} of {voter.log.end} entries with "
                f"{branch.leader}'s",
                "a follower takes an entry only behind the one that the leader has before it",
            )
        if branch.end < row.offset:
            return Blocked(
                f"that {branch.leader} wrote offset {row.offset - 1} in epoch {voter.epoch}", (branch.leader,)
            )
        log = self.position(voter.epoch, row.offset)
        if log.epoch != row.epoch:
            why = f"{branch.leader}'s entry at offset {row.offset - 1} is of epoch {log.epoch}"
            return Unexplained("entry of another epoch", why, "a follower holds what its leader holds")
        voter.log = log
        return None

    def _write(self, voter: Voter, row: TraceRow, end: int) -> Answer:
        """A leader appends at the end of its own branch; its first entry is one LeaderChange."""
        branch = self.branches[voter.epoch]
        if row.epoch != voter.epoch or (branch.end == branch.start and end != branch.start + 1):
            return _malformed(f"its branch of epoch {voter.epoch} began at {branch.start} and ended at {branch.end}")
        branch.end = end
        voter.log = Position(voter.epoch, end)
        return None

    def _flush(self, voter: Voter, row: TraceRow) -> Answer:
        if row.offset != voter.log.end or row.epoch != voter.epoch:
            return _malformed(f"its log ended at {voter.log.end}, in epoch {voter.epoch}")
        voter.flushed = voter.log.end
        self._note_reach(voter)
        return None

    def _truncate(self, voter: Voter, row: TraceRow) -> Answer:
        if row.offset is None or row.epoch != voter.epoch or not 0 <= row.offset < voter.log.end:
            return _malformed(f"its log ended at {voter.log.end}, in epoch {voter.epoch}")
        if voter.role != "follower":
            why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
            return Unexplained("truncation out of turn", why, "only a follower truncates")
        if row.offset < voter.mark:
            why = f"its high watermark was {voter.mark}"
            return Unexplained("truncation below the high watermark", why, "committed entries are never removed")
        shared = self.common(voter.epoch, voter.log)
        if row.offset < shared:
            return Unexplained(
                "truncation of what the leader holds",
                f"its log and {voter.leader}'s are equal below offset {shared}",
                "a follower removes only what differs from its leader's log",
            )
        voter.log = self.position(voter.log.epoch, row.offset)
        voter.flushed = min(voter.flushed, row.offset)
        self._note_reach(voter)
        return None

    # What is committed

    def _high_watermark(self, voter: Voter, row: TraceRow) -> Answer:
        if row.offset is None:
            return None  # not known yet
        mark, branch = row.offset, self.branches.get(voter.epoch)
        if row.epoch != voter.epoch or voter.role not in ("leader", "follower") or branch is None:
            why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
            return Unexplained("mark out of turn", why, "a leader and its followers advance a mark")
        if mark < voter.mark:
            return Unexplained("high watermark went back", f"it was {voter.mark} before", "a mark only rises")
        if mark > voter.flushed:
            return Unexplained("mark beyond the log", f"its durable log ended at {voter.flushed}", "a mark in the log")
        leads = voter.role == "leader"
        answer = self._may_commit(branch, mark) if leads else self._may_follow(voter, branch, mark)
        if answer is None:
            answer = self._prefix(self.position(voter.log.epoch, mark), row.hash)
        if answer is None:
            self.marks += 1
            branch.mark = max(branch.mark, mark) if leads else branch.mark
            voter.mark = mark
            voter.must_apply = mark if row.hash is not None and voter.applied < mark else 0
        return answer

    def _may_commit(self, branch: Branch, mark: int) -> Answer:
        if mark <= branch.start:
            return Unexplained(
                "mark without an entry of its epoch",
                f"its epoch began at offset {branch.start}",
                "a leader commits older entries only together with one of its own (Raft, figure 8)",
            )
        with_it = {name for name, end in branch.reached.items() if end >= mark}
        if (lacking := self._majority - len(with_it)) <= 0:
            return None
        held = f"only {', '.join(sorted(with_it)) or 'nobody'} held it durably"
        others = tuple(name for name in self.voters if name not in with_it)
        return Blocked(f"that a majority held everything below {mark} ({held})", others, lacking)

    def _may_follow(self, voter: Voter, branch: Branch, mark: int) -> Answer:
        if not self.holds(voter.epoch, voter.log):
            why = f"its log and {branch.leader}'s differ from offset {self.common(voter.epoch, voter.log)} on"
            return Unexplained("mark over another log than the leader's", why, "the leader's log, or a prefix of it")
        if branch.mark < mark:
            return Blocked(f"that {branch.leader} called offset {mark - 1} committed", (branch.leader,))
        return None

    def _prefix(self, log: Position, value: int | None) -> Answer:
        """One position has one prefix hash, and one prefix hash one position."""
        if value is None:
            return None
        known = self._prefixes.setdefault(log, value)
        where = self._positions.setdefault(value, log)
        if known == value and where == log:
            return None
        return Unexplained(
            "prefix hash contradicts the log",
            f"the entries below offset {log.end} (the last one of epoch {log.epoch}) have hash {known} elsewhere"
            if known != value
            else f"that hash belongs to the entries below offset {where.end} (the last one of epoch {where.epoch})",
            "equal logs have equal hashes, and other logs have others",
        )

    def _applied(self, voter: Voter, row: TraceRow) -> Answer:
        if row.offset is None or row.hash is None or row.epoch != voter.epoch:
            return _malformed(f"it was in epoch {voter.epoch}")
        end = row.offset
        if end == voter.applied and self._states.get(end) == row.hash:
            return None  # the same state, reported again
        if end <= voter.applied or end > voter.mark:
            why = f"it had applied {voter.applied}, and its mark was {voter.mark}"
            return Unexplained("applied out of order", why, "committed entries, each once, in order")
        start = self._batch_starts.setdefault(end, voter.applied)
        if start != voter.applied:
            return Unexplained(
                "batch skipped or split",
                f"it had applied up to {voter.applied}, and the batch that ends at {end} began at {start} before",
                "every node applies the same batches, one after another",
            )
        if self._states.setdefault(end, row.hash) != row.hash:
            why = f"the state at offset {end} has hash {self._states[end]} elsewhere"
            return Unexplained("applied states differ", why, "the same entries lead to the same state")
        voter.applied = end
        voter.must_apply = 0 if end >= voter.must_apply else voter.must_apply
        return None

    def _snapshot(self, voter: Voter, row: TraceRow) -> Answer:
        raise NotModelled(f"{voter.name}: it took a snapshot (seq {row.seq}), and the model has none")


def _malformed(why: str) -> Unexplained:
    return Unexplained("row contradicts the rows before it", why, "a row that follows from the rows before it")


def _order(voter: Voter, row: TraceRow) -> Answer:
    """What must come first, whatever the row is."""
    if voter.ended or row.incarnation != voter.incarnation:
        return _malformed(
            f"the process of incarnation {voter.incarnation} had {'ended' if voter.ended else 'not ended'}"
        )
    if voter.role == "" and row.event not in ("role", "flush", "fatal"):
        return _malformed("its process had started, and had not reported a role")
    if voter.must_run and (row.event, row.role) != ("role", "candidate") and row.event not in ("vote", "fatal"):
        return _malformed("it had voted for itself, and a candidate's role comes next")
    if voter.flushed < voter.log.end and row.event not in ("flush", "fatal"):
        return _malformed(f"its log ended at {voter.log.end}, and was flushed only up to {voter.flushed}")
    again = row.event == "high-watermark" and row.offset == voter.mark
    if voter.must_apply and row.event not in ("applied", "fatal") and not again:
        return _malformed(f"it had applied {voter.applied} of the {voter.must_apply} entries that it knew committed")
    return None


Step = Callable[[QuorumModel, Voter, TraceRow], Answer]

_STEPS: dict[str, Step] = {
    "vote": QuorumModel._vote,
    "role": QuorumModel._role,
    "append": QuorumModel._append,
    "flush": QuorumModel._flush,
    "truncate": QuorumModel._truncate,
    "high-watermark": QuorumModel._high_watermark,
    "applied": QuorumModel._applied,
    "snapshot": QuorumModel._snapshot,
    "fatal": QuorumModel._end,
    "stop": QuorumModel._end,
}

_ROLES: dict[str, Step] = {
    "unattached": QuorumModel._become_unattached,
    "prospective": QuorumModel._become_prospective,
    "candidate": QuorumModel._become_candidate,
    "leader": QuorumModel._become_leader,
    "follower": QuorumModel._become_follower,
    "resigned": QuorumModel._become_resigned,
}
