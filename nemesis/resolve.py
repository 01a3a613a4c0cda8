"""Resolution of a card when it is due: to the nodes and links that it hits, or to the reason why it hits nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from checkers.record.faults import Achieved, Card, Fault, FaultRecord
from nemesis import coverage
from nemesis.cluster import CannotInject, Cluster
from nemesis.kind import Kind, LeaderNow, Scene, by_role, isolated, needs_leader, out_of_reach
from nemesis.kinds import kind_named
from nemesis.measure import FaultRecords, pause, read_states
from system_under_test.subject import NodeStatus, ProcessState

POLL_S = 0.2
PART_LOOK_EVERY_S = 0.005
"""Seconds between two looks of a card that is a part of another card's fault, because such cards begin within 50 ms of
each other, or just after a heal.
"""
LEADER_WAIT_S = 5.0
"""Maximum seconds that a card against the leader waits until a node leads."""
FREE_WAIT_S = 5.0
"""Minimum seconds that a card waits until another fault on its nodes ends."""
READY_WAIT_S = 12.0
"""Maximum seconds that a card waits until its kind finds the system ready; after that the card is skipped."""
READY_LOOK_EVERY_S = 0.2
LINE_SHOWN = 100
"""Maximum number of characters of an awaited line that the words of its fault quote."""
COPY_WAIT_S = 2.0
"""Maximum seconds that a card with too few running servers waits for servers that are paused while their data is
copied.
"""


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """Options by which a schedule is played.

    replay: card number -> resolved fault, which is injected by the roles of its nodes instead of being resolved again
    as_executed: True to inject the faults of `replay` by the names of their nodes, regardless of the leader
    over_budget: True if more than a minority may lose fsynced data; the records note such faults, and losses after them
        are not judged as violations
    holds: factor by which the waits for a leader, and for an event that another card causes, are stretched
    """

    replay: Mapping[int, Fault] = field(default_factory=dict)
    over_budget: bool = False
    holds: float = 1.0
    as_executed: bool = False


@dataclass(frozen=True, slots=True)
class MainPhase:
    """The phase of a run in which a schedule is played.

    statuses: fetches the nodes' reports
    clock: returns the nanoseconds since the test began
    began_ns: clock at the start of the main phase; the times of cards count from it
    ended: set once the phase is over; then no card waits any longer, and the faults in force are healed
    voters: servers among which a majority decides; empty for all servers
    keys: keys that have a leader of their own
    leader_of: returns the current leader of a key. Every second card against the leader aims at the leader of a key,
        and every such card does if the nodes report no overall leader.
    acknowledged: returns the number of acknowledged writes so far
    moments: name -> regular expression of a printed line; a fault just after such a line may trigger bugs
    """

    cluster: Cluster
    statuses: Callable[[], Awaitable[Sequence[NodeStatus]]]
    clock: Callable[[], int]
    began_ns: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    voters: Sequence[str] = ()
    keys: Sequence[str] = ()
    leader_of: Callable[[str], Awaitable[str | None]] | None = None
    acknowledged: Callable[[], int] = lambda: 0
    moments: Mapping[str, str] = field(default_factory=dict)

    def now_s(self) -> float:
        """Return the seconds since the main phase began."""
        return (self.clock() - self.began_ns) / 1e9

    async def sleep_until(self, at_s: float) -> None:
        """Wait until second `at_s` of the main phase, or until the phase is over."""
        await pause(max(0.0, at_s - self.now_s()), self.ended)


class _Seen(NamedTuple):
    """The observed state of a cluster.

    states: process states of all servers that answer
    running: running servers that no fault in force makes unreachable
    leader: the current leader, one of `running`; None if none of them leads
    """

    states: Mapping[str, ProcessState]
    running: list[str]
    leader: LeaderNow | None


class Skip(Exception):
    """A card hits nothing; the message gives the reason.

    impossible: True if no such card can hit anything on this backend
    """

    def __init__(self, why: str, *, impossible: bool = False) -> None:
        super().__init__(why)
        self.impossible = impossible


Aimed = tuple[Fault, LeaderNow | None]
"""A resolved fault, and the leader that it aims at."""


class Resolver:
    """Resolves the cards of a run.  Raises Skip for a card that hits nothing.

    active: the faults in force, by card number
    """

    def __init__(
        self, main: MainPhase, records: FaultRecords, active: Mapping[int, tuple[Kind, Fault]], options: PlayOptions
    ) -> None:
        self._main = main
        self._cluster = main.cluster
        self._ended, self._main_s = main.ended, main.now_s
        self._records = records
        self._active = active
        self._options = options

    async def resolve(self, kind: Kind, card: Card, rng: Random) -> Aimed:
        """Resolve a card, and check that the fault may be injected.  Waits for a leader if the card is against the
        leader.
        """
        fault, leader = await self._resolved(kind, card, rng)
        if lacking := self.lacking(kind, card):
            raise Skip(lacking, impossible=True)
        if self.breaks_budget(kind, fault) and not self._options.over_budget:
            most = (len(self._voters()) - 1) // 2
            raise Skip(
                f"it would cost more than {most} servers what they had fsynced: no system promises to survive that"
            )
        return fault, leader

    async def _resolved(self, kind: Kind, card: Card, rng: Random) -> Aimed:
        known = self._options.replay.get(card.number)
        if known is not None and (self._options.as_executed or (known.leader is None and not card.like)):
            return await self._once_free(kind, card, known), None
        if card.like:
            first = await self._first_of(card)
            if first is None:
                raise Skip(f"card {card.like}, which it repeats, hit nothing")
            if (first.card.kind, first.card.name) == (card.kind, card.name):
                return await self._once_free(kind, card, first.fault), None
            return self._as_part(kind, card, first, rng)
        if card.after:
            await self._await_moment(card)
        if card.line:
            return await self._at_line(kind, card, known, rng)
        if self._main_s() >= card.heal_s:
            raise Skip("its time had passed before it could begin")
        if known is not None:
            why = f", and its fault hit the leader, which was {known.leader}"
            *_, leader = await self._once_led(kind, card, needs_leader(known), why)
            node = leader.node if leader else None
            return await self._once_free(kind, card, by_role(known, node, self._cluster.servers)), leader
        against_leader = kind.targets[card.name].against_leader
        began_s, undrawn = self._main_s(), rng.getstate()
        while True:
            states, running, leader = await self._once_led(kind, card, against_leader)
            rng.setstate(undrawn)  # the random draw must not depend on how often this card had to retry
            fault = kind.resolve(card.name, self._scene(kind, running, leader if against_leader else None, rng))
            if fault is not None:
                return fault, leader  # no await has happened since the other faults were checked
            if self._ended.is_set() or self._main_s() >= self._waits_until_s(card, states, began_s):
                raise Skip(self._too_few(kind, states))
            await asyncio.sleep(POLL_S)

    async def _once_led(self, kind: Kind, card: Card, needed: bool, why: str = "") -> _Seen:
        """Read the state of the cluster.

        needed: True to repeat the read until a node leads
        why: reason for the need, appended to the message that no node led
        """
        wait_s, began_s = LEADER_WAIT_S * self._options.holds, self._main_s()
        while True:
            seen = await self._look(kind, card)
            if seen.leader is not None or not needed:
                return seen
            if self._ended.is_set() or self._main_s() - began_s >= wait_s:
                raise Skip(f"no node led within {wait_s:.0f} s{why}")
            await asyncio.sleep(POLL_S)

    async def _look(self, kind: Kind, card: Card) -> _Seen:
        while True:
            states = await read_states(self._cluster, self._cluster.servers)
            leader = await self._leader(self._within_reach(kind, states), card)
            # another card may have injected a fault while the answers arrived
            running = self._within_reach(kind, states)
            if leader is None or leader.node in running:
                return _Seen(states, running, leader)

    async def with_its_first(self, card: Card) -> Card:
        """If the card is a part of another card's fault, wait until that fault was injected and the time between the
        two cards has passed.

        Returns the card with its new times.  Returns any other card unchanged.
        """
        first = await self._first_of(card, injected=True) if card.like else None
        if first is None or (first.card.kind, first.card.name) == (card.kind, card.name):
            return card
        late_s = max(0.0, (first.injected_ns - self._main.began_ns) / 1e9 - first.card.at_s)
        await self._main.sleep_until(card.at_s + late_s)
        return later(card, late_s)

    async def _first_of(self, card: Card, *, injected: bool = False) -> FaultRecord | None:
        """Return the record of the card that this card repeats, once its target is known; None if the repeated card hit
        nothing.

        injected: True to wait until the order of the repeated card was carried out as well
        """
        until_s = self._main_s() + LEADER_WAIT_S * self._options.holds
        known = self._records.by_number
        while not self._ended.is_set() and self._main_s() < until_s:
            first = known.get(card.like)
            if first is not None and (not injected or first.injected_ns >= 0 or card.like not in self._records.faults):
                break
            await asyncio.sleep(PART_LOOK_EVERY_S)
        return known[card.like] if card.like in self._records.faults else None

    def _as_part(self, kind: Kind, card: Card, first: FaultRecord, rng: Random) -> Aimed:
        """Resolve a step of the fault that `first` began, aimed at the same node.  It is quick, because it sends no
        query to the nodes.
        """
        node = next(iter(first.nodes), "")
        parts = {n for n, record in self._records.by_number.items() if card.like in (n, record.card.like)}
        leader, struck = LeaderNow(node, first.epoch), self._out_of_reach(kind, parts)
        running = [server for server in self._cluster.servers if server not in struck]
        if node not in running:
            raise Skip(f"another fault holds {node or 'the node'} that card {card.like} hit")
        fault = kind.resolve(card.name, self._scene(kind, running, leader, rng))
        if fault is None:
            raise Skip(f"only {len(running)} servers were within reach")
        return fault, leader

    async def _once_free(self, kind: Kind, card: Card, fault: Fault) -> Fault:
        """Return a known fault as soon as no other fault in force on its nodes would undo or hide it."""
        until_s = max(card.heal_s, self._main_s() + FREE_WAIT_S)
        while self._out_of_reach(kind) & set(fault.nodes):
            if self._ended.is_set() or self._main_s() >= until_s:
                raise Skip("another fault of its nodes lasted until its time had passed")
            await asyncio.sleep(POLL_S)
        return replace(fault)

    def _waits_until_s(self, card: Card, states: Mapping[str, str], began_s: float) -> float:
        """Return the second of the main phase at which a card with too few servers stops waiting for other heals or for
        copies of data.
        """
        if self._active:
            return max(card.heal_s, began_s + FREE_WAIT_S)
        return began_s + COPY_WAIT_S if "stopped" in states.values() else began_s

    def _within_reach(self, kind: Kind, states: Mapping[str, str]) -> list[str]:
        struck = self._out_of_reach(kind)
        return [server for server, state in states.items() if state == "running" and server not in struck]

    def _out_of_reach(self, kind: Kind, besides: Collection[int] = ()) -> set[str]:
        """Return the nodes that a card of this kind must not hit because of the faults in force.

        besides: numbers of cards whose faults do not count
        """
        held = [active for number, active in self._active.items() if number not in besides]
        return {node for other, fault in held for node in out_of_reach(kind, other, fault)}

    async def when_ready(self, kind: Kind, card: Card) -> Card:
        """Wait until the kind finds the system ready, and no other fault of the kind is in progress.

        Returns the card with its times delayed by the wait.
        """
        lacks = any(self._cluster.lacks(capability) for capability in kind.needs)
        if kind.ready is None or lacks or card.number in self._options.replay:
            return card
        wait_s, why = READY_WAIT_S * self._options.holds, ""
        until_s = self._main_s() + wait_s
        while self._main_s() < until_s and not self._ended.is_set():
            busy = any(other is kind for other, _ in self._active.values())
            try:
                why = f"another {kind.name} fault was under way" if busy else await kind.ready(self._cluster)
            except OSError as problem:
                why = str(problem)
            if not why:
                return later(card, self._main_s() - card.at_s)
            await asyncio.sleep(READY_LOOK_EVERY_S)
        raise Skip(f"the system was not ready within {wait_s:.0f} s: {why}" if why else "the test had ended")

    async def _await_moment(self, card: Card) -> None:
        """Wait for the event of a card that follows another card."""
        since_epoch: int | None = None
        wait_s = coverage.MOMENT_WAIT_S * self._options.holds
        until_s = self._main_s() + wait_s
        while not self._ended.is_set() and self._main_s() < until_s:
            first = self._records.by_number.get(card.after)
            if first is not None and first.achieved is Achieved.SKIPPED:
                raise Skip(f"card {card.after}, which it follows, hit nothing")
            statuses = await self._statuses()
            if first is not None and first.injected_ns >= 0:
                if since_epoch is None:
                    since_epoch = first.epoch if first.epoch >= 0 else coverage.newest_epoch(statuses)
                states = await read_states(self._cluster, self._cluster.servers)
                running = [server for server, state in states.items() if state == "running"]
                if coverage.has_come(card.moment, since_epoch, statuses, running):
                    return
            await asyncio.sleep(coverage.LOOK_EVERY_S)
        raise Skip(f"there was no {card.moment} within {wait_s:.0f} s")

    async def _at_line(self, kind: Kind, card: Card, known: Fault | None, rng: Random) -> Aimed:
        """Resolve a card that waits for a line.  The state of the cluster is read during the wait, so that the fault
        can be injected at once after the line.

        known: recorded fault to inject by its recorded roles; None to draw a fault
        """
        moments = self._main.moments
        name = rng.choice(sorted(moments)) if card.line == coverage.ANY_LINE and moments else card.line
        pattern = "" if name == coverage.ANY_LINE else moments.get(name, name)
        wait_s = coverage.LINE_WAIT_S * self._options.holds
        why, now = f"no server printed {name!r} within {wait_s:.0f} s", _Seen({}, [], None)

        async def keep_looking() -> None:
            nonlocal now
            while True:
                now = await self._look(kind, card)
                await asyncio.sleep(coverage.LOOK_EVERY_S)

        looking, hit = asyncio.ensure_future(keep_looking()), ""
        try:
            until_s = self._main_s() + wait_s
            order = functools.partial(
                self._cluster.await_line, pattern=pattern, nth=max(card.line_nth, 1), freeze=not card.line_of
            )
            async with aclosing(self._printed(order, until_s)) as printed:
                async for server, line in printed:
                    role = (
                        coverage.LEADER if now.leader is not None and server == now.leader.node else coverage.FOLLOWER
                    )
                    if not server or card.line_of not in ("", role):
                        why = why if server else line
                        continue
                    leader = now.leader
                    if not card.line_of:
                        leader = LeaderNow(server, leader.epoch if leader else -1)
                    fault = self._at_once(kind, card, known, now.running, leader, rng)
                    if fault is not None:
                        hit = server
                        words = f"{fault.words}, once {server} had printed {line.strip()[:LINE_SHOWN]!r}"
                        return replace(fault, words=words), leader
                    await self.thaw(server)
                    why = f"{server} printed {name!r}, but nothing could be hit then"
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            # agents still wait for the line, and nothing would resume the processes that they would stop
            if not card.line_of:
                await asyncio.gather(*(self.thaw(other) for other in self._cluster.servers if other != hit))
        raise Skip(why)

    async def thaw(self, server: str) -> None:
        """Resume a server that was paused at its line, and do not pause the server at a later line."""
        with suppress(OSError, CannotInject):
            await self._cluster.thaw(server)

    def _at_once(
        self, kind: Kind, card: Card, known: Fault | None, running: Sequence[str], leader: LeaderNow | None, rng: Random
    ) -> Fault | None:
        if known is not None:
            return by_role(known, leader.node if leader else None, self._cluster.servers)
        struck = self._out_of_reach(kind)
        running = [server for server in running if server not in struck]
        if kind.targets[card.name].against_leader and (leader is None or leader.node not in running):
            return None
        return kind.resolve(card.name, self._scene(kind, running, leader, rng))

    async def _printed(
        self, order: Callable[..., Coroutine[Any, Any, str]], until_s: float
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yield (server, line) for each line that a server prints; ("", reason) if the output of a server cannot be
        followed.
        """

        def follow(server: str) -> asyncio.Future[str]:
            left_s = max(0.0, until_s - self._main_s())
            return asyncio.ensure_future(order(server, within_s=left_s))

        over: asyncio.Future[Any] = asyncio.ensure_future(self._ended.wait())
        following: dict[asyncio.Future[Any], str] = {follow(server): server for server in self._cluster.servers}
        try:
            while following and not over.done():
                done, _ = await asyncio.wait({over, *following}, return_when=asyncio.FIRST_COMPLETED)
                for task in following.keys() & done:
                    server = following.pop(task)
                    try:
                        line = task.result()
                    except (OSError, CannotInject) as problem:
                        yield "", str(problem)
                        continue
                    if line:
                        yield server, line
                        following[follow(server)] = server
        finally:
            for waits in (over, *following):
                waits.cancel()
            await asyncio.gather(over, *following, return_exceptions=True)

    async def until_healing(self, card: Card, due_s: float) -> None:
        """Wait for the event that triggers the heal of a card, and `until_s` longer; until `due_s` at the latest."""
        led_since: int | None = None
        while not self._ended.is_set() and self._main_s() < due_s:
            first = self._records.by_number.get(card.until_of)
            if first is None or card.until == coverage.HEALED_MOMENT:
                come = first is not None and (first.healed_ns >= 0 or first.achieved is Achieved.SKIPPED)
            else:
                moment = coverage.NEW_LEADER_MOMENT if card.until == coverage.ACKNOWLEDGED_MOMENT else card.until
                statuses = await self._statuses()
                running = {s.node for s in statuses} - set(first.nodes)
                come = first.injected_ns >= 0 and coverage.has_come(moment, first.epoch, statuses, running)
                if card.until == coverage.ACKNOWLEDGED_MOMENT and come:
                    led_since = self._main.acknowledged() if led_since is None else led_since
                    come = self._main.acknowledged() > led_since
            if come:
                due_s = min(due_s, self._main_s() + card.until_s)
                break
            await asyncio.sleep(coverage.LOOK_EVERY_S if card.until != coverage.HEALED_MOMENT else PART_LOOK_EVERY_S)
        await self._main.sleep_until(due_s)

    async def _statuses(self) -> Sequence[NodeStatus]:
        try:
            return await self._main.statuses()
        except OSError:
            return ()  # an agent that does not answer now may answer at the next attempt

    def _scene(self, kind: Kind, running: Sequence[str], leader: LeaderNow | None, rng: Random) -> Scene:
        cluster = self._cluster
        servers, clients, spent = tuple(cluster.servers), tuple(cluster.clients), spent_data(self._records)
        return Scene(servers, clients, tuple(running), leader, rng, self._avoided(kind), spent)

    def _avoided(self, kind: Kind) -> frozenset[str]:
        """Return the nodes that faults of the same kind hit now, because such a fault would hide another one."""
        same = [fault for other, fault in self._active.values() if other.name == kind.name]
        return frozenset(node for fault in same for node in fault.nodes or isolated(fault))

    def _too_few(self, kind: Kind, states: Mapping[str, str]) -> str:
        servers = self._cluster.servers
        running = {server for server in servers if states.get(server) == "running"}
        why = f"only {len(running)} of {len(servers)} server processes were running"
        held = (self._out_of_reach(kind) | self._avoided(kind)) & running
        return f"{why}, and other faults still held {len(held)} of these" if held else why

    def lacking(self, kind: Kind, card: Card) -> str:
        """Return why the backend cannot inject the fault of such a card; "" if it can."""
        target = kind.targets.get(card.name)
        needed = sorted(kind.needs | (target.needs if target else frozenset()))
        return next((why for capability in needed if (why := self._cluster.lacks(capability))), "")

    def breaks_budget(self, kind: Kind, fault: Fault) -> bool:
        """Return True if this fault, together with the earlier ones, exceeds the data budget."""
        cost = kind.costs(fault)
        lost = (spent_data(self._records) | cost) & self._voters()
        return bool(cost) and 2 * len(lost) >= len(self._voters())

    def _voters(self) -> frozenset[str]:
        return frozenset(self._main.voters or self._cluster.servers)

    async def _leader(self, running: Sequence[str], card: Card) -> LeaderNow | None:
        """Return the leader at which a card against the leader aims.  The leader of a key has no epoch (-1)."""
        leader = coverage.leader_now(await self._statuses(), running)
        keys, leader_of = self._main.keys, self._main.leader_of
        if leader_of is None or not keys or (leader is not None and card.number % 2):
            return leader
        of_key = await leader_of(keys[card.number // 2 % len(keys)])
        return LeaderNow(of_key, -1) if of_key is not None and of_key in running else leader


def later(card: Card, late_s: float) -> Card:
    """Return the card with begin and heal delayed by `late_s` seconds; unchanged if `late_s` is negative."""
    late_s = max(0.0, late_s)
    return replace(card, at_s=round(card.at_s + late_s, 3), heal_s=round(card.heal_s + late_s, 3))


def spent_data(records: FaultRecords) -> frozenset[str]:
    """Return the servers that lost fsynced data because of faults of this run.

    At most a minority may lose fsynced data: no system promises to keep data that a majority of its servers lost.  All
    servers may lose data that was not fsynced.
    """
    return frozenset(
        server
        for number, fault in records.faults.items()
        for server in kind_named(records.by_number[number].kind).costs(fault)
    )
