"""Pauses: processes stop (SIGSTOP) and go on (SIGCONT), as a long garbage collection or a frozen virtual machine does.

A paused process keeps its memory and its connections.  When it goes on it does not know that time has passed: a leader
still takes itself for one, and its next message may carry an old epoch.  Clients that are paused answer too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Fault
from nemesis.cluster import CLIENT_PROCESSES, PROCESSES
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.process_faults import (
    LEADER_HOLD_S,
    NEXT_LEADER_SERVERS_MIN,
    SERVER_TARGETS,
    process_fault,
    processes_in,
    servers_hit,
    while_electing,
)

if TYPE_CHECKING:
    from nemesis.overlapping_faults import Field

NAME = "pause"

TARGETS = {
    **SERVER_TARGETS,
    "clients": Target("the clients of one client node", needs=frozenset({CLIENT_PROCESSES})),
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    if target != "clients":
        return process_fault(NAME, target, servers_hit(target, scene), "paused")
    free = sorted(set(scene.clients) - scene.avoid)
    return process_fault(NAME, target, [scene.rng.choice(free)], "paused") if free else None


async def _inject(field: Field, fault: Fault) -> None:
    await field.each(fault.nodes, field.cluster.pause)


async def _heal(field: Field, fault: Fault) -> None:
    await field.each(fault.nodes, field.cluster.resume)


def _stutter(target: str, *, again: bool) -> Figure:
    def steps(rng: Random, servers: int) -> Sequence[FigureStep]:
        return [FigureStep(target, 1.5 * i, rng.uniform(0.1, 1.0), again=again and i > 0) for i in range(8)]

    which = "the same server" if again else f"the {target}"
    return Figure(f"{which} pauses for 0.1-1 s, eight times in 12 s", steps)


KIND = Kind(
    name=NAME,
    summary="server processes stop (SIGSTOP) and go on",
    targets=TARGETS,
    deck=Deck(
        opening=(("leader", 10.0), ("minority", 5.0), ("leader", LEADER_HOLD_S[0])),
        rest=("one", "minority", "majority", "leader", "clients", "stutter-leader", "stutter-one", "while-electing"),
        figures={
            "while-electing": Figure(
                "the leader is hit, and another server while the others elect",
                while_electing("leader", "one"),
                NEXT_LEADER_SERVERS_MIN,
            ),
            "stutter-leader": _stutter("leader", again=False),
            "stutter-one": replace(_stutter("one", again=True), servers_min=2),
        },
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=processes_in("stopped"),
    heal=_heal,
)
