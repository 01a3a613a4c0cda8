"""From a graph that the sweep could not clear to named cycles: of each class the smallest one found.

The sweep goes on to the end by breaking edges, and every cycle contains a broken edge.  From each broken edge, cycles
are searched class by class, the worst first: among dependencies alone, then with the order of processes, then with real
time.  An edge on a cycle of one class is not searched for lesser classes, which would rule out nothing more.  With a
stronger order it is searched for worse classes only, or where its cycle is too long to read.

*Cost.*  All searches together get a multiple of the size of the graph, each an even share of what is left; a search
that ends at its share is reported as unfinished.  Where many edges are broken, those that are not in a component of the
dependencies (or of these and processes) are not searched for there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.transactions.columns import OK, Transactions
from checkers.kernels.transactions.cycle_levels import BY_PROCESS, BY_REALTIME, Ground, Question, Ranking, Room
from checkers.kernels.transactions.cycle_rules import ANY, NOT_ADJACENT, ONE_RW, STATES
from checkers.kernels.transactions.cycle_search import FOUND, UNFINISHED, Walk, shortest_cycle
from checkers.kernels.transactions.cycle_starts import Starts, next_of_process, starts_of
from checkers.kernels.transactions.dependencies import PASS, PROCESS, REALTIME, RW, WR, WW, Graph, components, reverse
from checkers.kernels.transactions.sweep import Sweep, sweep, sweep_on
from checkers.sealing.codes import dense_processes
from checkers.transactions import anomalies

_CLASSES = (
    ("G0", WW, WW, ANY),
    ("G1c", WW | WR, WW | WR, ANY),
    ("G-single", WW | WR | RW, WW | WR | RW, ONE_RW),
    ("G-nonadjacent", WW | WR | RW, WW | WR | RW, NOT_ADJACENT),
    ("G2-item", WW | WR | RW, WW | WR | RW, ANY),
)
"""Class, worst first: the kinds that its broken edge may have, those of all its edges, the rule they obey.

