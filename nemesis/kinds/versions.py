"""Versions as a fault: servers go on in another version of the system while the others keep theirs.

That is a rolling upgrade which stops half-way, and is taken back.  Each server ends in order, keeps its disk, and
starts as the other version; at the heal it returns to the first one.  Only a minority is changed at a time, because
many systems forbid the way back once all servers were upgraded.  A system states its `versions` if both ways are
allowed; without them a run with this kind is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from checkers.record.faults import MAY_DIE, Fault
from nemesis.cluster import PROCESSES, VERSIONS, CannotInject, Cluster
from nemesis.kind import FALSE, TRUE, Deck, Kind, Scene, Target, demands, each_node, readings_of
from nemesis.kinds.processes import SERVER_TARGETS, process_fault, servers_hit

NAME = "version"
_OTHER = "other version"

TARGETS: Mapping[str, Target] = {
    name: replace(SERVER_TARGETS[name], summary=summary, servers_min=3, hold_s=(4.0, 8.0))
    for name, summary in {
        "one": "one server goes on in another version",
        "leader": "the leader goes on in another version",
        "minority": "a minority goes on in another version",
    }.items()
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    """None while another change of versions is under way: a majority keeps the first version."""
    nodes = () if scene.avoid else servers_hit(target, scene)
    fault = process_fault(NAME, target, nodes, "stopped and started in another version, and back at the heal")
    return None if fault is None else replace(fault, settings={MAY_DIE: True})


async def _change(cluster: Cluster, node: str, *, other: bool) -> None:
    """Restart a server in this version unless it runs in it."""
    versions = cluster.versions
    if versions is None:
        raise CannotInject(cluster.lacks(VERSIONS))
    wanted = versions.names[int(other)]
    if versions.started.get(node) != wanted:
        versions.ordered[node] = wanted
        try:
            await cluster.stop(node)
        except OSError:
            await cluster.kill(node)
    if await cluster.state(node) == "dead":
        await cluster.restart(node)


async def _upgrade(cluster: Cluster, node: str, fault: Fault) -> None:
    await _change(cluster, node, other=True)


async def _return(cluster: Cluster, node: str, fault: Fault) -> None:
    await _change(cluster, node, other=False)


async def _look(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    versions = cluster.versions
    return {_OTHER: float(versions is not None and versions.started.get(node) == versions.names[1])}


KIND = Kind(
    name=NAME,
    summary="servers go on in another version of the system, and return to theirs",
    targets=TARGETS,
    deck=Deck(opening=(("one", 7.0), ("leader", 6.0)), rest=tuple(TARGETS)),
    needs=frozenset({VERSIONS, PROCESSES}),
    resolve=_resolve,
    inject=each_node(_upgrade),
    heal=each_node(_return),
    orders=demands(
        "running", "running", values=lambda fault: {_OTHER: TRUE}, healed_values=lambda fault: {_OTHER: FALSE}
    ),
    measure=readings_of(_look),
)
