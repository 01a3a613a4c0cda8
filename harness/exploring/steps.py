"""The possible steps of an explored state, their results, and the rules that must hold.

A step is one of

    rpc       a request arrives, is handled and answered, and the answer arrives
    request   only the first half of an rpc; `reply` is the second half   (splits)
    lose      the sender gives up; the request may still arrive   (losses)
    late      a request arrives whose sender has given up
    timeout   a voter stops waiting for a leader, for an election, or for a majority   (timeouts, resigns)
    crash     a voter loses power; `boot` starts it again   (crashes)
    inside    a voter loses power inside of another step, between two effects of its core   (insides)
    cut       one voter is isolated: no message from or to it arrives; `heal` ends the cut   (cuts)
    drop      a request on a cut link is lost, and its sender gives up
    write, read   a client sends a request to a voter that believes to be the leader   (writes, reads)
    add, remove   an operator asks such a voter to change the voters   (changes)
    update        an operator asks such a voter to change the endpoints of a voter   (updates)
    look      a server that does not vote stops waiting for a leader, and asks voters for the leader   (looks)

The words in parentheses are budgets, which limit the number of steps; no epoch beyond the last one is entered.  Time is
abstracted: every timer may fire at any time, which is more than clocks of any rate would allow.  A flush that a step
begins ends with the step, unless a power loss occurs inside the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
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
from system_under_test.kraft.raft.messages import Batch, Identity, QuorumState, RaftResponse, ReplicaKey, Timing
from system_under_test.kraft.raft.states import Follower, Leader, Prospective, Resigned, Unattached

Place = Lane | int
Step = tuple[str, Place] | tuple[str, Place, str, int]
"""(kind, lane, voter or number of a late call); for `inside`: (inside, place, kind of the interrupted step, index of
the power loss).
"""

CHANGES = {"add": "changes", "remove": "changes", "update": "updates"}
"""Steps that change the voters in the log -> budget of the step."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Maximum number of steps of each kind.

    epochs: the last epoch that may be entered
    changes: additions and removals of voters, one voter at a time
    updates: changes of a voter's endpoints

    Without changes and updates, voters are static, and states that differ only by names of voters count as one.
    """

    epochs: int = 2
    timeouts: int = 3
    crashes: int = 0
    insides: int = 0
    losses: int = 0
    cuts: int = 0
    splits: int = 0
    writes: int = 0
    reads: int = 0
    resigns: int = 0
    changes: int = 0
    looks: int = 0
    updates: int = 0

    @property
    def dynamic(self) -> bool:
        """Return True if the log records the voters."""
        return self.changes > 0 or self.updates > 0

    def words(self) -> str:
        used = [f"{getattr(self, name)} {name}" for name in LEFT if getattr(self, name)]
        return f"{self.epochs} epochs, {', '.join(used)}"


LEFT = tuple(each.name for each in fields(Budgets) if each.name != "epochs")
"""Kinds of steps that have a budget."""


class ExploredState(NamedTuple):
    """A state, stored as the ids of its parts.  The caller may pass 0 for an id that is not used."""

    voters: tuple[int, ...]
    calls: tuple[int, ...]
    late: tuple[int, ...]
    promises: int
    rest: int


class Outcomes(NamedTuple):
    """An `EventOutcome`, with numbers in place of voters and calls.

    past: True if an epoch beyond the last one is entered
    deaths: (events, number of the voter after the power loss)
    """

    voter: int
    acts: tuple[Act | int, ...]
    deaths: tuple[tuple[tuple[Act | int, ...], int], ...]
    past: bool
    reply: RaftResponse | None


class ClusterSteps:
    """The steps of one cluster with one set of budgets.

    spares: number of additional servers that follow the log and may become voters
    symmetric: True if voters are interchangeable; ignored if voters change, because then a server that looks for a
        leader asks the others in the order of their names
    """

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
        self.outcomes: dict[tuple[int, str, int], Outcomes] = {}
        self.fresh_outcomes: list[tuple[int, str, int]] = []
        timing = Timing(fetch_max_wait_s=0.0, retry_backoff_s=0.0)
        bugs = frozenset({bug}) if bug else frozenset()
        first = self.ids[:voters]
        self._identities = {
            id: Identity("explored", ReplicaKey(id), first, timing, bugs, observer=id not in first, dynamic=dynamic)
            for id in self.ids
        }
        self._messages: dict[tuple[str, int, int], Change] = {}
        """(kind, number of the call, number of the server) -> changes made by this step of a message."""
        self._heard: dict[tuple[int, bool, int], Change] = {}
        """(number of the call, True if it is lost, number of the client) -> changes made by the end of the call."""
        self._budgets_left: dict[int, dict[str, int]] = {}

    def first(self) -> ExploredState:
        """Return the state in which all voters have started with empty disks."""
        nodes = [self.parts.number(ExploredVoter(id, ShortLog(), QuorumState(), None)) for id in self.ids]
        left = tuple(getattr(self.budgets, name) for name in LEFT)
        numbers = (self.parts.number(Promises()), self.parts.number(Rest(left)))
        state = ExploredState(tuple(nodes), (), (), *numbers)
        for id in self.ids:
            state = self.at_once(state, ("boot", id))
        return state

    # Possible steps

    def _left(self, rest: int) -> dict[str, int]:
        if rest not in self._budgets_left:
            self._budgets_left[rest] = dict(zip(LEFT, self.parts.rest(rest).left, strict=True))
        return self._budgets_left[rest]

    def condition(self, rest: int) -> tuple[object, ...]:
        """Return the part of the remaining budgets on which the steps of a call depend."""
        left = self._left(rest)
        return self.parts.rest(rest).cut, *(left[each] > 0 for each in ("losses", "splits", "insides"))

    def steps_of_call(self, world: ExploredState, number: int) -> list[Step]:
        """Return the steps of a call.  Only its client, its server and the condition of the state are read."""
        budget, cut = self._left(world.rest), self.parts.rest(world.rest).cut
        call = self.parts.call(number)
        lane, found = call.lane, list[Step]()
        if call.late:
            return [] if cut in lane[:2] else [("late", number)]
        if budget["losses"]:
            found.append(("lose", lane))
        if cut and cut in lane[:2]:
            return [*found, ("drop", lane)] if call.reply is None else found
        if call.reply is not None:
            return found + self._whole_and_broken_off(world, "reply", lane)
        found += self._whole_and_broken_off(world, "rpc", lane)
        return [*found, ("request", lane)] if budget["splits"] else found

    def steps_of_voter(self, world: ExploredState, id: int) -> list[Step]:
        """Return the steps of a voter.  Only this voter and the remaining budgets of the state are read."""
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
        return found

    def _own_kinds(self, core: Core, budget: dict[str, int]) -> Iterator[str]:
        """Yield the kinds of steps of a voter that no message starts: its timers, and requests of clients."""
        state = core.state
        if isinstance(state, Leader):
            yield from (kind for kind in ("write", "read", "resign") if budget[f"{kind}s"])
        elif core.observes and isinstance(state, (Unattached, Follower)):
            if budget["looks"]:
                yield "look"
        elif budget["timeouts"] and not (
            isinstance(state, (Prospective, Resigned)) and state.epoch >= self.budgets.epochs
        ):
            yield "timeout"

    def steps_of_links(self, rest: int) -> list[Step]:
        if self.parts.rest(rest).cut:
            return [("heal", 0)]
        return [("cut", id) for id in self.ids] if self._left(rest)["cuts"] else []

    def _changes(self, world: ExploredState, leader: int, core: Core) -> list[Step]:
        """Return the changes of voters that this leader accepts.  A rejected change has no effect."""
        budget, found = self._left(world.rest), list[Step]()
        for id in self.ids:
            place = (leader, id, "voter")
            for kind in ("remove", "update") if core.history.latest.entry(id) else ("add",):
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
            answer = self._answer(self.replied(self.on_lane(world, place), dying.reply), world.voters[place[0] - 1])
            found += [("inside", place, "answer", at) for at in range(len(answer.deaths))]
        return found

    # Results of a step

    def at_once(self, world: ExploredState, step: Step) -> ExploredState:
        """Return the state after a step that uses up no budget, adds no late call, and ends no connection.

        Raises Broken.
        """
        change, parts = self.look(world, step), self.parts
        changes = [change]
        if change.heard is not None:
            client = parts.call(change.take).lane[0]
            changes.append(self.heard(*change.heard, world.voters[client - 1]))
        for each in changes:
            logs = [parts.node(number).log.batches for number in world.voters]
            voters = dict(enumerate(world.voters, 1)) | {id: voter for id, voter, _ in each.events}
            calls = (*(number for number in world.calls if number != each.take), *each.adds)
            promises = each.promised_after(world.promises, logs)
            world = world._replace(voters=tuple(voters.values()), calls=calls, promises=promises)
        return world

    def look(self, world: ExploredState, step: Step) -> Change:
        """Return the changes of a step, without its client's reaction to the end of the call (`Change.heard`)."""
        kind, place = step[0], step[1]
        if isinstance(place, tuple) and len(step) == 2 and kind not in CHANGES:
            reads = (kind, self.on_lane(world, place), world.voters[place[1] - 1])
            if (known := self._messages.get(reads)) is None:
                known = self._messages[reads] = self._message(*reads)
            return known
        change = Change(self.parts)
        if len(step) == 4:
            self._inside(change, world, step)
        elif kind in CHANGES and isinstance(place, tuple):
            change.use(CHANGES[kind])
            change.event(place[0], self._change_voters(world, kind, place))
        elif kind == "late" and isinstance(place, int):
            change.take = place
            server = self.parts.call(place).lane[1]
            if self.parts.node(world.voters[server - 1]).core is not None:
                change.event(server, self._ask(place, world.voters[server - 1]))
        elif kind in ("cut", "heal") and isinstance(place, int):
            if kind == "cut":
                change.use("cuts")
            change.cuts = place
        elif isinstance(place, int):
            if kind != "boot":
                change.use({"crash": "crashes"}.get(kind, f"{kind}s"))
            change.event(place, self._own(world, kind, place))
            if kind == "crash":
                change.disconnects = place
            if kind == "read":
                change.owes = self._token(world, "read")
        return change

    def heard(self, number: int, lost: bool, client: int) -> Change:
        """Return the reaction of a client to the end of its call. lost: the client opens a new connection."""
        if (known := self._heard.get((number, lost, client))) is None:
            known = self._heard[number, lost, client] = Change(self.parts)
            known.event(self.parts.node(client).id, self._answer(number, client, lost=lost))
        return known

    def _message(self, kind: str, number: int, server: int) -> Change:
        change, call = Change(self.parts, take=number), self.parts.call(number)
        if kind == "lose":
            change.use("losses")
            change.adds_late = self.late(number) if call.reply is None else 0
            change.heard = (self.replied(number, None), True)
        elif kind in ("drop", "reply") or self.parts.node(server).core is None:  # the connection is refused
            change.heard = (number, False)
        else:
            asked = self._ask(number, server)
            answered = self.replied(number, asked.reply)
            if kind == "request":
                change.use("splits")
                change.adds = (answered,)
            else:
                change.heard = (answered, False)
            change.event(call.lane[1], asked)
        return change

    def _dying(self, world: ExploredState, kind: str, place: Place) -> Outcomes:
        """Return the event of a step during which a voter may lose power: the receiver of a request, or the voter that
        acts by itself.
        """
        if kind in CHANGES and isinstance(place, tuple):
            return self._change_voters(world, kind, place)
        if not isinstance(place, tuple):
            return self._own(world, kind, place)
        number = self.on_lane(world, place)
        if kind == "reply" or self.parts.node(world.voters[place[1] - 1]).core is None:
            return self._answer(number, world.voters[place[0] - 1])
        return self._ask(number, world.voters[place[1] - 1])

    def _inside(self, change: Change, world: ExploredState, step: tuple[str, Place, str, int]) -> None:
        """Add the changes of a power loss inside a step.  The request stays in flight, because its sender may retry."""
        _, place, kind, at = step
        change.use("insides")
        dying = self._dying(world, "rpc" if kind == "answer" else kind, place)
        if kind == "answer" and isinstance(place, tuple):
            change.event(place[1], dying)
            dying = self._answer(self.replied(self.on_lane(world, place), dying.reply), world.voters[place[0] - 1])
        id = self.parts.node(dying.voter).id
        if kind in CHANGES:
            change.use(CHANGES[kind])
        elif isinstance(place, tuple):
            if place[0] == id:
                change.take = self.on_lane(world, place)
        elif kind != "boot":
            change.use(f"{kind}s")
        acts, down = dying.deaths[at]
        change.event(id, dying._replace(voter=down, acts=acts, past=False))
        change.disconnects = id

    def on_lane(self, world: ExploredState, lane: Lane) -> int:
        call = self.parts.call
        for number in world.calls:
            if call(number)[0] == lane:  # access to the first field by index is cheaper than by name
                return number
        raise KeyError(lane)

    def late(self, number: int) -> int:
        return self.parts.number(self.parts.call(number)._replace(late=True))

    def rest_after(self, rest: int, uses: Sequence[int], cuts: int | None) -> int:
        left, cut = self.parts.rest(rest)
        then = tuple(each - uses.count(at) for at, each in enumerate(left))
        return self.parts.number(Rest(then, cut if cuts is None else cuts))

    def words(self, step: Step) -> str:
        """Return a step as a line of a trace."""
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
        return self._outcomes(world.voters[id - 1], VoterEvent(kind, token), token)

    def _change_voters(self, world: ExploredState, kind: str, place: Lane) -> Outcomes:
        leader, target, _ = place
        token = self._token(world, CHANGES[kind].removesuffix("s"))
        return self._outcomes(world.voters[leader - 1], VoterEvent(kind, token, peer=target), 10 * token + target)

    def _ask(self, number: int, voter: int) -> Outcomes:
        call = self.parts.call(number)
        return self._outcomes(voter, VoterEvent("ask", connection=call.connection, request=call.request), number)

    def _answer(self, number: int, voter: int, *, lost: bool = False) -> Outcomes:
        call, kind = self.parts.call(number), "lost" if lost else "answer"
        answer = VoterEvent(kind, peer=call.lane[1], request=call.request, response=call.reply)
        return self._outcomes(voter, answer, number)

    def replied(self, number: int, reply: RaftResponse | None) -> int:
        return self.parts.number(self.parts.call(number)._replace(reply=reply))

    def _outcomes(self, number: int, event: VoterEvent, of: int) -> Outcomes:
        """Return the outcome of an event on a voter. of: distinguishes the event from other events of its kind."""
        name = (number, event.kind, of)
        if name not in self.outcomes:
            node = self.parts.node(number)
            found = happen(node, event, self._identities[node.id], insides=self.budgets.insides > 0)
            self.outcomes[name] = self._in_numbers(node.id, found)
            self.fresh_outcomes.append(name)
        return self.outcomes[name]

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
        """Return the acts of an event, with outgoing requests as numbers of calls; answers are stored separately."""
        return tuple(
            self.parts.number(CallUnderWay((id, act.peer, type(act.request).__name__), act.request, act.connection))
            if type(act) is Sent
            else act
            for act in acts
            if type(act) is not Replied
        )


