"""Partitions: directed links that lose every packet.  A grudge lists these links.  Its function is pure: it depends on
names, a leader and a seed.

Theory.  A grudge is a directed graph over all nodes: an edge a -> b means that b no longer hears a.  The complement of
the graph shows which nodes still hear which other nodes; two nodes can talk if they hear each other.  Most partitions
are a *cover*: a few groups of nodes, which may overlap, and the rule that two nodes hear each other if and only if they
share a group. Disjoint groups give halves, and a node in two groups is a bridge.  A client node in two groups still
reaches both sides while the servers of the two sides do not hear each other.  Only the one-way grudges are not covers;
a one-way grudge lists directed links.

A grudge includes client nodes like any other node.  If a grudge has sides, odd client nodes (c1, c3, ...) belong to the
first side and even ones (c2, c4, ...) to the second.  So every side, even a deposed leader, still has clients.

The words of a grudge are for readers; only its edges determine the cut links.  A grudge never names a link from a node
to itself.  A cut link loses packets silently: connections stall and resume after the heal.  The reject grudge resets
TCP instead, so that both ends notice the cut at once, as with a firewall that rejects packets, or a dead process.

Every grudge is registered by the name of its function.  networkx is imported inside functions, because only drawings
need a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from checkers.record.faults import Fault
from nemesis.cluster import LINKS, REJECT, Link
from nemesis.coverage import NEW_LEADER_MOMENT
from nemesis.kind import Deck, Figure, FigureStep, Kind, Scene, Target
from nemesis.kinds.processes import LEADER_HOLD_S, NEXT_LEADER_SERVERS_MIN, while_electing

if TYPE_CHECKING:
    import networkx

    from nemesis.measure import Field

NAME = "partition"


class Grudge(NamedTuple):
    """A set of cut links.

    cut: directed links (source, destination) that lose every packet
    words: description for a reader
    """

    cut: frozenset[Link]
    words: str


def grudge_graph(nodes: Iterable[str], cut: Collection[Link]) -> networkx.DiGraph:
    """Build the graph of a grudge from its links."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(sorted(cut))
    return graph


def talking(grudge: networkx.DiGraph) -> networkx.Graph:
    """Return the graph of nodes that can still talk: an edge joins two nodes that hear each other."""
    import networkx

    return networkx.complement(grudge).to_undirected(reciprocal=True)


def reaching_majority(grudge: networkx.DiGraph, servers: Collection[str]) -> frozenset[str]:
    """Return the servers that can still talk directly to a majority of the servers (themselves included)."""
    graph = talking(grudge)
    among = [s for s in servers if s in graph]
    return frozenset(s for s in among if 2 * (1 + sum(graph.has_edge(s, t) for t in among)) > len(servers))


@dataclass(frozen=True, slots=True)
class Parties:
    """Input of a grudge.

    leader: the current leader; "" if the grudge does not depend on a leader
    avoid: nodes already hit by overlapping faults of the same kind
    """

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    leader: str
    rng: Random
    avoid: frozenset[str] = frozenset()

    @property
    def followers(self) -> tuple[str, ...]:
        return tuple(s for s in self.servers if s != self.leader)

    @property
    def near(self) -> tuple[str, ...]:
        """Return client nodes c1, c3, ..., which belong to the first side."""
        return self.clients[0::2]

    @property
    def far(self) -> tuple[str, ...]:
        """Return client nodes c2, c4, ..., which belong to the second side."""
        return self.clients[1::2]

    @property
    def majority(self) -> int:
        return len(self.servers) // 2 + 1

    def split(self, names: Iterable[str], count: int) -> tuple[list[str], list[str]]:
        """Draw `count` of these names, and return the drawn names and the other names, both in order."""
        order = self.shuffled(names)
        return sorted(order[:count]), sorted(order[count:])

    def shuffled(self, names: Iterable[str]) -> list[str]:
        order = sorted(names)
        self.rng.shuffle(order)
        return order

    def cover(self, words: str, *groups: Iterable[str]) -> Grudge:
        """Return the grudge in which two nodes hear each other iff they share a group."""
        together = {pair for group in groups for pair in combinations(sorted(set(group)), 2)}
        pairs = permutations(self.servers + self.clients, 2)
        return Grudge(frozenset((a, b) for a, b in pairs if (min(a, b), max(a, b)) not in together), words)

    def sides(self, first: Iterable[str], second: Iterable[str], words: str = "{} cut from {}") -> Grudge:
        """Return the grudge of two sides, each with its clients.

        words: template with one placeholder for the names of each side
        """
        a, b = [*first, *self.near], [*second, *self.far]
        return self.cover(words.format(_names(a), _names(b)), a, b)

    def alone(self, node: str, words: str) -> Grudge:
        """Return the grudge that cuts one server from the others; clients reach all."""
        rest = [s for s in self.servers if s != node]
        return self.cover(words, [node, *self.clients], [*rest, *self.clients])


