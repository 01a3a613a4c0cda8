"""Partitions: directed links lose every packet.  Which links is a grudge (`nemesis.grudges`).

A cut link loses packets silently: connections stall and resume after the heal.  The reject grudge resets TCP instead,
so that both ends notice at once, as they do when a firewall rejects or a process is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Fault
from nemesis.cluster import LINKS, REJECT
from nemesis.coverage import NEW_LEADER_MOMENT as NEW_LEADER
from nemesis.grudges import GRUDGES, GrudgeEntry, make_grudge
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.kinds.processes import (
    LEADER_HOLD_S,
    NEXT_LEADER_SERVERS_MIN,
    while_electing,
)

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "partition"


def _target(entry: GrudgeEntry) -> Target:
    return Target(
        entry.summary,
        entry.against_leader,
        entry.servers_min,
        hold_s=LEADER_HOLD_S if entry.against_leader else (3.0, 5.0),
        needs=frozenset({REJECT}) if entry.reject else frozenset(),
    )


TARGETS: Mapping[str, Target] = {name: _target(entry) for name, entry in GRUDGES.items()}


def _resolve(target: str, scene: Scene) -> Fault | None:
    leader = scene.leader.node if scene.leader else None
    grudge = make_grudge(target, scene.servers, scene.clients, leader, scene.rng, scene.avoid)
    if not grudge.cut:
        return None
    settings = {"reject": True} if GRUDGES[target].reject else {}
    return Fault(NAME, grudge.words, cut=grudge.cut, settings=settings)


async def _inject(field: Field, fault: Fault) -> None:
    await field.cut(fault, reject=bool(fault.settings.get("reject")))


async def _heal(field: Field, fault: Fault) -> None:
    await field.uncut(fault)


def _leader_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("leader-with-c1", 5.5 * i, 4.0) for i in range(4)]


def _second_term(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Two terms while the first leader is still cut off.

    The first leader hears what the others acknowledge, so it may commit what they do not know to be committed.  The
    second one is heard and hears nothing: the others follow it, and get no entries from it."""
    return [FigureStep("leader-unheard", 0.0, 10.0), FigureStep("leader-deaf", 0.5, 9.5, moment=NEW_LEADER)]


def _old_log_returns(rng: Random, servers: int) -> Sequence[FigureStep]:
    """The first leader comes back when the others have lost the second one, and are no majority without the first.

    Its log is longer than theirs, and of an older epoch.  So it must vote for one of them, and none of them for it.  A
    voter that compares offsets before epochs elects it."""
    lost_s, back_s = 5.5, rng.uniform(6.0, 7.0)
    return [
        FigureStep("leader-with-clients", 0.0, back_s),
        FigureStep("leader-in-minority", lost_s, 8.0, moment=NEW_LEADER),
    ]


def _minority_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Some heals leave 0.9 s for catching up, and some come just after the next cut: those who lag vote at once."""
    return [FigureStep("leader-in-minority", 4.5 * i, rng.choice((3.6, 4.6))) for i in range(5)]


def _flapping(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("halves", 2.0 * i, 1.0, again=i > 0) for i in range(5)]


def _swizzle(rng: Random, servers: int) -> Sequence[FigureStep]:
    """A random half of the servers is cut one by one, and healed in another order (FoundationDB's swizzle-clogging)."""
    count = max(2, servers // 2)
    ends = [4.0 + 0.7 * i for i in range(count)]
    rng.shuffle(ends)
    return [FigureStep("one-node", 0.7 * i, ends[i] - 0.7 * i) for i in range(count)]


FIGURES = {
    "while-electing": Figure(
        "the leader is hit, and another server while the others elect",
        while_electing("leader-with-c1", "one-node"),
        NEXT_LEADER_SERVERS_MIN,
    ),
    "leader-again": Figure("the leader of the moment is cut off with c1 every 5.5 s", _leader_again, 3),
    "minority-again": Figure(
        "the leader of the moment is cut into a minority with another server, five times", _minority_again, 4
    ),
    "second-term": Figure(
        "the others do not hear the leader, and the next leader does not hear the others",
        _second_term,
        NEXT_LEADER_SERVERS_MIN,
    ),
    "old-log-returns": Figure(
        "the leader, cut off with all clients, comes back when the others have lost the next one and need its vote",
        _old_log_returns,
        3,
    ),
    "flapping": Figure("the same halves are cut and healed five times in 10 s", _flapping, 3),
    "swizzle": Figure("servers are cut off one by one and healed in another order", _swizzle, 3),
}

KIND = Kind(
    name=NAME,
    summary="links between nodes are cut, both ways and one way",
    targets=TARGETS,
    deck=Deck(
        opening=(("leader-with-c1", 9.0), ("leader-alone-and-split", 6.0), ("second-term", 10.0)),
        rest=(*(name for name in GRUDGES if name not in ("leader-with-c1", "leader-alone-and-split")), *FIGURES),
        figures=FIGURES,
    ),
    needs=frozenset({LINKS}),
    resolve=_resolve,
    inject=_inject,
    heal=_heal,
)
