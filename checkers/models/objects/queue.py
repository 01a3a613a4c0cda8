"""A first-in-first-out queue: enqueue a value, dequeue the oldest value (nil if there is none), drain the queue.

`not_conserved` needs no order, and takes one pass over a history of any size (like Jepsen's total-queue).  It checks
that no value was taken before its enqueue was invoked, or more often than it was enqueued.  If a drain emptied the
queue at the end, every acknowledged value must have been taken.  Each dequeue without an answer excuses one value.
`fifo.py` decides the order if every value is enqueued once.  The model decides it if values repeat.

A `drain` answers with a list of values.  It stands for that many dequeues, one after another, and one more that found
nothing.  If no other operation is under way, the drain is one step.  Otherwise other operations may come in between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from checkers.models.known_object import Decided
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, value_in_words
from checkers.models.projection import Violation, real_time

_RIGHT = "a value that had been put there and not yet been taken, or nil"

PUT, TAKE, DRAIN = "enqueue", "dequeue", "drain"


def step(state: State, operation: Operation) -> object:
    assert isinstance(state, tuple)
    match operation.f:
        case "enqueue":
            return (*state, operation.input)
        case "dequeue" if not operation.returned:
            return state[1:]
        case "dequeue" if operation.output is None:
            return state if not state else REFUSED
        case "dequeue":
            return state[1:] if state and state[0] == operation.output else REFUSED
        case "drain" if not operation.returned:
            return ()
        case "drain":
            return () if state == (operation.output or ()) else REFUSED
    raise AssertionError("all operations are known")


def _known(operation: Operation) -> None:
    if operation.f not in (PUT, TAKE, DRAIN):
        raise WrongOperation(f"{operation.f} is not an operation of a queue (enqueue, dequeue, drain)")


def no_drained_list(operation: Operation) -> str:
    """Return why the answer of a drain shows no values, or ""."""
    if operation.f != DRAIN or isinstance(operation.output, tuple | None):
        return ""
    return f"a drain answered {value_in_words(operation.output)}, which is no list"


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    """A state is refused if it holds a value more often than an enqueue of it was invoked."""
    invoked = Counter(o.input for o in operations if o.f == PUT)

    def one_of(state: State) -> State:
        assert isinstance(state, tuple)
        held = Counter(state)
        return REFUSED if any(held[value] > invoked[value] for value in held) else state

    return one_of


QUEUE = Model("queue", init=tuple, step=step, canonical=canonical)


def not_conserved(operations: Sequence[Operation]) -> tuple[Decided, ...]:
    """Violations of conservation in one queue, at most one of each kind.  Raises WrongOperation."""
    for operation in operations:
        _known(operation)
    puts, takes = _by_value(operations)
    found: dict[str, tuple[Violation, Hashable]] = {}
    for value, taken in takes.items():
        violation = _taken_too_often(value, puts.get(value, []), taken)
        if violation is not None:
            found.setdefault(violation.kind, (violation, value))
    decided = {kind: Decided(violation, seen_through([value])) for kind, (violation, value) in found.items()}
    last_drain = _last_drain(operations)
    if last_drain is not None:
        missing = _missing(puts, takes, last_drain)
        lost = _lost_for_certain(missing, takes, last_drain, open_dequeues(operations, last_drain))
        if lost is not None:
            decided.setdefault(lost.kind, lost)
    return tuple(decided.values())


def missing_from_last_drain(operations: Sequence[Operation]) -> int:
    """The number of values that the last drain had to bring to light, and no answer showed."""
    last_drain = _last_drain(operations)
    return 0 if last_drain is None else len(_missing(*_by_value(operations), last_drain))


_ByValue = dict[Hashable, list[Operation]]


def _by_value(operations: Sequence[Operation]) -> tuple[_ByValue, _ByValue]:
    """(value -> its enqueues, value -> what took it, once for each time)."""
    puts: _ByValue = {}
    takes: _ByValue = {}
    for operation in operations:
        if operation.f == PUT:
            puts.setdefault(operation.input, []).append(operation)
        for value in taken_by(operation):
            takes.setdefault(value, []).append(operation)
    return puts, takes


def _last_drain(operations: Sequence[Operation]) -> Operation | None:
    """The last drain; None if there is none, or one has no answer."""
    drains = [o for o in operations if o.f == DRAIN]
    return max(drains, key=lambda o: o.call) if drains and all(o.returned for o in drains) else None


_Missing = Sequence[tuple[Hashable, Sequence[Operation]]]
"""(a value that is missing, its acknowledged enqueues), once for each time."""


def _missing(puts: _ByValue, takes: _ByValue, drain: Operation) -> _Missing:
    missing: list[tuple[Hashable, list[Operation]]] = []
    for value, of_value in puts.items():
        certain = [o for o in of_value if o.ret is not None and o.ret < drain.call]
        missing += [(value, certain)] * (len(certain) - len(takes.get(value, ())))
    return missing


def open_dequeues(operations: Sequence[Operation], last_drain: Operation) -> list[Operation]:
    """The dequeues without an answer that may have taken a value before the last drain found the queue empty."""
    assert last_drain.ret is not None
    return [o for o in operations if o.f == TAKE and not o.returned and o.call < last_drain.ret]


def seen_through(values: Sequence[Hashable]) -> Model:
    """The model of a queue that is reduced to these values."""
    at_stake = frozenset(values)

    def only(some: Sequence[Hashable]) -> tuple[Hashable, ...]:
        return tuple(value for value in some if value in at_stake)

    def seen(state: State, operation: Operation) -> object:
        assert isinstance(state, tuple)
        if operation.f == PUT:
            return (*state, *only([operation.input]))
        if not operation.returned:  # if it took another value, it counts here as an operation that never happened
            return state[1:]
        taken = only(taken_by(operation))
        empty = operation.f == DRAIN or operation.output is None
        return state[len(taken) :] if state[: len(taken)] == taken and not (empty and state != taken) else REFUSED

    def show(state: State) -> str:
        assert isinstance(state, tuple)
        return f"[{', '.join(map(repr, state))}]"

    return Model("queue", init=tuple, step=seen, show=show)


def _taken_too_often(value: Hashable, puts: Sequence[Operation], takes: Sequence[Operation]) -> Violation | None:
    """The violation if a value was taken more often than its enqueue had been invoked by then."""
    in_time = sorted(takes, key=lambda o: o.ret or 0)
    calls = [put.call for put in puts]
    for times, take in enumerate(in_time, 1):
        invoked = bisect_left(calls, take.ret or 0)
        if times <= invoked:
            continue
        involved = [*puts[:invoked], *dict.fromkeys(in_time[:times])]
        if not invoked:
            words = f"{value!r} was taken, and no enqueue of it can have happened before"
            may = f"No enqueue of {value!r} that may have happened had been invoked"
            why = [f"{may} when it was answered (index {take.ret}); one that failed did not happen"]
            return Violation("value from nowhere", words, involved, take, _RIGHT, why)
        words = f"{value!r} was taken {times} times, and put there {invoked} time{'s' * (invoked > 1)} at most"
        why = [f"Each take of {value!r} needs an enqueue of its own; what else the queue holds is left out"]
        return Violation("duplicate", words, involved, take, _RIGHT, why)
    return None


def _lost_for_certain(
    missing: _Missing,
    takes: Mapping[Hashable, Sequence[Operation]],
    drain: Operation,
    unanswered: Sequence[Operation],
) -> Decided | None:
    """The violation if more acknowledged values are missing than dequeues without an answer can have taken.

    Its witness has one value more than there are such dequeues: the fewest that prove a loss.
    """
    if len(missing) <= len(unanswered):
        return None
    shown = dict(missing[: len(unanswered) + 1])
    involved = [o for value, certain in shown.items() for o in (*certain, *takes.get(value, ()))]
    value, certain = missing[0]
    why = [real_time(certain[-1], f"{value!r} was acknowledged", drain, "the last drain was invoked")]
    why.append("A drain takes all values")
    if unanswered:
        count = f"the {len(unanswered)} dequeues" if len(unanswered) > 1 else "the one dequeue"
        words = f"{len(missing)} values were acknowledged and never taken, though the queue was drained afterwards"
        words += f", and {count} without an answer can have taken {len(unanswered)} at most"
        why.append(f"{len(shown)} of the missing values are shown, one more than dequeues without an answer")
    elif taken := len(takes.get(value, ())):
        words = f"{value!r} was acknowledged {len(certain)} times and taken {taken}, though the queue was drained"
    else:
        words = f"{value!r} was acknowledged and never taken, though the queue was drained afterwards"
    named, s = ", ".join(map(repr, list(shown)[:4])) + ", …" * (len(shown) > 4), "s" * (len(shown) == 1)
    why.append(f"Only {named} matter{s} here; what else the queue holds is left out")
    right = f"that {named} come{s} out of the queue as often as put there, at the latest in the last drain"
    operations = list(dict.fromkeys([*involved, *unanswered, drain]))
    violation = Violation("acknowledged element lost", words, operations, drain, right, why)
    return Decided(violation, seen_through(list(shown)))


def taken_by(operation: Operation) -> tuple[Hashable, ...]:
    """The values that an operation took from the queue, as far as its answer shows them."""
    if not operation.returned or operation.output is None:
        return ()
    if operation.f == TAKE:
        return (operation.output,)
    if operation.f == DRAIN and isinstance(operation.output, tuple):
        return operation.output
    return ()
