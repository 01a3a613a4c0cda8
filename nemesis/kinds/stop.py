"""Graceful stops: server processes are ordered to end (SIGTERM) and are started again at the heal.

A server that ends in order may hand over its leadership, flush its files and close its connections.  This is what
operators do all day, and it runs code that no crash runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from nemesis.cluster import PROCESSES
from nemesis.faults import Fault
from nemesis.kind import Deck, Figure, Kind, Scene, Step
from nemesis.kinds.kill import restart_the_dead
from nemesis.processes import LEADER_HOLD_S, SERVER_TARGETS, process_fault, processes_in, servers_hit

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "stop"


def _resolve(target: str, scene: Scene) -> Fault | None:
    return process_fault(NAME, target, servers_hit(target, scene), "stopped, started again at the heal")


async def _inject(field: Field, fault: Fault) -> None:
    await field.each(fault.nodes, field.cluster.stop)


def _leader_again(rng: Random, servers: int) -> Sequence[Step]:
    return [Step("leader", 4.5 * i, 1.5) for i in range(4)]


KIND = Kind(
    name=NAME,
    summary="server processes end in order (SIGTERM) and are started again",
    targets=SERVER_TARGETS,
    deck=Deck(
        opening=(("leader", 6.0), ("minority", 5.0), ("leader", LEADER_HOLD_S[0])),
        rest=("one", "minority", "majority", "all", "leader", "leader-again"),
        figures={"leader-again": Figure("the leader of the moment is stopped every 4.5 s", _leader_again, 3)},
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=processes_in("dead"),
    heal=restart_the_dead,
)
