"""Rules about obligations of servers to their callers: requests and their answers, and the numbers in answers.

*Calls.*  The part of the watch that observes requests arriving at a leader, and answers leaving it.

    check quorum         a leader resigns if a majority does not fetch from it any more (KIP-595)
    an answer in time    a Fetch waits for news no longer than its own limit; other requests of voters never wait
    an answer at last    a leader that leaves office answers all requests that still wait there

One rule concerns the callers: they request parts in order.  A replica requests from a leader either the first part of a
snapshot, or the part after one that this leader has sent in this epoch.  Snapshots with the same id may have different
bytes on two servers, so a download that continues at another leader or at another position may give garbage.

When a core receives a request or writes a row, it also does everything that is due.  So an overdue action may still
happen in that call.  A rule is violated only if the action is still overdue when the core is called again later.
Therefore no rule blames a server that was paused, slow, or never called.

*Numbers.*  Numbers in answers to clients.  Each kind of number has its own demands.

kind           demands
    producer ids   unique, growing, dense: blocks of 1,000 ids that follow each other
    epoch          growing: the epoch of the leader that acknowledged an operation
    offset         growing: end of the records that the leader had applied
    settings       unique: a change raises the numbers in a broker config and a feature level, and returns the new
    number
    settings seen  growing: the number after a change, or the number that a read returned

growing   a request that began after another request was answered gets no smaller number
dense     a missing block belongs to a request whose outcome is unknown

Epochs of brokers are unique and growing, too: `watch_brokers` observes their answers.

Answers alone prove violations of these rules.  So the rules also apply if no record and no trace contains the numbers
that a client received.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from checkers.base.history import Type
from system_under_test.kraft.controller.partition_requests import PRODUCER_IDS_OF_A_BLOCK
from system_under_test.kraft.raft.messages import FetchSnapshotRequest, FetchSnapshotResponse, SnapshotId, Timing

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter

SLOWEST_CLOCK = 0.9
"""Seconds that the slowest clock of a storm counts during one real second."""
QUORUM_S = Timing().check_quorum_factor * Timing().fetch_timeout_s / SLOWEST_CLOCK
"""Maximum real seconds of the period in which a leader must receive fetches from a majority."""
MARGIN_S = 0.1
OF_A_CORE = frozenset({"append", "truncate", "high-watermark", "role", "vote", "quorum-state"})
"""Rows that prove that a core has been called."""


@dataclass(slots=True)
class _Waiting:
    connection: int
    due_s: float
    overdue_s: float = math.inf


@dataclass(slots=True)
class _Asked:
    """Requests to one server in this incarnation.

    since_s: time since which the leader has these voters; None if it leads no epoch
    look_s: time of the next check
    fetched_s: replica -> time of its last Fetch in this epoch
    parts_end: (replica, snapshot) -> ends of the parts sent to it in this epoch
    """

    epoch: int = 0
    since_s: float | None = None
    look_s: float = math.inf
    alone_s: float = math.inf
    fetched_s: dict[str, float] = field(default_factory=dict)
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    parts_end: dict[tuple[str, SnapshotId], set[int]] = field(default_factory=dict)


class CallWatch:
    """The rules of calls.

    voters: returns the voters that a server's log names last
    violated: takes a rule, the server, and a description
    """

    def __init__(
        self,
        now: Callable[[], float],
        voters: Callable[[NodeVoter], Collection[str]],
        violated: Callable[[str, NodeVoter, str], None],
    ) -> None:
        self._now = now
        self._voters = voters
        self._violated = violated
        self._servers: defaultdict[str, _Asked] = defaultdict(_Asked)
        self._numbers = 0

    # Offices

    def started(self, server: NodeVoter) -> None:
        self._servers[server.name] = _Asked()

    def took_office(self, server: NodeVoter, epoch: int) -> None:
        known = self._servers[server.name]
        known.epoch, known.since_s, known.alone_s = epoch, self._now(), math.inf
        known.fetched_s.clear()
        known.parts_end.clear()
        known.look_s = min(known.look_s, self._now())

    def left_office(self, server: NodeVoter) -> None:
        """Demand that a leader that resigns answers all waiting requests at once."""
        known = self._servers[server.name]
        known.since_s = None
        for waiting in known.waiting.values():
            waiting.due_s = min(waiting.due_s, self._now())
        known.look_s = self._now() if known.waiting else math.inf

    def voters_changed(self, server: NodeVoter) -> None:
        """Count the new voters from now on; the leader's period begins again now."""
        known = self._servers[server.name]
        if known.since_s is not None:
            known.since_s, known.alone_s = self._now(), math.inf

    # Calls

    def asked(self, server: NodeVoter, connection: int, wait_s: float) -> int:
        """Note a request that may wait for `wait_s` on the server's clock; return its number."""
        known = self._servers[server.name]
        self._numbers += 1
        waiting = _Waiting(connection, self._now() + wait_s / SLOWEST_CLOCK + MARGIN_S)
        known.waiting[self._numbers] = waiting
        known.look_s = min(known.look_s, waiting.due_s)
        return self._numbers

    def fetched(self, server: NodeVoter, replica: str, epoch: int) -> None:
        """Note a Fetch of a replica (a server with its disk) from the leader of this epoch."""
        known = self._servers[server.name]
        if known.since_s is not None and known.epoch == epoch:
            known.fetched_s[replica] = self._now()

    def part_asked(self, server: NodeVoter, replica: str, request: FetchSnapshotRequest) -> None:
        """Note a request of a replica (a server with its disk) for a part of a snapshot."""
        known, position = self._servers[server.name], request.position
        if known.since_s is None or known.epoch != request.current_leader_epoch or not position:
            return
        if position not in known.parts_end.get((replica, request.snapshot), ()):
            what = f"{replica} asks {server.name} in epoch {known.epoch} for byte {position} of {request.snapshot}"
            self._violated("a part of a snapshot is asked for out of turn", server, f"{what}, which follows nothing")

    def part_sent(self, server: NodeVoter, replica: str, answer: FetchSnapshotResponse) -> None:
        known = self._servers[server.name]
        if known.epoch == answer.leader_epoch and answer.data:
            ends = known.parts_end.setdefault((replica, answer.snapshot), set())
            ends.add(answer.position + len(answer.data))

    def answered(self, server: NodeVoter, number: int) -> None:
        self._servers[server.name].waiting.pop(number, None)

    def gone(self, server: NodeVoter, connection: int) -> None:
        """Note that this connection is closed, so no caller waits for an answer on it."""
        known = self._servers[server.name]
        for number in [each for each, waiting in known.waiting.items() if waiting.connection == connection]:
            del known.waiting[number]

    def called(self, server: NodeVoter) -> None:
        """Check a server whose core is being called, or has just acted."""
        known = self._servers.get(server.name)
        if known is None or self._now() < known.look_s:
            return
        known.look_s = math.inf
        self._look_at_waiting(server, known)
        if known.since_s is not None:
            self._look_at_quorum(server, known, known.since_s)

    def _look_at_waiting(self, server: NodeVoter, known: _Asked) -> None:
        now = self._now()
        for number, waiting in list(known.waiting.items()):
            if now > waiting.overdue_s:
                del known.waiting[number]
                since_s = round(waiting.due_s, 3)
                self._violated("a request is not answered", server, f"{server.name}: its answer was due at {since_s} s")
            elif now > waiting.due_s:
                waiting.overdue_s = now
                known.look_s = now
            else:
                known.look_s = min(known.look_s, waiting.due_s)

    def _look_at_quorum(self, server: NodeVoter, known: _Asked, since_s: float) -> None:
        """Demand that a leader has received fetches from a majority within its last two periods."""
        now, voters = self._now(), self._voters(server)
        needed = len(voters) // 2 + 1 - (server.key in voters)
        others = [key for key in voters if key != server.key]
        if not 0 < needed <= len(others):
            known.alone_s = math.inf
            return
        heard_s = sorted((known.fetched_s.get(key, since_s) for key in others), reverse=True)
        due_s = max(since_s, heard_s[needed - 1]) + 2 * QUORUM_S + MARGIN_S
        if now <= due_s:
            known.alone_s = math.inf
            known.look_s = min(known.look_s, due_s)
        elif now > known.alone_s:
            known.since_s = None
            since = f"no majority has fetched since {due_s - 2 * QUORUM_S - MARGIN_S:.3f} s"
            what = f"{server.name} in epoch {known.epoch}: {since}"
            self._violated("a leader without a majority leads on", server, what)
        else:
            known.alone_s, known.look_s = min(known.alone_s, now), now


