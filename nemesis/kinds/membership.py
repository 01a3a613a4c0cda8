"""Changes of the members: a server is removed from the cluster, and comes back as a new member.

This is what operators do with a machine that broke.  The system itself agrees on every change, through its own
interface (`system_under_test.subject.Members`).  It also decides whether the server comes back with an empty disk, as
in etcd, or with the disk that it had, as in the bundled KRaft.  Nothing may be lost in either case.
A removed server may end itself: that is right.

A card waits until the change before it is complete.  No clock knows how long the system takes to bring a server up to
date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from checkers.record.faults import CHANGES_MEMBERS, MAY_DIE, Condition, Fault, Ordered
from nemesis.cluster import MEMBERS, PROCESSES, Cluster
from nemesis.kind import Deck, Kind, Scene, Target
from nemesis.kinds.kill import restart_the_dead
from nemesis.process_faults import SERVER_TARGETS, process_fault, servers_hit

if TYPE_CHECKING:
    from nemesis.overlapping_faults import Field

NAME = "membership"

_SERVERS_MIN = 3
"""With two servers the other one alone would have to agree."""

TARGETS: Mapping[str, Target] = {
    "leader": replace(
        SERVER_TARGETS["leader"], summary="the leader is removed while it runs", servers_min=_SERVERS_MIN
    ),
    "one": Target("one server is removed while it runs", servers_min=_SERVERS_MIN),
    "one-dead": Target("one server is killed and removed", servers_min=_SERVERS_MIN),
    "leader-dead": replace(
        SERVER_TARGETS["leader"], summary="the leader is killed and removed", servers_min=_SERVERS_MIN
    ),
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    """None while another change is under way: two at once can leave too few members that have been started."""
    if scene.avoid:
        return None
    whom, _, how = target.partition("-")
    words = "killed and removed" if how else "removed while it runs"
    fault = process_fault(NAME, whom, servers_hit(whom, scene), f"{words}, back as a new member at the heal")
    settings = {"killed": bool(how), MAY_DIE: True, CHANGES_MEMBERS: True}
    return None if fault is None else replace(fault, settings=settings)


async def _inject(field: Field, fault: Fault) -> None:
    if fault.settings["killed"]:
        await field.each(fault.nodes, field.cluster.kill)
    await field.each(fault.nodes, field.cluster.remove_member)


async def _heal(field: Field, fault: Fault) -> None:
    """A server that is a member and runs is left alone: a heal may be called twice.  Any other starts anew."""
    cluster = field.cluster

    async def bring_back(node: str) -> None:
        if node in await cluster.members() and await cluster.state(node) == "running":
            return
        await cluster.kill(node)
        await cluster.add_member(node)

    await field.each(fault.nodes, bring_back)
    await restart_the_dead(field, fault)


def _orders(fault: Fault) -> Ordered:
    removed = {f"{node}: is a member": (0.0, 0.0) for node in fault.nodes}
    back = {f"{node}: is a member": (1.0, 1.0) for node in fault.nodes}
    held = dict.fromkeys(fault.nodes, "dead") if fault.settings["killed"] else {}
    return Ordered(Condition(held, removed), Condition(dict.fromkeys(fault.nodes, "running"), back))


async def _measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
    members = await cluster.members()
    return {f"{node}: is a member": float(node in members) for node in fault.nodes}


async def _ready(cluster: Cluster) -> str:
    """Every server must be a member again and run: with one less, a change could leave too few that agree."""
    missing = sorted(set(cluster.servers) - set(await cluster.members()))
    if missing:
        return f"{', '.join(missing)} had not come back as a member"
    states = {server: await cluster.state(server) for server in cluster.servers}
    down = sorted(server for server, state in states.items() if state != "running")
    return f"{', '.join(down)} did not run" if down else ""


KIND = Kind(
    name=NAME,
    summary="servers are removed from the cluster, and come back as new members",
    targets=TARGETS,
    deck=Deck(opening=(("leader", 6.0), ("one-dead", 5.0), ("leader-dead", 6.0)), rest=tuple(TARGETS)),
    needs=frozenset({MEMBERS, PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=_orders,
    heal=_heal,
    measure=_measure,
    ready=_ready,
)
