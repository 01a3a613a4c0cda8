"""From a graph that the sweep could not clear to named cycles, the smallest found of each kind.

Only what the sweep left can lie on a cycle.  To it come the orders of processes and of real time, the latter as a chain
of nodes, one for each completion: a transaction leads to the node of its completion, and the last node before its
invoke leads to it.  Components of this graph hold all cycles; what lies in none is put away, and then the classes are
asked for one by one, the worst first, and of each class the plain variant before -process and -realtime: a variant is
looked for only where the plain one was not found, because what the plain one rules out includes what it does.
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
)
from checkers.kernels.operations import Int32, Int64
from checkers.kernels.transactions import OK, Bools, Edges, Transactions, join
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
    """Cycles among the nodes that are not `out`.  steps_max bounds the search of each class and variant."""
    core = _Core(txns, edges, out, happened, variants)
    found: dict[str, NamedCycle] = {}
    unfinished: list[str] = []
    for variant in variants:
        for name, (begins, kinds, rule) in _CLASSES.items():
            if any(name + v in found for v in anomalies.VARIANTS):
                continue
            cycle, finished = core.shortest(begins, kinds | _LEVELS[variant], rule, steps_max)
            if cycle:
                named = _named(name, cycle)
                found.setdefault(named.name, named)
            if not finished:
                unfinished.append(name + variant)
    return CycleSearch(tuple(found.values()), tuple(unfinished))


def _named(name: str, steps: tuple[Step, ...]) -> NamedCycle:
    """A cycle is named by the strongest order it needed, which may be less than the one that was allowed."""
    kinds = {step.kind for step in steps}
    variant = anomalies.REALTIME if REALTIME in kinds else anomalies.PROCESS if PROCESS in kinds else anomalies.PLAIN
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
        if anomalies.REALTIME in variants:
            parts.append(_realtime_edges(txns, members, node_count))
            node_count += len(members)
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

    def shortest(self, begins: int, kinds: int, rule: int, steps_max: int) -> tuple[tuple[Step, ...], bool]:
        """(steps of the shortest cycle found or nothing, whether the search ended within its budget)."""
        if not len(self.names):
            return (), True
        component, sizes = components(self.graph, kinds | begins)
        inside = (self.graph.kind == begins) & (component[self._sources] == component[self.graph.target])
        starts = np.flatnonzero(inside)
        starts = starts[np.argsort(sizes[component[self._sources[starts]]], kind="stable")]
        if not len(starts):
            return (), True
        best, steps = shortest_cycle(self.graph, component, starts, self._sources[starts], kinds, rule, steps_max)
        if len(best) and not self._is_simple(best):
            best = self._first_simple(component, starts, kinds, rule, steps_max)
        return tuple(self._steps(best)), steps != OUT_OF_STEPS

    def _first_simple(self, component: Int32, starts: Int64, kinds: int, rule: int, steps_max: int) -> Int64:
        """Under a rule the shortest walk may meet a node twice; then a cycle from one of the first starts, if any.

        Nothing is lost without one.  Such a walk falls apart into cycles that are shorter, so that one that obeyed the
        rule would have been the shortest walk itself: they are of the worse classes, which were searched before.
        """
        for start in starts[:SECOND_TRIES]:
            one = np.array([start])
            walk, _ = shortest_cycle(self.graph, component, one, self._sources[one], kinds, rule, steps_max)
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
