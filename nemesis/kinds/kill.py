"""Kills: server processes die at once (SIGKILL) and are started again at the heal.

A killed process loses its memory and its connections; its peers see them reset.  What it wrote to its files survives,
fsynced or not: the kernel still holds it.  (Power loss is another kind.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Fault
from nemesis.cluster import PROCESSES, CannotInject
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.kinds.processes import (
    NEXT_LEADER_SERVERS_MIN,
    SERVER_TARGETS,
    next_leader_too,
    process_fault,
    processes_in,
    servers_hit,
    while_electing,
)

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "kill"


AT_WRITE_S_MAX = 2.0
"""How long a kill that is aimed at a write waits for one; then it is skipped."""

TARGETS: Mapping[str, Target] = {
    **SERVER_TARGETS,
    "leader-at-write": replace(SERVER_TARGETS["leader"], summary="the leader, at the moment of a write"),
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    whom, _, when = target.partition("-")
    words = "killed at the moment of a write" if when else "killed"
    fault = process_fault(NAME, whom, servers_hit(whom, scene), f"{words}, started again at the heal")
    return replace(fault, settings={"at_write": True}) if fault and when else fault


async def _inject(field: Field, fault: Fault) -> None:
    at_write = fault.settings.get("at_write") is True
    await field.each(fault.nodes, lambda node: _kill_at_write(field, node) if at_write else field.cluster.kill(node))


async def _kill_at_write(field: Field, node: str) -> None:
    if not await field.cluster.kill_at_write(node, AT_WRITE_S_MAX):
        raise CannotInject(f"{node} wrote nothing for {AT_WRITE_S_MAX:g} s")


async def restart_the_dead(field: Field, fault: Fault) -> None:
    """Start the fault's nodes again; one that runs already is left alone."""

    async def restart(node: str) -> None:
        if await field.cluster.state(node) == "dead":
            await field.cluster.restart(node)

    await field.each(fault.nodes, restart)


def _leader_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("leader", 4.5 * i, 1.5) for i in range(4)]


def _restart_storm(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("one", 2.0 * i, rng.uniform(0.2, 1.0), again=i > 0) for i in range(6)]


FIGURES = {
    "while-electing": Figure(
        "the leader is hit, and another server while the others elect",
        while_electing("leader", "one"),
        NEXT_LEADER_SERVERS_MIN,
    ),
    "leader-again": Figure(
        "the leader of the moment dies every 4.5 s, while the next election is still warm", _leader_again, 3
    ),
    "next-leader-too": Figure(
        "the leader dies, and its successor as soon as it leads", next_leader_too, NEXT_LEADER_SERVERS_MIN
    ),
    "restart-storm": Figure("one server dies six times in 12 s", _restart_storm),
}

KIND = Kind(
    name=NAME,
    summary="server processes die (kill -9) and are started again",
    targets=TARGETS,
    deck=Deck(
        opening=(("leader", 10.0), ("next-leader-too", 9.0), ("minority", 5.0)),
        rest=("one", "majority", "all", "leader", "leader-at-write", *FIGURES),
        figures=FIGURES,
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=processes_in("dead"),
    heal=restart_the_dead,
)