GRUDGES: dict[str, Callable[[Parties], Grudge]] = {}
TARGETS: dict[str, Target] = {}


def _grudge(summary: str, servers_min: int, *, reject: bool = False) -> Callable[[Callable[[Parties], Grudge]], None]:
    """Register a grudge.  A grudge with `leader` in its name holds longer, because an election has to follow.

    servers_min: minimum number of servers with which the grudge cuts a link and its words are true
    reject: True if its links answer TCP with a reset
    """

    def register(make: Callable[[Parties], Grudge]) -> None:
        name = make.__name__.strip("_").replace("_", "-")
        against_leader, needs = "leader" in name, frozenset({REJECT} if reject else ())
        hold_s = LEADER_HOLD_S if against_leader else (3.0, 5.0)
        GRUDGES[name], TARGETS[name] = make, Target(summary, against_leader, servers_min, hold_s, needs)

    return register


@_grudge("a majority and a minority, each with its own clients", 3)
def _halves(parties: Parties) -> Grudge:
    big, small = parties.split(parties.servers, parties.majority)
    return parties.sides(*((big, small) if parties.rng.random() < 0.5 else (small, big)))


@_grudge("one server cut from the others; clients reach all", 2)
def _one_node(parties: Parties) -> Grudge:
    lonely = parties.rng.choice(sorted(set(parties.servers) - parties.avoid) or sorted(parties.servers))
    return parties.alone(lonely, f"{lonely} cut from every other server; clients reach all")


@_grudge("every server hears a majority, no two the same", 3)
def _majorities_ring(parties: Parties) -> Grudge:
    """Every server hears a majority, and no two servers hear the same one.

    On a ring, each server hears the ceil((majority - 1) / 2) nearest servers on both sides.  With three servers each
    would hear all servers, so the ring is opened at one place: the two ends hear two servers, the middle hears all
    three.
    """
    ring = parties.shuffled(parties.servers)
    count, reach = len(ring), parties.majority // 2
    if count == 3:
        pairs = [ring[:2], ring[1:]]
    else:
        pairs = [[ring[i], ring[(i + step) % count]] for i in range(count) for step in range(1, reach + 1)]
    clients = parties.clients
    everyone_asks = [list(clients), *([c, s] for c in clients for s in parties.servers)]
    words = f"ring {'-'.join(ring)}: each hears a majority, no two the same; clients reach all"
    return parties.cover(words, *pairs, *everyone_asks)


@_grudge("two groups with one server that hears both", 3)
def _bridge(parties: Parties) -> Grudge:
    middle, *others = parties.shuffled(parties.servers)
    half = len(others) // 2
    a, b = sorted(others[:half]), sorted(others[half:])
    first, second = [*a, *parties.near], [*b, *parties.far]
    words = f"{_names(first)} and {_names(second)} hear only {middle} of each other"
    return parties.cover(words, [*first, middle], [*second, middle])


@_grudge("the leader and c1 cut from the others with c2", 2)
def _leader_with_c1(parties: Parties) -> Grudge:
    """Cut the leader off with one client node.  The deposed leader's log then grows by writes of that node, which
    cannot commit.
    """
    return parties.sides([parties.leader], parties.followers, "leader {} cut from {}")