@dataclass(slots=True)
class Change:
    """Changes made by a step, in every state with the same relevant parts.

    take: number of the call that the step removes; 0: none
    adds: numbers of the calls that the step adds
    adds_late: number of a call that becomes late; 0: none
    heard: (number of a call, True if it is lost); its client learns the end of this call right after the step
    events: (id of a voter, number of the voter after the step, acts)
    past: True if an epoch beyond the last one is entered
    uses: budgets that the step uses
    owes: token of a read that must return everything that is committed now; 0: none
    disconnects: a voter whose connections end: its requests arrive late, its answers never arrive; 0: none
    cuts: the voter that is isolated from now on; 0: none; None: unchanged
    place: index of this change among all changes
    """

    parts: Parts
    take: int = 0
    adds: tuple[int, ...] = ()
    adds_late: int = 0
    heard: tuple[int, bool] | None = None
    events: list[tuple[int, int, list[Act]]] = field(default_factory=list)
    past: bool = False
    uses: tuple[int, ...] = ()
    owes: int = 0
    disconnects: int = 0
    cuts: int | None = None
    place: int | None = None

    @property
    def counts_logs(self) -> bool:
        """Return True if the promises after the step depend on the logs of other voters."""
        return any(type(act) is Marked and act.leads for _, _, acts in self.events for act in acts)

    def event(self, id: int, outcome: Outcomes) -> None:
        self.past |= outcome.past
        self.adds = (*self.adds, *(act for act in outcome.acts if isinstance(act, int)))
        self.events.append((id, outcome.voter, [act for act in outcome.acts if not isinstance(act, int)]))

    def use(self, name: str) -> None:
        self.uses = (*self.uses, LEFT.index(name))

    def promised_after(self, promised: int, logs: list[tuple[Batch, ...]]) -> int:
        """Return the number of the promises after the step.

        logs: logs of all voters before the step; needed only if `counts_logs`.  Raises Broken.
        """
        promises = self.parts.promises(promised)
        if self.owes:
            owed = end(promises.committed)
            promises = promises._replace(reads=tuple(sorted((*promises.reads, (self.owes, owed)))))
        for id, voter, acts in self.events:
            for act in acts:
                promises = promised_after(act, id, promises, logs)
            logs[id - 1] = self.parts.node(voter).log.batches
        return self.parts.number(promises)
