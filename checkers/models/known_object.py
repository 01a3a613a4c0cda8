"""The interface of a kind of object, with the function that judges its operations.

A `KnownObject` is defined at the end of its file in `objects/`, where `each_object.py` finds it.  No other registration
is needed: `check --model NAME` judges files with the object, and `checker.py` makes a checker of live runs from it.

    operations of one object --judge--> ObjectFinding --explain (only a few)--> Witness

A finding lists violations without explanations, because an explanation costs far more than the judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkers.base.checker import Budget
from checkers.base.values import with_article
from checkers.models.model import REFUSED, Model, Operation, Repeats, WrongOperation, by_key, the_same
from checkers.models.read_own_model import BadModel
from checkers.models.search import judge_object
from checkers.models.witnesses import Decided, NoOrder

EXCUSED, UNANSWERED = "excused_by_unanswered_dequeues", "unanswered_dequeues"
"""Names of two counts of a queue: values that had to be dequeued but that no answer showed, and unanswered dequeues
that may have taken these values.
"""

ONLY_BOUNDS = "objects_judged_by_bounds_alone"
"""Name of a count: objects whose answers are all within their bounds, but for which no order was decided."""


@dataclass(frozen=True, slots=True)
class ObjectFinding:
    """Result of a judge for one object.

    violations: all violations
    reason: one sentence if the verdict is unknown, else ""
    steps: steps of the search
    out_of_steps: True if more steps may lead to a verdict
    counts: name -> number to report; the numbers of several objects are added up
    """

    violations: tuple[NoOrder | Decided, ...] = ()
    reason: str = ""
    steps: int = 0
    out_of_steps: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectFunction:
    """Description of one function of an object.

    fixed: a function that returns True if an invoke allows an answer (`model.py`); None allows any answer
    given: True if the invoke needs a value
    answered: True if the answer needs a value
    observes: True if the answers show the effects of other functions
    """

    fixed: Repeats | None = None
    given: bool = False
    answered: bool = False
    observes: bool = False


CHANGES = ObjectFunction(the_same, given=True)
SHOWS = ObjectFunction(answered=True, observes=True)


@dataclass(frozen=True, slots=True)
class KnownObject:
    """One kind of object.

    name: name of the model and of its checker
    title, question: as in `Checker`
    judge: a function that decides the history of one object from its operations in order of call.  It raises
        WrongOperation if the object does not support an operation
    functions: the functions of the object.  If no function observes, every answer counts as evidence of the state
    noun: name of the object in messages; "" if `judge` itself rejects unknown functions
    partition: a function that returns the object of an operation
    whole: True if the whole history is about one object, even if it has keys.  Then `partition` has no effect
    set_up: True if the judge also gets the operations of set-up (CREATE)
    odd_answer: a function that returns the reason why an answer cannot be judged, or "".  The operation of such an
        answer counts as one that may or may not have happened
    container: True if functions that change the object put values in, and functions that observe it take values out.
        A value of nil looks like an empty container, so puts of nil are left out, and so are answers that may show nil
    odd_put: a function that returns the reason why a value of a container cannot be judged, or ""
    empty_shows: True if an answer of nil shows that a container was empty
    exact: True if `true`, 1 and 1.0 are three different values
    also_shows: a function that returns True if the answer of a function that does not observe is evidence of the state,
        too; None if no such answer is
    """

    name: str
    title: str
    question: str
    judge: Callable[[Sequence[Operation], Budget], ObjectFinding]
    functions: Mapping[str, ObjectFunction]
    noun: str = ""
    partition: Callable[[Operation], Hashable] = by_key
    whole: bool = False
    set_up: bool = False
    odd_answer: Callable[[Operation], str] | None = None
    container: bool = False
    odd_put: Callable[[Hashable], str] | None = None
    empty_shows: bool = True
    exact: bool = True
    also_shows: Callable[[Operation], bool] | None = None

    @property
    def fixed(self) -> dict[str, Repeats]:
        """Return the functions whose invoke fixes the value of the answer."""
        return {name: each.fixed for name, each in self.functions.items() if each.fixed is not None}

    @property
    def given(self) -> frozenset[str]:
        return frozenset(name for name, each in self.functions.items() if each.given)

    @property
    def answered(self) -> frozenset[str]:
        return frozenset(name for name, each in self.functions.items() if each.answered)

    @property
    def observers(self) -> frozenset[str]:
        return frozenset(name for name, each in self.functions.items() if each.observes)

    def demand_its_functions(self, operations: Iterable[Operation]) -> None:
        """Raise WrongOperation if this kind of object does not support one of the operations."""
        for operation in operations:
            if self.noun and operation.f not in self.functions:
                listed = ", ".join(self.functions)
                raise WrongOperation(f"{operation.f} is not an operation of {self.noun} ({listed})")

    def is_unseen(self, operations: Iterable[Operation]) -> bool:
        """Return True if operations may have changed the object but no answer shows its state.

        Then the verdict on the object is unknown, because no answer could have been wrong.

        operations: all operations of one object
        """
        changed = False
        for operation in operations:
            changed = changed or operation.f not in self.observers
            if operation.returned and self._shows(operation):
                return False
        return changed

    def judgeable(self, operations: Sequence[Operation]) -> tuple[list[Operation], list[str]]:
        """Return (the operations that can be judged, one sentence for each operation that cannot).

        Leaving operations out can hide a violation, but never creates one.  An operation without an answer may take
        effect at any later time or never, a read without an answer shows nothing, and the remaining values of a
        container keep their order.
        """
        rest, odd = self._without_odd_puts(operations) if self.container else (list(operations), [])
        if self.odd_answer is None:
            return rest, odd
        kept: list[Operation] = []
        for operation in rest:
            words = self.odd_answer(operation) if operation.returned else ""
            if words:
                odd.append(f"index {operation.ret}: {words}")
            if not words:
                kept.append(operation)
            elif operation.f not in self.observers:
                kept.append(replace(operation, output=None, ret=None))
        return kept, odd

    def _without_odd_puts(self, operations: Sequence[Operation]) -> tuple[list[Operation], list[str]]:
        [put], takes = self.given, self.observers
        why = {o.call: words for o in operations if o.f == put and (words := self._of_odd_put(o))}
        kept = [o for o in operations if o.call not in why]
        if any(o.input is None for o in operations if o.call in why):
            shown = [replace(o, output=_without_nil(o.output)) if o.f in takes else o for o in kept]
            kept = [o for o in shown if not (o.f in takes and o.returned and o.output is None)]
        return kept, [f"index {call}: {words}" for call, words in why.items()]

    def _of_odd_put(self, operation: Operation) -> str:
        if operation.input is None:
            return f"{with_article(operation.f)} of nil looks like an empty {self.name} to the operation that takes it"
        return self.odd_put(operation.input) if self.odd_put is not None else ""

    def _shows(self, operation: Operation) -> bool:
        if not self.observers or operation.f in self.observers:
            return self.empty_shows or operation.output is not None
        return self.also_shows is not None and self.also_shows(operation)


def _without_nil(answer: Hashable) -> Hashable:
    return tuple(value for value in answer if value is not None) if isinstance(answer, tuple) else answer


def by_search(model: Model, operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge one object with the search (`search.py`)."""
    answer = judge_object(model, operations, budget)
    if answer.linearizable is None:
        return ObjectFinding(reason=answer.reason, steps=answer.steps, out_of_steps=True)
    violations = () if answer.linearizable else (NoOrder(model, answer.index),)
    return ObjectFinding(violations, steps=answer.steps)


def searched(model: Model, title: str = "", question: str = "", exact: bool = True) -> KnownObject:
    """Return a kind of object that is decided by the search alone.  The parameters are fields of `KnownObject`.

    The observers of the model observe.  The answer of another function counts as evidence if it differs from the
    invoked value, or if the initial state of the model does not allow it.
    """
    functions = dict.fromkeys(model.observers, ObjectFunction(observes=True))

    def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
        return by_search(model, operations, budget)

    def also_shows(operation: Operation) -> bool:
        if operation.output not in (None, operation.input):
            return True
        try:
            return model.step(model.init(), operation) is REFUSED
        except (WrongOperation, BadModel):  # the search reports the failure if it reaches this state
            return True

    return KnownObject(
        model.name, title, question, judge, functions, partition=model.partition, exact=exact, also_shows=also_shows
    )