@_grudge("the leader and all clients cut from the others", 2)
def _leader_with_clients(parties: Parties) -> Grudge:
    first = [parties.leader, *parties.clients]
    return parties.cover(f"leader {_names(first)} cut from {_names(parties.followers)}", first, parties.followers)


@_grudge("the leader alone, the others in two groups that do not hear each other", 3)
def _leader_alone_and_split(parties: Parties) -> Grudge:
    """Three groups of servers that do not hear each other.

    The near clients still reach the deposed leader and the first group; the far clients reach the second group.  So
    every group in which a server may believe that it leads has clients.
    """
    leader, followers = parties.leader, parties.followers
    a, b = parties.split(followers, len(followers) // 2)
    words = (
        f"leader {leader} alone, {_names(a)} and {_names(b)} cut from it and from each other"
        + (f"; {_names(parties.near)} reaches {_names([leader, *a])}" if parties.near else "")
        + (f", {_names(parties.far)} reaches {_names(b)}" if parties.far else "")
    )
    return parties.cover(words, [leader, *parties.near], [*a, *parties.near], [*b, *parties.far])


@_grudge("the leader cut from the other servers; clients reach all", 2)
def _isolate_leader(parties: Parties) -> Grudge:
    return parties.alone(parties.leader, f"leader {parties.leader} cut from every other server; clients reach all")


@_grudge("the leader cut from servers and clients", 2)
def _leader_alone(parties: Parties) -> Grudge:
    words = f"leader {parties.leader} cut from every other node, clients too"
    return parties.cover(words, [parties.leader], [*parties.followers, *parties.clients])


@_grudge("the leader's minority with c1 cut from the others", 3)
def _leader_in_minority(parties: Parties) -> Grudge:
    order = sorted(parties.shuffled(parties.followers), key=parties.avoid.__contains__)
    kept = len(parties.servers) - parties.majority - 1
    small = [parties.leader, *sorted(order[:kept])]
    return parties.sides(small, sorted(order[kept:]), "leader's minority {} cut from {}")


@_grudge("one way: the other servers do not hear the leader", 2)
def _leader_unheard(parties: Parties) -> Grudge:
    words = (
        f"one way: nothing leader {parties.leader} sends reaches another server, but it hears them; clients reach all"
    )
    return Grudge(frozenset((parties.leader, s) for s in parties.followers), words)


@_grudge("one way: the leader does not hear the other servers", 2)
def _leader_deaf(parties: Parties) -> Grudge:
    words = f"one way: nothing other servers send reaches leader {parties.leader}, but they hear it; clients reach all"
    return Grudge(frozenset((s, parties.leader) for s in parties.followers), words)


@_grudge("all clients cut from the leader; servers hear each other", 1)
def _clients_from_leader(parties: Parties) -> Grudge:
    words = f"{_names(parties.clients)} cut from leader {parties.leader}; servers hear each other"
    return Grudge(_both_ways(parties.leader, parties.clients), words)


@_grudge("the leader cut from just enough followers to lose its majority", 3)
def _leader_from_witnesses(parties: Parties) -> Grudge:
    """The leader keeps as many followers as possible without a majority; every other link is open.

    These followers hear the other servers, so they learn of the next leader while the old leader still sends them
    entries.
    """
    witnesses, _ = parties.split(parties.followers, len(parties.servers) - parties.majority + 1)
    words = f"leader {parties.leader} cut from {_names(witnesses)} only; every other link is open"
    return Grudge(_both_ways(parties.leader, witnesses), words)


@_grudge("a third of the servers with c1 cut from the others", 3)
def _minority_third(parties: Parties) -> Grudge:
    small, big = parties.split(parties.servers, max(1, len(parties.servers) // 3))
    return parties.sides(small, big, "a third, {}, cut from {}")


@_grudge("as leader-with-c1, but TCP is reset at once", 2, reject=True)
def _reject_leader(parties: Parties) -> Grudge:
    return parties.sides([parties.leader], parties.followers, "leader {} cut from {}; TCP is reset")


def _both_ways(node: str, others: Iterable[str]) -> frozenset[Link]:
    return frozenset(link for other in others for link in ((node, other), (other, node)))


def _names(names: Iterable[str]) -> str:
    return "+".join(names) or "no node"


def _resolve(target: str, scene: Scene) -> Fault | None:
    known, leader = TARGETS[target], scene.leader.node if scene.leader else ""
    if len(scene.servers) < known.servers_min or (known.against_leader and leader not in scene.servers):
        return None
    led = leader if known.against_leader else ""
    grudge = GRUDGES[target](Parties(scene.servers, scene.clients, led, scene.rng, scene.avoid))
    if not grudge.cut:
        return None
    return Fault(NAME, grudge.words, cut=grudge.cut, settings={"reject": True} if REJECT in known.needs else {})


async def _inject(field: Field, fault: Fault) -> None:
    await field.cut(fault, reject=bool(fault.settings.get("reject")))


def _leader_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("leader-with-c1", 5.5 * i, 4.0) for i in range(4)]


def _second_term(rng: Random, servers: int) -> Sequence[FigureStep]:
    """A second term begins while the first leader is still cut off.

    The first leader hears the others' acknowledgements, so it may commit entries without the others' knowledge.  The
    second leader is heard but hears nothing: the others follow it, but receive no entries from it.
    """
    return [FigureStep("leader-unheard", 0.0, 10.0), FigureStep("leader-deaf", 0.5, 9.5, moment=NEW_LEADER_MOMENT)]


def _old_log_returns(rng: Random, servers: int) -> Sequence[FigureStep]:
    """The first leader returns when the others have lost the second leader, and are no majority without the first one.
    The log of the first leader is longer than the others' logs, and of an older epoch.  So the first leader must vote
    for another server, and no other server may vote for the first leader.  A voter that compares offsets before epochs
    would elect it.
    """
    lost_s, back_s = 5.5, rng.uniform(6.0, 7.0)
    return [
        FigureStep("leader-with-clients", 0.0, back_s),
        FigureStep("leader-in-minority", lost_s, 8.0, moment=NEW_LEADER_MOMENT),
    ]


def _minority_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Cut off a minority with the leader five times.  Some cuts heal 0.9 s before the next one begins, others 0.1 s
    after its begin, so lagging servers must take part in an election without time to catch up.
    """
    return [FigureStep("leader-in-minority", 4.5 * i, rng.choice((3.6, 4.6))) for i in range(5)]


def _flapping(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("halves", 2.0 * i, 1.0, again=i > 0) for i in range(5)]


def _swizzle(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Cut off a random half of the servers one by one, and heal them in another order (FoundationDB's
    swizzle-clogging).
    """
    count = max(2, servers // 2)
    ends = [4.0 + 0.7 * i for i in range(count)]
    rng.shuffle(ends)
    return [FigureStep("one-node", 0.7 * i, ends[i] - 0.7 * i) for i in range(count)]


FIGURES = {
    "while-electing": while_electing("leader-with-c1", "one-node"),
    "leader-again": Figure("the current leader is cut off with c1 every 5.5 s", _leader_again, 3),
    "minority-again": Figure(
        "the current leader is cut off in a minority with another server, five times", _minority_again, 4
    ),
    "second-term": Figure(
        "the others do not hear the leader, and the next leader does not hear the others",
        _second_term,
        NEXT_LEADER_SERVERS_MIN,
    ),
    "old-log-returns": Figure(
        "the leader, cut off with all clients, returns when the others have lost the next leader and need its vote",
        _old_log_returns,
        3,
    ),
    "flapping": Figure("the same halves are cut and healed five times in 10 s", _flapping, 3),
    "swizzle": Figure("servers are cut off one by one and healed in another order", _swizzle, 3),
}

KIND = Kind(
    name=NAME,
    summary="links between nodes are cut, in both directions or in one",
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
