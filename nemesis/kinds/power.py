"""Power losses: server processes die, and their disks keep only what was fsynced.

The network of the nodes is cut first.  A killed process would otherwise send its peers a reset, which a machine without
power cannot do.  Of what was not fsynced the disk keeps nothing, a torn last write, any subset of the writes, or what
was older than 5 s; a real disk may do each of these.  What was fsynced stays.  So a system that fsyncs before it
acknowledges loses nothing, even if all servers lose their power at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Condition, Fault, Ordered
from nemesis.cluster import DISK, LINKS, PROCESSES, CannotInject, Cluster, Link
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.kinds.disk import USES_DISK
from nemesis.kinds.kill import restart_the_dead
from nemesis.kinds.processes import (
    LEADER_HOLD_S,
    NEXT_LEADER_SERVERS_MIN,
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "power"

LOSE, TEAR, REORDER, RECENT = "lose", "tear", "reorder", "recent"
AT_FSYNC = "at-fsync"
"""In the name of a target: the power is lost while an fsync is held."""
_WORDS = {
    LOSE: "lost power: what was not fsynced is gone",
    TEAR: "lost power: the last write is torn, and nothing else that was not fsynced is left out",
    REORDER: "lost power: of what was not fsynced the disk kept some writes and not others",
    RECENT: "lost power: what was changed in the last 5 s and not fsynced is gone",
}
AT_FSYNC_S_MAX = 4.0
"""How long a power loss that is aimed at an fsync waits for it; then it is skipped."""
_LOOK_S = 0.01

_KEPT: Mapping[str, str] = {
    **dict.fromkeys(SERVER_TARGETS, LOSE),
    "leader-at-fsync": LOSE,
    "leader-at-fsync-torn": TEAR,
    "leader-at-fsync-reordered": REORDER,
    "one-at-fsync": LOSE,
    "one-at-fsync-torn": TEAR,
    "one-at-fsync-reordered": REORDER,
    "leader-torn": TEAR,
    "all-torn": TEAR,
    "all-reordered": REORDER,
    "one-recent": RECENT,
    "all-recent": RECENT,
}

_TARGETS: Mapping[str, Target] = {
    **SERVER_TARGETS,
    "leader-at-fsync": replace(SERVER_TARGETS["leader"], summary="the leader, while it fsyncs"),
    "leader-at-fsync-torn": replace(
        SERVER_TARGETS["leader"], summary="the leader, while it fsyncs; its last write is torn"
    ),
    "leader-at-fsync-reordered": replace(
        SERVER_TARGETS["leader"], summary="the leader, while it fsyncs; its disk kept some writes and not others"
    ),
    "one-at-fsync": replace(SERVER_TARGETS["one"], summary="one server, while it fsyncs"),
    "one-at-fsync-torn": replace(SERVER_TARGETS["one"], summary="one server, while it fsyncs; its last write is torn"),
    "one-at-fsync-reordered": replace(
        SERVER_TARGETS["one"], summary="one server, while it fsyncs; its disk kept some writes and not others"
    ),
    "leader-torn": replace(SERVER_TARGETS["leader"], summary="the leader; its last write is torn"),
    "all-torn": Target("every server at once; the last writes are torn"),
    "all-reordered": Target("every server at once; the disks kept some writes and not others"),
    "one-recent": replace(SERVER_TARGETS["one"], summary="one server; its disk kept what was older than 5 s"),
    "all-recent": Target("every server at once; the disks kept what was older than 5 s"),
}
TARGETS = {name: replace(target, at_fsync=AT_FSYNC in name) for name, target in _TARGETS.items()}


def _resolve(target: str, scene: Scene) -> Fault | None:
    whom, _, _ = target.partition("-")
    kept = _KEPT[target]
    fault = process_fault(NAME, whom, servers_hit(whom, scene), _WORDS[kept])
    if fault is None:
        return None
    settings = {"kept": kept, "seed": scene.rng.getrandbits(32), "at_fsync": scene.rng.randint(1, 4)}
    if AT_FSYNC not in target:
        settings["at_fsync"] = 0
    return replace(fault, cut=_links_of(fault.nodes, scene), settings=settings)


def _links_of(nodes: tuple[str, ...], scene: Scene) -> frozenset[Link]:
    """Every link of these nodes, both ways."""
    everyone = (*scene.servers, *scene.clients)
    pairs = {(a, b) for a, b in product(nodes, everyone) if a != b}
    return frozenset(pairs | {(b, a) for a, b in pairs})


async def _inject(field: Field, fault: Fault) -> None:
    cluster, kept, seed = field.cluster, str(fault.settings["kept"]), int(fault.settings["seed"])
    if nth := int(fault.settings["at_fsync"]):
        await field.each(fault.nodes, lambda node: _await_fsync(cluster, node, nth))
    await field.cut(fault)
    await field.each(fault.nodes, lambda node: cluster.lose_power(node, kept, seed))


async def _await_fsync(cluster: Cluster, node: str, nth: int) -> None:
    """Until the node's n-th fsync from now is held.  Raises CannotInject if it does not come: an idle node fsyncs
    nothing, and a power loss at any other moment is a different fault."""
    import asyncio  # here, so that lists and refusals, which only need the names of the kinds, start at once

    await cluster.arm_disk(node, "fsync", nth)
    for _ in range(round(AT_FSYNC_S_MAX / _LOOK_S)):
        if await cluster.disk_reached(node):
            return
        await asyncio.sleep(_LOOK_S)
    await _disarm(cluster, node)
    few = "nothing" if nth == 1 else f"less than {nth} times"
    raise CannotInject(f"{node} fsynced {few} for {AT_FSYNC_S_MAX:g} s")


async def _disarm(cluster: Cluster, node: str) -> None:
    """Hold no fsync of this node any longer."""
    await cluster.arm_disk(node, "fsync", 0)


async def _heal(field: Field, fault: Fault) -> None:
    await field.uncut(fault)
    try:
        if int(fault.settings["at_fsync"]):  # the order may have failed between the arming and the power loss
            await field.each(fault.nodes, lambda node: _disarm(field.cluster, node))
    finally:
        await restart_the_dead(field, fault)


def _orders(fault: Fault) -> Ordered:
    values = {f"{node}: fsynced bytes kept": (1.0, 1.0) for node in fault.nodes}
    values |= {f"{node}: other bytes kept": (0.0, 0.0) for node in fault.nodes}
    values |= {f"{node}: {USES_DISK}": (1.0, 1.0) for node in fault.nodes}
    held = Condition(states=dict.fromkeys(fault.nodes, "dead"), values=values)
    return Ordered(held, Condition(states=dict.fromkeys(fault.nodes, "running")))


async def _measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for node in fault.nodes:
        loss = await cluster.power_loss(node)
        if loss and loss["seed"] == fault.settings["seed"]:  # an earlier power loss proves nothing of this one
            values[f"{node}: fsynced bytes kept"] = float(loss["fsynced_kept"])
            values[f"{node}: other bytes kept"] = float(loss["not_fsynced_kept"])
            values[f"{node}: {USES_DISK}"] = float(loss["used"])
            values[f"{node}: changes taken back"] = float(loss["undone"])
    return values


def _voter_at_fsync(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Without a leader nothing is appended: the next fsyncs of a server are those of its vote."""
    return [FigureStep("leader", 0.0, 8.0), FigureStep("one-at-fsync", 0.7, 6.0)]


KIND = Kind(
    name=NAME,
    summary="servers lose their power: they die, and their disks keep only what was fsynced",
    targets=TARGETS,
    deck=Deck(
        opening=(
            ("leader", LEADER_HOLD_S[1]),
            ("all", 3.0),
            ("voter-at-fsync", 8.0),
            ("leader-at-fsync-reordered", LEADER_HOLD_S[0]),
            ("one-at-fsync-torn", 3.0),
        ),
        opening_without_leaders=(("one-at-fsync-torn", 3.0), ("one-at-fsync-reordered", 3.0), ("all", 3.0)),
        rest=tuple(TARGETS),
        figures={
            "voter-at-fsync": Figure(
                "the leader loses its power, and another server at one of its next fsyncs, while the rest elects",
                _voter_at_fsync,
                NEXT_LEADER_SERVERS_MIN,
            )
        },
    ),
    needs=frozenset({DISK, LINKS, PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=_orders,
    heal=_heal,
    measure=_measure,
)
