"""The explorer: every order of steps of a small cluster within bounds.

*Search.*  Breadth first through every order of steps, so that the first violation has a shortest trace.

Each level is split into chunks, which this process and newly forked workers share.  The workers return the states that
they reach, and this process decides which states are new.  The result does not depend on the number of processes.

A search that ends within its budgets proves that no order of those steps violates a rule.

*Growing bounds.*  Bounds are explored one after another, until the time is used up.

Each completely explored bound is a proof, so small bounds come first.  Their order follows the planted bugs: each line
allows bugs that the lines before it cannot show.

    two terms, two elections           two leaders; the commit of a minority; logs that are compared by offset alone
    one term, one step of each kind    what is not durable (crashes, insides); what arrives late (losses, splits)
    one term, three elections          a voter that votes twice
    one term, a change of the voters   a set that counts too late or too soon; a leader that removes itself
    two terms and a read               a deposed leader that answers from its own state
    one term, two elections            the same kinds of steps while voters compete
    two terms and a step of each kind  entries of a former term that are truncated or counted
    one term, two kinds of steps       an answer that was sent before a power loss
    more elections, more terms, and so on without an end

A bound is skipped if it lies within a completely explored one, or if it contains a bound with too many states.  If
voters change, one additional server follows the log and may become a voter, and the log contains the voters.  So such
a bound proves nothing about static voters, and contains none of their bounds.

*Elections.*  No order of steps may leave voters that wait for one another forever.

This rule is checked in states without a leader in which a log names other voters than the initial ones.  All servers
are restarted, all links are restored, and from then on every message arrives.  Election timeouts fire, either of one
server repeatedly or of all servers in turn.  If a leader commits an entry of its own epoch in one of these futures, the
state is correct.

A future that reaches a state from which an earlier future elected a leader ends there.

The check assumes timers that fire in a favourable order, as timers of a real cluster eventually do.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import combinations_with_replacement, count
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from harness.exploring.levels import Expansion, GrowingTable, Index, Levels, States, joined
from harness.exploring.parts import Broken, Part, Parts, Promises, Rest
from harness.exploring.steps import LEFT, Budgets, ClusterSteps, ExploredState, Outcomes, Step
from harness.exploring.voter import ExploredVoter
from system_under_test.kraft.raft.states import Leader
from system_under_test.kraft.raft.voters import VoterSet

ROUNDS, MESSAGES_OF_A_ROUND = 12, 60
MANY = 1000


class ElectionsLeft:
    """A check that a leader can still be elected. steps, voters: steps and number of voters of the explored cluster."""

    def __init__(self, steps: ClusterSteps, voters: int, bug: str) -> None:
        many = Budgets(**dict.fromkeys(("epochs", "timeouts", "looks"), MANY), changes=steps.budgets.changes)
        self._explored: Parts = steps.parts
        self._steps = ClusterSteps(voters, many, bug, spares=len(steps.ids) - voters)
        self._rest = self._steps.parts.number(Rest(tuple(getattr(many, name) for name in LEFT)))
        self._known: dict[tuple[tuple[int, ...], frozenset[int]], bool] = {}
        self._electing: set[ExploredState] = set()
        """States from which a leader was elected in some future."""

    def check(self, voters: Sequence[int], calls: Sequence[int]) -> None:
        """Raise Broken if no leader can be elected from this state."""
        nodes = [self._explored.node(number) for number in voters]
        if any(map(_leads, nodes)) or not any(map(_names_others, nodes)):
            return
        known = (tuple(voters), frozenset(calls))
        if known not in self._known:
            self._known[known] = any(self._elects(voters, calls, turns) for turns in self._turns())
        if not self._known[known]:
            raise Broken("no leader can be elected any more")

    def _turns(self) -> Iterator[Sequence[int]]:
        ids = self._steps.ids
        yield from ((id,) for id in ids)
        yield ids

    def _elects(self, voters: Sequence[int], calls: Sequence[int], turns: Sequence[int]) -> bool:
        steps, parts = self._steps, self._steps.parts
        nodes = tuple(parts.number(self._explored.node(number)) for number in voters)
        under_way = tuple(parts.number(self._explored.call(number)) for number in calls)
        world = ExploredState(nodes, under_way, (), parts.number(Promises()), self._rest)
        for id in steps.ids:
            if parts.node(world.voters[id - 1]).core is None:
                world = steps.at_once(world, ("boot", id))
        met = list[ExploredState]()
        for state in self._future(world, turns):
            if state in self._electing or any(map(self._has_committed, state.voters)):
                self._electing.update(met)
                return True
            met.append(state)
        return False

    def _future(self, world: ExploredState, turns: Sequence[int]) -> Iterator[ExploredState]:
        """Yield the state before each message.  A round ends early if no message is left."""
        steps, parts = self._steps, self._steps.parts
        for turn in range(ROUNDS):
            for _ in range(MESSAGES_OF_A_ROUND):
                yield world
                if not world.calls:
                    break
                call = parts.call(world.calls[0])
                world = steps.at_once(world, ("rpc" if call.reply is None else "reply", call.lane))
            world = self._rings(world, turns[turn % len(turns)])
        yield world

    def _rings(self, world: ExploredState, id: int) -> ExploredState:
        for step in self._steps.steps_of_voter(world, id):
            if step[0] in ("timeout", "look"):
                return self._steps.at_once(world, step)
        return world

    def _has_committed(self, number: int) -> bool:
        node = self._steps.parts.node(number)
        state = node.core.state if node.core is not None else None
        return isinstance(state, Leader) and node.mark > state.epoch_start_offset


def _leads(node: ExploredVoter) -> bool:
    return node.core is not None and isinstance(node.core.state, Leader)


def _names_others(node: ExploredVoter) -> bool:
    return sum(isinstance(batch.body, VoterSet) for batch in node.log.batches) > 1


CHUNK = 500
"""Number of states in a chunk of a level."""


class Chunk(NamedTuple):
    """Result for a chunk that another process has explored.

    found: its states are numbers of parts, and its steps are indices into `steps`
    parts, outcomes: those that the other process computed first
    """

    found: Expansion
    steps: list[Step]
    parts: list[tuple[int, Part, tuple[int, ...]]]
    outcomes: list[tuple[tuple[int, str, int], Outcomes]]


@dataclass(slots=True)
class Explored:
    """Result of a search.

    levels: (depth, states so far, transitions so far, CPU seconds)
    broken: the first violated rule, "" if there is none
    trace: the steps to the violation
    exhausted: True if everything was explored
    late: True if the CPU time was used up before the end
    """

    states: int = 0
    transitions: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    levels: list[tuple[int, int, int, float]] = field(default_factory=list)
    broken: str = ""
    trace: list[Step] = field(default_factory=list)
    exhausted: bool = False
    late: bool = False

    @property
    def depth(self) -> int:
        """Return the number of steps to the last complete level."""
        return max(0, len(self.levels) - 1)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection: explored objects contain no reference cycles, but a collection visits all objects."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Explorer:
    """A search within one bound. symmetric: states that differ only by names of voters count as one."""

    def __init__(
        self,
        voters: int,
        budgets: Budgets,
        bug: str = "",
        *,
        symmetric: bool = True,
        spares: int = 0,
    ) -> None:
        self.steps = ClusterSteps(voters, budgets, bug, symmetric=symmetric, spares=spares)
        elections = ElectionsLeft(self.steps, voters, bug) if budgets.dynamic else None
        self._levels = Levels(self.steps, elections.check if elections else None)
        self._known = Index(1)
        """The key of each known state, in the order of the states' numbers."""
        self._reached = GrowingTable(2, np.int64)
        """(number of the previous state, step) of each state."""

    def keys(self) -> list[int]:
        """Return the key of each known state, in the order of the states' numbers."""
        return [int(key) for key in self._known.table.rows[:, 0]]

    # The search

    @_without_collections()
    def search(
        self,
        cpu_s_max: float,
        states_max: int = 10**9,
        say: Callable[[str], None] = lambda line: None,
        workers: int = 1,
    ) -> Explored:
        """Search level by level, until a rule is violated, all is explored, or time or memory is used up.

        cpu_s_max: CPU seconds of all processes together
        """
        began_s, wall_began_s, done = _cpu_s(), time.monotonic(), Explored()
        level = self._levels.row(self.steps.first())
        self._known.add(self._levels.keys(level)[:, None])
        self._reached.add((-1, -1))
        while len(level.rest):
            left_s = cpu_s_max - (_cpu_s() - began_s)
            done.late = left_s <= 0
            if done.late or self._known.table.count > states_max:
                break
            following, complete = [level.only(slice(0))], True
            numbers = np.arange(self._known.table.count - len(level.rest), self._known.table.count)
            for first, found in self._chunks(level, left_s, workers):
                if found is None:
                    done.late, complete = True, False
                    break
                new = np.flatnonzero(self._known.find(found.keys[:, None]) < 0)
                self._known.add(found.keys[new, None])
                self._reached.add(np.stack([numbers[first + found.parents[new]], found.steps[new]], axis=1), len(new))
                following.append(found.states.only(new))
                done.transitions += found.transitions
                for row, step, rule in found.broken:
                    done.broken, done.trace = rule, self._path(int(numbers[first + row]), step)
                if done.broken or self._known.table.count > states_max:
                    complete = False
                    break
            if not complete:
                break
            level = joined(following)
            done.exhausted = not len(level.rest)
            done.levels.append((len(done.levels), self._known.table.count, done.transitions, _cpu_s() - began_s))
            say(_level(*done.levels[-1]))
        done.states, done.cpu_s = self._known.table.count, _cpu_s() - began_s
        done.wall_s = time.monotonic() - wall_began_s
        return done

    def _path(self, number: int, step: int) -> list[Step]:
        """Return the steps to a state, followed by `step`."""
        steps, found = list(self._levels.steps_met), list[Step]()
        while step >= 0:
            found.append(steps[step])
            number, step = (int(each) for each in self._reached.rows[number]) if number >= 0 else (-1, -1)
        return found[::-1]

    # One level of the search, split among workers

    def _chunks(self, level: States, left_s: float, workers: int) -> Iterator[tuple[int, Expansion | None]]:
        """Yield (first row, result) of each chunk, in the order of the level.  The result is None if the time is up.

        This process expands its share of the chunks, too, so newly forked workers inherit most of the known states.
        """
        firsts = range(0, len(level.rest), CHUNK)
        crew = min(workers, len(firsts))
        until_s = time.process_time() + left_s / crew
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe(duplex=False) for _ in range(1, crew)]
        processes = [
            context.Process(target=self._work, args=(level, firsts[turn::crew], left_s / crew, pipe[1]), daemon=True)
            for turn, pipe in enumerate(pipes, 1)
        ]
        for process, (_, ours) in zip(processes, pipes, strict=True):
            process.start()
            ours.close()
        try:
            for turn, first in enumerate(firsts):
                if turn % crew:
                    chunk: Chunk | None = pipes[turn % crew - 1][0].recv()
                    yield first, None if chunk is None else self._taken_in(chunk)
                else:
                    yield first, self._expand(level, first, until_s)
        finally:
            for process, (end, _) in zip(processes, pipes, strict=True):
                end.close()
                process.kill()
                process.join()

    def _expand(self, level: States, first: int, until_s: float) -> Expansion | None:
        if time.process_time() > until_s:
            return None
        return self._levels.expand(level.only(slice(first, first + CHUNK)), self._known)

    def _work(self, level: States, firsts: Sequence[int], left_s: float, pipe: Connection) -> None:
        until_s = time.process_time() + left_s
        self.steps.parts.taken_out()
        self.steps.fresh_outcomes = []
        for first in firsts:
            found = self._expand(level, first, until_s)
            pipe.send(None if found is None else self._taken_out(found))

    def _taken_out(self, found: Expansion) -> Chunk:
        steps = self.steps
        met = list(self._levels.steps_met)
        outcomes = [(name, steps.outcomes[name]) for name in steps.fresh_outcomes]
        steps.fresh_outcomes = []
        found = found._replace(states=self._levels.portable(found.states))
        return Chunk(found, met, steps.parts.taken_out(), outcomes)

    def _taken_in(self, chunk: Chunk) -> Expansion:
        self.steps.parts.take_in(chunk.parts)
        self.steps.outcomes.update(chunk.outcomes)
        met = self._levels.steps_met
        places = np.array([met.setdefault(step, len(met)) for step in chunk.steps], np.int64)
        broken = [(row, int(places[step]), rule) for row, step, rule in chunk.found.broken]
        states = self._levels.local(chunk.found.states)
        return chunk.found._replace(states=states, steps=places[chunk.found.steps], broken=broken)


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its finished workers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _level(depth: int, states: int, transitions: int, cpu_s: float) -> str:
    return f"  {depth:>3} steps: {states:>9,} states, {transitions:>10,} transitions, {cpu_s:>7.1f} CPU s"


