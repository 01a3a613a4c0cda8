"""What it takes to judge one kind of object: the interface of a model.

A `KnownObject` stands at the end of its file in `objects/` and has one entry in `known.py`.  Everything else follows:
`check --model NAME` judges files by it, and `checker.py` makes a checker for live runs of it.

    operations of one object --judge--> ObjectFinding --explain (few of them)--> Witness

A finding names violations without explaining them, because an explanation costs far more than the judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from checkers.base.checker import Budget
from checkers.models.answers import Repeats
from checkers.models.model import Model, Operation, by_key
from checkers.models.projection import Violation
from checkers.models.search import judge_object

NO_ORDER = "no order"
"""Kind of the violations that only a search finds."""


@dataclass(frozen=True, slots=True)
class NoOrder:
    """A search found no order.  index: of an event at which that was certain."""

    model: Model
    index: int

    @property
    def kind(self) -> str:
        """As in `Witness`."""
        return NO_ORDER


@dataclass(frozen=True, slots=True)
class Decided:
    """A rule found a violation without a search.  smaller: the object seen through the values at stake.

    states: in which the smaller object may begin; None: as `smaller` begins.
    """

    violation: Violation
    smaller: Model
    states: tuple[Hashable, ...] | None = None

    @property
    def kind(self) -> str:
        """As in `Witness`."""
        return self.violation.kind

    @property
    def index(self) -> int:
        """Index of the answer that is wrong."""
        return self.violation.culprit.ret or 0


@dataclass(frozen=True, slots=True)
class ObjectFinding:
    """What was found of one object.

    violations: empty where none was found.  reason: why the verdict is unknown, one sentence, or "".
    steps: taken.  out_of_steps: whether more steps might have led to a verdict.
    counts: other numbers for readers; those of several objects are added up.
    """

    violations: tuple[NoOrder | Decided, ...] = ()
    reason: str = ""
    steps: int = 0
    out_of_steps: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownObject:
    """One kind of object.

    name: of the model and of its checker.  title, question: as in `Checker`.
    judge: decides the history of one object, operations in order of call.  Raises WrongOperation where an operation
    does not belong to such an object.  partition: which object an operation is about.
    whole: the whole history is about one object, even if it has keys; then `partition` does not matter.
    fixed: the functions that fix the value of their answer (`answers.py`).  exact: `true`, 1 and 1.0 are three values.
    """

    name: str
    title: str
    question: str
    judge: Callable[[Sequence[Operation], Budget], ObjectFinding]
    partition: Callable[[Operation], Hashable] = by_key
    whole: bool = False
    fixed: Mapping[str, Repeats] = field(default_factory=dict)
    exact: bool = True


def by_search(model: Model, operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """The finding of the search (`search.py`)."""
    answer = judge_object(model, operations, budget)
    if answer.linearizable is None:
        return ObjectFinding(reason=answer.reason, steps=answer.steps, out_of_steps=True)
    violations = () if answer.linearizable else (NoOrder(model, answer.index),)
    return ObjectFinding(violations, steps=answer.steps)


def searched(
    model: Model, title: str, question: str, fixed: Mapping[str, Repeats] | None = None, exact: bool = True
) -> KnownObject:
    """An object that only the search decides."""

    def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
        return by_search(model, operations, budget)

    return KnownObject(model.name, title, question, judge, model.partition, fixed=fixed or {}, exact=exact)
