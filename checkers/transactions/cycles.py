"""Finds and names cycles in a graph of transactions: for each class, the smallest cycle found.

The sweep (`kernels/transactions/sweep.py`) sorts the graph topologically and removes an edge wherever it meets a cycle.
So every cycle contains a broken edge.  From each broken edge, the search looks for cycles class by class, worst class
first.  It uses dependencies alone, then also the order of processes, then also real time.  Once it has found a cycle of
one class through an edge, it skips lesser classes for that edge, because they rule out no further model.  With the
order of processes or real time it looks only for worse classes, or for a shorter cycle if the known cycle is too long
to read.

*Cost.*  All searches share one budget of steps.  Each gets an even share of the remaining steps; a search that uses up
its share is reported as unfinished.  If many edges are broken, the search without real time skips edges that connect
two strongly connected components of its graph, because no cycle goes through them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.codes import dense_processes, members
from checkers.kernels.transactions.columns import OK, Transactions
from checkers.kernels.transactions.cycle_levels import (
    ANY,
    BY_PROCESS,
    BY_REALTIME,
    FOUND,
    NOT_ADJACENT,
    ONE_RW,
    STATES,
    UNFINISHED,
    CycleQuestion,
    CycleWalk,
    Ground,
    Ranking,
    Room,
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
    Reverse,
    components,
    reverse,
)
from checkers.kernels.transactions.sweep import Sweep, sweep, sweep_on
from checkers.transactions import anomalies

_CLASSES = (
    ("G0", WW, WW, ANY),
    ("G1c", WW | WR, WW | WR, ANY),
    ("G-single", WW | WR | RW, WW | WR | RW, ONE_RW),
    ("G-nonadjacent", WW | WR | RW, WW | WR | RW, NOT_ADJACENT),
    ("G2-item", WW | WR | RW, WW | WR | RW, ANY),
)
"""Classes, worst first: (name, allowed kinds of the broken edge, allowed kinds of all edges, rule).

A cycle that fits no earlier class belongs to the last class."""

_G0 = 0
"""Position in `_CLASSES` of the class that accepts only committed transactions.

If the writes of a transaction with unknown outcome were read, it committed, or a read of aborted data occurred (G1a).
So its writes do not rule out a model that allows G1a."""

_BEYOND = {anomalies.PLAIN: 0, anomalies.PROCESS: PROCESS, anomalies.REALTIME: REALTIME}

READABLE = 3
"""Maximum number of transactions in a cycle that people can follow.

