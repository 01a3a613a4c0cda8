"""From a card to a fault: who leads *now*, and so whom the card means on this cluster.

The leader is the one of the highest epoch any node reports.  A deposed leader that has not noticed yet reports an
older epoch, and never wins against the node that replaced it.  Where the highest epoch has no leader, an election is
under way and the answer is nobody: the caller waits, and gives the card up after `LEADER_WAIT_S`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from nemesis.deck import check_card
from nemesis.faults import Card, Fault, Kill, Partition, Pause
from nemesis.grudges import GRUDGES, make_grudge
from system_under_test.subject import NodeStatus

LEADER_WAIT_S = 5.0
"""How long a card that names the leader waits for one."""


@dataclass(frozen=True, slots=True)
class Leader:
    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """A card as it is carried out.  leader: whom it took for the leader, None where the card names none."""

    fault: Fault
    leader: Leader | None = None


def leader_now(statuses: Sequence[NodeStatus], running: Sequence[str]) -> Leader | None:
    """Who leads in the highest epoch any node reports; None while nobody does, or if that one is not running.

    A node that calls itself leader is believed before what others say of it.  Should two claim the same epoch (that is
    for the checkers to judge), the first by name is taken, so that a schedule means the same twice.
    """
    epoch = max((s.epoch for s in statuses), default=-1)
    newest = [s for s in statuses if s.epoch == epoch]
    claimed = sorted(s.node for s in newest if s.role == "leader")
    named = sorted({s.leader for s in newest if s.leader is not None})
    for node in (*claimed, *named):
        if node in running:
            return Leader(node, epoch)
    return None


def names_leader(card: Card) -> bool:
    """Whether the card can only be resolved while somebody leads."""
    return GRUDGES[card.name].against_leader if card.kind == "partition" else card.name == "leader"


def resolve(
    card: Card,
    servers: Sequence[str],
    clients: Sequence[str],
    running: Sequence[str],
    leader: Leader | None,
    rng: Random,
) -> Resolved | None:
    """The fault this card means now; None if nobody could be hit (no leader for a card that names one, or too few
    servers whose process runs for one aimed at processes).

    servers: all of them, which is what majorities are counted of.  running: those whose process runs.
    Raises ValueError for a card nobody knows.
    """
    check_card(card.kind, card.name)
    if names_leader(card) and leader is None:
        return None
    if card.kind == "partition":
        grudge = make_grudge(card.name, servers, clients, leader.node if leader else None, rng)
        return Resolved(Partition(grudge.cut, grudge.words), leader if names_leader(card) else None)
    nodes = _targets(card.name, servers, running, leader, rng)
    if not nodes:
        return None
    whom = f"leader {nodes[0]}" if card.name == "leader" else f"{card.name} {'+'.join(nodes)}"
    known = leader if card.name == "leader" else None
    if card.kind == "pause":
        return Resolved(Pause(nodes, f"{whom} paused"), known)
    return Resolved(Kill(nodes, f"{whom} killed, started again at the heal"), known)


def resolved_faults(records: Sequence[Mapping[str, Any]]) -> dict[int, Fault]:
    """The faults of a `faults.json`, by card number, for a replay that hits the very same nodes and links.

    Skipped cards are left out: they hit nothing.
    """
    faults: dict[int, Fault] = {}
    for record in records:
        kind, number, words = record["card"]["kind"], int(record["card"]["number"]), str(record["words"])
        cut = frozenset((str(a), str(b)) for a, b in record["cut"])
        nodes = tuple(str(n) for n in record["nodes"])
        if kind == "partition" and cut:
            faults[number] = Partition(cut, words)
        elif kind == "pause" and nodes:
            faults[number] = Pause(nodes, words)
        elif kind == "kill" and nodes:
            faults[number] = Kill(nodes, words)
    return faults


def _targets(
    name: str, servers: Sequence[str], running: Sequence[str], leader: Leader | None, rng: Random
) -> tuple[str, ...]:
    """Which running servers a pause or kill hits; empty if there are not enough of them."""
    if name == "leader":
        return (leader.node,) if leader else ()
    majority = len(servers) // 2 + 1
    wanted = {"one": 1, "minority": len(servers) - majority, "majority": majority, "all": len(servers)}[name]
    order = sorted(running)
    rng.shuffle(order)
    return tuple(sorted(order[:wanted])) if len(order) >= wanted else ()
