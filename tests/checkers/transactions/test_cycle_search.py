"""Cycles found in small random graphs against all there are: which classes, and how long the shortest of each is."""

from __future__ import annotations

from collections import Counter
from random import Random

import networkx as nx
import numpy as np
import pytest

from checkers.kernels.transactions.columns import INFO, NEVER, OK, Edges, Transactions
from checkers.kernels.transactions.dependencies import PASS, PROCESS, REALTIME, RW, WR, WW, build_graph
from checkers.transactions.anomalies import CYCLES, VARIANTS, ruled_out
from checkers.transactions.cycles import CycleSearch, NamedCycle, find_cycles

Dependency = tuple[int, int, int]


def transactions(rng: Random, count: int, processes: int) -> tuple[Transactions, int]:
    """Some that overlap, now and then one of unknown outcome."""
    invoked, completed, process, status = [], [], [], []
    running: dict[int, int] = {}
    names = list(range(processes))
    now = 0
    while len(invoked) < count or running:
        slot = rng.randrange(processes)
        if slot in running:
            t = running.pop(slot)
            if rng.random() < 0.1:
                status[t] = INFO
                names[slot] = max(names) + 1
            else:
                completed[t] = now
        elif len(invoked) < count:
            running[slot] = len(invoked)
            invoked.append(now)
            completed.append(NEVER)
            process.append(names[slot])
            status.append(OK)
        now += 1
    return columns(process, status, invoked, completed), now


def columns(process: list[int], status: list[int], invoked: list[int], completed: list[int]) -> Transactions:
    """Transactions without micro-operations."""
    nothing = np.zeros(0, np.int32)
    return Transactions(
        process=np.array(process, np.int32),
        status=np.array(status, np.int8),
        invoked=np.array(invoked, np.int64),
        completed=np.array(completed, np.int64),
        first=np.zeros(len(process) + 1, np.int64),
        kind=np.zeros(0, np.int8),
        key=nothing,
        value=nothing,
        list_first=np.zeros(1, np.int64),
        lists=nothing,
    )


def dependencies(rng: Random, count: int, edges: int, groups: int) -> tuple[list[Dependency], list[Dependency]]:
    """(the edges as the search gets them, some through groups; what they mean from transaction to transaction)."""
    kinds = rng.choice([(WW,), (WW, WR), (RW,), (WR, RW), (WW, WR, RW, RW)])
    given: list[Dependency] = []
    for _ in range(edges):
        a, b = rng.randrange(count), rng.randrange(count)
        if rng.random() < 0.8:
            a, b = min(a, b), max(a, b)
        if a != b:
            given.append((a, b, rng.choice(kinds)))
    meant = list(given)
    for group in range(count, count + groups):
        members = rng.sample(range(count), min(count, rng.randint(2, 5)))
        cut = rng.randint(1, len(members) - 1)
        before = [(member, rng.choice((WW, RW))) for member in members[:cut]]
        given += [(member, group, kind) for member, kind in before] + [(group, m, PASS) for m in members[cut:]]
        meant += [(member, after, kind) for member, kind in before for after in members[cut:]]
    return given, meant


def search(txns: Transactions, events: int, given: list[Dependency], groups: int) -> CycleSearch:
    table = np.array(given, np.int64).reshape(-1, 3)
    edges = Edges(table[:, 0].astype(np.int32), table[:, 1].astype(np.int32), table[:, 2].astype(np.int8))
    nothing = Edges(edges.source[:0], edges.target[:0], edges.kind[:0])
    count = len(txns.status)
    graph, incoming = build_graph(edges, nothing, count + groups)
    return find_cycles(txns, graph, incoming, np.ones(count, np.bool_), events, 10**8)


def every_edge(txns: Transactions, meant: list[Dependency]) -> nx.MultiDiGraph:
    """All edges between transactions; the key of an edge is its kind."""
    count = len(txns.status)
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(count))
    for a, b, kind in set(meant):
        graph.add_edge(a, b, key=kind)
    for a in range(count):
        for b in range(count):
            if a != b and txns.completed[a] < txns.invoked[b]:
                graph.add_edge(a, b, key=REALTIME)
                if txns.process[a] == txns.process[b]:
                    graph.add_edge(a, b, key=PROCESS)
    return graph


