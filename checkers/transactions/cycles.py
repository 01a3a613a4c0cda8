"""Finds and names cycles in a graph that the sweep could not clear: for each class, the smallest cycle found.

The sweep continues to the end by breaking edges, and every cycle contains a broken edge.  From each broken edge, the
search looks for cycles class by class, worst class first.  It uses dependencies alone, then also the order of
processes, then also real time.  After it found a cycle of one class through an edge, it skips lesser classes for that
edge, because they rule out nothing more.  With a stronger order it looks only for worse classes, or for a shorter cycle
if the known one is too long to read.

*Cost.*  All searches share one budget of steps.  Each gets an even share of the remaining steps; a search that uses up
its share is reported as unfinished.  If many edges are broken, edges that connect two components of the dependencies
(or of dependencies and processes) are skipped for that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.grouping import members
from checkers.kernels.transactions.columns import OK, Edges, Transactions
from checkers.kernels.transactions.cycle_levels import (
    ANY,
    FOUND,
    NOT_ADJACENT,
    ONE_RW,
    STATES,
    UNFINISHED,
    CycleQuestion,
    CycleWalk,
    Ground,
    Starts,
    next_of_process,
    shortest_cycle,
)
from checkers.kernels.transactions.dependencies import (
    PASS,
    PROCESS,
    REALTIME,
    RW,
    WR,
    WW,
    Graph,
    build_graph,
    components,
    reverse,
)
from checkers.kernels.transactions.order_problem import joined_edges
from checkers.kernels.transactions.sweep import sweep
from checkers.sealing.codes import dense_processes
from checkers.transactions import anomalies

_CLASSES = (
    ("G0", WW, WW, ANY),
    ("G1c", WW | WR, WW | WR, ANY),
    ("G-single", WW | WR | RW, WW | WR | RW, ONE_RW),
    ("G-nonadjacent", WW | WR | RW, WW | WR | RW, NOT_ADJACENT),
    ("G2-item", WW | WR | RW, WW | WR | RW, ANY),
)
"""Classes, worst first: name, allowed kinds of the broken edge, allowed kinds of all edges, rule.

A cycle that fits no earlier class belongs to the last one."""

_G0 = 0
"""The number of the class that accepts only committed transactions.