BESIDES = ("reads", "crashes", "insides", "writes", "losses", "splits", "resigns", "cuts")
"""Kinds of steps that a bound may allow in addition to timeouts, in the order in which they are added."""


def rounds() -> Iterator[list[Budgets]]:
    """Yield every bound in endless rounds, so every combination of steps is eventually explored.  Each bound lies
    within a bound of the next round.
    """
    first = [Budgets(epochs=2, timeouts=2), *_each_besides(1, 1), Budgets(epochs=1, timeouts=3)]
    for elections in count(2):
        few, many = Budgets(epochs=elections - 1, timeouts=elections - 1), Budgets(epochs=elections, timeouts=elections)
        yield [
            *(first if elections == 2 else []),
            *_changing(few, elections - 1),
            replace(many, reads=1),
            *_each_besides(elections - 1, elections),
            *_each_besides(elections, elections),
            *(_with(_with(few, one), other) for one, other in combinations_with_replacement(BESIDES, 2)),
            Budgets(epochs=elections, timeouts=elections + 1),
            Budgets(epochs=elections + 1, timeouts=elections + 1),
            *_changing(many, elections - 1),
            *(replace(many, **{name: elections}) for name in BESIDES),
        ]


def _each_besides(epochs: int, timeouts: int) -> Iterator[Budgets]:
    return (_with(Budgets(epochs=epochs, timeouts=timeouts), name) for name in BESIDES)