PRODUCER_ID, EPOCH, OFFSET = "producer ids", "epoch", "offset"
SETTING, SETTING_SEEN = "settings", "settings seen"


@dataclass(frozen=True, slots=True)
class NumberDemands:
    """Demands on a kind of number. step: difference of two consecutive numbers; 0 if the numbers need not be dense."""

    unique: bool = False
    step: int = 0


DEMANDS: Mapping[str, NumberDemands] = {
    PRODUCER_ID: NumberDemands(unique=True, step=PRODUCER_IDS_OF_A_BLOCK),
    EPOCH: NumberDemands(),
    OFFSET: NumberDemands(),
    SETTING: NumberDemands(unique=True),
    SETTING_SEEN: NumberDemands(),
}
ANSWERED_TWICE, WENT_BACK, LEFT_OUT = "one number answered twice", "answered numbers go back", "a number is left out"


@dataclass(slots=True)
class NumberAnswered:
    """An answer with a number.

    began, ended: positions in the total order of all invokes and completions
    node: node that answered
    type: OK with a number, FAIL (certainly no number was assigned) or INFO (unknown)
    """

    kind: str
    began: int
    node: str
    ended: int = -1
    type: Type = Type.INFO
    number: int = 0


def wrong_numbers(rows: Sequence[NumberAnswered]) -> Iterator[tuple[str, str]]:
    """Yield (violated rule, description), at most one for each rule and kind."""
    for kind, demands in DEMANDS.items():
        given = [row for row in rows if row.kind == kind and row.type is Type.OK]
        counted = Counter(row.number for row in given)
        if demands.unique and (twice := sorted(number for number, count in counted.items() if count > 1)):
            nodes = " and ".join(row.node for row in given if row.number == twice[0])
            yield ANSWERED_TWICE, f"{kind} {twice[0]}, by {nodes}"
        for row, before in overtaken((row.number, row) for row in given):
            yield WENT_BACK, f"{kind} {row.number} by {row.node}, after {before.number} by {before.node}"
        if demands.step and given:
            unknown = sum(row.kind == kind and row.type is Type.INFO for row in rows)
            absent = [number for number in range(0, max(counted), demands.step) if number not in counted]
            if len(absent) > unknown:
                what = f"{kind}: no answer contained {', '.join(map(str, absent[:5]))}"
                yield LEFT_OUT, f"{what}, and only {unknown} requests have an unknown outcome"


Answer = TypeVar("Answer", bound=Any)
"""An answer; `began` and `ended` are its positions in the total order of all invokes and completions."""


def overtaken(placed: Iterable[tuple[Any, Answer]]) -> Iterator[tuple[Answer, Answer]]:
    """Yield at most one pair: the first answer that began after an answer of a later place had ended, and that
    answer.
    """
    by_begin = sorted(placed, key=lambda pair: pair[1].began)
    ends = sorted(by_begin, key=lambda pair: pair[1].ended)
    done, latest = 0, None
    for place, answer in by_begin:
        while done < len(ends) and ends[done][1].ended < answer.began:
            if latest is None or ends[done][0] > latest[0]:
                latest = ends[done]
            done += 1
        if latest is not None and place < latest[0]:
            yield answer, latest[1]
            return