For a longer cycle, the search with real time looks for a shorter one."""

FEW = 8
"""Maximum number of broken edges for which the search does not compute components first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle.

    source, target: transactions
    kind: kind of the dependency
    through: the group node that the edge goes through, or -1
    """

    source: int
    target: int
    kind: int
    through: int


@dataclass(frozen=True, slots=True)
class NamedCycle:
    """A cycle with its name.

    times: number of broken edges that lie on a cycle of this name
    assumes: the consistency model under which time orders versions; "" if reads alone show the cycle
    by_longest: True if the cycle needs a key whose lists contradict each other; its longest list counts as its order
    """

    name: str
    steps: tuple[Step, ...]
    times: int
    assumes: str = ""
    by_longest: bool = False


@dataclass(frozen=True, slots=True)
class CycleSearch:
    """The result of a search for cycles.

    cycles: one cycle for each name
    unfinished: names whose search used up its budget, so that more cycles may exist
    order: if there is no cycle, all transactions that happened in an order that respects dependencies and real time
    """

    cycles: tuple[NamedCycle, ...]
    unfinished: tuple[str, ...]
    order: Int32 | None = field(default=None, compare=False)


def find_cycles(
    txns: Transactions, graph: Graph, incoming: Int32, happened: Bools, event_count: int, steps_max: int
) -> CycleSearch:
    """Find cycles of dependencies, of processes and of real time.  Overwrites `incoming`.

    steps_max: budget in steps of all searches together

    If the result has no cycle and no unfinished search, no cycle exists.
    """
    state, stuck_at = sweep(txns, graph, incoming, happened, event_count)
    if stuck_at < 0:
        by_rank = _nodes_by_rank(state.rank)
        return CycleSearch((), (), by_rank[by_rank < len(txns.status)])
    return _Search(txns, graph, state, happened, stuck_at).all(steps_max)


def _nodes_by_rank(rank: Int32) -> Int32:
    """Return the nodes that have a rank, in the order of their ranks."""
    ranked = np.flatnonzero(rank >= 0).astype(np.int32)
    nodes: Int32 = np.empty(len(ranked), np.int32)
    nodes[rank[ranked]] = ranked
    return nodes


_DEPENDENCIES = np.array([WW, WR, RW], np.int8)


def _starts_of(broken: Int64, graph: Graph, backward: Reverse, rank: Int32, txn_count: int) -> Starts:
    """Make a start for each broken edge and each of its kinds, in the order of their spans.

    The bounds of a start are the ranks of the two ends of its edge.
    """
    source, home = np.searchsorted(graph.first, broken, side="right") - 1, graph.target[broken]
    kinds = graph.kind[broken].copy()
    of_groups = np.flatnonzero(source >= txn_count)
    if len(of_groups):  # an edge out of a group has the kinds of the edges into the group with which it closes a cycle
        rows, first = members(backward.first, source[of_groups])
        late = rank[backward.source[rows]] > np.repeat(rank[home[of_groups]], np.diff(first))
        kinds[of_groups] = np.bitwise_or.reduceat(np.where(late, graph.kind[backward.edge[rows]], 0), first[:-1])
    which, bit = np.nonzero(kinds[:, None] & _DEPENDENCIES)
    order = np.argsort(rank[source[which]] - rank[home[which]], kind="stable")
    which, bit = which[order], bit[order]
    by, low, high = source[which].astype(np.int32), rank[home[which]], rank[source[which]]
    return Starts(broken[which], by, _DEPENDENCIES[bit], low, high)


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
    """The broken edges, each with the worst class and the length of a cycle known to go through it."""

    def __init__(self, txns: Transactions, graph: Graph, state: Sweep, happened: Bools, stuck_at: int) -> None:
        self._txns = txns
        self._graph = graph
        backward = reverse(graph)
        self._txn_count = len(txns.status)
        broken = sweep_on(txns, graph, backward, happened, state, stuck_at)
        self._ranking = Ranking(state.rank, _nodes_by_rank(state.rank), _next_of_process(txns, happened))
        self._starts = _starts_of(broken, graph, backward, state.rank, self._txn_count)
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
        """Search cycles of one class from the chosen starts, keep the found cycles, and return the number of steps.

        number: position of the class in `_CLASSES`
        """
        name, _, kinds, rule = _CLASSES[number]
        beyond = _BEYOND[variant]
        states = STATES[rule]
        room = self._room(2 * states if beyond == REALTIME else states, beyond)
        walk, outcome, lengths, steps = shortest_cycle(
            Ground(self._txns, self._graph, self._ranking, room),
            self._within(kinds),
            chosen,
            CycleQuestion(kinds | PASS, rule, beyond, states, number == _G0),
            max(steps_max, 0),
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

    def _room(self, states: int, beyond: int) -> Room:
        """Allocate memory that the operating system clears only where the search touches it."""
        nodes = len(self._ranking.rank)
        of_one_state = nodes + (self._txn_count if beyond == PROCESS else 0)
        places = states * of_one_state
        return Room(
            of_one_state,
            np.zeros(places, np.int32),
            np.empty(places, np.int32),
            np.empty(places, np.int32),
            np.empty((2, places), np.int32),
            np.zeros(2, np.int64),
            np.zeros(nodes, np.int32),
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
        """Return a mask of the starts that may lie on a cycle of this variant; all of them if there are at most FEW."""
        starts = self._starts
        if len(starts.edge) <= FEW or variant == anomalies.REALTIME:
            return np.ones(len(starts.edge), np.bool_)
        no_chain = np.empty(0, np.int32)
        of = components(self._graph, self._ranking.next_of_process if variant == anomalies.PROCESS else no_chain)
        same: npt.NDArray[np.bool_] = of[starts.source] == of[self._graph.target[starts.edge]]
        return same

    def _steps(self, walk: CycleWalk) -> Iterator[Step]:
        """Yield the edges of the cycle: the edges of the walk, joined across groups and chains, and the broken edge."""
        nodes, ways = walk.nodes.tolist(), walk.ways.tolist()
        source, kind, through = nodes[0], 0, -1
        for node, way in zip(nodes[1:], ways[1:], strict=True):
            if way >= 0 and self._graph.kind[way] != PASS:
                kind = int(self._graph.kind[way])
            elif way in (BY_PROCESS, BY_REALTIME):
                kind = PROCESS if way == BY_PROCESS else REALTIME
            if node < self._txn_count:
                yield Step(source, node, kind, through)
                source, through = node, -1
            elif way >= 0:
                through = node
        by = int(self._starts.source[walk.start])
        yield Step(source, nodes[0], int(self._starts.kind[walk.start]), by if by >= self._txn_count else -1)


def _next_of_process(txns: Transactions, happened: Bools) -> Int32:
    """Return, for each transaction, the next transaction of the same process that happened, or -1."""
    process, count = dense_processes(txns.process)
    return next_of_process(process, count, happened)
