"""Decides the order of a first-in-first-out queue without a search, in O(n log n), if every value is enqueued once.

Henzinger, Sezgin and Vafeiadis ("Aspect-oriented linearizability proofs", 2013) prove that a complete history of such a
queue is linearizable iff it has none of four patterns.  x < y means that x returned before y was called.

    fresh     a value was dequeued that was never enqueued, or before its enqueue was invoked: deq(a) < enq(a)
    repeated  a value was dequeued twice
    order     a was enqueued before b, and b was dequeued before a, or a never: enq(a) < enq(b), deq(b) < deq(a)
    witness   a dequeue e found nothing, although the queue was never empty while it ran: there are values a, b, ..., z
              with enq(a) < e, enq(b) < deq(a), ..., e < deq(z)

`not_conserved` (queue.py) has already searched for the first two.  The last one is a question about intervals.  A value
is certainly in the queue from the return of its enqueue to the call of its dequeue.  An empty dequeue needs a moment
outside all these intervals.  Intervals that overlap are joined first.

A drain stands for several dequeues, one after another.  The order is not decided if another dequeue or drain was
invoked during the drain, or was under way and answered.  Enqueues may overlap a drain, and so may dequeues that were
invoked before it and never answered.  Each dequeue of the drain gets its earliest possible moment: after the one before
it, and after the call of the enqueue of its value.  This changes no verdict.  No legal order has the dequeue earlier.
If a legal order has it later, the order stays legal when the dequeue is moved to that moment: values leave the queue
earlier but in the same order, and the last dequeue still finds nothing at its old place.

Operations may have no answer.  If the value of an enqueue was dequeued, the enqueue happened at some time after its
call.  Otherwise it need not have happened.  A dequeue may have taken any remaining value at any later time, or none.
One assignment of values to such dequeues decides for all (`fifo_deadlines.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import replace

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import EXCUSED, UNANSWERED, Decided, KnownObject, ObjectFinding, by_search
from checkers.models.model import Operation
from checkers.models.objects.fifo_deadlines import (
    Found,
    Span,
    Stay,
    always_there,
    deadlines,
    first_unmet,
    not_in_time,
    with_open_takes,
)
from checkers.models.objects.queue import (
    DRAIN,
    PUT,
    QUEUE,
    TAKE,
    missing_from_last_drain,
    no_drained_list,
    not_conserved,
    seen_through,
    taken_by,
)
from checkers.models.projection import Violation, real_time
from checkers.models.ranks import NEVER


class NotUnique(ValueError):
    """A search must decide: a value was enqueued twice, or a drain has no answer."""


def overlapping_drain(operations: Sequence[Operation]) -> Operation | None:
    """A drain that overlaps another of these operations; None if there is none.  operations: in order of call."""
    busy_until, last = -1, None
    for o in operations:
        if o.call < busy_until and (o.f == DRAIN or (last is not None and last.f == DRAIN)):
            return o if o.f == DRAIN else last
        ret = NEVER if o.ret is None else o.ret
        if ret > busy_until:
            busy_until, last = ret, o
    return None


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge conservation first, and then the order: without a search if values are unique, else by the search.

    counts: as in `_counts`; if values are conserved, also those that are excused.  Raises WrongOperation.
    """
    counts = _counts(operations)
    if lost := not_conserved(operations):
        return ObjectFinding(lost, steps=len(operations), counts=counts)
    counts[EXCUSED] = _excused(operations)
    return replace(_judge_order(operations, budget), counts=counts)


def _excused(operations: Sequence[Operation]) -> int:
    """The number of acknowledged values that had to come out, did not, and count as taken by unanswered dequeues.

    Values are conserved.  If they repeat, only those are counted that are missing from the last drain.
    """
    if not any(o.f == TAKE and not o.returned for o in operations):
        return 0
    missing = missing_from_last_drain(operations)
    try:
        stays, empties, _ = _spans(operations)
    except NotUnique:
        return missing
    return max(missing, len(deadlines(stays, empties)))


