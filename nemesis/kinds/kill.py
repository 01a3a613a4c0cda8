"""Kills: server processes die at once (SIGKILL) and are started again at the heal.

A killed process loses its memory and its connections; its peers see them reset.  What it wrote to its files survives,
fsynced or not: the kernel still holds it.  (Power loss is another kind.)
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from nemesis.cluster import PROCESSES
from nemesis.faults import Fault
from nemesis.kind import Deck, Figure, Kind, Scene, Step
from nemesis.processes import LEADER_HOLD_S, SERVER_TARGETS, process_fault, processes_in, servers_hit

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "kill"


def _resolve(target: str, scene: Scene) -> Fault | None:
    return process_fault(NAME, target, servers_hit(target, scene), "killed, started again at the heal")


async def _inject(field: Field, fault: Fault) -> None:
    await field.each(fault.nodes, field.cluster.kill)


async def restart_the_dead(field: Field, fault: Fault) -> None:
    """Start the fault's nodes again; one that runs already is left alone."""

    async def restart(node: str) -> None:
        if await field.cluster.state(node) == "dead":
            await field.cluster.restart(node)

    await field.each(fault.nodes, restart)


def _leader_again(rng: Random, servers: int) -> Sequence[Step]:
    return [Step("leader", 4.5 * i, 1.5) for i in range(4)]


def _restart_storm(rng: Random, servers: int) -> Sequence[Step]:
    return [Step("one", 2.0 * i, rng.uniform(0.2, 1.0), again=i > 0) for i in range(6)]


KIND = Kind(
    name=NAME,
    summary="server processes die (kill -9) and are started again",
    targets=SERVER_TARGETS,
    deck=Deck(
        opening=(("leader", 10.0), ("minority", 5.0), ("leader", LEADER_HOLD_S[0])),
        rest=("one", "minority", "majority", "all", "leader", "leader-again", "restart-storm"),
        figures={
            "leader-again": Figure(
                "the leader of the moment dies every 4.5 s, while the next election is still warm", _leader_again, 3
            ),
            "restart-storm": Figure("one server dies six times in 12 s", _restart_storm),
        },
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=processes_in("dead"),
    heal=restart_the_dead,
)
