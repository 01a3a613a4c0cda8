"""Plays a schedule on a cluster.  Every card is resolved, injected, measured while it holds, healed, and measured
again.

Guarantees in every case:

* Every card ends as a `FaultRecord`, delivered through `Hooks.record` each time it changes.  A harness killed in the
  middle of a fault has already recorded that fault.
* No fault remains.  A cancellation, or an error of a hook or of the cluster, first heals everything, and then
  propagates.
* The outcome of a fault is computed from its measurements (`checkers.run_quality.faults_installed`).
* Measuring never stretches a hold.  It runs concurrently with the hold and stops when the heal is due.  Only the hook
  `before_heal` may delay a heal, by at most COPY_LATE_S_MAX.

Cards may overlap: each card has its own task, and `nemesis.measure` merges their orders.  All time comes from `clock`
and `asyncio.sleep`, so that the same code runs on virtual time.

*Waiting.*  A cancellation does not interrupt work that is being undone (`to_the_end`).

*Healing.*  Healing everything is the last step of every schedule, and the first step after a cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from random import Random
from typing import Any, TypeVar

from checkers.record.faults import Achieved, Card, Condition, Fault, FaultRecord, Measurement, Ordered, Proof
from nemesis import measure
from nemesis.cluster import LINKS, CannotInject, CannotReach, Cluster
from nemesis.kind import Kind
from nemesis.kinds import kind_named
from nemesis.resolve import (
    MainPhase,
    PlayOptions,
    Resolver,
    Skip,
    later,
)

LAST_LOOK_LIMIT_S = 1.0
"""Maximum seconds for measuring the faults in force once more before an interrupted schedule heals them."""
MEASURE_AGAIN = 4
"""Maximum number of additional measurements after an injection whose proof is indeterminate, for example because a
sender got too little CPU.  The windows add up.
"""
LATE_HOLD_S = 1.5
"""Minimum hold in seconds of a card that began late.  The hold is also at least as long as the injection took, because
a graceful stop may take ten seconds.  Neither minimum makes a card hold longer than scheduled, but its heal may come
after the scheduled time.
"""
COPY_HOLD_S_MIN = 2.5
"""Minimum hold in seconds for `before_heal`.  During a shorter hold there is no time to copy anything."""
COPY_FIRST_S = 1.0
"""Seconds between the begin of the first `before_heal` and the heal.  For later ones, the duration of the previous
`before_heal` is used.
"""
COPY_LATE_S_MAX = 1.0
MEASURED_BEFORE_HEAL_S = 0.05
"""Seconds between the end of the last window of a hold and the heal."""


async def play(
    schedule: Sequence[Card],
    main: MainPhase,
    rng: Random,
    hooks: measure.Hooks,
    options: PlayOptions | None = None,
    deal_next: Callable[[], Sequence[Card]] | None = None,
) -> list[FaultRecord]:
    """Play every card, and return the records in the order of the cards' numbers.

    rng: source of each card's own generator, so that the draws of a card do not depend on earlier cards
    deal_next: returns more cards while the run continues

    Once the main phase is over, the faults in force are healed, copied and measured as usual, and no further card is
    played.  Raises the errors of hooks, and CancelledError, after everything has been healed.  A cancelled play does
    not measure its heals, because the user waits, and the nodes are removed next.
    """
    player = _Player(main, hooks, options or PlayOptions())
    try:
        async with asyncio.TaskGroup() as group:

            def play_all(cards: Sequence[Card]) -> None:
                for card in cards:
                    group.create_task(player.play_card(card, Random(rng.getrandbits(64))))

            play_all(schedule)
            while deal_next is not None and (cards := deal_next()):
                play_all(cards)
                await player.sleep_until(cards[0].at_s)
    except BaseException as problem:  # noqa: BLE001 - heal everything first, then raise the error again
        first = problem.exceptions[0] if isinstance(problem, BaseExceptionGroup) else problem
        await to_the_end(player.abandon(measured=not isinstance(first, asyncio.CancelledError)))
        raise first from None
    return [record for _, record in sorted(player.records.by_number.items())]


class _Player:
    """One schedule in progress.

    records: records by card number
    active: the faults in force, by card number
    """

    def __init__(self, main: MainPhase, hooks: measure.Hooks, options: PlayOptions) -> None:
        self.field = measure.Field(main.cluster)
        self.clock, self.now_s, self.sleep_until = main.clock, main.now_s, main.sleep_until
        self.hooks = hooks
        self.ended = main.ended
        self.records = measure.FaultRecords(hooks)
        self.active: dict[int, tuple[Kind, Fault]] = {}
        self.resolver = Resolver(main, self.records, self.active, options)
        self.copy_s = COPY_FIRST_S

    async def play_card(self, card: Card, rng: Random) -> None:
        await self.sleep_until(card.at_s)
        if self.ended.is_set():
            return
        kind = kind_named(card.kind)
        try:
            put_off = await self.resolver.when_ready(kind, await self.resolver.with_its_first(card))
            fault, leader = await self.resolver.resolve(kind, put_off, rng)
        except Skip as skip:
            self.records.skip(card, str(skip), impossible=skip.impossible)
            return
        if card.line:
            put_off = later(put_off, self.now_s() - put_off.at_s)
        self.active[card.number] = (kind, fault)
        self.records.begin(kind, card, fault, leader, over_budget=self.resolver.breaks_budget(kind, fault))
        refusal = await self._inject(kind, card, fault)
        if card.line and leader is not None:
            await self.resolver.thaw(leader.node)
        copying = await self._hold(kind, put_off, fault) if refusal is None else None
        try:
            await self._heal(kind, card, fault, refusal)
        finally:
            if copying is not None:
                await copying

    async def abandon(self, *, measured: bool) -> None:
        """Heal everything because the schedule was broken off, and close the records of the faults in force."""
        if measured:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOOK_LIMIT_S):
                    await asyncio.gather(*(self._look(number, *active) for number, active in self.active.items()))
        ordered_ns = self.clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAL_ALL_LIMIT_S):
                await asyncio.gather(*(tried(kind.heal(self.field, f)) for kind, f in self.active.values()))
        restart = {node for number in self.active for node in self.records.by_number[number].killed}
        proof = await heal_all(self.field.cluster, restart, measured=measured)
        for number, (kind, fault) in list(self.active.items()):
            if measured:
                self.records.measured(number, await self._meter(kind, fault).take("heal", measure.WINDOW_S))
            times = {"heal_ordered_ns": ordered_ns, "healed_ns": self.clock()}
            self.records.change(
                number, **times, heal_proof=measure.proof_of(self.records.by_number[number], "heal") or proof
            )
            if not self.records.by_number[number].reason:
                self.records.change(number, reason="healed early: the run was broken off")
            del self.active[number]

    async def _look(self, number: int, kind: Kind, fault: Fault) -> None:
        """Measure a fault whose hold was interrupted, before it is healed."""
        if self.records.by_number[number].injected_ns >= 0 and self.records.by_number[number].heal_ordered_ns < 0:
            self.records.measured(number, await self._meter(kind, fault).take("before heal", 0.0))

    # Play one card, step by step.

    async def _inject(self, kind: Kind, card: Card, fault: Fault) -> tuple[Achieved, str] | None:
        """Inject the fault.  Returns None if the order succeeded; else the outcome and its reason."""
        ordered_ns = self.clock()
        try:
            await kind.inject(self.field, fault)
        except CannotInject as refusal:
            self.records.change(card.number, impossible=isinstance(refusal, CannotReach))
            return Achieved.SKIPPED, str(refusal)
        except OSError as problem:
            return Achieved.NOT_ACHIEVED, f"the order failed: {measure.words_of(problem)}"
        injected_ns = self.clock()
        self.records.change(card.number, injected_ns=injected_ns, apply_ms=(injected_ns - ordered_ns) / 1e6)
        return None

    async def _hold(self, kind: Kind, card: Card, fault: Fault) -> asyncio.Future[None] | None:
        """Measure until the heal is due; near the end, let the hook copy data.

        Returns the copying task if the copy is not finished when the heal is due; else raises the errors of the task.
        """
        stop = asyncio.Event()
        measuring = asyncio.ensure_future(self._measure(kind, card, fault, stop))
        copying: asyncio.Future[None] | None = None
        least_s = max(LATE_HOLD_S, self.records.by_number[card.number].apply_ms / 1e3)
        due_s = max(card.heal_s, self.now_s() + min(card.heal_s - card.at_s, least_s))
        hold_s = due_s - self.now_s()
        try:
            if hold_s >= COPY_HOLD_S_MIN and not card.until:
                await self.sleep_until(due_s - min(self.copy_s, hold_s / 2))
                copying = asyncio.ensure_future(self._copy(card.number))
            if card.until:
                await self.resolver.until_healing(card, due_s)
                due_s = min(due_s, self.now_s())
            else:
                await self.sleep_until(due_s - MEASURED_BEFORE_HEAL_S)
            if copying is not None:
                late_s = COPY_LATE_S_MAX + (self.copy_s if self.ended.is_set() else 0.0)
                await asyncio.wait([copying], timeout=late_s)
                if copying.done():
                    copying.result()
            stop.set()
            if card.until:  # the heal must follow its event at once, so the last measurement may be cut short
                await self._break_off(card.number, measuring)
            else:
                await measuring
            await self.sleep_until(due_s)
        except BaseException:
            for task in (measuring, copying):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(t for t in (measuring, copying) if t is not None), return_exceptions=True)
            raise
        return copying

    async def _measure(self, kind: Kind, card: Card, fault: Fault, stop: asyncio.Event) -> None:
        meter = self._meter(kind, fault)
        for attempt in range(1 + MEASURE_AGAIN):
            began_s = self.now_s()
            self.records.measured(card.number, await meter.take("inject", measure.WINDOW_S, stop))
            proof = measure.proof_of(self.records.by_number[card.number], "inject")
            self.records.change(card.number, inject_proof=proof)
            if proof is None or proof.verdict != measure.INDETERMINATE or stop.is_set() or attempt == MEASURE_AGAIN:
                break
        every_s = (
            measure.HOLD_EVERY_S / 2 if card.until else measure.HOLD_EVERY_S
        )  # the last measurement may be cut short
        window_s, waited_s = every_s, measure.WINDOW_S
        while not stop.is_set():
            # the window serves as a pause before the measurement: the slower the measurement, the shorter the pause
            if not fault.cut:
                window_s = max(0.0, every_s - (self.now_s() - began_s - waited_s))
            began_s, waited_s = self.now_s(), window_s
            self.records.measured(card.number, await meter.take("hold", window_s, stop))
        self.records.measured(card.number, await meter.take("before heal", 0.0))

    async def _break_off(self, number: int, measuring: asyncio.Future[None]) -> None:
        if not measuring.done():
            measuring.cancel()
            await asyncio.wait([measuring])
        if not measuring.cancelled():
            measuring.result()
        now_ns, why = self.clock(), "the heal was due before the measurement ended"
        self.records.measured(number, Measurement("before heal", now_ns, now_ns, problems=(why,)))

    async def _copy(self, number: int) -> None:
        began_s = self.now_s()
        await self.hooks.before_heal(self.records.by_number[number])
        self.copy_s = self.now_s() - began_s

    async def _heal(self, kind: Kind, card: Card, fault: Fault, refusal: tuple[Achieved, str] | None) -> None:
        """Undo the fault and measure.  A refused order is undone too, because half of it may have been carried out."""
        number = card.number
        self.records.change(number, heal_ordered_ns=self.clock())
        problem = await tried(kind.heal(self.field, fault))
        self.records.change(number, healed_ns=self.clock())
        proof = await _until_as_ordered(self._meter(kind, fault), partial(self.records.measured, number))
        if problem and proof.verdict != measure.AS_ORDERED:
            proof = replace(proof, wrong=(*proof.wrong, problem))
        if refusal is None:
            self.records.change(number, heal_proof=proof)
        else:
            outcome, reason = refusal
            self.records.change(number, heal_proof=proof, achieved=outcome, reason=reason)
        self.active.pop(number, None)
        self.field.closed(fault)

    # Records of the run.

    def _meter(self, kind: Kind, fault: Fault) -> measure.Meter:
        return measure.Meter(self.field, fault, kind.orders(fault), self.clock, kind.measure)


T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not be interrupted, even if the awaiting task is cancelled repeatedly."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue  # `play` re-raises the error; healing has its own time limit
    return task.result()


HEAL_PROOF_LIMIT_S = 5.0
"""Maximum seconds until measurements show the heal: address resolution and a restarted process need a moment."""
HEAL_HIDDEN_LIMIT_S = 15.0
"""Maximum seconds until measurements show the heal while they are indeterminate, for example because other faults
disturb the links.
"""
HEAL_ALL_LIMIT_S = 40.0
POLL_S = 0.2


async def heal_all(cluster: Cluster, restart: Collection[str] = (), *, measured: bool = True) -> Proof:
    """Restore every link, resume every paused server, restart the dead servers in `restart`, and measure the result.
    Dead servers outside `restart` died unexpectedly: they stay dead, so that the checkers see the deaths.  Never raises
    because of a node or agent: `Proof.wrong` lists failures, and the verdict is then not "as ordered".

    measured: False if the nodes are removed next; then the proof is indeterminate
    """
    try:
        async with asyncio.timeout(HEAL_ALL_LIMIT_S):
            return await _heal_all(measure.Field(cluster), frozenset(restart), measured)
    except TimeoutError:
        return Proof(measure.INDETERMINATE, wrong=(f"healing took longer than {HEAL_ALL_LIMIT_S:.0f} s",))


async def tried(order: Awaitable[None]) -> str:
    """Carry out an order, and return why it failed, "" if it succeeded.  CannotInject is no failure: a fault that the
    backend could not inject needs no undoing.
    """
    try:
        await order
    except OSError as problem:
        return measure.words_of(problem)
    except CannotInject:
        return ""
    return ""


async def _heal_all(field: measure.Field, restart: frozenset[str], measured: bool) -> Proof:
    cluster = field.cluster
    problems = [await tried(field.clear())]
    states = await measure.read_states(cluster, cluster.servers)
    stopped = [s for s, state in states.items() if state == "stopped"]
    dead = [s for s, state in states.items() if state == "dead" and s in restart]
    orders = {s: cluster.resume(s) for s in stopped} | {s: cluster.restart(s) for s in dead}
    answers = await asyncio.gather(*(tried(order) for order in orders.values()))
    problems += [f"{server}: {words}" for server, words in zip(orders, answers, strict=True) if words]
    if not measured:
        return Proof(measure.INDETERMINATE, wrong=("the run was broken off, so the heal was not measured",))
    running = {s: "running" for s in cluster.servers if states.get(s) != "dead" or s in restart}
    nodes = (*cluster.servers, *cluster.clients)
    links = frozenset() if cluster.lacks(LINKS) else frozenset(permutations(nodes, 2))
    ordered = Ordered(healed=Condition(states=running))
    nothing = FaultRecord(Card(0, "", "", 0.0, 0.0), Achieved.INDETERMINATE, "", cut=tuple(links), ordered=ordered)
    loop = asyncio.get_running_loop()
    meter = measure.Meter(field, Fault("", "everything", cut=links), ordered, lambda: int(loop.time() * 1e9))
    proof = await _until_as_ordered(meter, lambda taken: replace(nothing, measured=(taken,)))
    return (
        proof if proof.verdict == measure.AS_ORDERED else replace(proof, wrong=(*proof.wrong, *filter(None, problems)))
    )


async def _until_as_ordered(meter: measure.Meter, record: Callable[[Measurement], FaultRecord]) -> Proof:
    """Measure repeatedly after a heal, until everything is as ordered or the time is over; return the last proof.

    record: adds a measurement to the record of the fault
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        proof = measure.proof_of(record(await meter.take("heal", measure.WINDOW_S)), "heal") or Proof(
            measure.INDETERMINATE
        )
        limit_s = HEAL_HIDDEN_LIMIT_S if proof.verdict == measure.INDETERMINATE else HEAL_PROOF_LIMIT_S
        if proof.verdict == measure.AS_ORDERED or loop.time() - began >= limit_s:
            return proof
        await asyncio.sleep(POLL_S)
