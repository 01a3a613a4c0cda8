"""The steps that a state of the explored world allows, their results, and the rules that must hold.

A step is one of

    rpc       a request arrives, is handled and answered, and the answer arrives
    request   only the first half of it; `reply` is the second   (splits)
    lose      the sender gives up; the request may still arrive   (losses)
    late      a request arrives whose sender has given up
    timeout   a voter waits no longer: for a leader, an election, or a majority   (timeouts, resigns)
    crash     a voter loses power; `boot` starts it again   (crashes)
    inside    a voter loses power inside of another step, between two effects of its core   (insides)
    cut       nothing from or to one voter arrives; `heal` ends it   (cuts)
    drop      a request on a link that is cut will never arrive, and its sender gives up
    write, read   a client asks a voter that believes to lead   (writes, reads)
    add, remove   an operator asks such a voter to change the voters   (changes)
    update        it asks for other endpoints of a voter   (updates)
    look      a server that does not vote waits no longer for a leader, and asks a voter who leads   (looks)

Those with a budget happen at most so often, and no epoch beyond the last is entered.  Time is abstracted: every timer
may ring at any moment, which is more than clocks of any rate would allow.  A flush that a step begins ends with it,
or a power loss inside of the step comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.exploring.parts import CallUnderWay, Lane, Naming, Parts, Promises, Rest, end, namings, promised_after
from harness.exploring.voter import (
    Act,
    Cut,
    EventOutcome,
    ExploredVoter,
    Leads,
    Marked,
    Read,
    Replied,
    Sent,
    ShortLog,
    Voted,
    VoterEvent,
    happen,
)
from system_under_test.kraft.raft.messages import Identity, QuorumState, RaftResponse, ReplicaKey, Timing
from system_under_test.kraft.raft.states import Follower, Leader, Prospective, Resigned, Unattached

Place = Lane | int
Step = tuple[str, Place] | tuple[str, Place, str, int]
"""(kind, lane, voter or number of a late call); of `inside`: (inside, place, kind of the step that is broken off, at
which of its deaths)."""

LEFT = (
    *("timeouts", "crashes", "insides", "losses", "cuts", "splits", "writes", "reads", "resigns"),
    *("changes", "looks", "updates"),
)
CHANGES = {"add": "changes", "remove": "changes", "update": "updates"}
"""Steps that change the voters in the log -> of which budget."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits on how often each kind of step may happen; epochs: the last one that may be entered.

    changes: of voters, one by one.  updates: of a voter's endpoints.  With neither, voters are static, and states that
    differ by names count as one."""

    epochs: int = 2
    timeouts: int = 3
    crashes: int = 0
    losses: int = 0
    cuts: int = 0
    splits: int = 0
    writes: int = 0
    reads: int = 0
    resigns: int = 0
    insides: int = 0
    changes: int = 0
    looks: int = 0
    updates: int = 0

    @property
    def dynamic(self) -> bool:
        """Return whether the voters stand in the log."""
        return self.changes > 0 or self.updates > 0

    def words(self) -> str:
        used = [f"{getattr(self, name)} {name}" for name in LEFT if getattr(self, name)]
        return f"{self.epochs} epochs, {', '.join(used)}"


class ExploredState(NamedTuple):
    """A state: numbers of parts.  total: the sums of all of them, for the key."""

    total: int
    voters: tuple[int, ...]
    calls: tuple[int, ...]
    late: tuple[int, ...]
    promises: int
    rest: int


class Outcomes(NamedTuple):
    """An `EventOutcome`, with numbers in place of voters and calls.  touches: of `Footprint`.

    past: beyond the last epoch.  deaths: (acts, number of the voter that is down)."""

    voter: int
    acts: tuple[Act | int, ...]
    deaths: tuple[tuple[tuple[Act | int, ...], int], ...]
    touches: int
    past: bool
    reply: RaftResponse | None


MARKS, SEES_COMMITTED, CHANGES_LOG, ELECTS, CLIENTS, ALL = 1, 2, 4, 8, 16, 32
_CLASHES = {
    MARKS: MARKS | SEES_COMMITTED | CHANGES_LOG | ELECTS,
    SEES_COMMITTED: MARKS,
    CHANGES_LOG: MARKS,
    ELECTS: MARKS | ELECTS,
    CLIENTS: CLIENTS | MARKS,
}


class Footprint(NamedTuple):
    """Record of what a step reads and changes.  voters: one bit for each.  touches: of what the rules look at.

    budget: the number in LEFT of what it uses up; -1: nothing."""

    voters: int
    touches: int
    budget: int


EVERYTHING = Footprint(-1, ALL, -1)


def independent(one: Footprint, other: Footprint, left: Sequence[int]) -> bool:
    """Return whether the two steps, taken in either order, lead to the same state and break the same rules."""
    if one.voters & other.voters or (one.touches | other.touches) & ALL:
        return False
    if one.budget == other.budget >= 0 and left[one.budget] == 1:
        return False
    if one.touches and other.touches:
        return not any(one.touches & bit and other.touches & clashes for bit, clashes in _CLASHES.items())
    return True


class ClusterSteps:
    """The steps of one cluster with one set of budgets.

    spares: servers besides that follow the log, and may become voters.  symmetric: if voters are static; one that looks
    for a leader asks the others in the order of their names."""

    def __init__(
        self, voters: int, budgets: Budgets, bug: str = "", *, symmetric: bool = True, spares: int = 0
    ) -> None:
        self.ids = tuple(range(1, voters + spares + 1))
        self.budgets = budgets
        dynamic = budgets.dynamic
        if spares and not dynamic:
            raise ValueError("spares are of use where voters change")
        every = namings(len(self.ids))
        self.names: list[Naming] = every if symmetric and not dynamic else every[:1]
        self.parts = Parts(self.names)
        self.outcomes: dict[tuple[int, str, int, int], Outcomes] = {}
        self.fresh_outcomes: list[tuple[int, str, int, int]] = []
        timing = Timing(fetch_max_wait_s=0.0, retry_backoff_s=0.0)
        bugs = frozenset({bug}) if bug else frozenset()
        first = self.ids[:voters]
        self._identities = {
            id: Identity("explored", ReplicaKey(id), first, timing, bugs, observer=id not in first, dynamic=dynamic)
            for id in self.ids
        }
        self._replies: dict[tuple[int, RaftResponse | None], int] = {}
        self._late: dict[int, int] = {}
        self._used: dict[tuple[int, int], int] = {}

    def first(self) -> ExploredState:
        """All voters have started, with empty disks."""
        nodes = [self.parts.number(ExploredVoter(id, ShortLog(), QuorumState(), None)) for id in self.ids]
        left = tuple(getattr(self.budgets, name) for name in LEFT)
        numbers = (self.parts.number(Promises()), self.parts.number(Rest(left)))
        total = sum(self.parts.sums[number] for number in (*nodes, *numbers))
        world = ExploredState(total, tuple(nodes), (), (), *numbers)
        for id in self.ids:
            after = self.do(world, ("boot", id))
            assert after is not None
            world = after
        return world

    # What may happen

    def steps(self, world: ExploredState) -> Iterator[Step]:
        left, cut = self.parts.rest(world.rest)
        budget = dict(zip(LEFT, left, strict=True))
        for number in world.calls:
            call = self.parts.call(number)
            lane = call.lane
            if budget["losses"]:
                yield "lose", lane
            if cut and cut in lane[:2]:
                if call.reply is None:
                    yield "drop", lane
                continue
            if call.reply is not None:
                yield from self._whole_and_broken_off(world, "reply", lane, budget)
                continue
            yield from self._whole_and_broken_off(world, "rpc", lane, budget)
            if budget["splits"]:
                yield "request", lane
        for number in dict.fromkeys(world.late):
            if cut not in self.parts.call(number).lane[:2]:
                yield "late", number
        for id in self.ids:
            yield from self._steps_of(world, id, budget)
        if cut:
            yield "heal", 0
        elif budget["cuts"]:
            for id in self.ids:
                yield "cut", id

    def _steps_of(self, world: ExploredState, id: int, budget: dict[str, int]) -> Iterator[Step]:
        core = self.parts.node(world.voters[id - 1]).core
        if core is None:
            yield from self._whole_and_broken_off(world, "boot", id, budget)
            return
        state = core.memory.state
        if isinstance(state, Leader):
            for kind, budgeted in (("write", "writes"), ("read", "reads"), ("resign", "resigns")):
                if budget[budgeted]:
                    yield from self._whole_and_broken_off(world, kind, id, budget)
            if self.budgets.dynamic:
                yield from self._changes(world, id, budget)
        elif core.memory.observes and isinstance(state, (Unattached, Follower)):
            if budget["looks"]:
                yield from self._whole_and_broken_off(world, "look", id, budget)
        elif budget["timeouts"] and not (
            isinstance(state, (Prospective, Resigned)) and state.epoch >= self.budgets.epochs
        ):
            yield from self._whole_and_broken_off(world, "timeout", id, budget)
        if budget["crashes"]:
            yield "crash", id

    def _changes(self, world: ExploredState, leader: int, budget: dict[str, int]) -> Iterator[Step]:
        """Yield the changes of voters that this leader makes.  A refused change has no effect."""
        core = self.parts.node(world.voters[leader - 1]).core
        assert core is not None
        for id in self.ids:
            place = (leader, id, "voter")
            for kind in ("remove", "update") if core.voter_history.latest.entry(id) else ("add",):
                if not budget[CHANGES[kind]]:
                    continue
                if self._change_voters(world, kind, place).voter != world.voters[leader - 1]:
                    yield from self._whole_and_broken_off(world, kind, place, budget)

    def _whole_and_broken_off(
        self, world: ExploredState, kind: str, place: Place, budget: dict[str, int]
    ) -> Iterator[Step]:
        yield kind, place
        if not budget["insides"]:
            return
        dying = self._dying(world, kind, place)
        for at in range(len(dying.deaths)):
            yield "inside", place, kind, at
        if kind == "rpc" and isinstance(place, tuple) and self.parts.node(dying.voter).id != place[0]:
            for at in range(len(self._answer(world, self.on_lane(world, place), dying.reply).deaths)):
                yield "inside", place, "answer", at

    # What then happens

    def do(self, world: ExploredState, step: Step) -> ExploredState | None:
        """The world after a step; None beyond the last epoch.  Raises Broken."""
        return self.look(world, step).carried_out()

    def look(self, world: ExploredState, step: Step) -> Change:
        """Return what a step is about to change."""
        change = Change(self, world)
        kind, place = step[0], step[1]
        if len(step) == 4:
            self._inside(change, step)
        elif kind in CHANGES and isinstance(place, tuple):
            change.use(CHANGES[kind])
            change.touches |= ALL
            change.event(place[0], self._change_voters(world, kind, place))
        elif isinstance(place, tuple):
            self._message(change, kind, place)
        elif kind == "late":
            change.voters = -1
            change.touches |= ALL
            change.take_late = place
            call = self.parts.call(place)
            if self.parts.node(world.voters[call.lane[1] - 1]).core is not None:
                change.event(call.lane[1], self._ask(world, place))
        elif kind in ("cut", "heal"):
            change.touches |= ALL
            if kind == "cut":
                change.use("cuts")
            change.rest = self.parts.number(Rest(self.parts.rest(change.rest).left, place))
        else:
            if kind not in ("boot",):
                change.use({"crash": "crashes"}.get(kind, f"{kind}s"))
            change.event(place, self._own(world, kind, place))
            if kind == "crash":
                change.disconnects = place
            change.touches |= CLIENTS if kind in ("read", "write") else 0
            if kind == "read":
                change.owes = self._token(world, "read")
                change.touches |= SEES_COMMITTED
        return change

    def _message(self, change: Change, kind: str, lane: Lane) -> None:
        world = change.world
        number = self.on_lane(world, lane)
        call = self.parts.call(number)
        change.voters |= 1 << lane[0] | 1 << lane[1]
        change.take = number
        if kind in ("lose", "drop"):
            if kind == "lose":
                change.use("losses")
                if call.reply is None:
                    change.add_late = self.late(number)
            change.event(lane[0], self._answer(world, number, None, lost=kind == "lose"))
        elif kind == "reply":
            change.event(lane[0], self._answer(world, number, call.reply))
        elif self.parts.node(world.voters[lane[1] - 1]).core is None:  # the connection is refused
            change.event(lane[0], self._answer(world, number, None))
        else:
            asked = self._ask(world, number)
            change.event(lane[1], asked)
            if kind == "request":
                change.use("splits")
                change.add = self.parts.number(call._replace(reply=asked.reply))
            else:
                change.event(lane[0], self._answer(world, number, asked.reply))

    def _dying(self, world: ExploredState, kind: str, place: Place) -> Outcomes:
        """The event of a step inside of which its voter may die: who gets a request, or whom the step is of."""
        if kind in CHANGES and isinstance(place, tuple):
            return self._change_voters(world, kind, place)
        if not isinstance(place, tuple):
            return self._own(world, kind, place)
        number = self.on_lane(world, place)
        if kind == "reply" or self.parts.node(world.voters[place[1] - 1]).core is None:
            return self._answer(world, number, self.parts.call(number).reply)
        return self._ask(world, number)

    def _inside(self, change: Change, step: tuple[str, Place, str, int]) -> None:
        """A request that was handled in part stays on its way: its sender may try again."""
        _, place, kind, at = step
        world = change.world
        change.use("insides")
        dying = self._dying(world, "rpc" if kind == "answer" else kind, place)
        if kind == "answer" and isinstance(place, tuple):
            change.event(place[1], dying)
            dying = self._answer(world, self.on_lane(world, place), dying.reply)
        id = self.parts.node(dying.voter).id
        if kind in CHANGES:
            change.use(CHANGES[kind])
        elif isinstance(place, tuple):
            change.voters |= 1 << place[0] | 1 << place[1]
            if place[0] == id:
                change.take = self.on_lane(world, place)
        elif kind != "boot":
            change.use(f"{kind}s")
            change.touches |= CLIENTS if kind in ("read", "write") else 0
        acts, down = dying.deaths[at]
        change.event(id, dying._replace(voter=down, acts=acts, past=False, touches=dying.touches | CHANGES_LOG))
        change.disconnects = id

    def on_lane(self, world: ExploredState, lane: Lane) -> int:
        call = self.parts.call
        for number in world.calls:
            if call(number)[0] == lane:  # the first field: an index takes less than a name
                return number
        raise KeyError(lane)

    def late(self, number: int) -> int:
        if number not in self._late:
            self._late[number] = self.parts.number(self.parts.call(number)._replace(late=True))
        return self._late[number]

    def used(self, rest: int, at: int) -> int:
        if (rest, at) not in self._used:
            left, cut = self.parts.rest(rest)
            self._used[rest, at] = self.parts.number(Rest((*left[:at], left[at] - 1, *left[at + 1 :]), cut))
        return self._used[rest, at]

    def words(self, step: Step) -> str:
        """A step as a line of a trace."""
        kind, place, *more = step
        if kind in ("heal", "late"):
            lane = self.parts.call(place).lane if kind == "late" and isinstance(place, int) else None
        else:
            lane = place if isinstance(place, tuple) else None
        where = f"n{lane[0]} > n{lane[1]}  {lane[2]}" if lane else "" if kind == "heal" else f"n{place}"
        which = f"  of {more[0]}, death {more[1]}" if more else ""
        return f"{kind:<8} {where}{which}".rstrip()

    # Outcomes, each computed once

    def _token(self, world: ExploredState, kind: str) -> int:
        return 1000 + self.parts.rest(world.rest).left[LEFT.index(f"{kind}s")]

    def _own(self, world: ExploredState, kind: str, id: int) -> Outcomes:
        token = self._token(world, kind) if kind in ("read", "write") else 0
        voter = world.voters[id - 1]
        return self.outcomes.get((voter, kind, token, 0)) or self._happen(voter, VoterEvent(kind, token), token, 0)

    def _change_voters(self, world: ExploredState, kind: str, place: Lane) -> Outcomes:
        leader, target, _ = place
        token = self._token(world, CHANGES[kind].removesuffix("s"))
        voter, of = world.voters[leader - 1], 10 * token + target
        return self.outcomes.get((voter, kind, of, 0)) or self._happen(
            voter, VoterEvent(kind, token, peer=target), of, 0
        )

    def _ask(self, world: ExploredState, number: int) -> Outcomes:
        call = self.parts.call(number)
        voter = world.voters[call.lane[1] - 1]
        return self.outcomes.get((voter, "ask", number, 0)) or self._happen(
            voter, VoterEvent("ask", connection=call.connection, request=call.request), number, 0
        )

    def _answer(self, world: ExploredState, number: int, reply: RaftResponse | None, *, lost: bool = False) -> Outcomes:
        call = self.parts.call(number)
        voter = world.voters[call.lane[0] - 1]
        kind = "lost" if lost else "answer"
        answered = number if reply is call.reply else self._with_reply(number, reply)
        return self.outcomes.get((voter, kind, answered, 0)) or self._happen(
            voter, VoterEvent(kind, peer=call.lane[1], request=call.request, response=reply), answered, 0
        )

    def _with_reply(self, number: int, reply: RaftResponse | None) -> int:
        found = self._replies.get((number, reply))
        if found is None:
            found = self._replies[number, reply] = self.parts.number(self.parts.call(number)._replace(reply=reply))
        return found

    def _happen(self, number: int, event: VoterEvent, of: int, at: int) -> Outcomes:
        node = self.parts.node(number)
        found = happen(node, event, self._identities[node.id], insides=self.budgets.insides > 0)
        self.outcomes[number, event.kind, of, at] = outcomes = self._in_numbers(node.id, found)
        self.fresh_outcomes.append((number, event.kind, of, at))
        return outcomes

    def _in_numbers(self, id: int, found: EventOutcome) -> Outcomes:
        touches = CHANGES_LOG if found.writes_log else 0
        for act in found.acts:
            touches |= _TOUCHES.get(type(act), 0)
        replies = [act.response for act in found.acts if type(act) is Replied]
        return Outcomes(
            self.parts.number(found.node),
            self._acts(id, found.acts),
            tuple((self._acts(id, death.acts), self.parts.number(death.down)) for death in found.deaths),
            touches,
            found.node.core is not None and found.node.core.epoch > self.budgets.epochs,
            replies[0] if replies else None,
        )

    def _acts(self, id: int, acts: Sequence[Act]) -> tuple[Act | int, ...]:
        """Requests that leave are numbers of calls; answers are kept apart."""
        return tuple(
            self.parts.number(CallUnderWay((id, act.peer, type(act.request).__name__), act.request, act.connection))
            if type(act) is Sent
            else act
            for act in acts
            if type(act) is not Replied
        )


_TOUCHES: dict[type, int] = {
    Voted: 0,
    Leads: ELECTS | SEES_COMMITTED,
    Marked: MARKS,
    Cut: SEES_COMMITTED,
    Read: CLIENTS,
}


class Change:
    """Changes by a step, before it is carried out.

    take, take_late, add, add_late: the number of a call that it takes away or brings; 0: none.  owes: the token of a
    read that is owed all that is committed now.  disconnects: a voter whose connections end: what it asked arrives
    late, what it answered never."""

    __slots__ = (
        *("_budget", "_events", "_steps", "add", "add_late", "disconnects", "owes", "rest", "take", "take_late"),
        *("touches", "voters", "world"),
    )

    def __init__(self, steps: ClusterSteps, world: ExploredState) -> None:
        self.world = world
        self.voters = self.touches = 0
        self.rest = world.rest
        self.take = self.take_late = self.add = self.add_late = 0
        self.owes = self.disconnects = 0
        self._steps = steps
        self._budget = -1
        self._events: list[tuple[int, Outcomes]] = []

    def event(self, id: int, outcome: Outcomes) -> None:
        self.voters |= 1 << id
        self.touches |= outcome.touches
        self._events.append((id, outcome))

    def use(self, name: str) -> None:
        """Join two budgets: of two, the second makes the step dependent on all others."""
        if self._budget >= 0:
            self.touches |= ALL
        self._budget = LEFT.index(name)
        self.rest = self._steps.used(self.rest, self._budget)

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.voters, self.touches, self._budget)

    def carried_out(self) -> ExploredState | None:
        """The world after it; None beyond the last epoch.  Raises Broken."""
        steps, before = self._steps, self.world
        sums = steps.parts.sums
        total, voters, calls, late, promised, rest = before
        if self.take:
            calls, total = _without(calls, self.take), total - sums[self.take]
        if self.take_late:
            late, total = _without(late, self.take_late), total - sums[self.take_late]
        if self.add:
            calls, total = (*calls, self.add), total + sums[self.add]
        if self.add_late:
            late, total = (*late, self.add_late), total + sums[self.add_late]
        promises = steps.parts.promises(promised)
        known = promises
        if self.owes:
            owed = end(known.committed)
            promises = promises._replace(reads=tuple(sorted((*promises.reads, (self.owes, owed)))))
        past = False
        for id, outcome in self._events:
            total += sums[outcome.voter] - sums[voters[id - 1]]
            for act in outcome.acts:
                if isinstance(act, int):
                    calls = (*calls, act)
                    total += sums[act]
                else:
                    promises = promised_after(act, id, promises, voters, steps.parts)
            voters = (*voters[: id - 1], outcome.voter, *voters[id:])
            past |= outcome.past
        if self.disconnects:  # also of what it sent just before it died
            total, calls, late = self._unplug(total, calls, late)
        if promises is not known:
            number = steps.parts.number(promises)
            total += sums[number] - sums[promised]
            promised = number
        if self.rest != rest:
            total += sums[self.rest] - sums[rest]
        return None if past else ExploredState(total, voters, calls, late, promised, self.rest)

    def _unplug(
        self, total: int, calls: tuple[int, ...], late: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        steps = self._steps
        kept = []
        for number in calls:
            call, stays = steps.parts.call(number), number
            if call.lane[0] == self.disconnects:
                stays = 0
                if call.reply is None:
                    late = (*late, steps.late(number))
                    total += steps.parts.sums[late[-1]]
            elif call.lane[1] == self.disconnects and call.reply is not None:
                stays = steps.parts.number(call._replace(reply=None))
            if stays != number:
                total -= steps.parts.sums[number]
                total += steps.parts.sums[stays] if stays else 0
            if stays:
                kept.append(stays)
        return total, tuple(kept), late


def _without(numbers: tuple[int, ...], one: int) -> tuple[int, ...]:
    at = numbers.index(one)
    return (*numbers[:at], *numbers[at + 1 :])