A transaction of unknown outcome whose writes were read either committed, or was read although it aborted (G1a).  Its
writes do not rule out a model that allows G1a."""

_BEYOND = {anomalies.PLAIN: 0, anomalies.PROCESS: PROCESS, anomalies.REALTIME: REALTIME}

READABLE = 3
"""The largest number of transactions in a cycle that people can follow; real time may give a shorter cycle."""

FEW = 8
"""Up to this many broken edges, the search does not compute components first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle: its transactions, the kind of dependency, and the group node that it goes through or -1."""

    source: int
    target: int
    kind: int
    through: int


@dataclass(frozen=True, slots=True)
class NamedCycle:
    """A cycle with its name.  times: how many broken edges lie on a cycle of this name.

    assumes: the consistency model under which time orders versions; "" if reads alone show the cycle.
    by_longest: the cycle needs a key whose lists contradict each other, and takes the longest list for its order.
    """

    name: str
    steps: tuple[Step, ...]
    times: int
    assumes: str = ""
    by_longest: bool = False


@dataclass(frozen=True, slots=True)
class CycleSearch:
    """cycles: one for each name.  unfinished: names whose search used up its budget, so more cycles may exist.

    order: int32, if there is no cycle: all transactions that happened, in an order of dependencies and real time.
    """

    cycles: tuple[NamedCycle, ...]
    unfinished: tuple[str, ...]
    order: Int32 | None = field(default=None, compare=False)


def find_cycles(
    txns: Transactions, graph: Graph, incoming: Int32, happened: Bools, event_count: int, steps_max: int
) -> CycleSearch:
    """Find cycles of dependencies, of processes and of real time.  Consumes `incoming`.

    steps_max: the budget of all searches together.  If nothing is found and nothing is unfinished, no cycle exists.
    """
    rank, broken = sweep(txns, graph, incoming, happened, event_count)
    if len(broken):
        return _Search(txns, graph, rank, happened, broken).all(steps_max)
    taken_out = np.flatnonzero(rank[: len(txns.status)] >= 0).astype(np.int32)
    return CycleSearch((), (), taken_out[np.argsort(rank[taken_out])])


def _starts_of(broken: Int64, graph: Graph, rank: Int32, txn_count: int) -> Starts:
    """Make a start for each broken edge and kind, with the bounds of the edge itself, in order of their span."""
    source, home = np.searchsorted(graph.first, broken, side="right") - 1, graph.target[broken]
    kinds = graph.kind[broken].copy()
    of_groups = np.flatnonzero(source >= txn_count)
    if len(of_groups):  # an edge out of a group stands for those into it that it closes a cycle with
        backward = reverse(graph)
        rows, first = members(backward.first, source[of_groups])
        late = rank[backward.source[rows]] > np.repeat(rank[home[of_groups]], np.diff(first))
        kinds[of_groups] = np.bitwise_or.reduceat(np.where(late, graph.kind[backward.edge[rows]], 0), first[:-1])
    which, bit = np.nonzero(kinds[:, None] & _DEPENDENCIES)
    order = np.argsort(rank[source[which]] - rank[home[which]], kind="stable")
    which, bit = which[order], bit[order]
    source, home = source[which], home[which]
    return Starts(broken[which], source.astype(np.int32), home, _DEPENDENCIES[bit], rank[home], rank[source])


_DEPENDENCIES = np.array([WW, WR, RW], np.int8)


def _with_orders(
    txns: Transactions, graph: Graph, rank: Int32, happened: Bools, following: Int32
) -> tuple[Graph, Int32]:
    """Return the graph with nodes for the order of each process and for real time, and bounds of the ranks behind each
    node (`cycle_levels.py`).

    following: the next transaction of the same process, or -1.
    """
    count, nodes = len(txns.status), len(rank)
    before = np.flatnonzero(following >= 0).astype(np.int32)
    then, chain = following[before], np.arange(nodes, nodes + count, dtype=np.int32)
    by_end = np.flatnonzero(happened & (txns.status == OK)).astype(np.int32)
    by_end = by_end[np.argsort(txns.completed[by_end])]
    moments = np.arange(nodes + count, nodes + count + len(by_end), dtype=np.int32)
    completions = np.searchsorted(txns.completed[by_end], txns.invoked)
    late = np.flatnonzero(happened & (completions > 0)).astype(np.int32)
    orders = (
        (before, chain[then], PROCESS),
        (chain[then], then, PASS),
        (chain[before], chain[then], PASS),
        (by_end, moments, REALTIME),
        (moments[:-1], moments[1:], PASS),
        (moments[completions[late] - 1], late, PASS),
    )
    more = joined_edges(*(Edges(a, b, np.full(len(a), kind, np.int8)) for a, b, kind in orders))
    known = Edges(np.repeat(np.arange(nodes, dtype=np.int32), np.diff(graph.first)), graph.target, graph.kind)
    whole, _ = build_graph(known, more, nodes + count + len(by_end))
    of_groups = np.full(nodes - count, -1, np.int32)
    ranks = np.concatenate([rank[:count], of_groups, rank[:count], np.maximum.accumulate(rank[by_end])])
    return whole, ranks.astype(np.int32)


def _named(steps: tuple[Step, ...], txns: Transactions) -> str:
    """Name a cycle by the kinds of its edges, and by the strongest order among them (see `_G0` for G0)."""
    kinds = [step.kind for step in steps]
    variant = anomalies.REALTIME if REALTIME in kinds else anomalies.PROCESS if PROCESS in kinds else anomalies.PLAIN
    anti = kinds.count(RW)
    if anti == 0:
        certain = all(txns.status[step.source] == OK for step in steps)
        name = "G0" if WR not in kinds and certain else "G1c"
    elif anti == 1:
        name = "G-single"
    else:
        adjacent = any(a == b == RW for a, b in zip(kinds, kinds[1:] + kinds[:1], strict=True))
        name = "G2-item" if adjacent else "G-nonadjacent"
    return name + variant


def _from_the_first(steps: list[Step]) -> tuple[Step, ...]:
    """Rotate a cycle so that it begins with the transaction that was invoked first."""
    at = min(range(len(steps)), key=lambda i: steps[i].source)
    return (*steps[at:], *steps[:at])


class _Search:
    """Broken edges, and the worst class and the length of a known cycle through each."""

    def __init__(self, txns: Transactions, graph: Graph, rank: Int32, happened: Bools, broken: Int64) -> None:
        self._txns, self._dependencies = txns, graph
        process, process_count = dense_processes(txns.process)
        self._next_of_process = next_of_process(process, process_count, happened)
        self._graph, self._rank = _with_orders(txns, graph, rank, happened, self._next_of_process)
        self._starts = _starts_of(broken, graph, rank, len(txns.status))
        self._worst = np.full(len(self._starts.edge), len(_CLASSES), np.int64)
        self._length = np.zeros(len(self._starts.edge), np.int64)
        self._found: dict[str, NamedCycle] = {}
        self._unfinished: list[str] = []

    def all(self, steps_max: int) -> CycleSearch:
        left = steps_max
        for variant in anomalies.VARIANTS:
            inside = self._on_some_cycle(variant)
            for number, (_, own, _, _) in enumerate(_CLASSES):
                possible = inside & (self._starts.kind & own != 0)
                long = (number == self._worst) & (self._length > READABLE) & (variant == anomalies.REALTIME)
                for chosen in (np.flatnonzero(possible & long), np.flatnonzero(possible & (number < self._worst))):
                    if len(chosen):
                        left -= self._look_for(number, variant, chosen, left)
        ruled_out = set(anomalies.ruled_out(self._found))
        unfinished = dict.fromkeys(n for n in self._unfinished if not ruled_out >= set(anomalies.ruled_out([n])))
        by_rank = sorted(self._found.values(), key=lambda cycle: anomalies.WORST_FIRST.index(cycle.name))
        return CycleSearch(tuple(by_rank), tuple(unfinished))

    def _look_for(self, number: int, variant: str, chosen: Int64, steps_max: int) -> int:
        """Search a class of cycles from the chosen starts, and keep those found; returns the number of steps.

        number: the number of the class.
        """
        name, _, kinds, rule = _CLASSES[number]
        question = CycleQuestion(kinds | PASS | _BEYOND[variant], rule, STATES[rule], number == _G0)
        walk, outcome, lengths, steps = shortest_cycle(
            self._ground(STATES[rule] * len(self._rank)), self._within(kinds), chosen, question, max(steps_max, 0)
        )
        known = self._length[chosen]
        found = (outcome == FOUND) & ((self._worst[chosen] > number) | (lengths < known))
        hit = chosen[found]
        if len(hit) and walk.start in hit:
            self._worst[hit] = number
            self._length[hit] = lengths[found]
            steps_found = _from_the_first(list(self._steps(walk)))
            times = len(np.unique(self._starts.edge[hit]))
            self._keep(NamedCycle(_named(steps_found, self._txns), steps_found, times))
        if (outcome == UNFINISHED).any():
            self._unfinished.append(name + variant)
        return steps

    def _keep(self, cycle: NamedCycle) -> None:
        known = self._found.get(cycle.name)
        if known is None:
            self._found[cycle.name] = cycle
        else:
            shorter = min(known, cycle, key=lambda c: len(c.steps))
            self._found[cycle.name] = NamedCycle(cycle.name, shorter.steps, known.times + cycle.times)

    def _ground(self, places: int) -> Ground:
        """Allocate memory that the operating system clears only where the search touches it."""
        return Ground(
            self._txns.status,
            self._graph,
            self._rank,
            np.zeros(places, np.int32),
            np.empty(places, np.int32),
            np.empty(places, np.int32),
            np.empty((2, places), np.int32),
            np.zeros(len(self._txns.status), np.int32),
        )

    def _within(self, kinds: int) -> Starts:
        """Return the starts with wider bounds: a cycle may also go through other broken edges of these kinds."""
        starts = self._starts
        usable = starts.kind & kinds != 0
        order = np.argsort(starts.low[usable], kind="stable")
        low, high = starts.low[usable][order], np.maximum.accumulate(starts.high[usable][order])
        first = np.concatenate([[True], low[1:] > high[:-1]]) if len(low) else np.zeros(0, bool)
        begins, ends = low[first], high[np.concatenate([first[1:], [True]])] if len(low) else high
        if not len(begins):
            return starts
        a = np.searchsorted(ends, starts.low, side="left")
        b = np.searchsorted(begins, starts.high, side="right") - 1
        meets = a <= b
        wider_low = np.where(meets, begins[np.minimum(a, len(begins) - 1)], starts.low)
        wider_high = np.where(meets, ends[np.maximum(b, 0)], starts.high)
        return starts._replace(
            low=np.minimum(starts.low, wider_low).astype(np.int32),
            high=np.maximum(starts.high, wider_high).astype(np.int32),
        )

    def _on_some_cycle(self, variant: str) -> Bools:
        """Return which starts may lie on a cycle of this variant; all of them if they are few."""
        starts = self._starts
        if len(starts.edge) <= FEW or variant == anomalies.REALTIME:
            return np.ones(len(starts.edge), np.bool_)
        chain = self._next_of_process if variant == anomalies.PROCESS else np.empty(0, np.int32)
        of = components(self._dependencies, chain)
        same: npt.NDArray[np.bool_] = of[starts.source] == of[starts.home]
        return same

    def _steps(self, walk: CycleWalk) -> Iterator[Step]:
        """Return the edges of the cycle: those of the walk, and the broken edge, joined across nodes of length zero."""
        nodes, edges = walk.nodes.tolist(), walk.edges.tolist()
        count, groups_end = len(self._txns.status), len(self._dependencies.first) - 1
        source, kind, through = nodes[0], 0, -1
        for node, edge in zip(nodes[1:], edges[1:], strict=True):
            if self._graph.kind[edge] != PASS:
                kind = int(self._graph.kind[edge])
            if node < count:
                yield Step(source, node, kind, through)
                source, through = node, -1
            elif node < groups_end:
                through = node
        by = int(self._starts.source[walk.start])
        yield Step(source, nodes[0], int(self._starts.kind[walk.start]), by if by >= count else -1)
