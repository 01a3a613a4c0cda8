"""Grudges: who stops hearing whom, computed by pure functions from names, a leader and a seed.

Theory.  Most partitions are a *cover*: a few groups of nodes, which may overlap, and the rule that two nodes hear
each other if and only if they share a group.  Disjoint groups give halves, a node in two groups is a bridge, and a
client node in two groups can go on asking both sides while the servers there are deaf to each other.  Only the
one-way grudges are not covers; they name directed links.

Client nodes are nodes like any other.  Where a grudge takes sides, the odd ones (c1, c3, ...) go with the first side
and the even ones (c2, c4, ...) with the second, so that every side, a deposed leader too, still has somebody who asks.

The words of a grudge are for people; its links are what is done.  A grudge never names a link from a node to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Any

import networkx

from nemesis.cluster import Link


@dataclass(frozen=True, slots=True)
class Grudge:
    """cut: directed links (source, destination) that lose every packet.  words: the same, said to a reader."""

    cut: frozenset[Link]
    words: str

    def graph(self) -> Any:
        """The grudge as a `networkx.DiGraph`: an edge a -> b means that b no longer hears a."""
        return networkx.DiGraph(sorted(self.cut))


@dataclass(frozen=True, slots=True)
class Scene:
    """What a grudge is computed from.  leader: who leads now; None where nobody was asked for."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    leader: str | None
    rng: Random

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.servers + self.clients

    @property
    def followers(self) -> tuple[str, ...]:
        return tuple(s for s in self.servers if s != self.leader)

    @property
    def near(self) -> tuple[str, ...]:
        """c1, c3, ...: the client nodes that go with the first side."""
        return self.clients[0::2]

    @property
    def far(self) -> tuple[str, ...]:
        """c2, c4, ...: the client nodes that go with the second side."""
        return self.clients[1::2]

    @property
    def majority(self) -> int:
        return len(self.servers) // 2 + 1

    def shuffled(self, names: Iterable[str]) -> list[str]:
        order = sorted(names)
        self.rng.shuffle(order)
        return order

    def cover(self, *groups: Iterable[str]) -> frozenset[Link]:
        """The links of the grudge in which two nodes hear each other iff they share a group."""
        sets = [frozenset(group) for group in groups]
        return frozenset(
            (a, b) for a, b in permutations(self.nodes, 2) if not any(a in group and b in group for group in sets)
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """One grudge that can be asked for by name.

    against_leader: it is resolved with the leader of the moment, and needs longer (an election has to follow).
    servers_min: with fewer servers it would cut nothing, or say something untrue.
    """

    summary: str
    make: Callable[[Scene], Grudge]
    against_leader: bool
    servers_min: int


def make_grudge(name: str, servers: Sequence[str], clients: Sequence[str], leader: str | None, rng: Random) -> Grudge:
    """The grudge of that name for these nodes; equal arguments (and state of `rng`) give equal grudges.

    Raises ValueError in one sentence: an unknown name, a missing or unknown leader, too few servers.
    """
    kind = GRUDGES.get(name)
    if kind is None:
        raise ValueError(f"there is no grudge {name!r}; there are {', '.join(GRUDGES)}")
    if len(servers) < kind.servers_min:
        raise ValueError(f"the grudge {name!r} needs at least {kind.servers_min} servers, not {len(servers)}")
    if kind.against_leader and leader not in servers:
        raise ValueError(f"the grudge {name!r} needs to know who of {', '.join(servers)} leads, not {leader!r}")
    return kind.make(Scene(tuple(servers), tuple(clients), leader if kind.against_leader else None, rng))


def _halves(scene: Scene) -> Grudge:
    order = scene.shuffled(scene.servers)
    big, small = sorted(order[: scene.majority]), sorted(order[scene.majority :])
    first, second = (big, small) if scene.rng.random() < 0.5 else (small, big)
    a, b = [*first, *scene.near], [*second, *scene.far]
    return Grudge(scene.cover(a, b), f"{_names(a)} cut from {_names(b)}")


def _one_node(scene: Scene) -> Grudge:
    lonely = scene.rng.choice(sorted(scene.servers))
    rest = [s for s in scene.servers if s != lonely]
    cut = scene.cover([lonely, *scene.clients], [*rest, *scene.clients])
    return Grudge(cut, f"{lonely} cut from every other server; clients reach all")


def _majorities_ring(scene: Scene) -> Grudge:
    """Every server hears a majority, and no two the same one.

    On a ring, each hears its ceil((majority - 1) / 2) nearest on both sides.  With three servers that would be
    everybody, so the ring is opened at one place: the ends hear two servers, the middle all three.
    """
    ring = scene.shuffled(scene.servers)
    count, reach = len(ring), scene.majority // 2
    if count == 3:
        pairs = [ring[:2], ring[1:]]
    else:
        pairs = [[ring[i], ring[(i + step) % count]] for i in range(count) for step in range(1, reach + 1)]
    cut = scene.cover(*pairs, *_everyone_asks(scene))
    return Grudge(cut, f"ring {'-'.join(ring)}: each hears a majority, no two the same; clients reach all")


def _bridge(scene: Scene) -> Grudge:
    middle, *others = scene.shuffled(scene.servers)
    half = len(others) // 2
    a, b = sorted(others[:half]), sorted(others[half:])
    cut = scene.cover([*a, middle, *scene.near], [*b, middle, *scene.far])
    return Grudge(cut, f"{_names([*a, *scene.near])} and {_names([*b, *scene.far])} hear only {middle} of each other")


def _leader_with_c1(scene: Scene) -> Grudge:
    leader, followers = _led(scene)
    cut = scene.cover([leader, *scene.near], [*followers, *scene.far])
    return Grudge(cut, f"leader {_names([leader, *scene.near])} cut from {_names([*followers, *scene.far])}")


def _leader_alone_and_split(scene: Scene) -> Grudge:
    """Three islands of servers.  The near clients still ask the deposed leader and the first group, the far ones
    the second: whoever of the three believes to lead is asked, and none of the three hears another."""
    leader, followers = _led(scene)
    order = scene.shuffled(followers)
    half = len(order) // 2
    a, b = sorted(order[:half]), sorted(order[half:])
    cut = scene.cover([leader, *scene.near], [*a, *scene.near], [*b, *scene.far])
    return Grudge(
        cut,
        f"leader {leader} alone, {_names(a)} and {_names(b)} cut from it and from each other"
        + (f"; {_names(scene.near)} reaches {_names([leader, *a])}" if scene.near else "")
        + (f", {_names(scene.far)} reaches {_names(b)}" if scene.far else ""),
    )


def _isolate_leader(scene: Scene) -> Grudge:
    leader, followers = _led(scene)
    cut = scene.cover([leader, *scene.clients], [*followers, *scene.clients])
    return Grudge(cut, f"leader {leader} cut from every other server; clients reach all")


def _leader_alone(scene: Scene) -> Grudge:
    leader, followers = _led(scene)
    cut = scene.cover([leader], [*followers, *scene.clients])
    return Grudge(cut, f"leader {leader} cut from every other node, clients too")


def _leader_in_minority(scene: Scene) -> Grudge:
    leader, followers = _led(scene)
    order = scene.shuffled(followers)
    kept = len(scene.servers) - scene.majority - 1
    small, big = [leader, *sorted(order[:kept])], sorted(order[kept:])
    cut = scene.cover([*small, *scene.near], [*big, *scene.far])
    return Grudge(cut, f"leader's minority {_names([*small, *scene.near])} cut from {_names([*big, *scene.far])}")


def _leader_unheard(scene: Scene) -> Grudge:
    leader, followers = _led(scene)
    return Grudge(
        frozenset((leader, s) for s in followers),
        f"one way: nothing leader {leader} sends reaches another server, but it hears them; clients reach all",
    )


def _leader_deaf(scene: Scene) -> Grudge:
    leader, followers = _led(scene)
    return Grudge(
        frozenset((s, leader) for s in followers),
        f"one way: nothing other servers send reaches leader {leader}, but they hear it; clients reach all",
    )


def _clients_from_leader(scene: Scene) -> Grudge:
    leader, _ = _led(scene)
    cut = frozenset(link for c in scene.clients for link in ((c, leader), (leader, c)))
    return Grudge(cut, f"{_names(scene.clients)} cut from leader {leader}; servers hear each other")


GRUDGES: Mapping[str, Kind] = {
    "halves": Kind("a majority and a minority, each with its own clients", _halves, False, 3),
    "one-node": Kind("one server cut from the others; clients reach all", _one_node, False, 2),
    "majorities-ring": Kind("every server hears a majority, no two the same", _majorities_ring, False, 3),
    "bridge": Kind("two groups with one server that hears both", _bridge, False, 3),
    "leader-with-c1": Kind("the leader and c1 cut from the others with c2", _leader_with_c1, True, 2),
    "leader-alone-and-split": Kind(
        "the leader alone, the others in two groups deaf to each other", _leader_alone_and_split, True, 3
    ),
    "isolate-leader": Kind("the leader cut from the other servers; clients reach all", _isolate_leader, True, 2),
    "leader-alone": Kind("the leader cut from servers and clients", _leader_alone, True, 2),
    "leader-in-minority": Kind("the leader's minority with c1 cut from the rest", _leader_in_minority, True, 3),
    "leader-unheard": Kind("one way: the other servers do not hear the leader", _leader_unheard, True, 2),
    "leader-deaf": Kind("one way: the leader does not hear the other servers", _leader_deaf, True, 2),
    "clients-from-leader": Kind("all clients cut from the leader; servers whole", _clients_from_leader, True, 1),
}


def _led(scene: Scene) -> tuple[str, tuple[str, ...]]:
    assert scene.leader is not None, "make_grudge has checked it"
    return scene.leader, scene.followers


def _everyone_asks(scene: Scene) -> list[list[str]]:
    """Groups in which every client hears every node without lending servers to each other."""
    return [list(scene.clients), *([c, s] for c in scene.clients for s in scene.servers)]


def _names(names: Iterable[str]) -> str:
    return "+".join(names) or "nobody"
