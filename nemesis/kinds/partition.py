"""Partitions: directed links lose every packet.  A grudge says which: a pure function of names, a leader and a seed.

Theory.  A grudge is a directed graph over all nodes: an edge a -> b means that b no longer hears a.  Its complement is
who still hears whom; two nodes can talk if they hear each other.  Most partitions are a *cover*: a few groups of nodes,
which may overlap, and the rule that two nodes hear each other if and only if they share a group.  Disjoint groups give
halves, and a node in two groups is a bridge.  A client node in two groups can go on asking both sides while the servers
there are deaf to each other.  Only the one-way grudges are not covers; they name directed links.

Client nodes are nodes like any other.  Where a grudge takes sides, the odd ones (c1, c3, ...) go with the first side
and the even ones (c2, c4, ...) with the second.  So every side, even a deposed leader, still has clients that ask it.

The words of a grudge are for people; its edges are what is done.  A grudge never names a link from a node to itself.
A cut link loses packets silently: connections stall and resume after the heal.  The reject grudge resets TCP instead,
so that both ends notice at once, as they do when a firewall rejects or a process is gone.

networkx is imported where it is used: lists and help texts need only the names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random
from typing import TYPE_CHECKING

from checkers.record.faults import Fault
from nemesis.cluster import LINKS, REJECT, Link
from nemesis.coverage import NEW_LEADER_MOMENT
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.kinds.processes import (
    LEADER_HOLD_S,
    NEXT_LEADER_SERVERS_MIN,
    while_electing,
)

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Grudge:
    """graph: an edge a -> b means that b no longer hears a; every node is in it.  words: the same for a reader."""

    graph: networkx.DiGraph
    words: str

    @property
    def cut(self) -> frozenset[Link]:
        """The directed links (source, destination) that lose every packet."""
        return frozenset(self.graph.edges)


def grudge_graph(nodes: Iterable[str], cut: Collection[Link]) -> networkx.DiGraph:
    """The graph of a grudge from its links."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(sorted(cut))
    return graph


def talking(grudge: networkx.DiGraph) -> networkx.Graph:
    """Who can still talk: an edge joins two nodes that hear each other."""
    import networkx

    return networkx.complement(grudge).to_undirected(reciprocal=True)


def reaching_majority(grudge: networkx.DiGraph, servers: Collection[str]) -> frozenset[str]:
    """The servers that can still talk, without a hop, to a majority of the servers (themselves included)."""
    graph = talking(grudge)
    among = [s for s in servers if s in graph]
    return frozenset(s for s in among if 2 * (1 + sum(graph.has_edge(s, t) for t in among)) > len(servers))


