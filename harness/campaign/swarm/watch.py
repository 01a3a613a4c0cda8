"""Rules that must hold after every event.  A `Watch` sees the rows of all traces at once, which no voter does.

The rows are those of `checkers.base.columns.TRACE_EVENTS`, written as by a voter: after their effect is durable, before
any message that depends on it is sent.  So no rule needs a clock, and no rule can blame the wrong voter:

    election safety       an epoch has one leader, in one incarnation, elected by the votes of a majority
    vote once             no voter votes for two candidates in one epoch, or forgets a vote
    leader completeness   a new leader has everything that a former leader published as committed
    log matching          two logs with the same end offset and epoch have equal content
    committed prefix      all logs are equal below every published mark
    majority              a leader publishes a mark only if a majority has the log durably up to it, and first of all a
                          mark in its own epoch
    marks                 a mark never decreases within one incarnation
    reads                 a read is answered from at least the largest mark that was published when the read arrived
    truncation            no voter truncates entries below its own mark, or entries that are committed anywhere
    snapshots             a snapshot is the state of a committed prefix, and a log begins at or below the newest one
    fsyncs                what a voter reports as durable is durable on its disk
    campaigns             a candidate's log is durable before it asks for a vote
    a restart             a voter finds all committed entries that were durable on its disk
    an epoch's opening    a leader appends a record of its epoch at once, because nothing can be committed before
    who is followed       a follower follows only the leader elected in that epoch
    nobody stops          no voter stops unless its disk failed

Obligations of a leader to its callers, changing voters, and registering brokers have their own rules (`watch_calls`,
`watch_voters`, `watch_brokers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from checkers.raft import rules
from checkers.raft.monitor import Leaders, NodeMonitor
from checkers.raft.rules import TraceRow
from harness.campaign.swarm.watch_brokers import BrokerWatch
from harness.campaign.swarm.watch_calls import OF_A_CORE, CallWatch
from harness.campaign.swarm.watch_voters import VoterSets

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter

FOUND_MAX = 20

JUDGED_BY_ROWS = frozenset(
    {
        rules.VOTED_TWICE,
        rules.VOTE_NOT_KEPT,
        rules.MARK_BACK,
        rules.OLD_EPOCH_MARK,
        rules.CUT_BELOW_MARK,
        rules.EARLY_CHANGE,
        rules.TWO_CHANGES,
    }
)
"""Rules of one voter that the trace monitor checks here, too.  For all other rules the watch uses more than rows: it
compares the logs and the disks themselves.
"""


class WatchedRow(NamedTuple):
    """A row of a trace, as `kraft.node.trace` writes it."""

    event: str
    epoch: int
    offset: int | None = None
    hash: int | None = None
    peer: str | None = None
    role: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A violated rule, with time and description. role: role of the voter at that time."""

    time_s: float
    rule: str
    what: str
    role: str = ""