def _counts(operations: Sequence[Operation]) -> dict[str, int]:
    """The number of acknowledged values, of these that no answer showed, and of dequeues without an answer."""
    acknowledged = {o.input for o in operations if o.f == PUT and o.returned}
    taken = {value for o in operations for value in taken_by(o)}
    unanswered = sum(o.f == TAKE and not o.returned for o in operations)
    return {
        "acknowledged": len(acknowledged),
        "never_taken": len(acknowledged - taken),
        UNANSWERED: unanswered,
    }


def _judge_order(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge the order of a queue whose values are conserved."""
    try:
        takes = [o if o.returned else replace(o, ret=o.call) for o in operations if o.f != PUT]
        if (drain := overlapping_drain(takes)) is None:
            wrong = out_of_order(operations)
            return ObjectFinding(() if wrong is None else (wrong,), steps=len(operations))
    except NotUnique:
        drain = overlapping_drain(operations)
    conserved = "no value is known to be lost or made up, but the order is not decided"
    if drain is not None:
        unanswered = any(o.call == drain.call and not o.returned for o in operations)
        why = (
            f"the drain at index {drain.call} got no answer, so what it took is not known"
            if unanswered
            else f"other operations ran during the drain at index {drain.call}"
        )
        return ObjectFinding(reason=f"{conserved}: {why}")
    finding = by_search(QUEUE, operations, budget)
    return replace(finding, reason=f"{conserved}: {finding.reason}") if finding.reason else finding


def out_of_order(operations: Sequence[Operation]) -> Decided | None:
    """The violation of one queue's order; None if there is none.  Raises NotUnique.

    operations: values are conserved, and no drain overlaps a dequeue or drain except as the module allows.
    """
    stays, empties, open_takes = _spans(operations)
    found = _wrong(stays, empties)
    if found is None:
        return None
    if open_takes:
        sure = _wrong([stay for stay in stays if stay.taken is not None], empties)
        found = sure or _wrong_in_every_case(stays, empties, open_takes)
    if found is None:
        return None
    values, violation = found
    return Decided(violation, seen_through(values))


def _wrong(stays: Sequence[Stay], empties: Sequence[Span]) -> Found | None:
    return _overtaken(stays) or _not_empty(empties, stays)


def _wrong_in_every_case(stays: Sequence[Stay], empties: Sequence[Span], open_takes: Sequence[Span]) -> Found | None:
    """The violation that remains for every choice of values that open dequeues took; None if there is none."""
    if any(take.operation.f == DRAIN for take in open_takes):
        raise NotUnique("a drain was never answered, and may have taken any number of values")
    found = _wrong(with_open_takes(stays, open_takes), empties)
    if found is None:
        return None
    due = deadlines(stays, empties)
    unmet = first_unmet(due, open_takes)
    return not_in_time(stays, due[:unmet], open_takes) if unmet else always_there(found, stays, open_takes)


def _spans(operations: Sequence[Operation]) -> tuple[list[Stay], list[Span], list[Span]]:
    """(values that certainly were in the queue, dequeues that found nothing, dequeues and drains without an answer)."""
    puts: dict[Hashable, Span] = {}
    takes: dict[Hashable, Span] = {}
    empties: list[Span] = []
    open_takes: list[Span] = []
    room = 2 * (2 + max((len(taken_by(o)) for o in operations), default=0))  # moments for the dequeues of a drain
    spans = [Span(o, room * o.call, NEVER if o.ret is None else room * o.ret) for o in operations]
    for span in spans:
        value = span.operation.input
        if span.operation.f != PUT:
            continue
        if value is None or value in puts:
            raise NotUnique(f"{value!r} is put there more than once, or cannot be distinguished from an empty answer")
        puts[value] = span
    for span in spans:
        o = span.operation
        if o.f == PUT:
            continue
        if not o.returned:
            open_takes.append(span)
        elif o.f == DRAIN:
            earliest = span.call
            for value in taken_by(o):
                earliest = max(earliest, puts[value].call) + 2
                takes[value] = Span(o, earliest - 1, earliest)
            empties.append(Span(o, earliest + 1, span.ret))
        elif o.output is None:
            empties.append(span)
        else:
            takes[o.output] = span
    stays = [Stay(value, put, takes.get(value)) for value, put in puts.items()]
    return [stay for stay in stays if stay.taken is not None or stay.put.operation.returned], empties, open_takes


def _overtaken(stays: Sequence[Stay]) -> Found | None:
    """The violation of the first value that was dequeued before a value that had been enqueued before it."""
    by_return = sorted(stays, key=lambda stay: stay.certain_from)
    returns = [stay.certain_from for stay in by_return]
    longest: list[Stay] = []  # of all up to that place, the one that is taken last
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


def _overtaken_in_words(first: Stay, later: Stay) -> Found:
    a, b = first.value, later.value
    assert later.taken is not None
    put, put_later, culprit = first.put.operation, later.put.operation, later.taken.operation
    why = [real_time(put, f"{a!r} was put there", put_later, f"the enqueue of {b!r} was invoked")]
    involved = [put, put_later, culprit]
    if first.taken is None:
        words = f"{b!r} came out of the queue, but {a!r}, which was put there before it, never did"
        why.append(f"So {a!r} had to come out first, and no answer shows it")
    else:
        words = f"{b!r} came out of the queue before {a!r}, which was put there before it"
        if first.taken.operation is culprit:
            why.append(f"One drain took {b!r} before {a!r}")
        else:
            why.append(
                real_time(culprit, f"{b!r} was taken", first.taken.operation, f"the dequeue of {a!r} was invoked")
            )
        involved.append(first.taken.operation)
    why.append(f"Only {a!r} and {b!r} matter here; what else the queue holds is left out")
    operations = list(dict.fromkeys(involved))
    return (a, b), Violation(
        "out of order", words, operations, culprit, f"an answer of {a!r}, or a value before it", why
    )


def _not_empty(empties: Sequence[Span], stays: Sequence[Stay]) -> Found | None:
    """The violation of the first dequeue that found nothing although the queue was never empty while it ran."""
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


def _certainly_not_empty(empty: Span, certain: Sequence[Stay]) -> Found:
    """The violation of an empty dequeue, with the fewest values that were certainly in the queue all the time.

    certain: values with the time in which they were certainly in the queue, in order of its beginning.
    """
    chain: list[Stay] = []
    at, place = empty.call, 0
    while at < empty.ret:
        best: Stay | None = None
        while place < len(certain) and certain[place].certain_from < at:
            if best is None or certain[place].certain_until > best.certain_until:
                best = certain[place]
            place += 1
        assert best is not None and best.certain_until > at, "joined intervals have no gap"
        chain.append(best)
        at = best.certain_until
    values = tuple(stay.value for stay in chain)
    operations = [stay.put.operation for stay in chain]
    operations += [stay.taken.operation for stay in chain if stay.taken is not None] + [empty.operation]
    named = " and ".join(map(repr, values[:4])) + (f" and {len(values) - 4} more" if len(values) > 4 else "")
    words = f"a {empty.operation.f} found nothing while {named} {'was' if len(values) == 1 else 'were'} there"
    why = ["From the return of its enqueue to the call of its dequeue a value is certainly there"]
    if len(values) > 1:
        why.append("Before the dequeue of each of these values was invoked, the next one had been put there")
    why.append(f"Only {named} matter{'s' * (len(values) == 1)} here; what else the queue holds is left out")
    involved = list(dict.fromkeys(operations))
    return values, Violation("not empty", words, involved, empty.operation, f"an answer of {values[0]!r}", why)


QUEUE_OBJECT = KnownObject(
    "queue",
    "Queue",
    "Does every value come out once, in the order in which the values were put there?",
    judge,
    fixed={PUT: the_same},
    given=frozenset({PUT}),
    answered=frozenset({TAKE, DRAIN}),
    observers=frozenset({TAKE, DRAIN}),
    odd_answer=no_drained_list,
    container=(PUT, frozenset({TAKE, DRAIN})),
)
