"""The Raft monitor receives rows of traces and finds the rules (`rules.py`) that these rows violate.

    NodeMonitor    processes the rows of one node in the order of `seq`, and collects facts to compare between nodes
    Leaders        collects the leaders of each epoch from the rows of all nodes, in any order
    FirstHashes    stores the first hash that any node reported at each offset, in any order
    Monitor        combines the three for a running quorum: the rows of each node in order, the nodes in any order

The judge of a stored run uses one `NodeMonitor` per node, in parallel, and then compares their reports.  The online
checks, the swarm and tests pass rows to a `Monitor` as the rows arrive.  Facts are only ever added, so the order
between nodes changes no finding.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from checkers.base.verdict import Witness
from checkers.raft import rules
from checkers.raft.rules import WITNESSES_PER_PART, Row, TraceRow

Explains = Callable[[int, int], bool]
"""Function of two times in ns: returns True if a fault explains that a disk was last seen at the first time and that
another disk existed at the second time.
"""


class Ballot(NamedTuple):
    """A vote for another node, or a candidacy.

    peer: the node that gets the vote; in a candidacy, the node itself
    log: the node's log at this row
    """

    row: TraceRow
    peer: str
    log: rules.LogAt


@dataclass(slots=True)
class Reach:
    """Offsets up to which one node's log was durable.  If an offset is uncertain, it is overestimated.

    held: epoch -> the largest durable end while the node was in that epoch
    own: epoch -> the largest durable end while the log's last batch was of that epoch
    base: (end, epoch) at the first row; end is infinite if the trace does not begin with a start
    epoch: current epoch of the node
    durable: current durable end
    """

    held: dict[int, int] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)
    base: tuple[float, int] = (0, -1)
    epoch: int = 0
    durable: int = 0

    def take(self, row: TraceRow, log: rules.LogAt) -> None:
        """Process a row.

        log: the node's log after this row
        """
        self.epoch = max(self.epoch, row.epoch)
        if not self.held:
            self.base = (row.offset or 0 if row.event == "start" else float("inf"), self.epoch)
        if row.event in ("start", "flush") or (row.event == "snapshot" and row.peer is not None):
            self.durable = row.offset or 0
        elif row.event == "truncate":
            self.durable = min(self.durable, row.offset or 0)
        self.held[self.epoch] = max(self.held.get(self.epoch, 0), self.durable)
        if log.highest == self.epoch:
            self.own[self.epoch] = max(self.own.get(self.epoch, 0), self.durable)

    def may_have_held(self, offset: int, epoch: int, beyond_start: bool) -> bool:
        """Return True if all entries below this offset may have been durable while the node was in this or an earlier
        epoch.

        beyond_start: True if the last of these entries is of this epoch
        """
        if offset <= self.base[0] and epoch <= self.base[1]:
            return True
        return offset <= (self.own.get(epoch, 0) if beyond_start else self.longest(epoch))

    def longest(self, epoch: int) -> int:
        """Return the largest durable end while the node was in this or an earlier epoch."""
        return max((end for e, end in self.held.items() if e <= epoch), default=0)


@dataclass(slots=True)
class AtCopy:
    """State of a node according to the rows before a copy of its disk was taken.

    copy: the row of the copy
    disk: the row that named the disk
    same_disk: True if the copy is of the disk that this row named
    vote: the row with the vote in the epoch of the copied quorum-state
    highest_epoch: the row with the highest epoch
    owed, flushed: as in `NodeState`
    starts: number of starts before the copy
    snapshot: end offset of the newest snapshot
    last_ns: time of the last row
    only_flushed: True if unflushed entries may be gone, because the process was dead or ended before its next change of
    the log
    """

    copy: Row
    disk: TraceRow | None
    same_disk: bool
    vote: TraceRow | None
    highest_epoch: TraceRow | None
    owed: TraceRow | None
    flushed: int
    starts: int
    snapshot: int
    last_ns: int
    only_flushed: bool


@dataclass(slots=True)
class NodeReport:
    """Summary of one node's trace, with the facts that are compared between nodes.

    broken: rules that this node's rows violate
    counts: numbers of rows and of judged facts, by name
    claims: the first row that names a leader of an epoch, per epoch and leader
    votes: the first row that shows a vote, per epoch and candidate
    ballots: votes for other nodes
    candidacies: rows in which the node was a candidate or became leader
    offices: rows in which the node became leader
    reach: offsets up to which the log was durable
    tops: (row of the largest high watermark in an epoch under one set of voters, that set or None)
    sets: the first row that names a set of voters, per offset and set
    cuts: truncations and starts
    largest_mark: the largest high watermark
    copies: state of the node at each copy of its disk
    disks: every disk id that the node named
    log_epoch: (offset, epoch) of the first entry of the highest epoch in the last copy of the log
    """

    node: str
    broken: list[rules.RuleBreach] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    claims: list[TraceRow] = field(default_factory=list)
    votes: list[TraceRow] = field(default_factory=list)
    ballots: list[Ballot] = field(default_factory=list)
    candidacies: list[Ballot] = field(default_factory=list)
    offices: list[TraceRow] = field(default_factory=list)
    reach: Reach = field(default_factory=Reach)
    tops: list[tuple[TraceRow, frozenset[str] | None]] = field(default_factory=list)
    sets: list[TraceRow] = field(default_factory=list)
    cuts: list[TraceRow] = field(default_factory=list)
    snapshots: list[TraceRow] = field(default_factory=list)
    largest_mark: int = -1
    copies: list[AtCopy] = field(default_factory=list)
    disks: list[str] = field(default_factory=list)
    log_epoch: tuple[int, int] = (0, -1)


class NodeMonitor:
    """Evaluates the rules on the rows of one node.

    copies: rows of COPIES of this node
    explains: returns True if a fault explains a replaced disk; None if replaced disks are not judged
    at_mark: returns True if an append that ended at (offset, epoch) ended at a committed prefix
    collects: False if the caller needs only the return values of `take`; then the report stays empty
    """

    def __init__(
        self,
        name: str,
        copies: Sequence[Row] = (),
        explains: Explains | None = None,
        at_mark: Callable[[int, int], bool] | None = None,
        *,
        collects: bool = True,
    ) -> None:
        self.state = rules.NodeState(name)
        self.report = NodeReport(name)
        self._copies = deque(sorted(copies, key=lambda copy: int(copy["trace_seq"])))
        self._until = max((copy["trace_seq"] for copy in copies), default=-1)
        self._explains, self._at_mark, self._collects = explains, at_mark, collects
        self._claims: set[tuple[int, str, int | None]] = set()
        self._votes: set[tuple[int, str]] = set()
        self._tops: dict[tuple[int, frozenset[str] | None], TraceRow] = {}
        self._sets: set[tuple[int, frozenset[str]]] = set()
        self._named: frozenset[str] | None = None  # the last voter set named in any incarnation
        self._starts = self._snapshot = 0

    def take(self, row: TraceRow) -> list[rules.RuleBreach]:
        """Process the next row, and return the violations that it shows."""
        while self._copies and self._copies[0]["trace_seq"] < row.seq:
            self._copied(self._copies.popleft(), row)
        state, found = self.state, []
        if row.incarnation != state.life or row.event == "start":
            state.begin_life(row.incarnation)
        if row.event == "disk":
            found += self._disk(row)
        for rule in rules.BY_EVENT.get(row.event, ()):
            if rule.broken is not None and (evidence := rule.broken(state, row)) is not None:
                once = {"epoch": row.epoch, "life": row.incarnation, "disk": ""}.get(rule.once, row.seq)
                if (rule, once) not in state.told:
                    state.told.add((rule, once))
                    found.append(rules.RuleBreach(rule, evidence))
        if row.event == "voters" and row.offset is not None:
            self._voters(row, row.offset)
        appended = self._at_mark is not None and row.event == "append"
        state.follow(row, at_mark=appended and self._at_mark is not None and self._at_mark(_at(row), row.epoch))
        if self._collects:
            self._collect(row)
            self.report.broken += found[: max(0, WITNESSES_PER_PART - len(self.report.broken))]
        return found

    def finish(self) -> NodeReport:
        """Return the report, after the last row was processed."""
        while self._copies:
            self._copied(self._copies.popleft(), None)
        self.report.copies.sort(key=lambda at: int(at.copy.get("copy", 0)))
        led = {row.epoch for row in self.report.offices}
        self.report.tops = [(row, names if row.epoch in led else None) for (_, names), row in self._tops.items()]
        return self.report

    def _copied(self, copy: Row, following: TraceRow | None) -> None:
        """Record the state of the node at a copy.

        following: the first row after the copy; None if there is none
        """
        state = self.state
        named = None if state.disk is None else state.disk.detail
        vote = state.votes.get(copy["quorum_epoch"])
        ends = following is not None and following.event in ("start", "disk", "fatal")
        same_disk = named is None or named == copy.get("disk")
        kept = (state.disk, same_disk, vote, state.highest_epoch, state.owed, state.flushed)
        last_ns = -1 if state.last is None else state.last.time_ns
        so_far = (self._starts, self._snapshot, last_ns, copy["state"] == "dead" or ends)
        self.report.copies.append(AtCopy(copy, *kept, *so_far))

    def _disk(self, row: TraceRow) -> list[rules.RuleBreach]:
        state, found = self.state, list[rules.RuleBreach]()
        self._count("disks named")
        self._count("disks replaced", 0)
        self.report.disks.append(str(row.detail))
        if not state.replaced(row) or state.disk is None:
            return found
        self._count("disks replaced")
        gone_ns = -1 if state.last is None else state.last.time_ns
        if self._explains is not None and not self._explains(gone_ns, row.time_ns):
            words = {"disk": row.detail, "found": f"at a start ({row.where})"}
            found.append(rules.breach(rules.DISK_REPLACED, (state.disk, row), words))
        state.begin_disk()
        self._snapshot = 0
        return found

    def _voters(self, row: TraceRow, offset: int) -> None:
        state, names = self.state, named_by(row)
        if state.office is not None and state.named is not None and offset > state.named[0]:
            self._count("changes by leaders")
        if (offset, names) not in self._sets:
            self._sets.add((offset, names))
            self.report.sets.append(row)

    def _collect(self, row: TraceRow) -> None:
        event, report, log = row.event, self.report, self.state.log.now
        if event == "vote":
            peer = str(row.peer)
            if (row.epoch, peer) not in self._votes:
                self._votes.add((row.epoch, peer))
                report.votes.append(row)
                ballots = report.candidacies if peer == row.node else report.ballots
                ballots.append(Ballot(row, peer, log))
            elif peer == row.node:
                report.candidacies.append(Ballot(row, peer, log))
        elif event == "role":
            self._role(row, log)
        elif event == "voters":
            self._named = named_by(row)
        elif event == "high-watermark" and row.offset is not None:
            report.largest_mark = max(report.largest_mark, row.offset)
            name = (row.epoch, self._named)
            known = self._tops.get(name)
            if row.offset > 0 and row.seq <= self._until and (known is None or row.offset > _at(known)):
                self._tops[name] = row
        elif event == "snapshot":
            report.snapshots.append(row)
            self._snapshot = max(self._snapshot, _at(row))
        elif event in ("start", "truncate"):
            self._starts += event == "start"
            report.cuts += [] if row.offset is None else [row]
        if event in _OF_REACH:
            report.reach.take(row, log)

    def _role(self, row: TraceRow, log: rules.LogAt) -> None:
        leads, report = row.role == "leader", self.report
        if leads or row.peer is not None:
            claim = (row.epoch, row.node if leads else str(row.peer), row.incarnation if leads else None)
            if claim not in self._claims:
                self._claims.add(claim)
                report.claims.append(row)
        if leads:
            report.offices.append(row)
        if row.role in ("candidate", "leader"):
            report.candidacies.append(Ballot(row, row.node, log))

    def _count(self, name: str, more: int = 1) -> None:
        self.report.counts[name] = self.report.counts.get(name, 0) + more


_OF_REACH = frozenset({"high-watermark", "append", "flush", "truncate", "start", "vote", "role", "voters", "snapshot"})


def _at(row: TraceRow) -> int:
    return row.offset or 0


class Leaders:
    """Leaders of each epoch.

    A leader may die before it reports its own leadership, so rows in which followers name their leader count, too.
    """

    def __init__(self) -> None:
        self._led: defaultdict[int, dict[str, set[int]]] = defaultdict(dict)

    def claim(self, epoch: int, leader: str, life: int | None) -> str | None:
        """Process a claim that a node led an epoch; return the kind of the violation that the claim shows, or None.

        life: incarnation of the leader's process; None if the claim comes from another node
        """
        led = self._led[epoch]
        lives = led.setdefault(leader, set())
        if life is not None:
            lives.add(life)
        if len(led) > 1:
            return rules.TWO_LEADERS
        return rules.LEADER_AGAIN if len(lives) > 1 else None

    def take(self, row: TraceRow) -> str | None:
        """Process a role row if it names a leader."""
        if row.role == "leader":
            return self.claim(row.epoch, row.node, row.incarnation)
        return None if row.peer is None else self.claim(row.epoch, row.peer, None)

    def of(self, epoch: int) -> tuple[str, ...]:
        """Return the leaders of an epoch, in the order in which they were claimed."""
        return tuple(self._led.get(epoch, ()))

    @property
    def suspicious(self) -> list[int]:
        """Return the epochs with a violation, ascending."""
        return sorted(e for e, led in self._led.items() if len(led) > 1 or any(len(each) > 1 for each in led.values()))

    @property
    def epochs(self) -> int:
        """Return the number of epochs for which some node reported that it was the leader."""
        return sum(any(led.values()) for led in self._led.values())


def elected(epoch: int, claims: Iterable[TraceRow], votes: Iterable[TraceRow]) -> Witness:
    """Return the violation of an epoch with two leaders, or with a leader that led again after a restart.

    claims, votes: the first rows of all nodes about this epoch
    """
    in_order = sorted(claims, key=lambda row: row.role != "leader")
    first_of: dict[str, TraceRow] = {}
    for row in in_order:
        first_of.setdefault(row.node if row.role == "leader" else str(row.peer), row)
    names = sorted(first_of, key=_by_number)
    given = sorted(votes, key=lambda row: _by_number(row.node))
    if len(names) > 1:
        kind, shown = rules.TWO_LEADERS, [first_of[name] for name in names]
        summary = f"{', '.join(names[:-1])} and {names[-1]} led epoch {epoch}."
        expected = "at most one leader in an epoch: two majorities share a voter, and a voter votes once"
    else:
        kind, shown = rules.LEADER_AGAIN, [row for row in in_order if row.role == "leader"]
        summary = f"{names[0]} led epoch {epoch}, was restarted, and led the same epoch again."
        expected = "a restarted leader needs a new epoch: what it had not written to disk is gone"
    voters: dict[str, list[str]] = {}
    for row in given:
        voters.setdefault(str(row.peer), []).append(row.node)
    why = [_claimed(row) for row in shown]
    why += [f"Voted for {who} in epoch {epoch}: {', '.join(gave)}." for who, gave in voters.items()]
    rows = [row.as_row() for row in (*shown, *given)]
    return Witness.of(kind, summary, rows, nodes=names, epoch=epoch, votes=voters, why=why, expected=expected)


def _claimed(row: TraceRow) -> str:
    if row.role == "leader":
        return f"{row.node} became leader of epoch {row.epoch} ({row.where})."
    return f"{row.node} followed {row.peer} as the leader of epoch {row.epoch} ({row.where})."


def _by_number(name: str) -> tuple[int, str]:
    digits = "".join(each for each in name if each.isdigit())
    return int(digits or 0), name


def two_rows(kind: str, one: TraceRow, other: TraceRow) -> rules.RuleBreach:
    """Return the violation of two rows that report different hashes (of prefixes or states) at one offset."""
    both = " and ".join(dict.fromkeys((one.node, other.node)))
    return rules.breach(kind, (one, other), {"both": both, "last": _at(other) - 1})


class FirstHashes:
    """The first hash that was reported at each offset, and the node that reported it.  16 bytes per offset."""

    def __init__(self) -> None:
        self._hashes, self._nodes = array("q"), array("h")
        self._names: list[str] = []

    def take(self, row: TraceRow) -> TraceRow | None:
        """Process a row; if the first row at this offset has another hash, return that first row.

        Only node, offset and hash of the returned row are valid.
        """
        at, value = _at(row), row.hash
        if value is None or at <= 0:
            return None
        if at >= len(self._nodes):
            more = max(at + 1, 2 * len(self._nodes)) - len(self._nodes)
            self._hashes.extend([0] * more)
            self._nodes.extend([-1] * more)
        if self._nodes[at] < 0:
            if row.node not in self._names:
                self._names.append(row.node)
            self._hashes[at], self._nodes[at] = value, self._names.index(row.node)
            return None
        if self._hashes[at] == value:
            return None
        return row._replace(node=self._names[self._nodes[at]], hash=self._hashes[at], seq=-1)


class Monitor:
    """Evaluates the rules on the rows of a running quorum: the rows of each node in order, the nodes in any order."""

    def __init__(self) -> None:
        self.rows = 0
        self._nodes: dict[str, NodeMonitor] = {}
        self._leaders = Leaders()
        self._claims: defaultdict[int, list[TraceRow]] = defaultdict(list)
        self._votes: defaultdict[int, list[TraceRow]] = defaultdict(list)
        self._hashes = {"high-watermark": FirstHashes(), "applied": FirstHashes()}

    def take(self, row: TraceRow) -> list[tuple[str, Witness]]:
        """Process one row; return (name of the checker, witness) of each violation that the row shows."""
        self.rows += 1
        node = self._nodes.get(row.node)
        if node is None:
            node = self._nodes[row.node] = NodeMonitor(row.node)
        found = [(broken.rule.checker, broken.witness()) for broken in node.take(row)]
        if (hashes := self._hashes.get(row.event)) is not None:
            if (first := hashes.take(row)) is not None:
                kind = rules.PREFIXES_DIFFER if row.event == "high-watermark" else rules.STATES_DIFFER
                broken = two_rows(kind, first, row)
                found.append((broken.rule.checker, broken.witness()))
        elif row.event == "role":
            if self._leaders.take(row) is not None:
                votes = self._votes[row.epoch]
                found.append(("election-safety", elected(row.epoch, [*self._claims[row.epoch], row], votes)))
            if row.role == "leader" or row.peer is not None:
                self._claims[row.epoch].append(row)
        elif row.event == "vote":
            self._votes[row.epoch].append(row)
        return found


def sets_apart(committed: Sequence[TraceRow]) -> list[Witness]:
    """Return the violations between successive sets of voters.

    committed: the rows that name committed sets, sorted by offset and seq
    If two sets differ by at most one voter, their majorities overlap (Ongaro 2014, section 4.1).
    """
    first: dict[int, TraceRow] = {}
    witnesses = []
    for row in committed:
        known = first.setdefault(_at(row), row)
        if named_by(known) != named_by(row):
            witnesses.append(_two_sets(rules.TWO_SETS, known, row))
    for before, after in pairwise(first[offset] for offset in sorted(first)):
        if len(named_by(before) ^ named_by(after)) > 1:
            witnesses.append(_two_sets(rules.FAR_SETS, before, after))
    return witnesses


def named_by(row: TraceRow) -> frozenset[str]:
    """Return the voters that a row names."""
    return frozenset((row.detail or "").split())


def _two_sets(kind: str, before: TraceRow, after: TraceRow) -> Witness:
    words = [f"{', '.join(sorted(named_by(row)))} (offset {row.offset})" for row in (before, after)]
    return Witness.of(
        kind,
        f"The voters {words[0]} were followed by {words[1]}.",
        nodes=sorted(named_by(before) ^ named_by(after)),
        offset=after.offset,
        expected="two committed sets in a row differ by at most one voter, and every log names the same ones",
    )
