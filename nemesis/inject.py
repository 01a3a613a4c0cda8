"""Plays a schedule on a cluster.  Every card is resolved, injected, measured while it holds, healed, measured again.

What it promises in every case:

* Every card ends as a `FaultRecord`, delivered through `Hooks.record` each time it changes.  A harness killed in the
  middle of a fault has still recorded what it was doing.
* Nothing is left broken.  A cancellation, an error of a hook or of the cluster first heals everything, and only then
  goes on its way.
* What became of a fault is computed from its measurements (`checkers.run_quality.achieved`).
* Measuring never stretches a hold.  It goes on beside the hold and stops when the heal is due.  Only the hook
  `before_heal` may delay a heal, by at most COPY_LATE_S_MAX.

Cards may overlap: each is played by a task of its own, and `nemesis.field` merges their orders.  Time comes in as
`clock` and passes in `asyncio.sleep`, so that the same code runs on virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from checkers.base.history import Type
from checkers.run_quality.achieved import achieved
from nemesis.catalog import kind_named
from nemesis.cluster import CannotInject, Cluster
from nemesis.faults import Achieved, Card, Fault, FaultRecord, Measurement, Proof
from nemesis.field import Field
from nemesis.heal import HEAL_ALL_LIMIT_S, HEAL_PROOF_LIMIT_S, POLL_S, heal_all, tried
from nemesis.kind import Kind, LeaderNow, Scene
from nemesis.leader import leader_now
from nemesis.measure import AS_ORDERED, HOLD_EVERY_S, INDETERMINATE, WINDOW_S, Meter, proof_of, read_states, words_of
from nemesis.overlap import isolated, out_of_reach
from nemesis.waiting import all_ended, to_the_end
from system_under_test.subject import NodeStatus

LEADER_WAIT_S = 5.0
"""How long a card that names the leader waits for one."""
LAST_LOOK_LIMIT_S = 1.0
"""How long a run that is broken off measures its faults once more before it heals them."""
MEASURE_AGAIN = 4
"""A sender starved of CPU gets more windows, and they add up; a link seen open when ordered cut gets none."""
LATE_HOLD_S = 1.5
"""A card that had to wait for a leader holds for this long at least (or as long as it should), even past its time."""
COPY_HOLD_S_MIN = 2.5
"""A fault that holds for less is not followed by `before_heal`: there is no time in which to copy anything."""
COPY_FIRST_S = 1.0
"""How long before the heal the first `before_heal` begins; later ones begin as long before as the last one took."""
COPY_LATE_S_MAX = 1.0
MEASURED_BEFORE_HEAL_S = 0.05
"""The last window of a hold is counted this long before the heal is due."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the harness is notified of.

    note(type, f, detail): a row for the history, of the process NEMESIS.  f is "inject-<kind>" or "heal-<kind>"; the
        INVOKE comes before the order, then OK (as ordered), FAIL (skipped) or INFO (not, or not certainly, as ordered).
    record: a record changed; the card's number says which.
    before_heal: awaited while the fault is still in force (data directories are copied here).
    """

    note: Callable[[Type, str, str], None]
    record: Callable[[FaultRecord], None]
    before_heal: Callable[[FaultRecord], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How a schedule is played.

    replay: resolved faults by card number, carried out in place of resolving anew.  over_budget: faults may cost
    more than a minority what it had fsynced; the records say so, and the system is excused for what it loses then."""

    replay: Mapping[int, Fault] = field(default_factory=dict)
    over_budget: bool = False


async def play(
    schedule: Sequence[Card],
    cluster: Cluster,
    statuses: Callable[[], Awaitable[Sequence[NodeStatus]]],
    clock: Callable[[], int],
    main_began_ns: int,
    rng: Random,
    hooks: Hooks,
    options: PlayOptions | None = None,
    ended: asyncio.Event | None = None,
) -> list[FaultRecord]:
    """Play every card; the records in the order of the schedule.

    clock: ns since the test began; main_began_ns: what it showed when the main phase began (cards count from there).
    rng: each card gets a generator of its own out of it, so that what a card draws does not depend on the cards before.
    ended: once set, the faults in force are healed now, copied and measured as ever, and no further card is played.
    Raises what a hook raises, and CancelledError, after everything has been healed.  A cancelled play does not measure
    its heals: the user waits, and the nodes are removed next.
    """
    options, ended = options or PlayOptions(), ended or asyncio.Event()
    player = _Player(cluster, statuses, clock, main_began_ns, hooks, options, ended)
    seeds = [rng.getrandbits(64) for _ in schedule]
    tasks = [asyncio.ensure_future(player.play_card(c, Random(s))) for c, s in zip(schedule, seeds, strict=True)]
    try:
        await all_ended(tasks)
    except BaseException as problem:
        await to_the_end(player.abandon(measured=not isinstance(problem, asyncio.CancelledError)))
        raise
    return [player.records[card.number] for card in schedule if card.number in player.records]