def is_simple_cycle_of(cycle: NamedCycle, graph: nx.MultiDiGraph) -> bool:
    """Whether the steps are edges of the graph and form one cycle that visits each transaction once."""
    steps = nx.DiGraph([(step.source, step.target) for step in cycle.steps])
    each_once = steps.number_of_nodes() == steps.number_of_edges() == len(cycle.steps)
    there = all(graph.has_edge(step.source, step.target, key=step.kind) for step in cycle.steps)
    return there and each_once and bool(nx.is_strongly_connected(steps))


def all_cycles(txns: Transactions, graph: nx.MultiDiGraph) -> dict[str, int]:
    """Name: length of the shortest cycle of that name, by going through every cycle there is."""
    best: dict[str, int] = {}
    for cycle in nx.simple_cycles(nx.DiGraph(graph), length_bound=len(txns.status)):
        ends = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        for kinds in _choices([list(graph[a][b]) for a, b in ends]):
            name = _name(kinds, all(txns.status[t] == OK for t in cycle))
            best[name] = min(best.get(name, len(cycle)), len(cycle))
    return best


def _choices(options: list[list[int]]) -> list[list[int]]:
    chosen: list[list[int]] = [[]]
    for some in options:
        chosen = [[*c, kind] for c in chosen for kind in some]
    return chosen


def _name(kinds: list[int], certain: bool) -> str:
    variant = "-realtime" if REALTIME in kinds else "-process" if PROCESS in kinds else ""
    anti = kinds.count(RW)
    if anti > 1:
        adjacent = any(a == b == RW for a, b in zip(kinds, kinds[1:] + kinds[:1], strict=True))
        return ("G2-item" if adjacent else "G-nonadjacent") + variant
    if anti == 1:
        return "G-single" + variant
    if not {WW, WR} & set(kinds):
        return "order alone"
    return ("G0" if certain and WR not in kinds else "G1c") + variant


def compare(rng: Random, cases: int, size: int) -> Counter[str]:
    seen = Counter[str]()
    for _ in range(cases):
        count, groups = rng.randint(2, size), rng.randrange(3)
        txns, events = transactions(rng, count, rng.randint(1, 4))
        given, meant = dependencies(rng, count, rng.randint(1, 2 * count), groups)
        if not given:
            continue
        graph = every_edge(txns, meant)
        reported, known = search(txns, events, given, groups), all_cycles(txns, graph)
        assert not reported.unfinished
        assert ruled_out(c.name for c in reported.cycles) == ruled_out(known), (reported, known, given)
        for cycle in reported.cycles:
            assert is_simple_cycle_of(cycle, graph), (cycle, given)
            assert cycle.name in known, (cycle, known)
            assert len(cycle.steps) >= known[cycle.name]
        first = next(name + v for v in VARIANTS for name in CYCLES if name + v in known) if known else None
        if first is not None:
            shortest = next(len(c.steps) for c in reported.cycles if c.name == first)
            assert shortest == known[first], (first, reported, known, txns, given)
        seen.update(c.name for c in reported.cycles)
    return seen


def test_the_search_finds_what_is_there() -> None:
    seen = compare(Random(5), cases=500, size=6)
    assert len(seen) >= 11, seen


def test_a_group_that_waits_for_a_late_member_stands_between_early_ones() -> None:
    """T0 -ww-> T1, T2 through a group that T3 is in too; T2 -ww-> T0.  T0 is of unknown outcome."""
    txns = columns([0, 1, 1, 1], [INFO, OK, OK, OK], [0, 2, 4, 6], [NEVER, 3, 5, 7])
    given = [(1, 3, WW), (0, 1, WW), (2, 4, WW), (4, 0, PASS), (0, 5, WW), (3, 5, RW), (5, 1, PASS), (5, 2, PASS)]
    cycles = {c.name: len(c.steps) for c in search(txns, 8, given, groups=2).cycles}
    assert cycles["G1c"] == 2


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_more_graphs(part: int, night: Random) -> None:
    compare(night, cases=10_000, size=7)
