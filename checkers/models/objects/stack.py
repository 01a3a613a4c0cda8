"""A stack: push a value, pop the newest value (nil if there is none).

`not_conserved` needs no order: no value is popped before its push was invoked, or more often than it was pushed.
`stack_order.py` decides the order in near-linear time if no value is pushed twice.  The model decides it by a search if
values repeat, and in the rare case that it is not known what the pops without an answer took.  The search takes as long
as few orders are alive at once, which depends on what runs at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import KnownObject, ObjectFinding, by_search
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.objects.conservation import Names, not_conserved
from checkers.models.objects.stack_order import POP, PUSH, decide

NAMES = Names("stack", PUSH, POP)


def step(state: State, operation: Operation) -> object:
    assert isinstance(state, tuple)
    if operation.f == PUSH:
        return (*state, operation.input)
    if operation.f != POP:
        raise WrongOperation(f"{operation.f} is not an operation of a stack (push, pop)")
    if not operation.returned:
        return state[:-1]
    if operation.output is None:
        return state if not state else REFUSED
    return state[:-1] if state and state[-1] == operation.output else REFUSED


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    """A state is refused if it holds a value more often than a push of it was invoked."""
    invoked = Counter(o.input for o in operations if o.f == PUSH)

    def one_of(state: State) -> State:
        assert isinstance(state, tuple)
        held: Counter[Hashable] = Counter(state)
        return REFUSED if any(held[value] > invoked[value] for value in held) else state

    return one_of


STACK = Model("stack", init=tuple, step=step, canonical=canonical)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge conservation first, and then the order.  Raises WrongOperation."""
    if wrong := not_conserved(operations, NAMES):
        return ObjectFinding(wrong, steps=len(operations))
    values = [o.input for o in operations if o.f == PUSH]
    if len(set(values)) < len(values):
        return by_search(STACK, operations, budget)
    found = decide(operations, STACK)
    if found.order is None and found.violation is None:
        return by_search(STACK, operations, budget)
    return ObjectFinding(() if found.violation is None else (found.violation,), steps=len(operations))


STACK_OBJECT = KnownObject(
    "stack",
    "Stack",
    "Does every value come out once, the newest one first?",
    judge,
    fixed={PUSH: the_same},
    given=frozenset({PUSH}),
    answered=frozenset({POP}),
    observers=frozenset({POP}),
    container=(PUSH, frozenset({POP})),
)
