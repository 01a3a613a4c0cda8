"""Versions as faults: some servers run the next version of the system, and the others keep their version.

version   A server runs the next version, and returns to its own version at the heal, like a rolling upgrade that stops
          half-way and is reverted.  Only a minority is changed at a time, because many systems cannot be downgraded
          once all servers were upgraded.
upgrade   A server is down for a moment, starts in the next version, and keeps that version.  The figure of this kind
          upgrades one server after another, round by round, until all servers run the last version; then the harness
          lets the system raise its feature levels (`System.upgraded`).

Each server shuts down cleanly and keeps its disk.  A system lists its `versions`; a run with these kinds is refused for
a system without such a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from checkers.record.faults import MAY_DIE, Fault
from nemesis import kind
from nemesis.cluster import PROCESSES, VERSIONS, CannotInject, Cluster
from nemesis.kinds import processes
from system_under_test.subject import ServerVersions

_OTHER, _NEXT, _RAISED = "other version", "ordered version", "levels raised where due"
_APART_S, _DOWN_S = 12.0, 5.0
"""Seconds between the upgrades of two servers, and seconds that a server is down."""
_READY_S_MAX, _LOOK_S = 20.0, 0.2
"""Maximum seconds to wait until the servers are ready for a replayed card or for raised feature levels, and seconds
between two looks.
"""

TARGETS: Mapping[str, kind.Target] = {
    name: replace(processes.SERVER_TARGETS[name], summary=summary, servers_min=3, hold_s=(4.0, 8.0))
    for name, summary in {
        "one": "one server goes on in another version",
        "leader": "the leader goes on in another version",
        "minority": "a minority goes on in another version",
    }.items()
}


def _versions_of(cluster: Cluster) -> ServerVersions:
    if cluster.versions is None:
        raise CannotInject(cluster.lacks(VERSIONS))
    return cluster.versions


def _following(versions: ServerVersions, node: str) -> str:
    if (following := versions.following(node)) is None:
        raise CannotInject(f"{node} runs {versions.names[-1]}, the last version")
    return following


async def _end(cluster: Cluster, node: str) -> None:
    try:
        await cluster.stop(node)
    except OSError:
        await cluster.kill(node)


# ---- a change of version that is reverted --------------------------------------------------------------------------


def _resolve(target: str, scene: kind.Scene) -> Fault | None:
    """Return None while another change of versions is in progress, because a majority must keep its version."""
    nodes = () if scene.avoid else processes.servers_hit(target, scene)
    fault = processes.process_fault(
        "version", target, nodes, "stopped and started in another version, and back at the heal"
    )
    return None if fault is None else replace(fault, settings={MAY_DIE: True})


async def _go(cluster: Cluster, node: str, fault: Fault) -> None:
    versions = _versions_of(cluster)
    if node not in versions.left:
        following = _following(versions, node)
        versions.left[node] = versions.of(node)
        versions.ordered[node] = following
        await _end(cluster, node)
    if await cluster.state(node) == "dead":
        await cluster.restart(node)


async def _return(cluster: Cluster, node: str, fault: Fault) -> None:
    versions = _versions_of(cluster)
    if node in versions.left:
        versions.ordered[node] = versions.left.pop(node)
        if versions.of(node) != versions.ordered[node]:
            await _end(cluster, node)
    if await cluster.state(node) == "dead":
        await cluster.restart(node)


async def _look(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    versions = _versions_of(cluster)
    return {_OTHER: float(versions.of(node) != versions.left.get(node, versions.ordered.get(node)))}


KIND = kind.Kind(
    name="version",
    summary="servers restart in another version of the system, and later in their own version",
    targets=TARGETS,
    deck=kind.Deck(opening=(("one", 7.0), ("leader", 6.0)), rest=tuple(TARGETS)),
    needs=frozenset({VERSIONS, PROCESSES}),
    resolve=_resolve,
    inject=kind.each_node(_go),
    heal=kind.each_node(_return),
    orders=kind.demands(
        "running", "running", values=lambda fault: {_OTHER: kind.TRUE}, healed_values=lambda fault: {_OTHER: kind.FALSE}
    ),
    measure=kind.readings_of(_look),
)


# ---- a change of version that stays --------------------------------------------------------------------------------


def _resolve_upgrade(target: str, scene: kind.Scene) -> Fault | None:
    nodes = () if scene.avoid else processes.nth_server(target, scene)
    return processes.process_fault("upgrade", "one", nodes, "stopped, and started in the next version at the heal")


async def _missing(cluster: Cluster) -> str:
    """Return why no server may be upgraded now; "" if a server may."""
    versions = _versions_of(cluster)
    if versions.left:
        return f"{', '.join(sorted(versions.left))} had gone on in another version"
    return await versions.ready()


async def _still_missing(cluster: Cluster) -> str:
    from asyncio import sleep  # imported here, because listings and refusals do not need it

    for _ in range(round(_READY_S_MAX / _LOOK_S)):
        if not (missing := await _missing(cluster)):
            break
        await sleep(_LOOK_S)
    return missing


async def _take_down(cluster: Cluster, node: str, fault: Fault) -> None:
    versions = _versions_of(cluster)
    if versions.ordered.get(node, versions.of(node)) == versions.of(node):
        following = _following(versions, node)
        if missing := await _still_missing(cluster):
            raise CannotInject(f"no server could be spared: {missing}")
        versions.ordered[node] = following
    await _end(cluster, node)


async def _bring_up(cluster: Cluster, node: str, fault: Fault) -> None:
    """Start the server.  Once all servers run the last version, let the system raise its feature levels.  Raises
    OSError.
    """
    versions = _versions_of(cluster)
    if await cluster.state(node) == "dead":
        await cluster.restart(node)
    if not versions.raised and _all_upgraded(cluster):
        await _still_missing(cluster)
        await versions.raise_levels()
        versions.raised = True


def _all_upgraded(cluster: Cluster) -> bool:
    versions = _versions_of(cluster)
    return not versions.left and {versions.of(server) for server in cluster.servers} == {versions.names[-1]}


async def _look_at_upgrade(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    versions = _versions_of(cluster)
    as_ordered = versions.of(node) == versions.ordered.get(node)
    return {_NEXT: float(as_ordered), _RAISED: float(versions.raised or not _all_upgraded(cluster))}


_ROLLING = "rolling-upgrade"
UPGRADE = kind.Kind(
    name="upgrade",
    summary="one server after another is stopped, and restarts in the next version of the system",
    targets=processes.EACH_SERVER,
    deck=kind.Deck(
        opening=((_ROLLING, _APART_S),),
        rest=(_ROLLING,),
        figures={
            _ROLLING: kind.Figure(
                f"one server after another, every {_APART_S:g} s",
                lambda rng, servers: processes.one_after_another(rng, servers, _APART_S, _DOWN_S),
            )
        },
    ),
    needs=frozenset({VERSIONS, PROCESSES}),
    resolve=_resolve_upgrade,
    inject=kind.each_node(_take_down),
    heal=kind.each_node(_bring_up),
    orders=kind.demands("dead", "running", healed_values=lambda fault: {_NEXT: kind.TRUE, _RAISED: kind.TRUE}),
    measure=kind.readings_of(_look_at_upgrade),
    ready=_missing,
)
