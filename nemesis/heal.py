"""Heals everything: the last act of every schedule, and the first thing that happens when one is broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from itertools import permutations

from checkers.record.faults import Achieved, Card, Condition, Fault, FaultRecord, Ordered, Proof
from nemesis.catalog import KINDS
from nemesis.cluster import LINKS, CannotInject, Cluster
from nemesis.measure import AS_ORDERED, INDETERMINATE, WINDOW_S, Meter, proof_of, read_states, words_of
from nemesis.overlapping_faults import Field

HEAL_PROOF_LIMIT_S = 5.0
"""How long a heal may take to show: address resolution and a restarted process need a moment."""
HEAL_ALL_LIMIT_S = 40.0
POLL_S = 0.2


async def heal_all(cluster: Cluster, restart: Collection[str] = (), *, measured: bool = True) -> Proof:
    """Make every link whole, resume every stopped server, restart the dead ones in `restart`, and measure all of it.

    Dead servers that are not in `restart` died unexpectedly: they stay dead, for the checkers to see.  Never raises for
    what nodes and agents do: what could not be healed stands in `Proof.wrong`, and the verdict is not "as ordered".
    measured: False where the nodes are removed next; then the proof is indeterminate.
    """
    try:
        async with asyncio.timeout(HEAL_ALL_LIMIT_S):
            return await _heal_all(Field(cluster), frozenset(restart), measured)
    except TimeoutError:
        return Proof(INDETERMINATE, wrong=(f"healing took longer than {HEAL_ALL_LIMIT_S:.0f} s",))


async def tried(order: Awaitable[None]) -> str:
    """Carry an order out; why it failed, in words.  A fault the backend could not do needs no undoing."""
    try:
        await order
    except OSError as problem:
        return words_of(problem)
    except CannotInject:
        return ""
    return ""


async def _heal_all(field: Field, restart: frozenset[str], measured: bool) -> Proof:
    cluster = field.cluster
    problems = [await tried(field.clear())]
    states = await read_states(cluster, cluster.servers)
    stopped = [s for s, state in states.items() if state == "stopped"]
    dead = [s for s, state in states.items() if state == "dead" and s in restart]
    orders = {s: cluster.resume(s) for s in stopped} | {s: cluster.restart(s) for s in dead}
    answers = await asyncio.gather(*(tried(order) for order in orders.values()))
    problems += [f"{server}: {words}" for server, words in zip(orders, answers, strict=True) if words]
    if not measured:
        return Proof(INDETERMINATE, wrong=("the run was broken off, so the heal was not measured",))
    running = {s: "running" for s in cluster.servers if states.get(s) != "dead" or s in restart}
    nodes = (*cluster.servers, *cluster.clients)
    links = frozenset() if cluster.lacks(LINKS) else frozenset(permutations(nodes, 2))
    everything = Fault("", "everything", cut=links)
    return await _until_whole(field, everything, Ordered(healed=Condition(states=running)), problems)


async def _until_whole(field: Field, everything: Fault, ordered: Ordered, problems: Sequence[str]) -> Proof:
    """Measure until all is as ordered, for at most HEAL_PROOF_LIMIT_S; the last proof, with the problems added."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HEAL_PROOF_LIMIT_S
    meter = Meter(field, next(iter(KINDS.values())), everything, ordered, lambda: int(loop.time() * 1e9))
    record = FaultRecord(
        Card(0, "", "", 0.0, 0.0), Achieved.INDETERMINATE, "", cut=tuple(everything.cut), ordered=ordered
    )
    while True:
        record = replace(record, measured=(await meter.take("heal", WINDOW_S),))
        proof = proof_of(record, "heal") or Proof(INDETERMINATE)
        if proof.verdict == AS_ORDERED:
            return proof
        if loop.time() >= until:
            return replace(proof, wrong=(*proof.wrong, *(p for p in problems if p)))
        await asyncio.sleep(POLL_S)
