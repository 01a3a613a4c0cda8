"""Graceful stops: server processes are ordered to end (SIGTERM) and are started again at the heal.

A server that ends in order may hand over its leadership, flush its files and close its connections.  This is what
operators do all day, and it runs code that no crash runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Fault
from nemesis.cluster import PROCESSES
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.kinds.kill import restart_the_dead
from nemesis.kinds.processes import (
    LEADER_HOLD_S,
    SERVER_TARGETS,
    process_fault,
    processes_in,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "stop"


_NTH = "server-"
SERVERS_MAX = 9
"""`harness.spec` allows no more."""

TARGETS: Mapping[str, Target] = {
    **SERVER_TARGETS,
    **{f"{_NTH}{i}": Target(f"server number {i}", servers_min=i) for i in range(1, SERVERS_MAX + 1)},
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    nodes = _nth(target, scene) if target.startswith(_NTH) else servers_hit(target, scene)
    return process_fault(NAME, target, nodes, "stopped, started again at the heal")


def _nth(target: str, scene: Scene) -> Sequence[str]:
    """The server of this number; none if it does not run."""
    place = int(target.removeprefix(_NTH)) - 1
    return [server for server in scene.servers[place : place + 1] if server in scene.running]


async def _inject(field: Field, fault: Fault) -> None:
    await field.each(fault.nodes, field.cluster.stop)


def _leader_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("leader", 4.5 * i, 1.5) for i in range(4)]


def _rolling_restart(rng: Random, servers: int) -> Sequence[FigureStep]:
    order = list(range(1, servers + 1))
    rng.shuffle(order)
    return [FigureStep(f"{_NTH}{number}", 3.0 * place, 1.0) for place, number in enumerate(order)]


KIND = Kind(
    name=NAME,
    summary="server processes end in order (SIGTERM) and are started again",
    targets=TARGETS,
    deck=Deck(
        opening=(("leader", 6.0), ("minority", 5.0), ("leader", LEADER_HOLD_S[0])),
        rest=("one", "minority", "majority", "all", "leader", "leader-again", "rolling-restart"),
        figures={
            "leader-again": Figure("the leader of the moment is stopped every 4.5 s", _leader_again, 3),
            "rolling-restart": Figure("one server after the other is restarted, every 3 s", _rolling_restart),
        },
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=processes_in("dead"),
    heal=restart_the_dead,
)
