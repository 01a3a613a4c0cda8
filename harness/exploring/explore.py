"""Breadth first through every order of steps, so that the first violation has a shortest trace.

Each level is shared out to worker processes, forked anew for it.  They send back the states that they reach, and one
process knows which are new.  The result does not depend on their number.

Two steps that touch different voters, and nothing in common that a rule looks at, may be taken in either order.  Then
one order is enough (sleep sets: Godefroid, 1996).  A state remembers the steps that sleep in it: each was taken in a
state before it, and since then nothing touched what it touches.  A state that is reached again with fewer sleeping
steps takes up those that it had left out.  All states are still met, at the same depth; transitions are saved.

What is exhausted within its budgets proves that no order of those steps breaks a rule.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple

from harness.exploring.elections_left import ElectionsLeft
from harness.exploring.parts import Naming, Part
from harness.exploring.rules import Broken
from harness.exploring.steps import (
    EVERYTHING,
    Budgets,
    ClusterSteps,
    ExploredState,
    Footprint,
    Outcomes,
    Step,
    independent,
)

Sleep = frozenset[Step]
"""Steps, under the names that give the key of their state."""

CHUNK = 500
AWAKE: Sleep = frozenset()


class Entry(NamedTuple):
    """A state of a level.  number: of the state.  woken: the only steps to take; None: all that do not sleep."""

    number: int
    world: ExploredState
    sleep: Sleep
    woken: Sleep | None = None


class Reached(NamedTuple):
    key: int
    world: ExploredState
    parent: int
    step: Step
    sleep: Sleep


class Chunk(NamedTuple):
    """What a worker has found: states, how many steps it took, parts and outcomes that it met first.

    broken: (number of the state, step, rule) of each step that broke a rule.  late: its time is up before the end."""

    reached: list[Reached]
    transitions: int
    parts: list[tuple[int, Part, int]]
    outcomes: list[tuple[tuple[int, str, int, int], Outcomes]]
    broken: list[tuple[int, Step, str]]
    late: bool


@dataclass(slots=True)
class Explored:
    """levels: (depth, states so far, transitions so far, CPU seconds).  broken: the first rule that did not hold.
    trace: the steps to it.  violations: every rule that did not hold.  exhausted: nothing is left to explore.
    late: the CPU time was used up before the end."""

    states: int = 0
    transitions: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    levels: list[tuple[int, int, int, float]] = field(default_factory=list)
    broken: str = ""
    trace: list[Step] = field(default_factory=list)
    violations: set[str] = field(default_factory=set)
    exhausted: bool = False
    late: bool = False

    @property
    def depth(self) -> int:
        """The steps of the last level that is complete."""
        return max(0, len(self.levels) - 1)


class Explorer:
    """symmetric: states that differ by names alone count as one.  reduced: one order of independent steps is enough."""

    def __init__(
        self,
        voters: int,
        budgets: Budgets,
        bug: str = "",
        *,
        symmetric: bool = True,
        reduced: bool = True,
        spares: int = 0,
    ) -> None:
        self.steps = ClusterSteps(voters, budgets, bug, symmetric=symmetric, spares=spares)
        self._elections = ElectionsLeft(self.steps, voters, bug) if budgets.dynamic else None
        self.number_of: dict[int, int] = {}
        """The key of each state that was met -> its number."""
        self._reduced = reduced
        self._parents = array("l")
        self._steps = array("l")
        self._sleeps = array("l")
        self._step_numbers: dict[Step, int] = {}
        self._sleep_numbers: dict[Sleep, int] = {AWAKE: 0}
        self._sleep_of = [AWAKE]
        self._renamed: dict[tuple[int, Step], Step] = {}
        self._inverse = self._inverses()

    # The search

    def search(
        self,
        cpu_s_max: float,
        states_max: int = 10**9,
        say: Callable[[str], None] = lambda line: None,
        workers: int = 1,
        *,
        on: bool = False,
    ) -> Explored:
        """Level by level, until a rule breaks, all is explored, or time or memory is used up.

        cpu_s_max: of all processes together.  on: go on after a rule broke, but not beyond the step that broke it."""
        began_s, wall_began_s, done = _cpu_s(), time.monotonic(), Explored()
        first = self.steps.first()
        key, _ = self.steps.parts.key(first.total)
        self._add(key, -1, None, AWAKE)
        level = [Entry(0, first, AWAKE)]
        while level:
            following: dict[int, Entry] = {}
            known, complete = len(self.number_of), True
            left_s = cpu_s_max - (_cpu_s() - began_s)
            done.late = left_s <= 0
            if done.late or known > states_max:
                break
            for chunk in self._chunks(level, left_s, workers, on):
                self.steps.parts.take_in(chunk.parts)
                self.steps.outcomes.update(chunk.outcomes)
                done.transitions += chunk.transitions
                for reached in chunk.reached:
                    self._meet(reached, known, following)
                for parent, step, rule in chunk.broken:
                    done.violations.add(rule)
                    if not done.broken:
                        done.broken, done.trace = rule, [*self._path(parent), step]
                done.late |= chunk.late
                if (done.broken and not on) or chunk.late or len(self.number_of) > states_max:
                    complete = False
                    break
            if not complete:
                break
            level = list(following.values())
            done.exhausted = not level
            done.levels.append((len(done.levels), len(self.number_of), done.transitions, _cpu_s() - began_s))
            say(_level(*done.levels[-1]))
        done.states, done.cpu_s = len(self.number_of), _cpu_s() - began_s
        done.wall_s = time.monotonic() - wall_began_s
        return done

    def _meet(self, reached: Reached, known: int, following: dict[int, Entry]) -> None:
        """Take up a state for the next level if it is new, or if it was met with more steps asleep."""
        number = self.number_of.get(reached.key)
        if number is None:
            number = self._add(reached.key, reached.parent, reached.step, reached.sleep)
            following[number] = Entry(number, reached.world, reached.sleep)
            return
        slept = self._sleep_of[self._sleeps[number]]
        woken = slept - reached.sleep
        if not woken:
            return
        self._sleeps[number] = self._sleep_number(slept & reached.sleep)
        waiting = following.get(number)
        if waiting is None:
            following[number] = Entry(number, reached.world, slept & reached.sleep, woken)
        else:
            others = waiting.woken
            following[number] = waiting._replace(
                sleep=slept & reached.sleep, woken=None if others is None else others | woken
            )

    def _add(self, key: int, parent: int, step: Step | None, sleep: Sleep) -> int:
        number = self.number_of[key] = len(self._parents)
        self._parents.append(parent)
        self._steps.append(-1 if step is None else self._step_numbers.setdefault(step, len(self._step_numbers)))
        self._sleeps.append(self._sleep_number(sleep))
        return number

    def _sleep_number(self, sleep: Sleep) -> int:
        number = self._sleep_numbers.setdefault(sleep, len(self._sleep_of))
        if number == len(self._sleep_of):
            self._sleep_of.append(sleep)
        return number

    def _path(self, number: int) -> list[Step]:
        steps = list(self._step_numbers)
        found: list[Step] = []
        while self._parents[number] >= 0:
            found.append(steps[self._steps[number]])
            number = self._parents[number]
        return found[::-1]

    # One level, by workers

    def _chunks(self, level: Sequence[Entry], left_s: float, workers: int, on: bool) -> Iterator[Chunk]:
        """In the order of the level, whichever worker finds a state."""
        pieces = [level[at : at + CHUNK] for at in range(0, len(level), CHUNK)]
        if workers == 1 or len(pieces) == 1:
            until_s = time.process_time() + left_s
            yield from (self._expand(piece, until_s, on) for piece in pieces)
            return
        context = multiprocessing.get_context("fork")
        crew = min(workers, len(pieces))
        pipes = [context.Pipe(duplex=False) for _ in range(crew)]
        processes = [
            context.Process(target=self._work, args=(pieces[number::crew], left_s / crew, on, pipe[1]), daemon=True)
            for number, pipe in enumerate(pipes)
        ]
        for process, (_, ours) in zip(processes, pipes, strict=True):
            process.start()
            ours.close()
        try:
            for number in range(len(pieces)):
                chunk: Chunk = pipes[number % crew][0].recv()
                yield chunk
        finally:
            for process, (end, _) in zip(processes, pipes, strict=True):
                end.close()
                process.kill()
                process.join()

    def _work(self, pieces: Sequence[Sequence[Entry]], left_s: float, on: bool, pipe: Connection) -> None:
        until_s = time.process_time() + left_s
        for piece in pieces:
            pipe.send(self._expand(piece, until_s, on))

    def _expand(self, entries: Sequence[Entry], until_s: float, on: bool) -> Chunk:
        reached: dict[int, Reached] = {}
        broken: list[tuple[int, Step, str]] = []
        transitions, late = 0, False
        for entry in entries:
            late = time.process_time() > until_s
            if late or (broken and not on):
                break
            for step, after, sleep in self._successors(entry):
                transitions += 1
                if isinstance(after, Broken):
                    broken.append((entry.number, step, str(after)))
                elif after is not None:
                    self._reach(reached, after, entry.number, step, sleep)
        steps = self.steps
        outcomes = [(name, steps.outcomes[name]) for name in steps.fresh_outcomes]
        steps.fresh_outcomes = []
        return Chunk(list(reached.values()), transitions, steps.parts.taken_out(), outcomes, broken, late)

    def _reach(
        self, reached: dict[int, Reached], world: ExploredState, parent: int, step: Step, sleep: Sequence[Step]
    ) -> None:
        """Note a state that is new, or that was met with more steps asleep."""
        key, naming = self.steps.parts.key(world.total)
        sleeping = frozenset(self._rename(naming, each) for each in sleep) if sleep else AWAKE
        if (before := reached.get(key)) is not None:
            reached[key] = before._replace(sleep=before.sleep & sleeping)
        elif (number := self.number_of.get(key)) is None or not self._sleep_of[self._sleeps[number]] <= sleeping:
            reached[key] = Reached(key, world, parent, step, sleeping)

    def _successors(self, entry: Entry) -> Iterator[tuple[Step, ExploredState | Broken | None, list[Step]]]:
        """(step, the state after it or what it breaks, the steps that sleep there) of each step to be taken."""
        steps, world = self.steps, entry.world
        enabled = list(steps.steps(world))
        if not self._reduced:
            for step in enabled:
                yield step, self._do(world, step), []
            return
        left = steps.parts.rest(world.rest).left
        sleep, woken = self._awake_names(entry)
        taken: list[tuple[Step, Footprint]] = []
        to_take = []
        for step in enabled:
            sleeps = step in sleep or (woken is not None and step not in woken)
            if sleeps:
                taken.append((step, steps.look(world, step).footprint))
            else:
                to_take.append(step)
        for step in to_take:
            change = steps.look(world, step)
            mine = change.footprint
            asleep = [other for other, print in taken if independent(print, mine, left)]
            try:
                yield step, self._checked(change.carried_out()), asleep
            except Broken as rule:
                yield step, rule, asleep
            if not mine.touches & EVERYTHING.touches:
                taken.append((step, mine))

    def _do(self, world: ExploredState, step: Step) -> ExploredState | Broken | None:
        try:
            return self._checked(self.steps.do(world, step))
        except Broken as rule:
            return rule

    def _checked(self, after: ExploredState | None) -> ExploredState | None:
        """Raises Broken where voters change and no leader can be elected any more."""
        if after is not None and self._elections is not None:
            self._elections.check(after)
        return after

    # Names

    def _awake_names(self, entry: Entry) -> tuple[Sleep, Sleep | None]:
        """The sleeping and the woken steps of a state, under the names that its voters have in it."""
        if not entry.sleep and entry.woken is None:
            return AWAKE, None
        _, naming = self.steps.parts.key(entry.world.total)
        back = self._inverse[naming]
        sleep = frozenset(self._rename(back, step) for step in entry.sleep)
        return sleep, None if entry.woken is None else frozenset(self._rename(back, step) for step in entry.woken)

    def _inverses(self) -> list[int]:
        names = self.steps.names
        inverses = [{new: old for old, new in name.items()} for name in names]
        return [names.index(inverse) for inverse in inverses]

    def _rename(self, naming: int, step: Step) -> Step:
        if (found := self._renamed.get((naming, step))) is None:
            found = self._renamed[naming, step] = _renamed(self.steps.names[naming], step)
        return found


def _renamed(name: Naming, step: Step) -> Step:
    kind, place, *more = step
    there = (name[place[0]], name[place[1]], place[2]) if isinstance(place, tuple) else name[place]
    return (kind, there, *more)  # type: ignore[return-value]


def _cpu_s() -> float:
    """Of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _level(depth: int, states: int, transitions: int, cpu_s: float) -> str:
    return f"  {depth:>3} steps: {states:>9,} states, {transitions:>10,} transitions, {cpu_s:>7.1f} CPU s"
