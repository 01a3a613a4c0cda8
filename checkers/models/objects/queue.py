"""A first-in-first-out queue: enqueue a value, dequeue the oldest value (nil if there is none), drain the queue.

*Conservation* needs no order, and takes one pass over a history of any size (like Jepsen's total-queue).  No value is
taken before its enqueue was invoked, or more often than it was enqueued.  If a drain emptied the queue at the end,
every acknowledged value was taken, except one value for each dequeue without an answer.

*Order* is decided in O(n log n) if every value is enqueued once.  Henzinger, Sezgin and Vafeiadis ("Aspect-oriented
linearizability proofs", 2013) prove that a complete history is linearizable iff values are conserved and it has neither
of two patterns.  x < y means that x returned before y was called.

    order     a was enqueued before b, and b was dequeued before a, or a never: enq(a) < enq(b), deq(b) < deq(a)
    witness   a dequeue e found nothing, although the queue was never empty while e ran: there are values a, b, ..., z
              with enq(a) < e, enq(b) < deq(a), ..., e < deq(z)

The second pattern is a question about intervals.  A value is certainly in the queue from the return of its enqueue to
the call of its dequeue.  An empty dequeue needs a moment outside all these intervals.

*Equal values* become unique by matching enqueues with dequeues (`told_apart`), and by exchanges of equal values if the
first matchings lead to no order.  An order that is found this way is a proof.  If no operation runs inside an equal one
and every dequeue has an answer, the verdict is exact: equal operations may swap, so the first enqueue of a value
belongs to its first dequeue, and so on.  In all other cases a search decides.

*A drain* answers with a list of values.  It stands for one dequeue per value, one after another, and a last dequeue
that found nothing.  If no other dequeue or drain was answered or invoked while the drain ran, each of its dequeues gets
its earliest possible moment: after the dequeue before it, and after the call of the enqueue of its value.  This changes
no verdict.  No legal order has the dequeue earlier.  If a legal order has it later, the order stays legal when the
dequeue is moved to that moment: values leave the queue earlier but in the same order, and the last dequeue still finds
nothing at its old place.  If other dequeues ran concurrently with the drain, earliest and latest moments are tried, and
then a search over the steps of the drain.  A drain without an answer may have taken any number of values, each like a
dequeue without an answer.

*Without an answer.*  If the value of an enqueue was dequeued, the enqueue happened at some time after its call.
Otherwise it need not have happened.  A dequeue may have taken any remaining value at any later time, or none.  One
assignment of values to such dequeues is the best: the values in the order in which their enqueues returned, the
dequeues in order of call.  If the best assignment leaves a violation, every assignment does.  Proof: these steps turn
any assignment without a violation into the best one.  No step makes a violation, because the total time in which values
are certainly in the queue never grows.

    a, b remain, a's enqueue returned first; only b was taken    give b's dequeue to a
    both were taken, and a's dequeue was called later            swap the two dequeues
    a value remains, and so does a dequeue                       give the dequeue to the value
    a dequeue remains that was called earlier than another       use it instead

For a witness, a value that must have been taken has a *deadline*:

    out of order   a later value came out: the earlier value's dequeue was invoked before the later one's returned
    not empty      a dequeue found nothing although the value was in the queue when this dequeue was invoked: the
                   value's own dequeue was invoked before this dequeue returned

Each open dequeue takes at most one value.  So for every moment, the number of open dequeues invoked before it must be
at least the number of values with a deadline before it.

*At least once.*  Another queue delivers each value at least once, in any order.

A broker delivers a value again if it did not learn that a consumer has processed the value.  So a value may be dequeued
more often than it was enqueued, in any order.  A dequeue that finds nothing proves nothing, because values that were
delivered to a dead consumer are hidden until its session ends.  Users rely on the remaining guarantees:

    nowhere   no value is taken before its enqueue was invoked
    lost      if the last drain was answered, every value that was acknowledged before this drain was invoked is taken
              at some time, except one value for each dequeue without an answer

So a `drain` continues until the values of dead consumers have been delivered again.  It consists of many dequeues, and
may miss values that are enqueued while it runs.  One pass over a history of any size decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from checkers.base.checker import Budget
from checkers.models.known_object import CHANGES, EXCUSED, SHOWS, UNANSWERED, KnownObject, ObjectFinding, by_search
from checkers.models.model import NEVER, REFUSED, Model, Operation, State, named, text_of, were
from checkers.models.objects.conservation import (
    Names,
    Stuck,
    are_interchangeable,
    by_value,
    fewest_that_fill,
    is_told_apart_anew,
    no_more_than_were_put,
    not_conserved,
    repeats,
    step_of,
    told_apart,
)
from checkers.models.past import SEARCHED_MAX
from checkers.models.witnesses import NO_ORDER, Decided, NoOrder

PUT, TAKE, DRAIN = "enqueue", "dequeue", "drain"
NAMES = Names("queue", PUT, TAKE, DRAIN)


step = step_of(NAMES)


def no_drained_list(operation: Operation) -> str:
    """Return the reason why the answer of a drain shows no values, or ""."""
    if operation.f != DRAIN or isinstance(operation.output, tuple | None):
        return ""
    return f"a drain answered {text_of(operation.output)}, which is no list"


QUEUE = Model("queue", init=tuple, step=step, canonical=no_more_than_were_put(PUT))


def lost_or_made_up(operations: Sequence[Operation]) -> tuple[Decided, ...]:
    """Return the violations of conservation in one queue, at most one of each kind."""
    decided = {each.kind: each for each in not_conserved(operations, NAMES, lambda value: seen_through([value]))}
    drain = last_drain(operations)
    if drain is not None:
        puts, takes = by_value(operations, NAMES)
        missing = _missing(puts, takes, drain)
        lost = lost_for_certain(missing, takes, drain, open_dequeues(operations, drain))
        if lost is not None:
            decided.setdefault(lost.kind, lost)
    return tuple(decided.values())


def missing_from_last_drain(operations: Sequence[Operation]) -> int:
    """Return the number of values that the last drain should have taken but that no answer showed."""
    drain = last_drain(operations)
    return 0 if drain is None else len(_missing(*by_value(operations, NAMES), drain))


def last_drain(operations: Sequence[Operation]) -> Operation | None:
    """Return the last drain; None if there is no drain, or if a drain has no answer."""
    drains = [o for o in operations if o.f == DRAIN]
    return max(drains, key=lambda o: o.call) if drains and all(o.returned for o in drains) else None


_OfValue = Mapping[Hashable, Sequence[Operation]]
_Missing = Sequence[tuple[Hashable, Sequence[Operation]]]
"""(missing value, its acknowledged enqueues), once for each missing copy."""


def _missing(puts: _OfValue, takes: _OfValue, drain: Operation) -> _Missing:
    missing: list[tuple[Hashable, list[Operation]]] = []
    for value, of_value in puts.items():
        certain = [o for o in of_value if o.ret is not None and o.ret < drain.call]
        missing += [(value, certain)] * (len(certain) - len(takes.get(value, ())))
    return missing


def open_dequeues(operations: Sequence[Operation], drain: Operation) -> list[Operation]:
    """Return the dequeues without an answer that may have taken a value before the last drain found the queue empty."""
    assert drain.ret is not None
    return [o for o in operations if o.f == TAKE and not o.returned and o.call < drain.ret]


def seen_through(values: Sequence[Hashable]) -> Model:
    """Return the model of a queue that is reduced to these values."""

    def show(state: State) -> str:
        assert isinstance(state, tuple)
        return f"[{', '.join(map(text_of, state))}]"

    return Model("queue", init=tuple, step=step_of(NAMES, at_stake=frozenset(values)), show=show)


def lost_for_certain(
    missing: Sequence[tuple[Hashable, Sequence[Operation]]],
    takes: Mapping[Hashable, Sequence[Operation]],
    drain: Operation,
    unanswered: Sequence[Operation],
    reduced: Callable[[Sequence[Hashable]], Model] | None = None,
) -> Decided | None:
    """Return a violation if there are fewer unanswered dequeues than missing acknowledged values.

    The witness contains one value more than there are such dequeues, which is the fewest that prove a loss.

    missing: (value, its acknowledged enqueues), once for each missing copy
    reduced: a function that returns the queue reduced to some values; by default a first-in-first-out queue
    """
    if len(missing) <= len(unanswered):
        return None
    shown = dict(missing[: len(unanswered) + 1])
    involved = [o for value, certain in shown.items() for o in (*certain, *takes.get(value, ()))]
    value, certain = missing[0]
    words = f"{text_of(value)} was acknowledged and never taken, though the queue was drained afterwards"
    if unanswered:
        words = f"{len(missing)} values were acknowledged and never taken, though the queue was drained afterwards; "
        words += f"dequeues without an answer can have taken at most {len(unanswered)} of them"
    elif taken := len(takes.get(value, ())):
        words = (
            f"{text_of(value)} was acknowledged {len(certain)} times and taken {taken}, though the queue was drained"
        )
    right = f"that {named(shown)} came out of the queue as often as put there, at the latest in the last drain"
    operations = list(dict.fromkeys([*involved, *unanswered, drain]))
    smaller = (reduced or seen_through)(list(shown))
    why = "A drain takes all values, and a dequeue without an answer takes one value at most"
    return Decided("acknowledged element lost", words, operations, drain, right, smaller, list(shown), why)


def overlapping_drain(operations: Sequence[Operation]) -> Operation | None:
    """Return a drain that overlaps another of these operations; None if there is none.

    operations: operations in order of call
    """
    busy_until, last = -1, None
    for o in operations:
        if o.call < busy_until and (o.f == DRAIN or (last is not None and last.f == DRAIN)):
            return o if o.f == DRAIN else last
        ret = o.ends
        if ret > busy_until:
            busy_until, last = ret, o
    return None


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge conservation first, and then the order: without a search if values are unique, else with the search.

    The counts of the result are those of `_counts`; if values are conserved, also the excused values.
    """
    counts = _counts(operations)
    if lost := lost_or_made_up(operations):
        return ObjectFinding(lost, steps=len(operations), counts=counts)
    counts[EXCUSED] = _excused(operations)
    return replace(_judge_order(operations, budget), counts=counts)


