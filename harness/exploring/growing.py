"""Bounds that grow by themselves: one after another is explored, until the time is used up.

Each bound that is exhausted is a proof, so small ones come first.  Their order follows the planted bugs: each
line makes room for bugs that the lines before it cannot show.

    two terms, two elections           two leaders; the commit of a minority; logs that are compared by offset alone
    one term, one step of each kind    what is not durable (crashes, insides); what arrives late (losses, splits)
    one term, three elections          a voter that votes twice
    one term, a change of the voters   a set that counts too late or too soon; a leader that removes itself
    two terms and a read               a deposed leader that answers from its own state
    one term, two elections            the same kinds of steps while voters compete
    two terms and a step of each kind  entries of a former term that are cut or counted
    one term, two kinds of steps       an answer that left before a power loss
    more elections, more terms, and so on without an end

A bound that lies within one that was exhausted is left out, and so is one around a bound with too many states.
Where voters change, one server besides them follows the log and may become one, and the log holds the voters.  So
such a bound proves nothing about static voters, and lies around none of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations_with_replacement, count

from harness.exploring.explore import Explored, Explorer
from harness.exploring.steps import Budgets, ClusterSteps

BESIDES = ("reads", "crashes", "insides", "writes", "losses", "splits", "resigns", "cuts")
"""Kinds of steps that a bound may allow beside timeouts, in the order in which they are added."""


def rounds() -> Iterator[list[Budgets]]:
    """Every bound, without an end: any sum of steps is reached at last.  Each lies within one of the next round."""
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
    """So many changes of the voters, alone and with one step of each kind besides."""
    changing = replace(within, changes=changes)
    yield changing
    yield from (_with(changing, name) for name in ("looks", "updates", *BESIDES))


def _with(budgets: Budgets, name: str) -> Budgets:
    return replace(budgets, **{name: getattr(budgets, name) + 1})


def covers(large: Budgets, small: Budgets) -> bool:
    """Whether every order of steps that `small` allows is one that `large` allows."""
    if large.dynamic != small.dynamic:
        return False
    return all(getattr(large, each.name) >= getattr(small, each.name) for each in fields(Budgets))


@dataclass(slots=True)
class Grown:
    """last: the bound in which a rule broke, or in which time or states were used up, and its search.  steps: of it.

    exhausted: bounds within which no rule broke, with what that took."""

    last: tuple[Budgets, Explored]
    steps: ClusterSteps
    exhausted: list[tuple[Budgets, Explored]]


def grow(
    voters: int, bug: str, cpu_s_max: float, states_max: int, say: Callable[[str], None], workers: int = 1
) -> Grown:
    """Explore one bound after another until a rule breaks or the time is used up.

    cpu_s_max: of all processes together.  states_max: of one bound."""
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
    """Bounds that are not decided by what the two lists hold when their turn comes.  They end with a round of which
    none is left, because then all of the next round have too many states, too."""
    for each_round in rounds():
        tried = False
        for budgets in each_round:
            known = any(covers(done, budgets) for done, _ in exhausted)
            if not known and not any(covers(budgets, each) for each in too_large):
                tried = True
                yield budgets
        if not tried:
            return