class Watch:
    """The rules of a storm.

    voters: set after the voters have been created
    now: returns the time
    met: called with an event at which a card may be aimed, and the voter
    note: takes every row as text
    archive: called with a voter, and the largest mark before and after, whenever a voter publishes a larger mark
    """

    def __init__(
        self,
        now: Callable[[], float],
        met: Callable[[str, NodeVoter], None],
        note: Callable[[str], None],
        archive: Callable[[NodeVoter, int, int], None] = lambda voter, before, after: None,
    ) -> None:
        self.found: list[BrokenRule] = []
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.rows = 0
        self.committed = 0
        self.roles: dict[str, str] = {}
        self.voters: Sequence[NodeVoter] = ()
        self.sets: VoterSets | None = None
        """Sets of voters that change; None if all of `voters` vote."""
        self.brokers: BrokerWatch | None = None
        """None if no brokers register."""
        self._now = now
        self._met = met
        self._note = note
        self._archive = archive
        self._leaders = Leaders()
        self._monitors: dict[str, NodeMonitor] = {}
        self._at_mark: dict[int, int | None] = {}
        self._applied: dict[int, int | None] = {}
        self._written: dict[tuple[int, int], int | None] = {}
        # key of a voter -> end of the committed prefix that was once durable on its disk
        self._holds: dict[str, int] = {}
        self._published: dict[int, int] = {}
        # incarnations that reported more as durable than was; one report each is enough
        self._overstated: set[tuple[str, int]] = set()
        self._opens: dict[str, float] = {}  # leader that has appended nothing yet -> time of its election
        self.calls = CallWatch(now, self._electors, self.violated_by)

    def _electors(self, voter: NodeVoter) -> frozenset[str]:
        return self.sets.in_force(voter) if self.sets is not None else frozenset(each.key for each in self.voters)

    def violated(self, rule: str, what: str, role: str = "") -> None:
        if len(self.found) < FOUND_MAX:
            self.found.append(BrokenRule(round(self._now(), 6), rule, what, role))

    def row(self, voter: NodeVoter, row: WatchedRow) -> None:
        """Check a row that a voter has written to its trace."""
        self.rows += 1
        self._note(f"{self._now():.9f} {voter.name} {' '.join(map(str, row))}\n")
        if self.sets is not None:
            self.sets.later(voter, row.event)
        if row.event in OF_A_CORE:
            self._later(voter)
        self._judge(voter, row)
        rule = _RULES.get(row.event)
        if rule is not None:
            rule(self, voter, row)

    def _judge(self, voter: NodeVoter, row: WatchedRow) -> None:
        """Pass the row to the monitor of this voter and its disk, which checks the rules that need only rows."""
        for breach in self._monitor(voter).take(TraceRow(self.rows, voter.lives, *row, node=voter.name)):
            if breach.kind in JUDGED_BY_ROWS:
                self.violated_by(breach.kind, voter, breach.summary)

    def _monitor(self, voter: NodeVoter) -> NodeMonitor:
        if voter.key not in self._monitors:
            self._monitors[voter.key] = NodeMonitor(voter.name, collects=False)
        return self._monitors[voter.key]

    def _office(self, voter: NodeVoter) -> TraceRow | None:
        """Return the row in which the voter became leader; None if it does not lead."""
        return self._monitor(voter).state.office

    def _later(self, voter: NodeVoter) -> None:
        """Check the consequences that an earlier row should have had by now: the voter's core has acted again."""
        since_s = self._opens.get(voter.name)
        if since_s is not None and since_s < self._now():
            del self._opens[voter.name]
            what = f"{voter.name} has led since {since_s:.3f} s, but has appended nothing"
            self.violated_by("an epoch without an opening record", voter, what)
        self.calls.called(voter)

    def leads(self, voter: NodeVoter) -> bool:
        return self._office(voter) is not None

    def has_committed(self, voter: NodeVoter) -> bool:
        """Return True if a leader has committed an entry of its own epoch."""
        office = self._office(voter)
        return office is not None and office.epoch in self._published

    # One method per kind of event

    def _appended(self, voter: NodeVoter, row: WatchedRow) -> None:
        epoch, offset = row.epoch, row.offset or 0
        self._opens.pop(voter.name, None)
        prefix = voter.prefix(offset)
        if self._written.setdefault((offset, epoch), prefix) != prefix:
            self.violated_by(rules.LOGS_DIFFER, voter, f"{voter.name}: end {offset} of epoch {epoch}")
        if voter.log_start > voter.snapshot_end:
            begin, end = voter.log_start, voter.snapshot_end
            what = f"{voter.name}: its log begins at {begin}, its newest snapshot ends at {end}"
            self.violated_by(rules.BEGINS_LATE, voter, what)
        if self.sets is not None and self.leads(voter):
            self.sets.appended(voter, offset)
        if self.brokers is not None and self.leads(voter):
            self.brokers.decided(voter, offset, epoch)
        self._met("appended", voter)

    def _flushed(self, voter: NodeVoter, row: WatchedRow) -> None:
        """Check a report of durable data.  Some of it may be committed already: a voter may lag, or may have found it
        in its log at start.
        """
        offset = row.offset or 0
        if offset > voter.durable_end and (life := (voter.name, voter.lives)) not in self._overstated:
            self._overstated.add(life)
            what = f"{voter.name} reports its log as durable up to {offset}, but its disk has it up to "
            self.violated_by("what is reported as durable is not", voter, f"{what}{voter.durable_end}")
        if self._holds.get(voter.key, 0) < offset <= self.committed:
            hash_ = self._at_mark.get(offset)
            if hash_ is not None and voter.prefix(offset) == hash_:
                self._holds[voter.key] = offset

    def _truncated(self, voter: NodeVoter, row: WatchedRow) -> None:
        offset = row.offset or 0
        if offset < self._holds.get(voter.key, 0) and not voter.may_forget:
            what = (
                f"{voter.name} truncates its log to {offset}, but had committed entries up to {self._holds[voter.key]}"
            )
            self.violated_by(rules.ENTRY_LOST, voter, what)
        if self.sets is not None:
            self.sets.cut(voter)
        self._met("truncated", voter)

    def _high_watermark(self, voter: NodeVoter, row: WatchedRow) -> None:
        epoch, offset, hash_ = row.epoch, row.offset or 0, row.hash
        name = voter.name
        if hash_ is None:
            self.violated_by("a mark where no entry ends", voter, f"{name}: {offset}")
        elif self._at_mark.setdefault(offset, hash_) != hash_:
            self.violated_by(rules.PREFIXES_DIFFER, voter, f"{name}: another prefix up to {offset}")
        office = self._office(voter)
        if office is not None and office.epoch == epoch:

            def holds(v: NodeVoter) -> bool:
                return v.flushed >= offset and (v.log_start > offset or v.prefix(offset) == hash_)

            holders = [v for v in self.voters if holds(v)]
            self._holds.update({holder.key: offset for holder in holders})
            count, of = len(holders), len(self.voters)
            if self.sets is not None:
                count, of = self.sets.electorate(voter, lambda v: v in holders, offset)
            if count < of // 2 + 1:
                what = f"{name} commits up to {offset} of epoch {epoch}, durable on {count} of {of} voters"
                self.violated_by(rules.NO_MAJORITY, voter, what)
            if self.sets is not None:
                self.sets.committed(voter, offset)
            if epoch not in self._published:
                self._met("first-commit", voter)
                for former in self.voters:
                    if self.leads(former) and former is not voter:
                        self._met("succeeded", former)
            self._published[epoch] = offset
        if offset > self.committed:
            self._archive(voter, self.committed, offset)
            self.committed = offset

    def _apply(self, voter: NodeVoter, row: WatchedRow) -> None:
        offset, hash_ = row.offset or 0, row.hash
        if self._applied.setdefault(offset, hash_) != hash_:
            self.violated_by(rules.STATES_DIFFER, voter, f"{voter.name} at {offset}")
        if self.brokers is not None:
            self.brokers.applied(voter, offset, hash_, self._now())

    def _of_broker(self, voter: NodeVoter, row: WatchedRow) -> None:
        if self.brokers is not None:
            self.brokers.reported(voter, row.detail or "", self._now(), row.offset or 0)

    def _snapshot(self, voter: NodeVoter, row: WatchedRow) -> None:
        offset, hash_ = row.offset or 0, row.hash
        if offset > self.committed:
            what = f"{voter.name} up to {offset}; only what lies below {self.committed} is committed"
            self.violated_by(rules.SNAPSHOT_BEYOND, voter, what)
        elif self._applied.get(offset, hash_) != hash_:
            self.violated_by(rules.SNAPSHOT_DIFFERS, voter, f"{voter.name} up to {offset}")
        if self.sets is not None:
            self.sets.snapshot(voter, offset)
        self._met("snapshot", voter)

    def _voters_named(self, voter: NodeVoter, row: WatchedRow) -> None:
        if self.sets is None:
            return
        self.calls.voters_changed(voter)
        if self.sets.named(voter, row.offset or 0, self._office(voter), row.detail):
            self._met("voters", voter)
            if voter.key not in self.sets.in_force(voter):
                self._met("removed", voter)

    def _vote(self, voter: NodeVoter, row: WatchedRow) -> None:
        if row.peer in _names(voter) and voter.flushed < voter.end[1]:
            what = (
                f"{voter.name} campaigns with a log up to {voter.end[1]}, but it is durable only up to {voter.flushed}"
            )
            self.violated_by("a candidate whose log is not durable", voter, what)
        self._met("vote", voter)

    def _role(self, voter: NodeVoter, row: WatchedRow) -> None:
        epoch, offset, role = row.epoch, row.offset or 0, row.role or ""
        name = voter.name
        before = self.roles.get(name, "dead")
        self.transitions[before, role] += 1
        self.roles[name] = role
        if before == "leader":
            self.calls.left_office(voter)
        self._opens.pop(name, None)
        if role == "follower" and row.peer is not None:
            self._follows(voter, epoch, row.peer)
        if role == "leader":
            if (kind := self._leaders.claim(epoch, name, voter.lives)) is not None:
                self.violated_by(kind, voter, f"{' and '.join(self._leaders.of(epoch))} in epoch {epoch}")
            self._opens[name] = self._now()
            self.calls.took_office(voter, epoch)
            self._elected(voter, epoch, offset)
            needed = max((mark for led, mark in self._published.items() if led < epoch), default=0)
            if voter.log_start <= needed and needed and voter.prefix(needed) != self._at_mark.get(needed):
                what = f"{name} leads epoch {epoch} without all committed entries up to {needed}"
                self.violated_by(rules.ENTRY_LOST, voter, what)
        elif self.sets is not None:
            self.sets.left_office(voter)
        if moment := _MOMENT_OF.get(role):
            self._met(moment, voter)

    def _follows(self, voter: NodeVoter, epoch: int, peer: str) -> None:
        """Check that a follower's leader has been elected: a leader reports its election before other nodes know of
        it.
        """
        name = next(iter(self._leaders.of(epoch)), "")
        if peer not in (name, name.removeprefix("n")):
            what = f"{voter.name} follows {peer} in epoch {epoch}, which {name or 'nobody'} leads"
            self.violated_by("follows who does not lead", voter, what)

    def _elected(self, leader: NodeVoter, epoch: int, start: int) -> None:
        """Check the votes of an elected leader: each voter has reported its vote before it granted the vote."""
        names = _names(leader)
        votes = {key: monitor.state.votes.get(epoch) for key, monitor in self._monitors.items()}
        granted = {key for key, vote in votes.items() if vote is not None and vote.peer in names}
        if self.sets is not None:
            self.sets.took_office(leader, start)
        voters = self._electors(leader)
        count = len(granted & voters)
        if voters and count < len(voters) // 2 + 1:
            what = f"{leader.name} leads epoch {epoch} by the votes of {count} of {len(voters)}"
            self.violated_by("elected without a majority", leader, what)

    def _start(self, voter: NodeVoter, row: WatchedRow) -> None:
        offset = row.offset or 0
        if offset < self._holds.get(voter.key, 0) and not voter.may_forget:
            what = f"{voter.name} starts with a log up to {offset}, but had committed entries up to "
            self.violated_by(rules.ENTRY_LOST, voter, f"{what}{self._holds[voter.key]}")
        if self.sets is not None:
            self.sets.started(voter)
        self._opens.pop(voter.name, None)
        self.calls.started(voter)
        self.roles[voter.name] = "dead"
        self._met("started", voter)

    def _fatal(self, voter: NodeVoter, row: WatchedRow) -> None:
        if not voter.may_stop:
            self.violated_by("a voter stops", voter, f"{voter.name}: {row.detail or ''}")

    def violated_by(self, rule: str, voter: NodeVoter, what: str) -> None:
        self.violated(rule, what, self.roles.get(voter.name, ""))

    # What clients see

    def answered_read(self, voter: NodeVoter, mark: int, owed: int) -> None:
        """Check a read that arrived when `owed` was the largest published mark, and was answered from below `mark`."""
        if mark < owed:
            what = f"{voter.name} answers from the state below {mark}, but {owed} was committed when the read arrived"
            self.violated_by("stale read", voter, what)


def _names(voter: NodeVoter) -> tuple[str, str]:
    """Return the names that may stand for a voter in a vote: some voters know only its number."""
    return voter.name, voter.name.removeprefix("n")


_MOMENT_OF = {"leader": "elected", "follower": "followed", "resigned": "resigned"}
_MOMENT_OF |= dict.fromkeys(("candidate", "prospective"), "campaign")

_RULES: dict[str, Callable[[Watch, NodeVoter, WatchedRow], None]] = {
    "append": Watch._appended,
    "flush": Watch._flushed,
    "truncate": Watch._truncated,
    "high-watermark": Watch._high_watermark,
    "applied": Watch._apply,
    "broker": Watch._of_broker,
    "snapshot": Watch._snapshot,
    "voters": Watch._voters_named,
    "vote": Watch._vote,
    "role": Watch._role,
    "start": Watch._start,
    "fatal": Watch._fatal,
}