def _excused(operations: Sequence[Operation]) -> int:
    """Return the number of missing acknowledged values that unanswered dequeues may have taken.

    If values repeat, only values that are missing from the last drain are counted.

    operations: must conserve values
    """
    if not any(o.f == TAKE and not o.returned for o in operations):
        return 0
    missing = missing_from_last_drain(operations)
    if repeats(operations, PUT):
        return missing
    stays, empties, _ = _spans(with_dequeues(operations))
    return max(missing, len(deadlines(stays, empties)))


def _counts(operations: Sequence[Operation]) -> dict[str, int]:
    """Return the numbers of acknowledged values, of acknowledged values that no answer showed, and of unanswered
    dequeues.
    """
    acknowledged = {o.input for o in operations if o.f == PUT and o.returned}
    taken = {value for o in operations for value in NAMES.taken_by(o)}
    unanswered = sum(o.f == TAKE and not o.returned for o in operations)
    return {
        "acknowledged": len(acknowledged),
        "never_taken": len(acknowledged - taken),
        UNANSWERED: unanswered,
    }


def _judge_order(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge the order of a queue whose values are conserved."""
    one_by_one = with_dequeues(operations)
    unique = not repeats(one_by_one, PUT)
    takes = [o if o.returned else replace(o, ret=o.call) for o in one_by_one if o.f != PUT]
    overlaps = overlapping_drain(takes) is not None
    exact = unique or (
        all(o.returned or o.f == PUT for o in one_by_one) and are_interchangeable(one_by_one, PUT, NAMES.taken_by)
    )
    in_steps = len(one_by_one) > len(operations) or overlapping_drain(one_by_one) is not None
    for apart in [one_by_one] if unique else told_apart(one_by_one, PUT, NAMES.taken_by, last_first=False):
        wrong: Decided | NoOrder | None = out_of_order(apart)
        if wrong is None or (overlaps and out_of_order(apart, late=True) is None):
            return ObjectFinding(steps=len(operations))
        if exact and not overlaps:
            if not unique:
                wrong = _no_order(operations, wrong.index) if in_steps else NoOrder(QUEUE, wrong.index)
            return ObjectFinding((wrong,), steps=len(operations))
    if not unique and any(
        is_told_apart_anew(apart, NAMES, lambda some: _stuck_at(some, overlaps), budget)
        for apart in told_apart(one_by_one, PUT, NAMES.taken_by, last_first=False)
    ):
        return ObjectFinding(steps=len(operations))
    finding = by_search(STEPWISE, _in_steps(one_by_one), budget) if in_steps else by_search(QUEUE, operations, budget)
    if finding.reason:
        conserved = "no value is known to be lost or made up, but the order is not decided"
        return replace(finding, reason=f"{conserved}: {finding.reason}")
    if finding.violations and in_steps:
        return replace(finding, violations=(_no_order(operations, finding.violations[0].index),))
    return finding


def _stuck_at(operations: Sequence[Operation], overlaps: bool) -> Stuck | None:
    """Return the values that are out of order; None if there is an order.

    overlaps: True if a drain ran concurrently with another drain or dequeue
    """
    wrong = out_of_order(operations)
    if wrong is None or (overlaps and out_of_order(operations, late=True) is None):
        return None
    return Stuck(-wrong.index, [o.input for o in wrong.operations if o.f == PUT])


def with_dequeues(operations: Sequence[Operation]) -> list[Operation]:
    """Replace each drain without an answer by dequeues without an answer, as many as values that it may have taken."""
    if all(o.returned or o.f != DRAIN for o in operations):
        return list(operations)
    left = sum((o.f == PUT) - len(NAMES.taken_by(o)) for o in operations)
    return [
        each
        for o in operations
        for each in ([replace(o, f=TAKE, input=None)] * left if o.f == DRAIN and not o.returned else [o])
    ]


def _in_steps(operations: Sequence[Operation]) -> list[Operation]:
    """Replace each drain by its dequeues and a last dequeue that found nothing.

    Each is marked with (position of the drain, number of the step).
    """
    steps: list[Operation] = []
    for at, o in enumerate(operations):
        if o.f != DRAIN:
            steps.append(o)
            continue
        outputs = (*NAMES.taken_by(o), None)
        steps += [replace(o, input=(at, number), output=value) for number, value in enumerate(outputs)]
    return steps


def _stepwise(state: State, operation: Operation) -> object:
    """Return the state after an operation; a state is (values of the queue, next steps of drains that have begun)."""
    assert isinstance(state, tuple)
    values, begun = state
    if operation.f != DRAIN:
        after = step(values, operation)
        return REFUSED if after is REFUSED else (after, begun)
    assert isinstance(operation.input, tuple)
    drain, number = operation.input
    if dict(begun).get(drain, 0) != number:
        return REFUSED
    others = tuple(each for each in begun if each[0] != drain)
    if operation.output is None:
        return REFUSED if values else (values, others)
    if not values or values[0] != operation.output:
        return REFUSED
    return values[1:], tuple(sorted((*others, (drain, number + 1))))


STEPWISE = Model("queue", init=lambda: ((), ()), step=_stepwise)
"""Model of a queue whose drains consist of steps; other operations may come between the steps."""


def _no_order(operations: Sequence[Operation], index: int) -> Decided:
    """Return the violation of a queue whose drains consist of steps.

    index: index of an event at which the search was certain

    The model of whole drains allows fewer orders, so it has no order either.  If there are more operations than a
    witness can judge again, the witness shows the last operations up to `index`.
    """
    before = [o for o in operations if o.call <= index]
    culprit = max((o for o in before if o.returned), key=lambda o: (o.ret or 0) if (o.ret or 0) <= index else -1)
    words = f"no order of the operations explains all answers; the {culprit.f} at index {culprit.ret} is the last tried"
    why = "A drain stands for several dequeues in a row, and other operations may come between these"
    if len(operations) <= SEARCHED_MAX:
        return Decided(NO_ORDER, words, operations, culprit, "another answer", QUEUE, why=why)
    shown = list(dict.fromkeys([culprit, *before[-SEARCHED_MAX - 1 :]]))
    why += f".  The last {len(shown)} of {len(operations)} operations are shown"
    return Decided(NO_ORDER, words, shown, culprit, "another answer", QUEUE, why=why, states=())


def out_of_order(operations: Sequence[Operation], late: bool = False) -> Decided | None:
    """Return the violation of one queue's order; None if there is none.

    operations: values must be unique and conserved, and every drain must have an answer
    late: True if a drain takes its values as late as possible, instead of as early as possible

    If a drain overlaps a dequeue or another drain, only the result None is certain; a violation is not.
    """
    stays, empties, open_takes = _spans(operations, late)
    found = _wrong(stays, empties)
    if found is None or not open_takes:
        return found
    if (sure := _wrong([stay for stay in stays if stay.taken is not None], empties)) is not None:
        return sure
    if (found := _wrong(with_open_takes(stays, open_takes), empties)) is None:
        return None
    due = deadlines(stays, empties)
    unmet = first_unmet(due, open_takes)
    return not_in_time(stays, due[:unmet], open_takes) if unmet else always_there(found, stays, open_takes)


def _wrong(stays: Sequence[Stay], empties: Sequence[Span]) -> Decided | None:
    return _overtaken(stays) or _not_empty(empties, stays)


def _spans(operations: Sequence[Operation], late: bool = False) -> tuple[list[Stay], list[Span], list[Span]]:
    """Return (stays of values in the queue, dequeues that found nothing, dequeues and drains without an answer)."""
    puts: dict[Hashable, Span] = {}
    takes: dict[Hashable, Span] = {}
    empties: list[Span] = []
    open_takes: list[Span] = []
    room = 2 * (2 + max((len(NAMES.taken_by(o)) for o in operations), default=0))  # moments for the dequeues of a drain
    spans = [Span(o, room * o.call, NEVER if o.ret is None else room * o.ret) for o in operations]
    for span in spans:
        if span.operation.f == PUT:
            puts[span.operation.input] = span
    for span in spans:
        o = span.operation
        if o.f == PUT:
            continue
        if not o.returned:
            open_takes.append(span)
        elif o.f == DRAIN:
            earliest = span.ret - 2 * len(NAMES.taken_by(o)) - 2 if late else span.call
            for value in NAMES.taken_by(o):
                earliest = max(earliest, puts[value].call) + 2
                takes[value] = Span(o, earliest - 1, earliest)
            empties.append(Span(o, earliest + 1, span.ret))
        elif o.output is None:
            empties.append(span)
        else:
            takes[o.output] = span
    stays = [Stay(value, put, takes.get(value)) for value, put in puts.items()]
    return [stay for stay in stays if stay.taken is not None or stay.put.operation.returned], empties, open_takes


def _overtaken(stays: Sequence[Stay]) -> Decided | None:
    """Return the violation of the first value that was dequeued before a value that had been enqueued before it."""
    by_return = sorted(stays, key=lambda stay: stay.certain_from)
    returns = [stay.certain_from for stay in by_return]
    longest: list[Stay] = []  # per position: the last dequeued of all elements so far
    for stay in by_return:
        longest.append(stay if not longest or stay.certain_until > longest[-1].certain_until else longest[-1])
    found: tuple[int, Stay, Stay] | None = None
    for later in stays:
        before = bisect_left(returns, later.put.call)
        if later.taken is None or not before:
            continue
        first = longest[before - 1]
        if first.certain_until > later.taken.ret and (found is None or later.taken.ret < found[0]):
            found = later.taken.ret, first, later
    return None if found is None else _overtaken_in_words(found[1], found[2])


def _overtaken_in_words(first: Stay, later: Stay) -> Decided:
    assert later.taken is not None
    a, b = text_of(first.value), text_of(later.value)
    words = f"{b} came out of the queue before {a}, although {a} was put there first"
    if first.taken is None:
        words = f"{b} came out of the queue, but {a}, which was put there first, never did"
    spans = [span for span in (first.put, later.put, later.taken, first.taken) if span is not None]
    return _of_spans("out of order", words, spans, later.taken, f"an answer of {a}, or a value before it", first, later)


def _of_spans(
    kind: str, summary: str, spans: Sequence[Span], culprit: Span, right: str, *about: Stay, why: str = ""
) -> Decided:
    """Return the violation of the culprit's answer.

    about: the values that show it
    """
    operations, values = dict.fromkeys(span.operation for span in spans), [stay.value for stay in about]
    smaller = seen_through(values)
    return Decided(kind, summary, list(operations), culprit.operation, right, smaller, values, why)


def _not_empty(empties: Sequence[Span], stays: Sequence[Stay]) -> Decided | None:
    """Return the violation of the first dequeue that found nothing in a queue that was never empty while it ran."""
    certain = sorted((s for s in stays if s.certain_from < s.certain_until), key=lambda stay: stay.certain_from)
    begins: list[int] = []
    ends: list[int] = []
    for stay in certain:
        if not ends or stay.certain_from > ends[-1]:
            begins.append(stay.certain_from)
            ends.append(stay.certain_until)
        ends[-1] = max(ends[-1], stay.certain_until)
    for empty in sorted(empties, key=lambda span: span.ret):
        at = bisect_left(begins, empty.call) - 1
        if at >= 0 and empty.ret < ends[at]:
            return _certainly_not_empty(empty, certain)
    return None


def _certainly_not_empty(empty: Span, certain: Sequence[Stay]) -> Decided:
    """Return the violation of an empty dequeue, with the fewest values of which one was always certainly in the queue.

    certain: stays of values, in the order of the times from which they were certainly in the queue
    """
    stays = [(stay.certain_from + 1, stay.certain_until - 1) for stay in certain]
    chain = [certain[at] for at in fewest_that_fill(stays, empty.call, empty.ret - 1)]
    spans = [span for stay in chain for span in (stay.put, stay.taken) if span is not None]
    words = f"a {empty.operation.f} found nothing while {were([stay.value for stay in chain])} there"
    why = "A value is certainly there from the return of its enqueue to the call of its dequeue"
    right = f"an answer of {text_of(chain[0].value)}"
    return _of_spans("not empty", words, [*spans, empty], empty, right, *chain, why=why)


QUEUE_OBJECT = KnownObject(
    "queue",
    "Queue",
    "Does every value come out once, in the order in which the values were put there?",
    judge,
    {PUT: CHANGES, TAKE: SHOWS, DRAIN: SHOWS},
    "a queue",
    odd_answer=no_drained_list,
    container=True,
)


class Span(NamedTuple):
    """The call and the return of an operation, or of one of the dequeues of a drain."""

    operation: Operation
    call: int
    ret: int


class Stay(NamedTuple):
    """The time of a value in the queue.

    put: its enqueue
    taken: its dequeue, or None if there is none
    """

    value: Hashable
    put: Span
    taken: Span | None

    @property
    def certain_from(self) -> int:
        return self.put.ret

    @property
    def certain_until(self) -> int:
        return NEVER if self.taken is None else self.taken.call


class Deadline(NamedTuple):
    """A value that must have been taken before a moment.

    place: index of the stay of the value
    by: the take that proves this
    by_value: the later value that `by` took; None if `by` found nothing
    """

    place: int
    moment: int
    by: Span
    by_value: Stay | None


def deadlines(stays: Sequence[Stay], empties: Sequence[Span]) -> list[Deadline]:
    """Return the deadlines of all values that must have been taken although no answer shows it, the earliest first."""
    signs = [(stay.put.call, stay.taken, stay) for stay in stays if stay.taken is not None]
    every: list[tuple[int, Span, Stay | None]] = [*signs, *((empty.call, empty, None) for empty in empties)]
    every.sort(key=lambda sign: sign[0], reverse=True)
    earliest: list[tuple[int, Span, Stay | None]] = []
    for sign in every:
        earliest.append(sign if not earliest or sign[1].ret < earliest[-1][1].ret else earliest[-1])
    found: list[Deadline] = []
    for place, stay in enumerate(stays):
        later = bisect_left(every, -stay.put.ret, key=lambda sign: -sign[0])
        if stay.taken is None and later:
            _, by, by_value = earliest[later - 1]
            found.append(Deadline(place, by.ret, by, by_value))
    return sorted(found, key=lambda each: each.moment)


def with_open_takes(stays: Sequence[Stay], takes: Sequence[Span]) -> list[Stay]:
    """Return the stays with the best assignment of open dequeues to the remaining values."""
    left = sorted((stay.put.ret, place) for place, stay in enumerate(stays) if stay.taken is None)
    given = dict(zip((place for _, place in left), sorted(takes, key=lambda take: take.call), strict=False))
    return [stay._replace(taken=given.get(place, stay.taken)) for place, stay in enumerate(stays)]


def first_unmet(due: Sequence[Deadline], takes: Sequence[Span]) -> int:
    """Return the smallest n such that the first n deadlines cannot all be met; 0 if all deadlines can be met.

    due: deadlines in order of their moments
    """
    calls = sorted(take.call for take in takes)
    for number, deadline in enumerate(due):
        if number == len(calls) or calls[number] > deadline.moment:
            return number + 1
    return 0


def not_in_time(stays: Sequence[Stay], due: Sequence[Deadline], takes: Sequence[Span]) -> Decided:
    """Return the violation of deadlines for which too few open dequeues were invoked in time.

    due: these deadlines, in order of their moments
    takes: all open dequeues; the violation leaves out dequeues that were invoked too late
    """
    last = due[-1]
    in_time = [take for take in takes if take.call <= last.moment]
    late = [stays[deadline.place] for deadline in due]
    later = [deadline.by_value for deadline in due if deadline.by_value is not None]
    about = list(dict.fromkeys([*late, *later]))
    kind, did = "not empty", f"a {last.by.operation.f} found nothing"
    if last.by_value is not None:
        kind, did = "out of order", f"{text_of(last.by_value.value)} came out of the queue"
    words = f"{did}, but {named([stay.value for stay in late])}, put there before, never came out"
    why = f"Each of these {len(late)} values had to be taken before, but no answer shows one of them.  "
    why += f"{len(in_time)} dequeues without an answer were invoked in time, and each takes at most one value"
    right = f"an answer of {text_of(late[-1].value)}, or a value before it"
    spans = [*(stay.put for stay in about), *(deadline.by for deadline in due), *in_time]
    return _of_spans(kind, words, spans, last.by, right, *about, why=why)


def always_there(found: Decided, stays: Sequence[Stay], takes: Sequence[Span]) -> Decided:
    """Add to the violation of a dequeue that found nothing all values that open dequeues may have taken before.

    found: the violation that remains under the best assignment; it also remains for these values and dequeues alone
    """
    end = found.index
    about = [s for s in stays if s.value in found.about or (s.taken is None and (s.put.operation.ret or 0) < end)]
    spans = [span for stay in about for span in (stay.put, stay.taken) if span is not None]
    in_time = [take for take in takes if take.operation.call < end]
    culprit = Span(found.culprit, found.culprit.call, found.index)
    why = "The violation remains if dequeues that were never answered took values that no other dequeue took"
    spans += [*in_time, culprit]
    return _of_spans(found.kind, found.summary, spans, culprit, found.expected, *about, why=why)


def _deliveries_of(values: Sequence[Hashable]) -> Model:
    """Return the model of a queue that is reduced to these values and drained once.

    A state is (the enqueued values, the enqueued values that were not dequeued, the oldest first).
    """
    at_stake = frozenset(values)

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, tuple)
        put, waiting = state
        if operation.f == PUT:
            own = (operation.input,) if operation.input in at_stake else ()
            return put.union(own), waiting + own
        if not operation.returned:  # a dequeue of a value not in `values` counts as an operation that never happened
            return put, waiting[1:]
        taken = at_stake.intersection(NAMES.taken_by(operation))
        left = tuple(value for value in waiting if value not in taken)
        return REFUSED if taken - put or (operation.f == DRAIN and left) else (put, left)

    def show(state: State) -> str:
        assert isinstance(state, tuple)
        return f"[{', '.join(map(text_of, state[1]))}]"

    return Model("at-least-once-queue", init=lambda: (frozenset(), ()), step=step, show=show)


def judge_deliveries(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find values from nowhere and lost values."""
    found = [
        replace(each, expected="a value whose enqueue had been invoked, or nil")
        for each in not_conserved(operations, NAMES, lambda value: _deliveries_of([value]))
        if each.kind == "value from nowhere"
    ]
    puts, takes = by_value(operations, NAMES)
    missing, unanswered, lost = [], [o for o in operations if o.f == TAKE and not o.returned], None
    if (drain := last_drain(operations)) is not None:
        for value, of_value in puts.items():
            certain = [o for o in of_value if o.ret is not None and o.ret < drain.call]
            missing += [(value, certain)] if certain and value not in takes else []
        lost = lost_for_certain(missing, takes, drain, open_dequeues(operations, drain), _deliveries_of)
    if lost is not None:
        lost = replace(lost, expected=lost.expected.replace("as often as put there", "at least once"))
    acknowledged = {value for value, of_value in puts.items() if any(o.returned for o in of_value)}
    counts = {
        "acknowledged": len(acknowledged),
        "delivered_again": sum(max(0, len(taken) - len(puts.get(value, ()))) for value, taken in takes.items()),
        "never_taken": len(acknowledged - takes.keys()),
        UNANSWERED: len(unanswered),
        EXCUSED: 0 if lost else len(missing),
    }
    violations: list[Decided] = [*found, *([lost] if lost else [])]
    return ObjectFinding(tuple(violations), steps=len(operations), counts=counts)


AT_LEAST_ONCE_QUEUE = replace(
    QUEUE_OBJECT,
    name="at-least-once-queue",
    title="Queue, at least once",
    question="Does every acknowledged value come out at least once, and no other?",
    judge=judge_deliveries,
    empty_shows=False,
)