@dataclass(frozen=True, slots=True)
class Parties:
    """Parties that a grudge is computed from.  leader: who leads now; None where the grudge names none."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    leader: str | None
    rng: Random
    avoid: frozenset[str] = frozenset()

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

    def links(self, cut: Collection[Link], words: str) -> Grudge:
        """The grudge that cuts exactly these links."""
        return Grudge(grudge_graph(self.nodes, cut), words)

    def cover(self, words: str, *groups: Iterable[str]) -> Grudge:
        """The grudge in which two nodes hear each other iff they share a group."""
        together = {pair for group in groups for pair in combinations(sorted(set(group)), 2)}
        cut = [(a, b) for a, b in permutations(self.nodes, 2) if (min(a, b), max(a, b)) not in together]
        return self.links(cut, words)


@dataclass(frozen=True, slots=True)
class GrudgeEntry:
    """One grudge that can be used by name.

    against_leader: it is resolved with the leader of the moment, and needs longer (an election has to follow).
    servers_min: with fewer servers it would cut nothing, or its words would be untrue.
    reject: TCP on its links is answered with a reset.
    """

    summary: str
    make: Callable[[Parties], Grudge]
    against_leader: bool
    servers_min: int
    reject: bool = False


def make_grudge(
    name: str,
    servers: Sequence[str],
    clients: Sequence[str],
    leader: str | None,
    rng: Random,
    avoid: Collection[str] = (),
) -> Grudge:
    """The grudge of that name for these nodes; equal arguments (and state of `rng`) give equal grudges.

    avoid: servers that an overlapping grudge has already isolated; a grudge of one node takes another.
    Raises ValueError in one sentence: an unknown name, a missing or unknown leader, too few servers.
    """
    entry = GRUDGES.get(name)
    if entry is None:
        raise ValueError(f"there is no grudge {name!r}; there are {', '.join(GRUDGES)}")
    if len(servers) < entry.servers_min:
        raise ValueError(f"the grudge {name!r} needs at least {entry.servers_min} servers, not {len(servers)}")
    if entry.against_leader and leader not in servers:
        raise ValueError(f"the grudge {name!r} needs to know who of {', '.join(servers)} leads, not {leader!r}")
    led = leader if entry.against_leader else None
    return entry.make(Parties(tuple(servers), tuple(clients), led, rng, frozenset(avoid)))


def _halves(parties: Parties) -> Grudge:
    order = parties.shuffled(parties.servers)
    big, small = sorted(order[: parties.majority]), sorted(order[parties.majority :])
    first, second = (big, small) if parties.rng.random() < 0.5 else (small, big)
    a, b = [*first, *parties.near], [*second, *parties.far]
    return parties.cover(f"{_names(a)} cut from {_names(b)}", a, b)


def _one_node(parties: Parties) -> Grudge:
    lonely = parties.rng.choice(sorted(set(parties.servers) - parties.avoid) or sorted(parties.servers))
    rest = [s for s in parties.servers if s != lonely]
    words = f"{lonely} cut from every other server; clients reach all"
    return parties.cover(words, [lonely, *parties.clients], [*rest, *parties.clients])


def _majorities_ring(parties: Parties) -> Grudge:
    """Every server hears a majority, and no two the same one.

    On a ring, each hears its ceil((majority - 1) / 2) nearest on both sides.  With three servers that would be
    everybody, so the ring is opened at one place: the ends hear two servers, the middle all three.
    """
    ring = parties.shuffled(parties.servers)
    count, reach = len(ring), parties.majority // 2
    if count == 3:
        pairs = [ring[:2], ring[1:]]
    else:
        pairs = [[ring[i], ring[(i + step) % count]] for i in range(count) for step in range(1, reach + 1)]
    words = f"ring {'-'.join(ring)}: each hears a majority, no two the same; clients reach all"
    return parties.cover(words, *pairs, *_everyone_asks(parties))


def _bridge(parties: Parties) -> Grudge:
    middle, *others = parties.shuffled(parties.servers)
    half = len(others) // 2
    a, b = sorted(others[:half]), sorted(others[half:])
    first, second = [*a, *parties.near], [*b, *parties.far]
    words = f"{_names(first)} and {_names(second)} hear only {middle} of each other"
    return parties.cover(words, [*first, middle], [*second, middle])


def _leader_with_c1(parties: Parties) -> Grudge:
    leader, followers = _led(parties)
    first, second = [leader, *parties.near], [*followers, *parties.far]
    return parties.cover(f"leader {_names(first)} cut from {_names(second)}", first, second)


def _leader_with_clients(parties: Parties) -> Grudge:
    """The deposed leader's log grows by what clients write in vain, and its successor's does not."""
    leader, followers = _led(parties)
    first = [leader, *parties.clients]
    return parties.cover(f"leader {_names(first)} cut from {_names(followers)}", first, followers)


def _leader_alone_and_split(parties: Parties) -> Grudge:
    """Three islands of servers that do not hear each other.

    The near clients still reach the deposed leader and the first group; the far clients reach the second.  So every
    island that believes to lead has clients."""
    leader, followers = _led(parties)
    order = parties.shuffled(followers)
    half = len(order) // 2
    a, b = sorted(order[:half]), sorted(order[half:])
    words = (
        f"leader {leader} alone, {_names(a)} and {_names(b)} cut from it and from each other"
        + (f"; {_names(parties.near)} reaches {_names([leader, *a])}" if parties.near else "")
        + (f", {_names(parties.far)} reaches {_names(b)}" if parties.far else "")
    )
    return parties.cover(words, [leader, *parties.near], [*a, *parties.near], [*b, *parties.far])


def _isolate_leader(parties: Parties) -> Grudge:
    leader, followers = _led(parties)
    words = f"leader {leader} cut from every other server; clients reach all"
    return parties.cover(words, [leader, *parties.clients], [*followers, *parties.clients])


def _leader_alone(parties: Parties) -> Grudge:
    leader, followers = _led(parties)
    return parties.cover(
        f"leader {leader} cut from every other node, clients too", [leader], [*followers, *parties.clients]
    )


def _leader_in_minority(parties: Parties) -> Grudge:
    leader, followers = _led(parties)
    order = sorted(parties.shuffled(followers), key=parties.avoid.__contains__)  # stable: those it avoids come last
    kept = len(parties.servers) - parties.majority - 1
    small, big = [leader, *sorted(order[:kept])], sorted(order[kept:])
    first, second = [*small, *parties.near], [*big, *parties.far]
    return parties.cover(f"leader's minority {_names(first)} cut from {_names(second)}", first, second)


def _leader_from_witnesses(parties: Parties) -> Grudge:
    """The leader keeps as many followers as it can without a majority; every other link is whole.

    The followers it keeps hear the others, so they learn of the next leader while the old one still feeds them."""
    leader, followers = _led(parties)
    order = parties.shuffled(followers)
    witnesses = sorted(order[: len(parties.servers) - parties.majority + 1])
    cut = [link for w in witnesses for link in ((leader, w), (w, leader))]
    return parties.links(cut, f"leader {leader} cut from {_names(witnesses)} only; every other link is whole")


def _minority_third(parties: Parties) -> Grudge:
    order = parties.shuffled(parties.servers)
    count = max(1, len(order) // 3)
    small, big = sorted(order[:count]), sorted(order[count:])
    first, second = [*small, *parties.near], [*big, *parties.far]
    return parties.cover(f"a third, {_names(first)}, cut from {_names(second)}", first, second)


def _reject_leader(parties: Parties) -> Grudge:
    grudge = _leader_with_c1(parties)
    return Grudge(grudge.graph, f"{grudge.words}; TCP is reset")


def _leader_unheard(parties: Parties) -> Grudge:
    leader, followers = _led(parties)
    return parties.links(
        [(leader, s) for s in followers],
        f"one way: nothing leader {leader} sends reaches another server, but it hears them; clients reach all",
    )


def _leader_deaf(parties: Parties) -> Grudge:
    leader, followers = _led(parties)
    return parties.links(
        [(s, leader) for s in followers],
        f"one way: nothing other servers send reaches leader {leader}, but they hear it; clients reach all",
    )


def _clients_from_leader(parties: Parties) -> Grudge:
    leader, _ = _led(parties)
    cut = [link for c in parties.clients for link in ((c, leader), (leader, c))]
    return parties.links(cut, f"{_names(parties.clients)} cut from leader {leader}; servers hear each other")


GRUDGES: Mapping[str, GrudgeEntry] = {
    "halves": GrudgeEntry("a majority and a minority, each with its own clients", _halves, False, 3),
    "one-node": GrudgeEntry("one server cut from the others; clients reach all", _one_node, False, 2),
    "majorities-ring": GrudgeEntry("every server hears a majority, no two the same", _majorities_ring, False, 3),
    "bridge": GrudgeEntry("two groups with one server that hears both", _bridge, False, 3),
    "leader-with-c1": GrudgeEntry("the leader and c1 cut from the others with c2", _leader_with_c1, True, 2),
    "leader-with-clients": GrudgeEntry("the leader and all clients cut from the others", _leader_with_clients, True, 2),
    "leader-alone-and-split": GrudgeEntry(
        "the leader alone, the others in two groups deaf to each other", _leader_alone_and_split, True, 3
    ),
    "isolate-leader": GrudgeEntry("the leader cut from the other servers; clients reach all", _isolate_leader, True, 2),
    "leader-alone": GrudgeEntry("the leader cut from servers and clients", _leader_alone, True, 2),
    "leader-in-minority": GrudgeEntry("the leader's minority with c1 cut from the rest", _leader_in_minority, True, 3),
    "leader-unheard": GrudgeEntry("one way: the other servers do not hear the leader", _leader_unheard, True, 2),
    "leader-deaf": GrudgeEntry("one way: the leader does not hear the other servers", _leader_deaf, True, 2),
    "clients-from-leader": GrudgeEntry("all clients cut from the leader; servers whole", _clients_from_leader, True, 1),
    "leader-from-witnesses": GrudgeEntry(
        "the leader cut from just enough followers to lose its majority", _leader_from_witnesses, True, 3
    ),
    "minority-third": GrudgeEntry("a third of the servers with c1 cut from the rest", _minority_third, False, 3),
    "reject-leader": GrudgeEntry("as leader-with-c1, but TCP is reset at once", _reject_leader, True, 2, reject=True),
}


def _led(parties: Parties) -> tuple[str, tuple[str, ...]]:
    assert parties.leader is not None, "make_grudge has checked it"
    return parties.leader, parties.followers


def _everyone_asks(parties: Parties) -> list[list[str]]:
    """Return groups that link every client with every server, but join no two servers."""
    return [list(parties.clients), *([c, s] for c in parties.clients for s in parties.servers)]


def _names(names: Iterable[str]) -> str:
    return "+".join(names) or "no node"


if TYPE_CHECKING:
    from nemesis.measure import Field

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


def _leader_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("leader-with-c1", 5.5 * i, 4.0) for i in range(4)]


def _second_term(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Two terms while the first leader is still cut off.

    The first leader hears what the others acknowledge, so it may commit what they do not know to be committed.  The
    second one is heard and hears nothing: the others follow it, and get no entries from it."""
    return [FigureStep("leader-unheard", 0.0, 10.0), FigureStep("leader-deaf", 0.5, 9.5, moment=NEW_LEADER_MOMENT)]


def _old_log_returns(rng: Random, servers: int) -> Sequence[FigureStep]:
    """The first leader comes back when the others have lost the second one, and are no majority without the first.

    Its log is longer than theirs, and of an older epoch.  So it must vote for one of them, and none of them for it.  A
    voter that compares offsets before epochs elects it."""
    lost_s, back_s = 5.5, rng.uniform(6.0, 7.0)
    return [
        FigureStep("leader-with-clients", 0.0, back_s),
        FigureStep("leader-in-minority", lost_s, 8.0, moment=NEW_LEADER_MOMENT),
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
    "while-electing": while_electing("leader-with-c1", "one-node"),
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
    heal=lambda field, fault: field.uncut(fault),
)
