"""What every grudge claims, held against what it cuts."""

from __future__ import annotations

from itertools import combinations, permutations
from random import Random

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.record.faults import Fault
from nemesis.kind import LeaderNow, Scene
from nemesis.kinds.partition import GRUDGES, KIND, TARGETS, grudge_graph, reaching_majority

SIZES = st.sampled_from([3, 5, 7])
SEEDS = st.integers(0, 2**32)


def names(count: int, clients: int = 2) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(f"n{i}" for i in range(1, count + 1)), tuple(f"c{i}" for i in range(1, clients + 1))


def make_grudge(name, servers, clients, leader, rng) -> Fault | None:
    led = LeaderNow(leader, 1) if leader else None
    return KIND.resolve(name, Scene(servers, clients, servers, led, rng))


def hearing(servers, clients, cut) -> networkx.DiGraph:
    """Edge a -> b: b hears a."""
    graph = networkx.DiGraph()
    graph.add_nodes_from((*servers, *clients))
    graph.add_edges_from(link for link in permutations((*servers, *clients), 2) if link not in cut)
    return graph


def under(name: str, count: int, seed: int, leader: str | None = None):
    """Servers, clients, and who hears whom under a grudge."""
    servers, clients = names(count)
    cut = make_grudge(name, servers, clients, leader, Random(seed)).cut
    return servers, clients, hearing(servers, clients, cut)


def islands(grudge: networkx.DiGraph) -> list[frozenset[str]]:
    """The groups within which messages still get from every node to every other, perhaps over several hops.

    Largest first, then by name."""
    found = networkx.strongly_connected_components(networkx.complement(grudge))
    return sorted((frozenset(nodes) for nodes in found), key=lambda nodes: (-len(nodes), sorted(nodes)))


def cutting(servers, clients, grudge) -> networkx.DiGraph:
    return grudge_graph((*servers, *clients), grudge.cut)


def talk(graph, a, b) -> bool:
    return graph.has_edge(a, b) and graph.has_edge(b, a)


@given(st.sampled_from(sorted(GRUDGES)), SIZES, st.integers(0, 4), SEEDS)
def test_every_grudge_cuts_something_real_and_never_a_node_from_itself(name, count, client_count, seed):
    servers, clients = names(count, client_count)
    leader = servers[seed % count]
    grudge = make_grudge(name, servers, clients, leader, Random(seed))
    if grudge is None:
        assert name == "clients-from-leader" and not clients
        return
    nodes = set(servers) | set(clients)
    assert grudge.cut
    assert all(a != b and {a, b} <= nodes for a, b in grudge.cut)
    assert grudge.words
    if TARGETS[name].against_leader:
        assert leader in grudge.words


