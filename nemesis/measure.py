"""Measurements of faults, the record of each fault, and the state of a cluster under several faults.

*Measurements* are taken repeatedly while a fault holds, and again after its heal.

A measurement of links counts the beacons that were sent within a window, and those that arrived.  Beacons run all the
time; around inject and heal, the interval between beacons is shorter.  While a fault holds, each window begins at the
end of the previous one, so that every beacon counts and no lapse falls between two measurements.  A measurement of
processes reads their state. `checkers.run_quality.faults_installed` interprets the readings, from the record alone.

*Records.*  Each record holds the orders, measurements and outcome of one fault.

*State.*  Several faults may overlap, but a backend has one set of cut links.  So every fault owns a *layer*, the set of
links that it cuts, and the backend cuts the union of all layers.  A link whose order changes during its measurement is
*unsettled* and not judged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from checkers.record.faults import Achieved, Card, Fault, FaultRecord, Measurement, Ordered, Proof
from checkers.run_quality.faults_installed import achieved, readings, shortened
from nemesis.cluster import CALM_INTERVAL_MS, DENSE_INTERVAL_MS, CannotInject, Cluster, Link, Marks
from nemesis.kind import Kind, LeaderNow
from system_under_test.subject import ProcessState

AS_ORDERED = "as ordered"
NOT_AS_ORDERED = "not as ordered"
INDETERMINATE = "indeterminate"

WINDOW_S = 0.3
LATE_S_MAX = 1.0
"""Maximum seconds to wait for beacons of a link that another fault delays.  A link with a longer delay, or a held link,
is not judged open; its delay is measured for the other fault.
"""
HOLD_EVERY_S = 0.8
"""Seconds between measurements while a fault holds."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """The begin or the end of a window.

    cut, changes, late: the orders at that time (`Field.now_cut`, `Field.changes`, `Field.lateness`)
    """

    cut: frozenset[Link]
    changes: int
    late: Mapping[Link, float]
    marks: Marks


@dataclass(slots=True)
class Meter:
    """Takes measurements of one fault, one after another.

    clock: returns the nanoseconds since the test began
    measure: the `measure` of the fault's kind
    """

    field: Field
    fault: Fault
    ordered: Ordered
    clock: Callable[[], int]
    measure: Callable[[Cluster, Fault], Awaitable[Mapping[str, float]]] | None = None
    _last: _Edge | None = None

    async def take(self, phase: str, window_s: float, stop: asyncio.Event | None = None) -> Measurement:
        """Take one measurement.  Never raises because of a node's behaviour.

        window_s: maximum length of the window in seconds
        stop: ends the window early when set
        """
        healed = phase == "heal"
        condition = self.ordered.healed if healed else self.ordered.held
        problems: list[str] = []
        taken = Measurement(phase, self.clock(), -1)
        if self.fault.cut:
            taken = await self._links(taken, window_s, stop, problems)
        elif phase == "hold":
            await pause(window_s, stop)
            taken = replace(taken, from_ns=self.clock())
        if condition.states:
            servers = () if phase == "hold" else self.field.cluster.servers
            states = await read_states(self.field.cluster, {*condition.states, *servers})
            taken = replace(taken, states=states)
        if condition.values and self.measure is not None:
            try:
                taken = replace(taken, values=await self._values(self.measure, healed=healed))
            except OSError as problem:
                problems.append(words_of(problem))
        return replace(taken, to_ns=self.clock(), problems=tuple(problems))

    async def _values(
        self, measure: Callable[[Cluster, Fault], Awaitable[Mapping[str, float]]], *, healed: bool
    ) -> dict[str, float]:
        """Return the values that the kind measures; after the heal, without the values of links that other faults
        disturbed during the measurement.
        """
        field = self.field
        changes, disturbed = field.changes(), field.now_cut() | field.lateness().keys()
        values = await measure(field.cluster, self.fault)
        disturbed |= field.unsettled(changes) | field.now_cut() | field.lateness().keys()
        of_links = {f"{a}>{b}" for a, b in disturbed} if healed else set()
        return {name: value for name, value in values.items() if name.partition(":")[0] not in of_links}

    async def _links(
        self, taken: Measurement, window_s: float, stop: asyncio.Event | None, problems: list[str]
    ) -> Measurement:
        field, cluster = self.field, self.field.cluster
        last, self._last = self._last, None
        fast = taken.phase in ("inject", "heal")
        try:
            if fast:
                await cluster.beat(DENSE_INTERVAL_MS)
            try:
                first = last if last is not None and taken.phase != "heal" else await self._edge()
                await pause(window_s, stop)
                end = await self._edge()
            finally:
                if fast:
                    await cluster.beat(CALM_INTERVAL_MS)
            unsettled = field.unsettled(first.changes)
            late = {link: max(first.late.get(link, 0.0), end.late.get(link, 0.0)) for link in first.marks}
            await asyncio.sleep(max((s for s in late.values() if s <= LATE_S_MAX), default=0.0))
            arrived = await cluster.arrived(first.marks, end.marks)
        except (OSError, CannotInject) as problem:
            problems.append(f"the links could not be measured: {words_of(problem)}")
            return taken
        self._last = end
        own = frozenset() if taken.phase == "heal" else self.fault.cut
        silent = {link for link, late_s in late.items() if late_s > LATE_S_MAX} - own
        return replace(
            taken,
            links={f"{a}>{b}": (seen.sent, seen.received) for (a, b), seen in sorted(arrived.items())},
            also_cut=tuple(sorted((first.cut | silent) - own - unsettled)),
            unsettled=tuple(sorted(unsettled)),
        )

    async def _edge(self) -> _Edge:
        """Read the orders, then the beacon numbers.  A link whose order changes between the two reads is unsettled in
        the next window.
        """
        field = self.field
        return _Edge(field.now_cut(), field.changes(), field.lateness(), await field.cluster.mark())


def proof_of(record: FaultRecord, phase: str) -> Proof | None:
    """Return a summary of the measurements of one phase; None if there are none."""
    taken = [m for m in record.measured if m.phase == phase]
    if not taken:
        return None
    found = readings(record, (phase,))
    contrary = [f.contrary for f in found.values() if f.contrary]
    unclear = [f.unclear for f in found.values() if f.unclear] + list(taken[-1].problems)
    if not found and not contrary:
        unclear.append("nothing was ordered that could be measured")
    return Proof(
        verdict=NOT_AS_ORDERED if contrary else INDETERMINATE if unclear else AS_ORDERED,
        links=_summed(m.links for m in taken),
        states=taken[-1].states,
        wrong=shortened([*contrary, *unclear]),
    )


async def read_states(cluster: Cluster, nodes: Iterable[str]) -> dict[str, ProcessState]:
    """Return the process state of each of these nodes whose agent answers."""
    names = sorted(nodes)
    answers = await asyncio.gather(*(cluster.state(name) for name in names), return_exceptions=True)
    states: dict[str, ProcessState] = {}
    for name, answer in zip(names, answers, strict=True):
        if not isinstance(answer, BaseException):
            states[name] = answer
        elif not isinstance(answer, OSError):
            raise answer
    return states


def words_of(problem: BaseException) -> str:
    """Return the message of an error, or its class if it has none."""
    return str(problem) or type(problem).__name__


async def pause(seconds: float, stop: asyncio.Event | None) -> None:
    """Sleep until the time is over or `stop` is set."""
    if stop is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _summed(links: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for counts in links:
        for name, (sent, received) in counts.items():
            before = total.get(name, (0, 0))
            total[name] = (before[0] + sent, before[1] + received)
    return total


@dataclass(frozen=True, slots=True)
class Hooks:
    """Notifications to the harness.

    record: called with each changed record
    before_heal: awaited while the fault is still in force (data directories are copied here)
    """

    record: Callable[[FaultRecord], None]
    before_heal: Callable[[FaultRecord], Awaitable[None]]


class FaultRecords:
    """The records of all faults.

    by_number: card number -> its record so far
    faults: card number -> the injected fault
    """

    def __init__(self, hooks: Hooks) -> None:
        self.by_number: dict[int, FaultRecord] = {}
        self.faults: dict[int, Fault] = {}
        self._hooks = hooks

    def skip(self, card: Card, reason: str, *, impossible: bool = False) -> None:
        words = f"{card.kind} {card.name}"
        self._put(FaultRecord(card, Achieved.SKIPPED, words, reason, kind=card.kind, impossible=impossible))

    def begin(self, kind: Kind, card: Card, fault: Fault, leader: LeaderNow | None, *, over_budget: bool) -> None:
        """Register a fault whose injection begins now."""
        self.faults[card.number] = fault
        self._put(
            FaultRecord(
                card,
                Achieved.INDETERMINATE,
                fault.words,
                reason="it was still being injected",
                leader=leader.node if leader else fault.leader,
                epoch=leader.epoch if leader else -1,
                kind=kind.name,
                cut=tuple(sorted(fault.cut)),
                nodes=fault.nodes,
                ordered=kind.orders(fault),
                settings=fault.settings,
                over_budget=over_budget,
            )
        )

    def _put(self, record: FaultRecord) -> None:
        self.by_number[record.card.number] = record
        self._hooks.record(record)

    def measured(self, number: int, measurement: Measurement) -> FaultRecord:
        """Add a measurement to a record.  The hook is only called at the next change of the record, because a call
        every second would waste CPU.
        """
        before = self.by_number[number]
        record = self.by_number[number] = replace(before, measured=(*before.measured, measurement))
        return record

    def change(self, number: int, **changes: Any) -> None:
        """Change a record.  Computes the outcome of the fault again, unless `changes` contains the outcome."""
        record = replace(self.by_number[number], **changes)
        if "achieved" not in changes and record.injected_ns >= 0:
            found = achieved(record)
            reason = changes.get("reason", found.reason)
            record = replace(record, achieved=found.word, reason=reason, lapsed_ns=found.lapsed_ns)
        self._put(record)


IMPAIRED_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Layer:
    cut: frozenset[Link]
    reject: frozenset[Link]


class Field:
    """The cluster under all faults of a run.  Orders to processes go directly to `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._layers: dict[int, Layer] = {}
        self._impaired: dict[int, dict[Link, Mapping[str, float]]] = {}
        self._healing: dict[int, frozenset[Link]] = {}
        self._unimpaired = asyncio.Event()
        self._ordering = asyncio.Lock()
        self._changes: list[frozenset[Link]] = []
        self._changing: frozenset[Link] = frozenset()

    async def cut(self, fault: Fault, *, reject: bool = False) -> None:
        """Cut the links of this fault in addition to the links that other faults cut."""
        await self._lay(id(fault), Layer(fault.cut, fault.cut if reject else frozenset()))

    async def uncut(self, fault: Fault) -> None:
        """Restore the links of this fault, except those that another fault cuts too."""
        await self._lay(id(fault), None)

    async def impair(self, fault: Fault, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """Impair each link in its own way.

        If several faults impair one link, only the latest order applies.  So first wait, for IMPAIRED_WAIT_S at most,
        until an earlier fault on these links is healed and measured: otherwise the earlier fault would lapse, or would
        not seem healed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(IMPAIRED_WAIT_S):
                while not self._are_whole(links):
                    self._unimpaired.clear()
                    await self._unimpaired.wait()
        async with self._ordering:
            self._impaired[id(fault)] = dict(links)
            await self._impair_all(seed)

    async def unimpair(self, fault: Fault) -> None:
        """Remove the impairments of this fault.  The caller must call `closed` after the links were measured."""
        async with self._ordering:
            self._healing[id(fault)] = frozenset(self._impaired.pop(id(fault), ()))
            await self._impair_all(0)

    def closed(self, fault: Fault) -> None:
        """Mark this fault as healed and measured, so that another fault may impair its links."""
        self._healing.pop(id(fault), None)
        self._unimpaired.set()

    def _are_whole(self, links: Collection[Link]) -> bool:
        taken = _union([*self._impaired.values(), *self._healing.values()])
        return taken.isdisjoint(links)

    async def _impair_all(self, seed: int) -> None:
        union = {link: it for links in self._impaired.values() for link, it in links.items()}
        await self.cluster.impair(union, seed)

    async def clear(self) -> None:
        """Restore every link, disk and clock."""
        async with self._ordering:
            self._layers.clear()
            self._impaired.clear()
            self._healing.clear()
            await self.cluster.cut(())
            await self.cluster.mend()
        self._unimpaired.set()

    async def each(self, nodes: Sequence[str], order: Callable[[str], Awaitable[None]]) -> None:
        """Send an order to all these nodes at once; raise the first failure after all have finished."""
        for answer in await asyncio.gather(*(order(node) for node in nodes), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def now_cut(self) -> frozenset[Link]:
        """Return the links that are cut by order now."""
        return _union(layer.cut for layer in self._layers.values())

    def lateness(self) -> dict[Link, float]:
        """Return link -> seconds by which faults delay it now; infinity for a held link."""
        found: dict[Link, float] = {}
        for links in self._impaired.values():
            for link, it in links.items():
                found[link] = math.inf if it.get("hold") else it.get("delay_s", 0.0) + it.get("jitter_s", 0.0)
        return found

    def changes(self) -> int:
        """Return a number to pass to `unsettled` later."""
        return len(self._changes)

    def unsettled(self, since: int) -> frozenset[Link]:
        """Return the links whose order has changed since `since`, a result of `changes`, or is changing now."""
        return _union([*self._changes[since:], self._changing])

    async def _lay(self, owner: int, layer: Layer | None) -> None:
        async with self._ordering:
            before = self.now_cut()
            after = {n: each for n, each in self._layers.items() if n != owner}
            if layer is not None:
                after[owner] = layer
            union = _union(each.cut for each in after.values())
            self._changing = before ^ union
            try:
                await self.cluster.cut(union, _union(each.reject for each in after.values()))
            finally:
                self._layers = after
                self._changes.append(self._changing)
                self._changing = frozenset()


def _union(sets: Iterable[Collection[Link]]) -> frozenset[Link]:
    return frozenset(link for links in sets for link in links)