class _Player:
    """One schedule being played.  records: by card number.  active: the faults in force."""

    def __init__(
        self,
        cluster: Cluster,
        statuses: Callable[[], Awaitable[Sequence[NodeStatus]]],
        clock: Callable[[], int],
        main_began_ns: int,
        hooks: Hooks,
        options: PlayOptions,
        ended: asyncio.Event,
    ) -> None:
        self.field = Field(cluster)
        self.statuses = statuses
        self.clock = clock
        self.main_began_ns = main_began_ns
        self.hooks = hooks
        self.options = options
        self.ended = ended
        self.records: dict[int, FaultRecord] = {}
        self.faults: dict[int, Fault] = {}
        self.active: dict[int, tuple[Kind, Fault]] = {}
        self.copy_s = COPY_FIRST_S

    async def play_card(self, card: Card, rng: Random) -> None:
        await self._sleep_until(card.at_s)
        if self.ended.is_set():
            return
        kind = kind_named(card.kind)
        fault, leader, why_not = await self._resolve(kind, card, rng)
        if fault is None:
            self._skip(card, why_not)
            return
        if why_not := self._forbidden(kind, card, fault):
            self._skip(card, why_not)
            return
        self._begin(kind, card, fault, leader)
        refusal = await self._inject(kind, card, fault)
        copying = await self._hold(kind, card, fault) if refusal is None else None
        try:
            await self._heal(kind, card, fault, refusal)
        finally:
            if copying is not None:
                await copying

    async def abandon(self, *, measured: bool) -> None:
        """Heal everything because the schedule ends here, and close the records of the faults in force."""
        if measured:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOOK_LIMIT_S):
                    await asyncio.gather(*(self._look(number, *active) for number, active in self.active.items()))
        ordered_ns = self.clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAL_ALL_LIMIT_S):
                await asyncio.gather(*(tried(kind.heal(self.field, f)) for kind, f in self.active.values()))
        restart = {node for number in self.active for node in self.records[number].killed}
        proof = await heal_all(self.field.cluster, restart, measured=measured)
        for number, (kind, fault) in list(self.active.items()):
            if measured:
                self._measured(number, await self._meter(kind, fault).take("heal", WINDOW_S))
            times = {"heal_ordered_ns": ordered_ns, "healed_ns": self.clock()}
            self._change(number, **times, heal_proof=proof_of(self.records[number], "heal") or proof)
            if not self.records[number].reason:
                self._change(number, reason="healed early: the run was broken off")
            del self.active[number]

    async def _look(self, number: int, kind: Kind, fault: Fault) -> None:
        """Measure a fault whose hold was broken off, before it is healed."""
        if self.records[number].injected_ns >= 0 and self.records[number].heal_ordered_ns < 0:
            self._measured(number, await self._meter(kind, fault).take("before heal", 0.0))

    # One card, step by step.

    def _skip(self, card: Card, reason: str) -> None:
        words = f"{card.kind} {card.name}"
        self._put(FaultRecord(card, Achieved.SKIPPED, words, reason, kind=card.kind))
        self.hooks.note(Type.INVOKE, f"inject-{card.kind}", card.name)
        self.hooks.note(Type.FAIL, f"inject-{card.kind}", f"skipped: {reason}")

    async def _resolve(self, kind: Kind, card: Card, rng: Random) -> tuple[Fault | None, LeaderNow | None, str]:
        """The fault and the leader it takes aim at, or None and why not.  Waits for a leader if the card names one."""
        if card.number in self.options.replay:
            return replace(self.options.replay[card.number]), None, ""
        if card.like:
            fault = self.faults.get(card.like)
            return (replace(fault) if fault else None), None, f"card {card.like}, which it repeats, hit nothing"
        if self._main_s() >= card.heal_s:
            return None, None, "its time had passed before it could begin"
        against_leader = kind.targets[card.name].against_leader
        began_s = self._main_s()
        while True:
            hit = {node for other, fault in self.active.values() for node in out_of_reach(kind, other, fault)}
            states = await read_states(self.field.cluster, self.field.cluster.servers)
            running = [s for s, state in states.items() if state == "running" and s not in hit]
            leader = await self._leader(running) if against_leader else None
            if leader is not None or not against_leader:
                fault = kind.resolve(card.name, self._scene(kind, running, leader, rng))
                if fault is not None:
                    return fault, leader, ""
                return None, None, self._too_few(running)
            if self.ended.is_set():
                return None, None, "the test ended before any node led"
            if self._main_s() - began_s >= LEADER_WAIT_S:
                return None, None, f"no node led within {LEADER_WAIT_S:.0f} s"
            await asyncio.sleep(POLL_S)

    def _scene(self, kind: Kind, running: Sequence[str], leader: LeaderNow | None, rng: Random) -> Scene:
        cluster = self.field.cluster
        avoid = {n for other, f in self.active.values() if other.name == kind.name for n in f.nodes or isolated(f)}
        servers, clients = tuple(cluster.servers), tuple(cluster.clients)
        return Scene(servers, clients, tuple(running), leader, rng, frozenset(avoid), self._spent())

    def _too_few(self, running: Sequence[str]) -> str:
        return f"only {len(running)} of {len(self.field.cluster.servers)} server processes were running"

    def _forbidden(self, kind: Kind, card: Card, fault: Fault) -> str:
        """Why this fault may not be carried out: the backend cannot, or the data would lose its excuse."""
        target = kind.targets.get(card.name)
        for capability in sorted(kind.needs | (target.needs if target else frozenset())):
            if why := self.field.cluster.lacks(capability):
                return why
        if self._breaks_budget(kind, fault) and not self.options.over_budget:
            most = (len(self.field.cluster.servers) - 1) // 2
            return f"it would cost more than {most} servers what they had fsynced: no system promises to survive that"
        return ""

    def _breaks_budget(self, kind: Kind, fault: Fault) -> bool:
        """Whether this fault costs, with those before it, more than a minority of servers what they had fsynced."""
        cost = kind.costs(fault)
        return bool(cost) and 2 * len(self._spent() | cost) >= len(self.field.cluster.servers)

    def _spent(self) -> frozenset[str]:
        """The servers that lost what they had fsynced to faults of this run."""
        return frozenset(n for number, f in self.faults.items() for n in kind_named(self.records[number].kind).costs(f))

    async def _leader(self, running: Sequence[str]) -> LeaderNow | None:
        try:
            return leader_now(await self.statuses(), running)
        except OSError:
            return None  # an agent that does not answer now may do so at the next look, within LEADER_WAIT_S

    def _begin(self, kind: Kind, card: Card, fault: Fault, leader: LeaderNow | None) -> None:
        over_budget = self._breaks_budget(kind, fault)
        self.active[card.number] = (kind, fault)
        self.faults[card.number] = fault
        self._put(
            FaultRecord(
                card,
                Achieved.INDETERMINATE,
                fault.words,
                reason="it was still being injected",
                leader=leader.node if leader else None,
                epoch=leader.epoch if leader else -1,
                kind=kind.name,
                cut=tuple(sorted(fault.cut)),
                nodes=fault.nodes,
                ordered=kind.orders(fault),
                settings=fault.settings,
                over_budget=over_budget,
            )
        )
        self.hooks.note(Type.INVOKE, f"inject-{card.kind}", fault.words)

    async def _inject(self, kind: Kind, card: Card, fault: Fault) -> tuple[Achieved, str] | None:
        """Carry the order out.  None if it was carried out; else what became of it, and why."""
        ordered_ns = self.clock()
        try:
            await kind.inject(self.field, fault)
        except CannotInject as refusal:
            return Achieved.SKIPPED, str(refusal)
        except OSError as problem:
            return Achieved.NOT_ACHIEVED, f"the order failed: {words_of(problem)}"
        injected_ns = self.clock()
        self._change(card.number, injected_ns=injected_ns, apply_ms=(injected_ns - ordered_ns) / 1e6)
        return None

    async def _hold(self, kind: Kind, card: Card, fault: Fault) -> asyncio.Future[None] | None:
        """Until the heal is due: measure, and near the end let the hook take its copies.

        Returns the copying, which a slow machine has not ended yet; raises what it has raised."""
        stop = asyncio.Event()
        measuring = asyncio.ensure_future(self._measure(kind, card, fault, stop))
        copying: asyncio.Future[None] | None = None
        due_s = max(card.heal_s, self._main_s() + min(card.heal_s - card.at_s, LATE_HOLD_S))
        hold_s = due_s - self._main_s()
        try:
            if hold_s >= COPY_HOLD_S_MIN:
                await self._sleep_until(due_s - min(self.copy_s, hold_s / 2))
                copying = asyncio.ensure_future(self._copy(card.number))
            await self._sleep_until(due_s - MEASURED_BEFORE_HEAL_S)
            if copying is not None:
                late_s = COPY_LATE_S_MAX + (self.copy_s if self.ended.is_set() else 0.0)
                await asyncio.wait([copying], timeout=late_s)
                if copying.done():
                    copying.result()
            stop.set()
            await measuring
            await self._sleep_until(due_s)
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
            self._measured(card.number, await meter.take("inject", WINDOW_S, stop))
            proof = proof_of(self.records[card.number], "inject")
            self._change(card.number, inject_proof=proof)
            if proof is None or proof.verdict != INDETERMINATE or stop.is_set() or attempt == MEASURE_AGAIN:
                self._conclude(f"inject-{card.kind}", proof)
                break
        while not stop.is_set():
            self._measured(card.number, await meter.take("hold", HOLD_EVERY_S, stop))
        self._measured(card.number, await meter.take("before heal", 0.0))

    async def _copy(self, number: int) -> None:
        began_s = self._main_s()
        await self.hooks.before_heal(self.records[number])
        self.copy_s = self._main_s() - began_s

    async def _heal(self, kind: Kind, card: Card, fault: Fault, refusal: tuple[Achieved, str] | None) -> None:
        """Undo the fault and measure.  After a refusal too: half of an order may have been carried out."""
        number, f = card.number, f"heal-{card.kind}"
        if refusal is None:
            self.hooks.note(Type.INVOKE, f, fault.words)
        self._change(number, heal_ordered_ns=self.clock())
        problem = await tried(kind.heal(self.field, fault))
        self._change(number, healed_ns=self.clock())
        proof = await self._until_healed(kind, number, fault)
        if problem and proof is not None and proof.verdict != AS_ORDERED:
            proof = replace(proof, wrong=(*proof.wrong, problem))
        if refusal is None:
            self._change(number, heal_proof=proof)
            self._conclude(f, proof)
        else:
            outcome, reason = refusal
            self._change(number, heal_proof=proof, achieved=outcome, reason=reason)
            type_ = Type.FAIL if outcome is Achieved.SKIPPED else Type.INFO
            self.hooks.note(type_, f"inject-{card.kind}", f"{outcome}: {reason}")
        self.active.pop(number, None)

    async def _until_healed(self, kind: Kind, number: int, fault: Fault) -> Proof | None:
        """Measure until it is as ordered, for at most HEAL_PROOF_LIMIT_S; the last proof."""
        meter, loop = self._meter(kind, fault), asyncio.get_running_loop()
        until = loop.time() + HEAL_PROOF_LIMIT_S
        while True:
            self._measured(number, await meter.take("heal", WINDOW_S))
            proof = proof_of(self.records[number], "heal")
            if proof is None or proof.verdict == AS_ORDERED or loop.time() >= until:
                return proof
            await asyncio.sleep(POLL_S)

    # What is written down.

    def _meter(self, kind: Kind, fault: Fault) -> Meter:
        return Meter(self.field, kind, fault, kind.orders(fault), self.clock)

    def _put(self, record: FaultRecord) -> None:
        self.records[record.card.number] = record
        self.hooks.record(record)

    def _measured(self, number: int, measurement: Measurement) -> None:
        """Keep a measurement.  It is delivered with the next change: a hook each second would only cost CPU."""
        record = self.records[number]
        self.records[number] = replace(record, measured=(*record.measured, measurement))

    def _change(self, number: int, **changes: Any) -> None:
        """Change a record.  What became of the fault is computed anew, unless the change names it."""
        record = replace(self.records[number], **changes)
        if "achieved" not in changes and record.injected_ns >= 0:
            found = achieved(record.to_json())
            reason = changes.get("reason", found.reason)
            record = replace(record, achieved=Achieved(found.word), reason=reason, lapsed_ns=found.lapsed_ns)
        self._put(record)

    def _conclude(self, f: str, proof: Proof | None) -> None:
        as_ordered = proof is not None and proof.verdict == AS_ORDERED
        words = f"{proof.verdict}: {'; '.join(proof.wrong)}" if proof and not as_ordered else AS_ORDERED
        self.hooks.note(Type.OK if as_ordered else Type.INFO, f, words if proof else "it was not measured")

    def _main_s(self) -> float:
        return (self.clock() - self.main_began_ns) / 1e9

    async def _sleep_until(self, at_s: float) -> None:
        """Until that second of the main phase, or until the test has ended."""
        try:
            async with asyncio.timeout(max(0.0, at_s - self._main_s())):
                await self.ended.wait()
        except TimeoutError:
            return
