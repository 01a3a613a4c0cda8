"""Plays a schedule on a cluster: resolve, inject, prove, hold, copy, heal, prove again; card after card.

What it promises, whatever happens:

* Every card ends as a `FaultRecord`, delivered through `Hooks.record` each time it changes, so that a harness killed
  in the middle of a fault has still said what it was doing.
* Nothing is left broken.  A cancellation, an error of a hook or of the cluster first heals everything, and only then
  goes on its way.
* A fault counts as `installed` only if it was measured after inject *and* its heal was measured too (`proofs.py`).

Time comes in as `clock` and passes in `asyncio.sleep`, so that the same code runs on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from checkers.history import Type
from nemesis.cluster import CannotInject, Cluster, Link
from nemesis.faults import Achieved, Card, Fault, FaultRecord, Kill, Partition, Pause, Proof
from nemesis.proofs import AS_ORDERED, INDETERMINATE, INTERVAL_MS, WINDOW_S, achieved, both, links_proof, states_proof
from nemesis.resolve import LEADER_WAIT_S, Leader, Resolved, leader_now, names_leader, resolve
from system_under_test.subject import NodeStatus, ProcessState

HEAL_PROOF_LIMIT_S = 5.0
"""How long a heal may take to show: address resolution and a restarted process need a moment."""
HEAL_ALL_LIMIT_S = 40.0
MEASURE_AGAIN = 4
"""A sender starved of CPU gets more windows, and they add up; a link seen open when ordered cut gets none."""
_POLL_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the harness wants to hear.

    note(type, f, detail): a row for the history, of the process NEMESIS.  f is "inject-<kind>" or "heal-<kind>"; the
        INVOKE comes before the order, then OK (as ordered), FAIL (skipped) or INFO (not, or not certainly, as ordered).
    record: a record changed; the card's number says which.
    before_heal: awaited while the fault is still in force (data directories are copied here).
    """

    note: Callable[[Type, str, str], None]
    record: Callable[[FaultRecord], None]
    before_heal: Callable[[FaultRecord], Awaitable[None]]


async def play(
    schedule: Sequence[Card],
    cluster: Cluster,
    statuses: Callable[[], Awaitable[Sequence[NodeStatus]]],
    clock: Callable[[], int],
    main_began_ns: int,
    rng: Random,
    hooks: Hooks,
    replay: Mapping[int, Fault] | None = None,
    ended: asyncio.Event | None = None,
) -> list[FaultRecord]:
    """Play every card; the records in the order of the schedule.

    clock: ns since the test began; main_began_ns: what it showed when the main phase began (cards count from there).
    rng: each card gets a generator of its own out of it, so that what a card draws does not depend on the cards before.
    replay: resolved faults by card number (`resolve.resolved_faults`), carried out in place of resolving anew.
    ended: once set, the fault in force is healed now, copied and measured as ever, and no further card is played.
    Raises what a hook raises, and CancelledError, after everything has been healed.
    """
    player = _Player(cluster, statuses, clock, main_began_ns, hooks, dict(replay or {}), ended or asyncio.Event())
    seeds = [rng.getrandbits(64) for _ in schedule]
    try:
        for card, seed in zip(schedule, seeds, strict=True):
            await player.play_card(card, Random(seed))
            if player.ended.is_set():
                break
    except BaseException:
        await _to_the_end(player.abandon())
        raise
    return player.records


async def heal_all(cluster: Cluster, restart: Collection[str] = ()) -> Proof:
    """Make every link whole, resume every stopped server, restart the dead ones in `restart`; measured, all of it.

    Dead servers that are not in `restart` died unbidden: they stay dead, for the checkers to see.  Never raises for
    what nodes and agents do: what could not be healed stands in `Proof.wrong`, and the verdict is not "as ordered".
    """
    try:
        async with asyncio.timeout(HEAL_ALL_LIMIT_S):
            return await _heal_all(cluster, frozenset(restart))
    except TimeoutError:
        return Proof(INDETERMINATE, wrong=(f"healing took longer than {HEAL_ALL_LIMIT_S:.0f} s",))


