"""Membership changes: a server is removed from the cluster, and returns as a new member.

Operators replace a broken machine in this way.  The harness requests every change through the system's own interface
(`system_under_test.subject.Members`).  It depends on the system whether a server returns with an empty disk, as in
etcd, or with its old disk, as in the bundled KRaft, unless the card wipes the disk.  No data may be lost in any case.
A removed server may correctly exit.

Two cards change several members in sequence: `all-but-one` shrinks the cluster to one member and restores its size at
the heal; `each-wiped` replaces every server by one with an empty disk.

A card waits until the previous change is complete.  A fixed wait would not suffice, because the time that a new member
needs to catch up is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from checkers.record.faults import CHANGES_MEMBERS, MAY_DIE, WIPES_DISKS, Condition, Fault, Ordered
from nemesis.cluster import MEMBERS, PROCESSES, CannotInject, Cluster
from nemesis.kind import Deck, Kind, Scene, Target
from nemesis.kinds.processes import (
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.measure import Field

NAME = "membership"

_SERVERS_MIN = 3
"""Minimum number of servers: in a cluster of two, only one server would remain to agree to a change."""

TARGETS: Mapping[str, Target] = {
    name: replace(SERVER_TARGETS[whom], summary=summary, servers_min=_SERVERS_MIN)
    for name, whom, summary in (
        ("leader", "leader", "the leader is removed while it runs"),
        ("one", "one", "one server is removed while it runs"),
        ("one-dead", "one", "one server is killed and removed"),
        ("leader-dead", "leader", "the leader is killed and removed"),
        ("one-wiped", "one", "one server is killed, removed, and comes back with an empty disk"),
        ("leader-wiped", "leader", "the leader is killed, removed, and comes back with an empty disk"),
    )
} | {
    "each-wiped": Target(
        "every server in turn is killed, removed, and comes back with an empty disk; the last server at the heal",
        servers_min=_SERVERS_MIN,
        hold_s=(2.0, 3.0),
    ),
    "all-but-one": Target(
        "all servers but one are removed in turn while they run, and come back in turn at the heal",
        servers_min=_SERVERS_MIN,
    ),
}
_WORDS = {
    "": "removed while it runs, back as a new member at the heal",
    "dead": "killed and removed, back as a new member at the heal",
    "wiped": "killed and removed, back with an empty disk at the heal",
}
_OUT = "out"
"""Setting: nodes that stay removed until the heal.  The other nodes of the fault joined again before that."""

_JOINED_S_MAX = 12.0
_LEADS_S_MAX = 12.0
"""Maximum seconds to wait for a leader before a server is added again, because another fault may leave the cluster
without a leader.
"""
_LOOK_S = 0.2


class MemberSettings(TypedDict):
    killed: bool


def _resolve(target: str, scene: Scene) -> Fault | None:
    """Return None while another change is in progress: two changes at once can leave too few started members."""
    if scene.avoid:
        return None
    if target in ("each-wiped", "all-but-one"):
        fault = _of_many(target, scene)
    else:
        whom, _, how = target.partition("-")
        fault = process_fault(NAME, whom, servers_hit(whom, scene), _WORDS[how])
        settings = {"killed": bool(how), WIPES_DISKS: how == "wiped"}
        fault = None if fault is None else replace(fault, settings={**settings, _OUT: list(fault.nodes)})
    common = {MAY_DIE: True, CHANGES_MEMBERS: True}
    return None if fault is None else replace(fault, settings={**fault.settings, **common})


def _of_many(target: str, scene: Scene) -> Fault | None:
    order = list(servers_hit("all", scene))
    scene.rng.shuffle(order)
    if not order:
        return None
    if target == "all-but-one":
        settings = {"killed": False, WIPES_DISKS: False, _OUT: order[1:]}
        return Fault(
            NAME, f"all but {order[0]} removed in turn, back in turn at the heal", tuple(order[1:]), settings=settings
        )
    settings = {"killed": True, WIPES_DISKS: True, _OUT: order[-1:]}
    words = f"{', '.join(order)} in turn killed, removed and back with an empty disk, {order[-1]} at the heal"
    return Fault(NAME, words, tuple(order), settings=settings)


async def _inject(field: Field, fault: Fault) -> None:
    """Remove the nodes from the cluster.  Raises CannotInject if no leader answers before the first change; then the
    members are certainly unchanged.
    """
    cluster = field.cluster
    for node in fault.nodes:
        if fault.settings["killed"]:
            await cluster.kill(node)
        if node == fault.nodes[0]:
            try:
                await _members_by_a_leader(cluster)
            except OSError as nobody:
                raise CannotInject(f"no leader answered to remove {node}: {nobody}") from nobody
        await cluster.remove_member(node)
        if node not in _out(fault):
            await _bring_back(cluster, fault, node)


async def _heal(field: Field, fault: Fault) -> None:
    for node in fault.nodes:
        await _bring_back(field.cluster, fault, node)


async def _bring_back(cluster: Cluster, fault: Fault, node: str) -> None:
    """Add the server, and return once it is a member and runs.  Does nothing if the server already is a member and
    runs, because a heal may be called twice.

    Raises OSError if the server does not become a member in time.
    """
    if node in await _members_by_a_leader(cluster) and await cluster.state(node) == "running":
        return
    await cluster.kill(node)
    await cluster.add_member(node, wiped=fault.settings.get(WIPES_DISKS, False))
    if await cluster.state(node) == "dead":
        await cluster.restart(node)
    if len(fault.nodes) == 1:
        return  # the next card waits until the change is complete (`_ready`)
    from asyncio import sleep  # imported here, because listings and refusals do not need it

    for _ in range(round(_JOINED_S_MAX / _LOOK_S)):
        if await _has_joined(cluster, node):
            return
        await sleep(_LOOK_S)
    raise OSError(f"{node} did not become a member within {_JOINED_S_MAX:.0f} s")


async def _members_by_a_leader(cluster: Cluster) -> frozenset[str]:
    """Return the members that the leader reports.  Raises OSError if no leader is elected in time."""
    from asyncio import sleep  # imported here, because listings and refusals do not need it

    for _ in range(round(_LEADS_S_MAX / _LOOK_S)):
        try:
            return frozenset(await cluster.members())
        except OSError:
            await sleep(_LOOK_S)
    return frozenset(await cluster.members())


async def _has_joined(cluster: Cluster, node: str) -> bool:
    return node in await cluster.members() and await cluster.state(node) == "running"


def _out(fault: Fault) -> tuple[str, ...]:
    return tuple(fault.settings.get(_OUT, fault.nodes))


def _orders(fault: Fault) -> Ordered:
    removed = {f"{node}: is a member": (0.0, 0.0) for node in _out(fault)}
    back = {f"{node}: is a member": (1.0, 1.0) for node in fault.nodes}
    held = dict.fromkeys(_out(fault), "dead") if fault.settings["killed"] else {}
    return Ordered(Condition(held, removed), Condition(dict.fromkeys(fault.nodes, "running"), back))


async def _measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
    members = await cluster.members()
    return {f"{node}: is a member": float(node in members) for node in fault.nodes}


async def _ready(cluster: Cluster) -> str:
    """Return which servers are not members or do not run; "" if all are and do.  With one server missing, another
    change could leave too few servers to agree.
    """
    missing = sorted(set(cluster.servers) - set(await cluster.members()))
    if missing:
        return f"{', '.join(missing)} had not come back as a member"
    states = {server: await cluster.state(server) for server in cluster.servers}
    down = sorted(server for server, state in states.items() if state != "running")
    return f"{', '.join(down)} did not run" if down else ""


KIND = Kind(
    name=NAME,
    summary="servers are removed from the cluster, and later added as new members",
    targets=TARGETS,
    deck=Deck(opening=(("leader-wiped", 6.0), ("leader", 6.0), ("one-dead", 5.0)), rest=tuple(TARGETS)),
    needs=frozenset({MEMBERS, PROCESSES}),
    resolve=_resolve,
    settings=MemberSettings,
    inject=_inject,
    orders=_orders,
    heal=_heal,
    measure=_measure,
    ready=_ready,
)
