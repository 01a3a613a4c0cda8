"""From a graph that the sweep could not clear to named cycles, the smallest found of each kind.

Only what the sweep left can lie on a cycle.  To it come the orders of processes and of real time, the latter as a chain
of nodes, one for each completion: a transaction leads to the node of its completion, and the last node before its
invoke leads to it.  Components of this graph hold all cycles; what lies in none is put away, and then the classes are
asked for one by one, the worst first, and of each class the plain variant before -process and -realtime: a variant is
looked for only where it would rule out a model more, or where the worst cycle found is too long to read.  A plain class
that would rule out nothing new gets a small share of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checkers.kernels.dependencies import (
    ADJACENT,
    ANY,
    NOT_ADJACENT,
    OUT_OF_STEPS,
    PASS,
    PROCESS,
    REALTIME,
    RW,
    WR,
    WW,
    Graph,
    build_graph,
    components,
    shortest_cycle,
    topological_ranks,
)
from checkers.kernels.operations import Int32, Int64
from checkers.kernels.transactions import NEVER, OK, Bools, Edges, Transactions, join
from checkers.transactions import anomalies

_CLASSES = {
    "G0": (WW, WW, ANY),
    "G1c": (WR, WW | WR, ANY),
    "G-single": (RW, WW | WR, ANY),
    "G-nonadjacent": (RW, WW | WR | RW, NOT_ADJACENT),
    "G2-item": (RW, WW | WR | RW, ADJACENT),
}
"""Class: the kind of edge it has certainly, the kinds its other edges have, the rule they obey."""

_LEVELS = {
    anomalies.PLAIN: PASS,
    anomalies.PROCESS: PASS | PROCESS,
    anomalies.REALTIME: PASS | PROCESS | REALTIME,
}


READABLE = 6
"""Up to so many transactions a person follows a cycle; where it is longer, a stronger order may give a shorter one."""

REDUNDANT_SHARE = 10

SECOND_TRIES = 20
"""Edges from which a cycle is looked for where the shortest walk turned out not to be one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle: transactions, kind of dependency, and the group node it went through or -1."""

    source: int
    target: int
    kind: int
    through: int


@dataclass(frozen=True, slots=True)
class NamedCycle:
    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class CycleSearch:
    """cycles: one for each name.  unfinished: names whose search ended at the budget, so that others may exist."""

    cycles: tuple[NamedCycle, ...]
    unfinished: tuple[str, ...]


def find_cycles(
    txns: Transactions, edges: Edges, out: Bools, happened: Bools, variants: tuple[str, ...], steps_max: int
) -> CycleSearch:
    """Cycles among the nodes that are not `out`, of which there must be one, given all variants.

    steps_max bounds the search of each class and variant.  If all of them end at it, there still is some cycle.
    """
    core = _Core(txns, edges, out, happened, variants)
    found: dict[str, NamedCycle] = {}
    unfinished: list[str] = []
    for variant in variants:
        for name, (begins, kinds, rule) in _CLASSES.items():
            same = [found[name + v] for v in anomalies.VARIANTS if name + v in found]
            if any(len(cycle.steps) <= READABLE for cycle in same):
                continue
            redundant = set(anomalies.ruled_out(found)) >= set(anomalies.ruled_out([name + variant]))
            worst = next(iter(found)) in [cycle.name for cycle in same] if found else False
            if redundant and variant != anomalies.PLAIN and not worst:
                continue
            share = REDUNDANT_SHARE if redundant else 1
            cycle, finished = core.shortest(begins, kinds | _LEVELS[variant], rule, steps_max // share)
            if cycle:
                named = _named(cycle)
                known = found.get(named.name)
                if known is None or len(named.steps) < len(known.steps):
                    found[named.name] = named
            elif not finished:
                unfinished.append(name + variant)
    if not found:
        for variant in variants:
            cycle = core.any_cycle(WW | WR | RW | _LEVELS[variant])
            if cycle:
                named = _named(cycle)
                found[named.name] = named
                break
    told = set(anomalies.ruled_out(found))
    return CycleSearch(
        tuple(found.values()), tuple(name for name in unfinished if not told >= set(anomalies.ruled_out([name])))
    )


def _named(steps: tuple[Step, ...]) -> NamedCycle:
    """A cycle is named by its edges alone, and by the strongest order among them."""
    kinds = [step.kind for step in steps]
    variant = anomalies.REALTIME if REALTIME in kinds else anomalies.PROCESS if PROCESS in kinds else anomalies.PLAIN
    anti = kinds.count(RW)
    if anti == 0:
        name = "G1c" if WR in kinds else "G0"
    elif anti == 1:
        name = "G-single"
    else:
        adjacent = any(a == b == RW for a, b in zip(kinds, kinds[1:] + kinds[:1], strict=True))
        name = "G2-item" if adjacent else "G-nonadjacent"
    return NamedCycle(name + variant, steps)


class _Core:
    """The components of what the sweep left, with nodes numbered anew.

    names: the node's number outside; transactions below `txn_count`, then groups, then completions.
    """

    def __init__(
        self, txns: Transactions, edges: Edges, out: Bools, happened: Bools, variants: tuple[str, ...]
    ) -> None:
        self._txn_count = len(txns.status)
        left = ~out
        left[: self._txn_count] &= happened
        inside = left[edges.source] & left[edges.target]
        parts = [Edges(edges.source[inside], edges.target[inside], edges.kind[inside])]
        members = np.flatnonzero(left[: self._txn_count]).astype(np.int32)
        node_count = len(left)
        if anomalies.PROCESS in variants or anomalies.REALTIME in variants:
            parts.append(_process_edges(txns, members))
        self._has_chain = anomalies.REALTIME in variants
        if self._has_chain:
            parts.append(_realtime_edges(txns, members, node_count))
            node_count += int((txns.status[members] == OK).sum())
        everything = join(*parts)
        graph, _ = build_graph(everything, node_count)
        component, sizes = components(graph, -1)
        on_cycle = sizes[component] > 1
        kept = on_cycle[everything.source] & (component[everything.source] == component[everything.target])
        self.names = np.flatnonzero(on_cycle)
        renumbered = np.full(node_count, -1, np.int32)
        renumbered[self.names] = np.arange(len(self.names), dtype=np.int32)
        core = Edges(renumbered[everything.source[kept]], renumbered[everything.target[kept]], everything.kind[kept])
        self.graph: Graph = build_graph(core, len(self.names))[0]
        self._sources: Int32 = np.repeat(np.arange(len(self.names), dtype=np.int32), np.diff(self.graph.first))
        self._txn_nodes = int(np.searchsorted(self.names, self._txn_count))
        self._no_ranks: Int32 = np.zeros(len(self.names), np.int32)
        self._times = self._times_of(txns, members, node_count)

    def _times_of(self, txns: Transactions, members: Int32, node_count: int) -> Int64:
        """When a node's time begins: its invoke, the completion it stands for, the first of its group."""
        times = np.zeros(node_count, np.int64)
        times[members] = txns.invoked[members]
        times[self._txn_count :] = NEVER
        done = np.sort(txns.completed[members[txns.status[members] == OK]])
        if self._has_chain:
            times[node_count - len(done) :] = done
        core = times[self.names]
        groups = np.flatnonzero(core == NEVER)  # side by side, each with an edge: nothing else lies on a cycle
        if len(groups):
            begin, end = int(self.graph.first[groups[0]]), int(self.graph.first[groups[-1] + 1])
            firsts = self.graph.first[groups] - begin
            core[groups] = np.minimum.reduceat(core[self.graph.target[begin:end]], firsts)
        return core

    def shortest(self, begins: int, kinds: int, rule: int, steps_max: int) -> tuple[tuple[Step, ...], bool]:
        """(steps of the shortest cycle found or nothing, whether the search ended within its budget)."""
        if not len(self.names):
            return (), True
        component, sizes = components(self.graph, kinds | begins)
        inside = (self.graph.kind == begins) & (component[self._sources] == component[self.graph.target])
        starts = np.flatnonzero(inside)
        if not len(starts):
            return (), True
        backwards = self._times[self.graph.target[starts]] - self._times[self._sources[starts]]
        starts = starts[np.lexsort((backwards, sizes[component[self._sources[starts]]]))]
        rank = self._ranks(kinds) if rule == ANY and not begins & kinds else self._no_ranks
        best, steps = self._cycle_from(starts, component, rank, kinds, rule, steps_max)
        if len(best) and not self._is_simple(best):
            best = self._first_simple(component, starts, kinds, rule, steps_max)
        return tuple(self._steps(best)), steps != OUT_OF_STEPS

    def any_cycle(self, kinds: int) -> tuple[Step, ...]:
        """A cycle of these kinds if there is one: every edge inside a component lies on one."""
        component, _ = components(self.graph, kinds)
        inside = (self.graph.kind & kinds != 0) & (component[self._sources] == component[self.graph.target])
        starts = np.flatnonzero(inside & (self._sources < self._txn_nodes))[:SECOND_TRIES]
        if not len(starts):
            return ()
        best, _ = self._cycle_from(starts, component, self._no_ranks, kinds, ANY, len(self._sources))
        return tuple(self._steps(best))

    def _cycle_from(
        self, starts: Int64, component: Int32, rank: Int32, kinds: int, rule: int, steps_max: int
    ) -> tuple[Int64, int]:
        sources = self._sources[starts]
        return shortest_cycle(self.graph, self._txn_nodes, component, rank, starts, sources, kinds, rule, steps_max)

    def _ranks(self, kinds: int) -> Int32:
        """Ranks that keep a search short: a path home never meets a node of higher rank than home has.

        In the order of time, so that a start and its home that ran together have few nodes between them.
        """
        return topological_ranks(self.graph, kinds, self._times)

    def _first_simple(self, component: Int32, starts: Int64, kinds: int, rule: int, steps_max: int) -> Int64:
        """Under a rule the shortest walk may meet a node twice; then a cycle from one of the first starts, if any.

        Nothing is lost without one.  Such a walk falls apart into cycles that are shorter, so that one that obeyed the
        rule would have been the shortest walk itself: they are of the worse classes, which were searched before.
        """
        for start in starts[:SECOND_TRIES]:
            walk, _ = self._cycle_from(np.array([start]), component, self._no_ranks, kinds, rule, steps_max)
            if len(walk) and self._is_simple(walk):
                return walk
        return np.empty(0, np.int64)

    def _is_simple(self, walk: Int64) -> bool:
        nodes = [n for n in self._sources[walk].tolist() if self.names[n] < self._txn_count]
        return len(set(nodes)) == len(nodes)

    def _steps(self, walk: Int64) -> Iterator[Step]:
        """Edges of a walk, joined where they pass through nodes that are no transactions."""
        source, kind, through = -1, 0, -1
        for edge in walk.tolist():
            here, there = int(self.names[self._sources[edge]]), int(self.names[self.graph.target[edge]])
            if here < self._txn_count:
                source, kind, through = here, int(self.graph.kind[edge]), -1
            else:
                through = here
            if there < self._txn_count:
                yield Step(source, there, kind, through)


def _process_edges(txns: Transactions, members: Int32) -> Edges:
    """Each transaction to the next one of its process."""
    order = members[np.lexsort((txns.invoked[members], txns.process[members]))]
    same = txns.process[order[1:]] == txns.process[order[:-1]]
    source, target = order[:-1][same], order[1:][same]
    return Edges(source, target, np.full(len(source), PROCESS, np.int8))


def _realtime_edges(txns: Transactions, members: Int32, node0: int) -> Edges:
    """The chain of completions, from node0 on, and how transactions lead to it and it to them."""
    done = members[txns.status[members] == OK]
    done = done[np.argsort(txns.completed[done])]
    clock = np.arange(node0, node0 + len(done), dtype=np.int32)
    last_before = np.searchsorted(txns.completed[done], txns.invoked[members]) - 1
    later = members[last_before >= 0]
    source = np.concatenate([done, clock[:-1], clock[last_before[last_before >= 0]]]).astype(np.int32)
    target = np.concatenate([clock, clock[1:], later]).astype(np.int32)
    kind = np.full(len(source), PASS, np.int8)
    kind[: len(done)] = REALTIME
    return Edges(source, target, kind)