@given(SIZES, SEEDS)
def test_halves_are_a_majority_and_a_minority_that_hear_nothing_of_each_other(count, seed):
    servers, clients, graph = under("halves", count, seed)
    sides = sorted((set(c) for c in networkx.strongly_connected_components(graph)), key=lambda c: len(c & set(servers)))
    assert [len(side & set(servers)) for side in sides] == [count // 2, count // 2 + 1]
    assert all(len(side & set(clients)) == 1 for side in sides)
    assert networkx.number_weakly_connected_components(graph) == 2


@given(SIZES, SEEDS)
def test_on_the_ring_every_node_hears_a_majority_and_no_two_the_same(count, seed):
    servers, clients, graph = under("majorities-ring", count, seed)
    heard = [frozenset(s for s in servers if s == me or talk(graph, me, s)) for me in servers]
    assert all(len(majority) >= count // 2 + 1 for majority in heard)
    assert len(set(heard)) == count
    assert all(talk(graph, c, s) for c in clients for s in servers)


@given(SIZES, SEEDS)
def test_a_bridge_is_the_only_way_from_one_side_to_the_other(count, seed):
    servers, clients, graph = under("bridge", count, seed)
    graph.remove_nodes_from(clients)
    assert networkx.is_strongly_connected(graph)
    middles = [s for s in servers if all(talk(graph, s, other) for other in servers if other != s)]
    assert len(middles) == 1
    graph.remove_nodes_from(middles)
    assert networkx.number_weakly_connected_components(graph) == 2


@given(SIZES, SEEDS)
def test_one_node_is_alone_among_servers_but_every_client_can_ask_it(count, seed):
    servers, clients, graph = under("one-node", count, seed)
    lonely = [s for s in servers if not any(graph.has_edge(s, o) or graph.has_edge(o, s) for o in servers)]
    assert len(lonely) == 1
    assert all(talk(graph, c, s) for c in clients for s in servers)


@given(SIZES, SEEDS)
def test_the_leader_keeps_c1_and_the_others_keep_c2(count, seed):
    leader = f"n{1 + seed % count}"
    servers, _, graph = under("leader-with-c1", count, seed, leader)
    sides = {frozenset(c) for c in networkx.weakly_connected_components(graph)}
    assert sides == {frozenset({leader, "c1"}), frozenset({*servers, "c2"} - {leader})}


@given(SIZES, SEEDS)
def test_with_the_leader_alone_and_the_others_split_every_island_is_asked_and_none_hears_another(count, seed):
    leader = f"n{1 + seed % count}"
    servers, clients, graph = under("leader-alone-and-split", count, seed, leader)
    islands = [set(c) for c in networkx.weakly_connected_components(graph.subgraph(servers))]
    assert sorted(len(i) for i in islands) == sorted([1, (count - 1) // 2, count - 1 - (count - 1) // 2])
    assert {leader} in islands
    assert talk(graph, "c1", leader)
    for island in islands:
        assert any(all(talk(graph, c, s) for s in island) for c in clients), island


@given(SIZES, SEEDS)
def test_isolating_the_leader_with_and_without_its_clients(count, seed):
    (leader, *followers), clients, with_clients = under("isolate-leader", count, seed, "n1")
    _, _, alone = under("leader-alone", count, seed, "n1")
    assert set(with_clients.successors(leader)) == set(with_clients.predecessors(leader)) == set(clients)
    assert not set(alone.successors(leader)) | set(alone.predecessors(leader))
    for graph in (with_clients, alone):
        assert all(talk(graph, a, b) for a, b in combinations((*followers, *clients), 2))


@given(SIZES, SEEDS)
def test_the_leaders_minority_is_no_majority(count, seed):
    _, clients, graph = under("leader-in-minority", count, seed, "n1")
    graph.remove_nodes_from(clients)
    side = networkx.node_connected_component(graph.to_undirected(), "n1")
    assert len(side) == count - (count // 2 + 1)


@pytest.mark.parametrize("count", [3, 5, 7])
def test_one_way_means_one_way(count):
    servers, clients, unheard = under("leader-unheard", count, 0, "n1")
    _, _, deaf = under("leader-deaf", count, 0, "n1")
    for other in servers[1:]:
        assert not unheard.has_edge("n1", other) and unheard.has_edge(other, "n1")
        assert deaf.has_edge("n1", other) and not deaf.has_edge(other, "n1")
    for client in clients:
        assert talk(unheard, "n1", client) and talk(deaf, "n1", client)


def test_clients_cut_from_the_leader_leave_the_servers_whole():
    servers, _, graph = under("clients-from-leader", 5, 0, "n3")
    assert all(talk(graph, a, b) for a, b in combinations(servers, 2))
    assert set(graph.successors("n3")) == set(graph.predecessors("n3")) == set(servers) - {"n3"}


@pytest.mark.parametrize(
    ("name", "count", "leader"), [("bridge", 2, "n1"), ("isolate-leader", 3, None), ("isolate-leader", 3, "c1")]
)
def test_what_cannot_be_cut_hits_nothing(name, count, leader):
    servers, clients = names(count)
    assert make_grudge(name, servers, clients, leader, Random(0)) is None


@given(SIZES, SEEDS)
def test_the_witnesses_take_the_leaders_majority_and_nothing_else(count, seed):
    servers, clients = names(count)
    grudge = make_grudge("leader-from-witnesses", servers, clients, "n1", Random(seed))
    assert reaching_majority(cutting(servers, clients, grudge), servers) == set(servers) - {"n1"}
    assert all("n1" in link for link in grudge.cut)
    assert all(talk(networkx.complement(cutting(servers, clients, grudge)), c, s) for c in clients for s in servers)
    assert islands(cutting(servers, clients, grudge)) == [frozenset((*servers, *clients))] or count == 3


@given(SIZES, SEEDS)
def test_a_third_is_cut_from_a_majority(count, seed):
    servers, clients = names(count)
    grudge = make_grudge("minority-third", servers, clients, None, Random(seed))
    big, small = islands(cutting(servers, clients, grudge))
    assert len(small & set(servers)) == max(1, count // 3)
    assert reaching_majority(cutting(servers, clients, grudge), servers) == big & set(servers)