def _changing(within: Budgets, changes: int) -> Iterator[Budgets]:
    """Yield a bound with this number of changes of the voters, and the same bound with one step of each other kind."""
    changing = replace(within, changes=changes)
    yield changing
    yield from (_with(changing, name) for name in ("looks", "updates", *BESIDES))


def _with(budgets: Budgets, name: str) -> Budgets:
    return replace(budgets, **{name: getattr(budgets, name) + 1})


def covers(large: Budgets, small: Budgets) -> bool:
    """Return True if `large` allows every order of steps that `small` allows."""
    if large.dynamic != small.dynamic:
        return False
    return all(getattr(large, each.name) >= getattr(small, each.name) for each in fields(Budgets))


@dataclass(slots=True)
class Grown:
    """Result of growing bounds.

    last: the last bound and its search: a rule was violated, or time or states were used up
    steps: the steps of that bound
    exhausted: bounds without a violation, with the search of each
    """

    last: tuple[Budgets, Explored]
    steps: ClusterSteps
    exhausted: list[tuple[Budgets, Explored]]


def grow(
    voters: int, bug: str, cpu_s_max: float, states_max: int, say: Callable[[str], None], workers: int = 1
) -> Grown:
    """Explore one bound after another until a rule is violated or the time is used up.

    cpu_s_max: CPU seconds of all processes together
    states_max: maximum number of states of one bound
    """
    exhausted: list[tuple[Budgets, Explored]] = []
    too_large: list[Budgets] = []
    used_s = 0.0
    for budgets in _worth_trying(exhausted, too_large):
        explorer = Explorer(voters, budgets, bug, spares=1 if budgets.dynamic else 0)
        found = explorer.search(cpu_s_max - used_s, states_max, lambda line: None, workers)
        used_s += found.cpu_s
        if found.broken or found.late:
            return Grown((budgets, found), explorer.steps, exhausted)
        counted = f"{found.states:,} states, {found.cpu_s:.1f} CPU s"
        if found.exhausted:
            exhausted.append((budgets, found))
            say(f"  proved absent within {budgets.words()}: {counted}")
        else:
            too_large.append(budgets)
            say(f"  too large: {budgets.words()}: {counted}; nothing broke within {found.depth} steps")
    return Grown((budgets, found), explorer.steps, exhausted)


def _worth_trying(exhausted: list[tuple[Budgets, Explored]], too_large: list[Budgets]) -> Iterator[Budgets]:
    """Yield bounds that neither lie within an exhausted bound nor contain a bound that is too large.  The lists may
    grow between two yields.  End after a round that yields nothing: each bound of the next round would be too large as
    well.
    """
    for each_round in rounds():
        tried = False
        for budgets in each_round:
            known = any(covers(done, budgets) for done, _ in exhausted)
            if not known and not any(covers(budgets, each) for each in too_large):
                tried = True
                yield budgets
        if not tried:
            return
