"""Pauses: processes stop (SIGSTOP) and go on (SIGCONT), as a long garbage collection or a frozen virtual machine does.

A paused process keeps its memory and its connections.  When it goes on it does not know that time has passed: a leader
still takes itself for one, and its next message may carry an old epoch.  Clients that are paused answer too late.

What faults on processes have in common: which nodes they may hit, and what must be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Condition, Fault, Ordered
from nemesis.cluster import CLIENT_PROCESSES, PROCESSES
from nemesis.coverage import ELECTION_MOMENT as ELECTION
from nemesis.coverage import NEW_LEADER_MOMENT as NEW_LEADER
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from system_under_test.subject import ProcessState

LEADER_HOLD_S = (6.0, 8.0)
"""Cards against the leader: fetch timeouts are 2 s, and a split vote costs 1-2 s more."""

SERVER_TARGETS: Mapping[str, Target] = {
    "leader": Target("the server that leads now", against_leader=True, hold_s=LEADER_HOLD_S),
    "one": Target("one server drawn by the seed"),
    "minority": Target("the largest minority, drawn by the seed", servers_min=3),
    "majority": Target("the smallest majority, drawn by the seed", servers_min=2),
    "all": Target("every server"),
}


def next_leader_too(rng: Random, servers: int) -> Sequence[FigureStep]:
    """The leader is hit, and its successor as soon as it leads: before the others have heard much of it.

    Both stay as they are until the end, so that a third server must be elected out of what the rest holds."""
    return [FigureStep("leader", 0.0, 9.0), FigureStep("leader", 0.5, 8.5, moment=NEW_LEADER)]


def while_electing(leader: str, other: str) -> Callable[[Random, int], Sequence[FigureStep]]:
    """The leader is hit, and another server while the rest elects the next one.  Both are names of targets."""
    return lambda rng, servers: [FigureStep(leader, 0.0, 7.0), FigureStep(other, 0.5, 6.5, moment=ELECTION)]


NEXT_LEADER_SERVERS_MIN = 5
"""With fewer servers the rest is no majority, and no third server can be elected."""


def servers_hit(target: str, scene: Scene) -> tuple[str, ...]:
    """The running servers that a target of SERVER_TARGETS means now; empty if there are not enough of them."""
    if target == "leader":
        led = scene.leader is not None and scene.leader.node in scene.running
        return (scene.leader.node,) if led and scene.leader else ()
    count = len(scene.servers)
    wanted = {"one": 1, "minority": count - scene.majority, "majority": scene.majority, "all": count}[target]
    order = sorted(set(scene.running) - scene.avoid)
    scene.rng.shuffle(order)
    return tuple(sorted(order[:wanted])) if len(order) >= wanted else ()


def process_fault(kind: str, target: str, nodes: Sequence[str], done: str) -> Fault | None:
    """A fault on the processes of these nodes; None if there are none.  done: its words, after the nodes."""
    if not nodes:
        return None
    hit = "+".join(nodes) if target == "one" else f"{target} {'+'.join(nodes)}"
    return Fault(kind, f"{hit} {done}", tuple(nodes))


def processes_in(state: ProcessState) -> Callable[[Fault], Ordered]:
    """The `orders` of a kind that puts its nodes' processes into this state until the heal."""

    def orders(fault: Fault) -> Ordered:
        held, healed = dict.fromkeys(fault.nodes, str(state)), dict.fromkeys(fault.nodes, "running")
        return Ordered(Condition(states=held), Condition(states=healed))

    return orders


if TYPE_CHECKING:
    from nemesis.field import Field

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