class _Player:
    """One schedule being played.  `active` is the fault in force, if any; `record` belongs to it."""

    def __init__(
        self,
        cluster: Cluster,
        statuses: Callable[[], Awaitable[Sequence[NodeStatus]]],
        clock: Callable[[], int],
        main_began_ns: int,
        hooks: Hooks,
        replay: dict[int, Fault],
        ended: asyncio.Event,
    ) -> None:
        self.cluster = cluster
        self.statuses = statuses
        self.clock = clock
        self.main_began_ns = main_began_ns
        self.hooks = hooks
        self.replay = replay
        self.ended = ended
        self.records: list[FaultRecord] = []
        self.active: Fault | None = None

    async def play_card(self, card: Card, rng: Random) -> None:
        await self._sleep_until(card.at_s)
        if self.ended.is_set():
            return
        if self._main_s() >= card.heal_s:
            self._skip(card, "its time had passed before the fault before it was healed")
            return
        resolved, why_not = await self._resolve(card, rng)
        if resolved is None:
            self._skip(card, why_not)
            return
        self._begin(card, resolved)
        refusal = await self._inject(card, resolved.fault)
        if refusal is None:
            await self._sleep_until(card.heal_s)
            await self.hooks.before_heal(self.records[-1])
        await self._heal(card, resolved.fault, refusal)

    async def abandon(self) -> None:
        """Heal everything because the schedule ends here, and close the record of the fault in force."""
        fault, ordered_ns = self.active, self.clock()
        proof = await heal_all(self.cluster, fault.nodes if isinstance(fault, Kill) else ())
        if fault is None:
            return
        outcome, reason = achieved(self.records[-1].inject_proof, proof)
        self._change(
            achieved=outcome,
            reason=reason or "healed early: the run was broken off",
            heal_ordered_ns=ordered_ns,
            healed_ns=self.clock(),
            heal_proof=proof,
        )
        self.active = None

    # One card, step by step.

    def _skip(self, card: Card, reason: str) -> None:
        self._append(FaultRecord(card, Achieved.SKIPPED, f"{card.kind} {card.name}", reason))
        self.hooks.note(Type.INVOKE, f"inject-{card.kind}", card.name)
        self.hooks.note(Type.FAIL, f"inject-{card.kind}", f"skipped: {reason}")

    async def _resolve(self, card: Card, rng: Random) -> tuple[Resolved | None, str]:
        """The fault, or None and why not.  Waits up to LEADER_WAIT_S for a leader if the card names one."""
        if card.number in self.replay:
            return Resolved(self.replay[card.number]), ""
        began_s = self._main_s()
        while True:
            states = await _states(self.cluster)
            running = [s for s, state in states.items() if state == "running"]
            leader = await self._leader(running) if names_leader(card) else None
            resolved = resolve(card, self.cluster.servers, self.cluster.clients, running, leader, rng)
            if resolved is not None:
                return resolved, ""
            if self.ended.is_set():
                return None, "the test ended before anybody led"
            if not names_leader(card):
                return None, f"only {len(running)} of {len(self.cluster.servers)} server processes were running"
            if self._main_s() - began_s >= LEADER_WAIT_S:
                return None, f"nobody led within {LEADER_WAIT_S:.0f} s"
            await asyncio.sleep(_POLL_S)

    async def _leader(self, running: Sequence[str]) -> Leader | None:
        try:
            return leader_now(await self.statuses(), running)
        except OSError:
            return None  # an agent that does not answer now may do so at the next look, within LEADER_WAIT_S

    def _begin(self, card: Card, resolved: Resolved) -> None:
        fault, leader = resolved.fault, resolved.leader
        self.active = fault
        self._append(
            FaultRecord(
                card,
                Achieved.INDETERMINATE,
                fault.words,
                reason="it was still being injected",
                leader=leader.node if leader else None,
                epoch=leader.epoch if leader else -1,
                cut=tuple(sorted(fault.cut)) if isinstance(fault, Partition) else (),
                nodes=() if isinstance(fault, Partition) else fault.nodes,
            )
        )
        self.hooks.note(Type.INVOKE, f"inject-{card.kind}", fault.words)

    async def _inject(self, card: Card, fault: Fault) -> tuple[Achieved, str] | None:
        """Carry the order out and measure.  None if the fault is in force; else what became of it, and why."""
        ordered_ns = self.clock()
        try:
            await _order(self.cluster, fault)
        except CannotInject as refusal:
            return Achieved.SKIPPED, str(refusal)
        except OSError as problem:
            return Achieved.NOT_ACHIEVED, f"the order failed: {_told(problem)}"
        injected_ns = self.clock()
        self._change(injected_ns=injected_ns, apply_ms=(injected_ns - ordered_ns) / 1e6)
        proof = await _measured(self.cluster, fault)
        for _ in range(MEASURE_AGAIN):
            if proof.verdict == INDETERMINATE:
                proof = await _measured(self.cluster, fault, earlier=proof)
        outcome, reason = achieved(proof, None)
        self._change(achieved=outcome, reason=reason, inject_proof=proof)
        self._conclude(f"inject-{card.kind}", proof)
        return None

    async def _heal(self, card: Card, fault: Fault, refusal: tuple[Achieved, str] | None) -> None:
        """Undo the fault and measure.  After a refusal too: half of an order may have been carried out."""
        f = f"heal-{card.kind}"
        if refusal is None:
            self.hooks.note(Type.INVOKE, f, fault.words)
        self._change(heal_ordered_ns=self.clock())
        problems = await _undo(self.cluster, fault)
        self._change(healed_ns=self.clock())
        proof = await _until_as_ordered(lambda: _measured(self.cluster, fault, healed=True), problems)
        outcome, reason = achieved(self.records[-1].inject_proof, proof)
        if refusal is None:
            self._change(achieved=outcome, reason=reason, heal_proof=proof)
            self._conclude(f, proof)
        else:
            outcome, reason = refusal
            self._change(achieved=outcome, reason=reason, heal_proof=proof)
            told = Type.FAIL if outcome is Achieved.SKIPPED else Type.INFO
            self.hooks.note(told, f"inject-{card.kind}", f"{outcome}: {reason}")
        self.active = None

    # What is written down.

    def _append(self, record: FaultRecord) -> None:
        self.records.append(record)
        self.hooks.record(record)

    def _change(self, **changes: Any) -> None:
        self.records[-1] = replace(self.records[-1], **changes)
        self.hooks.record(self.records[-1])

    def _conclude(self, f: str, proof: Proof) -> None:
        as_ordered = proof.verdict == AS_ORDERED
        detail = proof.verdict if as_ordered else f"{proof.verdict}: {'; '.join(proof.wrong)}"
        self.hooks.note(Type.OK if as_ordered else Type.INFO, f, detail)

    def _main_s(self) -> float:
        return (self.clock() - self.main_began_ns) / 1e9

    async def _sleep_until(self, at_s: float) -> None:
        """Until this time of the main phase, or until the test ends."""
        left_s = at_s - self._main_s()
        while left_s > 0 and not self.ended.is_set():
            await asyncio.sleep(min(left_s, _POLL_S))
            left_s = at_s - self._main_s()