A cycle that is of none of the classes before is of the last one."""

_G0 = 0
"""Of this class are only cycles of transactions that committed.  One of unknown outcome, of which something was read,
either committed or was read although it aborted (G1a).  A model that allows G1a is not ruled out by its writes."""

_BEYOND = {anomalies.PLAIN: 0, anomalies.PROCESS: PROCESS, anomalies.REALTIME: REALTIME}

READABLE = 3
"""Up to so many transactions a person follows a cycle; where it is longer, real time may give a shorter one."""

FEW = 8
"""Broken edges that are searched for without looking at components first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle: transactions, kind of dependency, and the group node it went through or -1."""

    source: int
    target: int
    kind: int
    through: int


@dataclass(frozen=True, slots=True)
class NamedCycle:
    """times: how many broken edges lie on a cycle of this name.

    assumes: the consistency model under which versions were ordered by time; "" where reads alone show the cycle.
    """

    name: str
    steps: tuple[Step, ...]
    times: int
    assumes: str = ""


@dataclass(frozen=True, slots=True)
class CycleSearch:
    """cycles: one for each name.  unfinished: names whose search ended at the budget, so that others may exist."""

    cycles: tuple[NamedCycle, ...]
    unfinished: tuple[str, ...]


def find_cycles(
    txns: Transactions, graph: Graph, incoming: Int32, happened: Bools, event_count: int, steps_max: int
) -> CycleSearch:
    """The cycles of the graph, of processes and of real time.  Consumes `incoming`.

    steps_max bounds all searches together.  There is no cycle where nothing is found and nothing is unfinished.
    """
    state, stuck_at = sweep(txns, graph, incoming, happened, event_count)
    if stuck_at < 0:
        return CycleSearch((), ())
    return _Search(txns, graph, state, happened, stuck_at).all(steps_max)


def _named(steps: tuple[Step, ...], txns: Transactions) -> str:
    """A cycle is named by its edges, and by the strongest order among them; for G0 see there."""
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
    """A cycle has no beginning.  The witness begins with the transaction that was invoked first."""
    at = min(range(len(steps)), key=lambda i: steps[i].source)
    return (*steps[at:], *steps[:at])


class _Search:
    """Broken edges, and what is known of each: the worst class of a cycle through it, and how long that is."""

    def __init__(self, txns: Transactions, graph: Graph, state: Sweep, happened: Bools, stuck_at: int) -> None:
        self._txns = txns
        self._graph = graph
        self._backward = reverse(graph)
        self._txn_count = len(txns.status)
        broken = sweep_on(txns, graph, self._backward, happened, state, stuck_at)
        by_rank = np.full(len(state.rank), -1, np.int32)
        ranked = np.flatnonzero(state.rank >= 0).astype(np.int32)
        by_rank[state.rank[ranked]] = ranked
        self._ranking = Ranking(state.rank, by_rank, _next_of_process(txns, happened))
        self._starts = starts_of(broken, graph, self._backward, state.rank, self._txn_count)
        self._worst = np.full(len(self._starts.edge), len(_CLASSES), np.int64)
        self._length = np.zeros(len(self._starts.edge), np.int64)
        self._found: dict[str, NamedCycle] = {}
        self._unfinished: list[str] = []

    def all(self, steps_max: int) -> CycleSearch:
        left = steps_max
        for variant in anomalies.VARIANTS:
            inside = self._on_some_cycle(variant)
            for number, (name, own, kinds, rule) in enumerate(_CLASSES):
                possible = inside & (self._starts.kind & own != 0)
                long = (number == self._worst) & (self._length > READABLE) & (variant == anomalies.REALTIME)
                for chosen in (np.flatnonzero(possible & long), np.flatnonzero(possible & (number < self._worst))):
                    if len(chosen):
                        left -= self._look_for(name + variant, number, chosen, kinds, rule, _BEYOND[variant], left)
        ruled_out = set(anomalies.ruled_out(self._found))
        unfinished = dict.fromkeys(n for n in self._unfinished if not ruled_out >= set(anomalies.ruled_out([n])))
        by_rank = sorted(self._found.values(), key=lambda cycle: anomalies.WORST_FIRST.index(cycle.name))
        return CycleSearch(tuple(by_rank), tuple(unfinished))

    def _look_for(
        self, sought: str, number: int, chosen: Int64, kinds: int, rule: int, beyond: int, steps_max: int
    ) -> int:
        """Search from the chosen starts, keep what is found; how many steps it took."""
        states = STATES[rule]
        room = self._room(2 * states if beyond == REALTIME else states, beyond)
        walk, outcome, lengths, steps = shortest_cycle(
            Ground(self._txns, self._graph, self._backward, self._ranking, room),
            self._within(kinds),
            chosen,
            Question(kinds | PASS, rule, beyond, states, number == _G0),
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
            self._unfinished.append(sought)
        return steps

    def _keep(self, cycle: NamedCycle) -> None:
        known = self._found.get(cycle.name)
        if known is None:
            self._found[cycle.name] = cycle
        else:
            shorter = min(known, cycle, key=lambda c: len(c.steps))
            self._found[cycle.name] = NamedCycle(cycle.name, shorter.steps, known.times + cycle.times)

    def _room(self, states: int, beyond: int) -> Room:
        """Zeroed by the system where it is touched, and nowhere else."""
        nodes = len(self._ranking.rank)
        of_one_state = nodes + (self._txn_count if beyond == PROCESS else 0)
        places = states * of_one_state
        return Room(
            np.zeros(places, np.int32),
            np.empty(places, np.int32),
            np.empty(places, np.int32),
            np.empty(of_one_state, np.int32),
            np.empty(of_one_state, np.int32),
            np.zeros(nodes, np.int32),
        )

    def _within(self, kinds: int) -> Starts:
        """The starts, their bounds wide enough for every other broken edge of these kinds that they may go through."""
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
        """Which starts may lie on a cycle of this variant at all.  All of them if they are few: the search decides."""
        starts = self._starts
        if len(starts.edge) <= FEW or variant == anomalies.REALTIME:
            return np.ones(len(starts.edge), np.bool_)
        no_chain = np.empty(0, np.int32)
        of = components(self._graph, self._ranking.next_of_process if variant == anomalies.PROCESS else no_chain)
        same: npt.NDArray[np.bool_] = of[starts.source] == of[self._graph.target[starts.edge]]
        return same

    def _steps(self, walk: Walk) -> Iterator[Step]:
        """The walk from the target of a broken edge, and that edge, joined where they pass groups and processes."""
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
    """The next transaction of the same process that happened, or -1."""
    process, count = dense_processes(txns.process)
    return next_of_process(process, count, happened)
