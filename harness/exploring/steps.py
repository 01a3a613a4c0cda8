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
    EventOutcome,
    ExploredVoter,
    Marked,
    Replied,
    Sent,
    ShortLog,
    VoterEvent,
    happen,
)
from system_under_test.kraft.raft.core import Core
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
    """An `EventOutcome`, with numbers in place of voters and calls.

    past: beyond the last epoch.  deaths: (acts, number of the voter that is down)."""

    voter: int
    acts: tuple[Act | int, ...]
    deaths: tuple[tuple[tuple[Act | int, ...], int], ...]
    past: bool
    reply: RaftResponse | None


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
        self._messages: dict[tuple[str, int, int, int], Change] = {}
        """(kind, number of the call, numbers of the client and the server) -> what this step of a message changes."""
        self._steps_known: dict[tuple[int, int], list[Step]] = {}
        """(number of a voter or a call, of what is left to happen) -> its steps, where they depend on nothing else."""
        self._budgets_left: dict[int, dict[str, int]] = {}

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

    def steps(self, world: ExploredState) -> list[Step]:
        """Every step that this state allows, in the same order each time."""
        rest, found = world.rest, []
        known, plain = self._steps_known, self._is_plain(rest)
        for number in world.calls:
            steps = known.get((number, rest)) if plain else None
            found += self._steps_of_call(world, number, plain) if steps is None else steps
        if world.late:
            cut = self.parts.rest(rest).cut
            found += [("late", late) for late in dict.fromkeys(world.late) if cut not in self.parts.call(late).lane[:2]]
        for id, voter in enumerate(world.voters, 1):
            steps = known.get((voter, rest)) if plain else None
            found += self._steps_of(world, id, plain) if steps is None else steps
        return found + self._steps_of_links(rest)

    def _is_plain(self, rest: int) -> bool:
        """Return whether the steps of a voter or a call depend on nothing but itself and on what is left to happen."""
        return not self.budgets.dynamic and not self._left(rest)["insides"]

    def _left(self, rest: int) -> dict[str, int]:
        if rest not in self._budgets_left:
            self._budgets_left[rest] = dict(zip(LEFT, self.parts.rest(rest).left, strict=True))
        return self._budgets_left[rest]

    def _steps_of_call(self, world: ExploredState, number: int, plain: bool) -> list[Step]:
        budget, cut = self._left(world.rest), self.parts.rest(world.rest).cut
        call = self.parts.call(number)
        lane, found = call.lane, list[Step]()
        if budget["losses"]:
            found.append(("lose", lane))
        if cut and cut in lane[:2]:
            found += [("drop", lane)] if call.reply is None else []
        elif call.reply is not None:
            found += self._whole_and_broken_off(world, "reply", lane)
        else:
            found += self._whole_and_broken_off(world, "rpc", lane)
            found += [("request", lane)] if budget["splits"] else []
        if plain:
            self._steps_known[number, world.rest] = found
        return found

    def _steps_of(self, world: ExploredState, id: int, plain: bool) -> list[Step]:
        budget, number = self._left(world.rest), world.voters[id - 1]
        core, found = self.parts.node(number).core, list[Step]()
        if core is None:
            found += self._whole_and_broken_off(world, "boot", id)
        else:
            for kind in self._own_kinds(core, budget):
                found += self._whole_and_broken_off(world, kind, id)
            if self.budgets.dynamic and core.role == "leader":
                found += self._changes(world, id, core)
            if budget["crashes"]:
                found.append(("crash", id))
        if plain:
            self._steps_known[number, world.rest] = found
        return found

    def _own_kinds(self, core: Core, budget: dict[str, int]) -> Iterator[str]:
        """The kinds of steps that a voter takes by itself, with a client, or by its timer."""
        state = core.memory.state
        if isinstance(state, Leader):
            yield from (kind for kind in ("write", "read", "resign") if budget[f"{kind}s"])
        elif core.memory.observes and isinstance(state, (Unattached, Follower)):
            if budget["looks"]:
                yield "look"
        elif budget["timeouts"] and not (
            isinstance(state, (Prospective, Resigned)) and state.epoch >= self.budgets.epochs
        ):
            yield "timeout"

    def _steps_of_links(self, rest: int) -> list[Step]:
        if self.parts.rest(rest).cut:
            return [("heal", 0)]
        return [("cut", id) for id in self.ids] if self._left(rest)["cuts"] else []

    def _changes(self, world: ExploredState, leader: int, core: Core) -> list[Step]:
        """Return the changes of voters that this leader makes.  A refused change has no effect."""
        budget, found = self._left(world.rest), list[Step]()
        for id in self.ids:
            place = (leader, id, "voter")
            for kind in ("remove", "update") if core.voter_history.latest.entry(id) else ("add",):
                if not budget[CHANGES[kind]]:
                    continue
                if self._change_voters(world, kind, place).voter != world.voters[leader - 1]:
                    found += self._whole_and_broken_off(world, kind, place)
        return found

    def _whole_and_broken_off(self, world: ExploredState, kind: str, place: Place) -> list[Step]:
        found: list[Step] = [(kind, place)]
        if not self._left(world.rest)["insides"]:
            return found
        dying = self._dying(world, kind, place)
        found += [("inside", place, kind, at) for at in range(len(dying.deaths))]
        if kind == "rpc" and isinstance(place, tuple) and self.parts.node(dying.voter).id != place[0]:
            answer = self._answer(world, self.on_lane(world, place), dying.reply)
            found += [("inside", place, "answer", at) for at in range(len(answer.deaths))]
        return found

    # What then happens

    def do(self, world: ExploredState, step: Step) -> ExploredState | None:
        """The world after a step; None beyond the last epoch.  Raises Broken."""
        return self.look(world, step).carried_out(world)

    def look(self, world: ExploredState, step: Step) -> Change:
        """Return what a step changes.  It is worked out once for each way in which what the step reads may be."""
        kind, place = step[0], step[1]
        if isinstance(place, tuple) and len(step) == 2 and kind not in CHANGES:
            number, voters = self.on_lane(world, place), world.voters
            reads = (kind, number, voters[place[0] - 1], voters[place[1] - 1])
            if (known := self._messages.get(reads)) is None:
                known = self._messages[reads] = self._message(world, kind, place, number)
            return known
        change = Change(self)
        if len(step) == 4:
            self._inside(change, world, step)
        elif kind in CHANGES and isinstance(place, tuple):
            change.use(CHANGES[kind])
            change.event(world, place[0], self._change_voters(world, kind, place))
        elif kind == "late" and isinstance(place, int):
            change.take_late = place
            call = self.parts.call(place)
            if self.parts.node(world.voters[call.lane[1] - 1]).core is not None:
                change.event(world, call.lane[1], self._ask(world, place))
        elif kind in ("cut", "heal") and isinstance(place, int):
            if kind == "cut":
                change.use("cuts")
            change.cuts = place
        elif isinstance(place, int):
            if kind != "boot":
                change.use({"crash": "crashes"}.get(kind, f"{kind}s"))
            change.event(world, place, self._own(world, kind, place))
            if kind == "crash":
                change.disconnects = place
            if kind == "read":
                change.owes = self._token(world, "read")
        return change.whole()

    def _message(self, world: ExploredState, kind: str, lane: Lane, number: int) -> Change:
        change, call = Change(self), self.parts.call(number)
        change.take = number
        if kind in ("lose", "drop"):
            if kind == "lose":
                change.use("losses")
                if call.reply is None:
                    change.add_late = self.late(number)
            change.event(world, lane[0], self._answer(world, number, None, lost=kind == "lose"))
        elif kind == "reply":
            change.event(world, lane[0], self._answer(world, number, call.reply))
        elif self.parts.node(world.voters[lane[1] - 1]).core is None:  # the connection is refused
            change.event(world, lane[0], self._answer(world, number, None))
        else:
            asked = self._ask(world, number)
            if kind == "request":
                change.use("splits")
                change.add(self.parts.number(call._replace(reply=asked.reply)))
                change.event(world, lane[1], asked)
            else:
                change.event(world, lane[1], asked)
                change.event(world, lane[0], self._answer(world, number, asked.reply))
        return change.whole()

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

    def _inside(self, change: Change, world: ExploredState, step: tuple[str, Place, str, int]) -> None:
        """A request that was handled in part stays on its way: its sender may try again."""
        _, place, kind, at = step
        change.use("insides")
        dying = self._dying(world, "rpc" if kind == "answer" else kind, place)
        if kind == "answer" and isinstance(place, tuple):
            change.event(world, place[1], dying)
            dying = self._answer(world, self.on_lane(world, place), dying.reply)
        id = self.parts.node(dying.voter).id
        if kind in CHANGES:
            change.use(CHANGES[kind])
        elif isinstance(place, tuple):
            if place[0] == id:
                change.take = self.on_lane(world, place)
        elif kind != "boot":
            change.use(f"{kind}s")
        acts, down = dying.deaths[at]
        change.event(world, id, dying._replace(voter=down, acts=acts, past=False))
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
        replies = [act.response for act in found.acts if type(act) is Replied]
        return Outcomes(
            self.parts.number(found.node),
            self._acts(id, found.acts),
            tuple((self._acts(id, death.acts), self.parts.number(death.down)) for death in found.deaths),
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


class Change:
    """Changes by a step, in every state in which what the step reads is the same.

    take, take_late, add_late: the number of a call that it takes away or brings; 0: none.  owes: the token of a read
    that is owed all that is committed now.  disconnects: a voter whose connections end: what it asked arrives late,
    what it answered never.  cuts: the voter that is alone from now on; 0: none; None: as it was."""

    __slots__ = (
        *("_adds", "_budgets", "_delta", "_events", "_past", "_promised", "_steps", "add_late", "cuts", "disconnects"),
        *("owes", "take", "take_late"),
    )

    def __init__(self, steps: ClusterSteps) -> None:
        self.take = self.take_late = self.add_late = 0
        self.owes = self.disconnects = 0
        self.cuts: int | None = None
        self._steps = steps
        self._delta = 0
        self._past = False
        self._budgets: tuple[int, ...] = ()
        self._adds: tuple[int, ...] = ()
        self._events: list[tuple[int, int, tuple[Act, ...]]] = []
        self._promised: dict[int, int] = {}
        """The number of what was promised before -> after, where no log of another voter decides."""

    def event(self, world: ExploredState, id: int, outcome: Outcomes) -> None:
        """world: of the voters, only this one is looked at."""
        sums = self._steps.parts.sums
        self._past |= outcome.past
        self._delta += sums[outcome.voter] - sums[world.voters[id - 1]]
        acts = []
        for act in outcome.acts:
            if isinstance(act, int):
                self.add(act)
            else:
                acts.append(act)
        self._events.append((id, outcome.voter, tuple(acts)))

    def add(self, call: int) -> None:
        """It brings this call."""
        self._adds = (*self._adds, call)
        self._delta += self._steps.parts.sums[call]

    def use(self, name: str) -> None:
        """It uses up one of this budget."""
        self._budgets = (*self._budgets, LEFT.index(name))

    def whole(self) -> Change:
        """Call it once, when all of it is known."""
        sums = self._steps.parts.sums
        self._delta -= sum(sums[gone] for gone in (self.take, self.take_late) if gone)
        self._delta += sums[self.add_late] if self.add_late else 0
        return self

    def carried_out(self, world: ExploredState) -> ExploredState | None:
        """The world after it; None beyond the last epoch.  Raises Broken."""
        total, voters, calls, late, promised, rest = world
        total += self._delta
        if self.take:
            at = calls.index(self.take)
            calls = calls[:at] + calls[at + 1 :]
        calls += self._adds
        if self.take_late:
            late = _without(late, self.take_late)
        if self.add_late:
            late = (*late, self.add_late)
        after = list(voters)
        promised_then = self._promised.get(promised)
        if promised_then is None:
            promised_then = self._promise(promised, after)
        else:
            for id, voter, _ in self._events:
                after[id - 1] = voter
        if self.disconnects:  # also of what it sent just before it died
            total, calls, late = self._unplug(total, calls, late)
        if promised_then != promised:
            promised, total = self._counted(total, promised, promised_then)
        if self._budgets or self.cuts is not None:
            rest, total = self._counted(total, rest, self._rest(rest))
        return None if self._past else ExploredState(total, tuple(after), calls, late, promised, rest)

    def _promise(self, promised: int, voters: list[int]) -> int:
        """The number of what is promised afterwards; the voters become those afterwards.  Raises Broken."""
        parts = self._steps.parts
        promises, by_itself = parts.promises(promised), True
        if self.owes:
            owed = end(promises.committed)
            promises = promises._replace(reads=tuple(sorted((*promises.reads, (self.owes, owed)))))
        for id, voter, acts in self._events:
            for act in acts:
                promises = promised_after(act, id, promises, voters, parts)
                by_itself &= type(act) is not Marked or not act.leads
            voters[id - 1] = voter
        number = parts.number(promises)
        if by_itself:
            self._promised[promised] = number
        return number

    def _counted(self, total: int, before: int, after: int) -> tuple[int, int]:
        sums = self._steps.parts.sums
        return after, total + sums[after] - sums[before]

    def _rest(self, rest: int) -> int:
        for at in self._budgets:
            rest = self._steps.used(rest, at)
        if self.cuts is None:
            return rest
        parts = self._steps.parts
        return parts.number(Rest(parts.rest(rest).left, self.cuts))

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