async def _order(cluster: Cluster, fault: Fault) -> None:
    """Carry the fault out; raises CannotInject or OSError, possibly with a part of it done."""
    if isinstance(fault, Partition):
        await cluster.cut(fault.cut)
    elif isinstance(fault, Pause):
        await _each(cluster.pause(node) for node in fault.nodes)
    else:
        await _each(cluster.kill(node) for node in fault.nodes)


async def _undo(cluster: Cluster, fault: Fault) -> list[str]:
    """Take the fault back; what went wrong while doing so, in words."""
    if isinstance(fault, Partition):
        return await _tried({"the links": cluster.cut(())})
    if isinstance(fault, Pause):
        return await _tried({node: cluster.resume(node) for node in fault.nodes})
    states = await _states(cluster)
    return await _tried({node: cluster.restart(node) for node in fault.nodes if states.get(node) != "running"})


async def _heal_all(cluster: Cluster, restart: frozenset[str]) -> Proof:
    problems = await _tried({"the links": cluster.cut(())})
    states = await _states(cluster)
    problems += await _tried({s: cluster.resume(s) for s, state in states.items() if state == "stopped"})
    problems += await _tried({s: cluster.restart(s) for s, state in states.items() if state == "dead" and s in restart})
    running: dict[str, ProcessState] = {
        s: "running" for s in cluster.servers if states.get(s) != "dead" or s in restart
    }

    async def measure() -> Proof:
        return both(await _links_measured(cluster, ()), await _states_measured(cluster, running))

    return await _until_as_ordered(measure, problems)


async def _measured(cluster: Cluster, fault: Fault, healed: bool = False, earlier: Proof | None = None) -> Proof:
    """What the fault's order (or, healed, its undoing) looks like in the data plane and the process table."""
    if isinstance(fault, Partition):
        return await _links_measured(cluster, () if healed else fault.cut, earlier)
    state: ProcessState = "running" if healed else "stopped" if isinstance(fault, Pause) else "dead"
    return await _states_measured(cluster, dict.fromkeys(fault.nodes, state))


async def _links_measured(cluster: Cluster, cut: Collection[Link], earlier: Proof | None = None) -> Proof:
    try:
        beacons = await cluster.observe(WINDOW_S, INTERVAL_MS)
    except CannotInject:  # a backend that cannot touch links has nothing there to prove
        return Proof(INDETERMINATE if cut else AS_ORDERED, wrong=("this backend observes no links",) if cut else ())
    except OSError as problem:
        return Proof(INDETERMINATE, wrong=(f"the links could not be observed: {_told(problem)}",))
    return links_proof(cut, (*cluster.servers, *cluster.clients), beacons, earlier)


async def _states_measured(cluster: Cluster, ordered: Mapping[str, ProcessState]) -> Proof:
    return states_proof(ordered, await _states(cluster))


async def _until_as_ordered(measure: Callable[[], Coroutine[Any, Any, Proof]], problems: Sequence[str]) -> Proof:
    """Measure until it is as ordered, for at most HEAL_PROOF_LIMIT_S; the last proof, with the problems added."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HEAL_PROOF_LIMIT_S
    proof = await measure()
    while proof.verdict != AS_ORDERED and loop.time() < until:
        await asyncio.sleep(_POLL_S)
        proof = await measure()
    return proof if proof.verdict == AS_ORDERED else replace(proof, wrong=(*proof.wrong, *problems))


async def _states(cluster: Cluster) -> dict[str, ProcessState]:
    """The state of every server whose agent answers."""
    answers = await asyncio.gather(*(cluster.state(s) for s in cluster.servers), return_exceptions=True)
    states: dict[str, ProcessState] = {}
    for server, answer in zip(cluster.servers, answers, strict=True):
        if isinstance(answer, BaseException):
            if not isinstance(answer, OSError):
                raise answer
        else:
            states[server] = answer
    return states


async def _each(orders: Iterable[Awaitable[None]]) -> None:
    """All orders at once; raises the first failure after every one has ended."""
    for answer in await asyncio.gather(*orders, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def _tried(orders: Mapping[str, Awaitable[None]]) -> list[str]:
    """All orders at once; the failures in words.  A fault the backend could not do needs no undoing."""
    answers = await asyncio.gather(*orders.values(), return_exceptions=True)
    problems: list[str] = []
    for what, answer in zip(orders, answers, strict=True):
        if isinstance(answer, OSError):
            problems.append(f"{what}: {_told(answer)}")
        elif isinstance(answer, BaseException) and not isinstance(answer, CannotInject):
            raise answer
    return problems


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not be cut short, however often the task that awaits it is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue  # `play` re-raises what broke it off; healing has a limit of its own
    return task.result()


def _told(problem: OSError) -> str:
    return str(problem) or type(problem).__name__
