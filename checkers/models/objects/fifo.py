"""The order of a first-in-first-out queue into which every value is put once: decided outright, in O(n log n).

Henzinger, Sezgin and Vafeiadis ("Aspect-oriented linearizability proofs", 2013) prove that a complete history of such a
queue is linearizable iff it has none of four things.  x < y: x returned before y was called.

    fresh     a value is taken that no enqueue put there, or before it was invoked: deq(a) < enq(a)
    repeated  a value is taken twice
    order     a is put there before b, and b taken before a, or a never: enq(a) < enq(b), deq(b) < deq(a)
    witness   a dequeue finds nothing, though the queue was never empty while it ran: values a, b, ..., z with
              enq(a) < it, enq(b) < deq(a), ..., it < deq(z)

The last is a question about intervals: from the return of its enqueue to the call of its dequeue a value is certainly
there, and the dequeue must have a moment in which none is.  Intervals that overlap are joined first.

A drain during which nothing else was under way stands for its dequeues one after another.  An unanswered dequeue may be
under way, for it only ever matters by having taken something.

Operations without an answer: an enqueue happened if its value was taken, at any time after its call.  If its value was
never taken, it need not have happened.  A dequeue may have taken any remaining value at any later time, or none.  Every
combination is tried while there are few.

`not_conserved` (queue.py) has already searched for the first two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import Decided, KnownObject, ObjectFinding, by_search
from checkers.models.model import Operation
from checkers.models.objects.queue import DRAIN, PUT, QUEUE, not_conserved, seen_through, taken_by
from checkers.models.projection import Violation, real_time
from checkers.models.ranks import NEVER

WAYS_TIMES_VALUES_MAX = 5_000_000
"""Limit of a product: the ways in which open dequeues may have taken values, times the values of the queue."""


class NotUnique(ValueError):
    """A value is put there more than once, or too many dequeues without an answer may have taken one: search."""


class _Span(NamedTuple):
    """When an operation, or one of the dequeues that a drain consists of, was called and returned."""

    operation: Operation
    call: int
    ret: int


class _Stay(NamedTuple):
    """A value of the queue; taken: None if it never was."""

    value: Hashable
    put: _Span
    taken: _Span | None

    @property
    def certain_from(self) -> int:
        return self.put.ret

    @property
    def certain_until(self) -> int:
        return NEVER if self.taken is None else self.taken.call


def overlapping_drain(operations: Sequence[Operation], but_open_takes: bool) -> Operation | None:
    """A drain during which another operation was under way, if there is one.

    but_open_takes: dequeues and drains that were never answered do not count.  operations: in order of call.
    """
    busy_until, last = -1, None
    for o in operations:
        if but_open_takes and not o.returned and o.f != PUT:
            continue
        if o.call < busy_until and (o.f == DRAIN or (last is not None and last.f == DRAIN)):
            return o if o.f == DRAIN else last
        ret = NEVER if o.ret is None else o.ret
        if ret > busy_until:
            busy_until, last = ret, o
    return None


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Conservation first, then the order: outright where values are unique, else by the search.

    Raises WrongOperation.
    """
    if lost := not_conserved(operations):
        return ObjectFinding(lost, steps=len(operations))
    try:
        if (drain := overlapping_drain(operations, but_open_takes=True)) is None:
            wrong = out_of_order(operations)
            return ObjectFinding(() if wrong is None else (wrong,), steps=len(operations))
    except NotUnique:
        drain = overlapping_drain(operations, but_open_takes=False)
    conserved = "no value was lost or made up, but the order is not decided"
    if drain is not None:
        return ObjectFinding(reason=f"{conserved}: other operations ran during the drain at index {drain.call}")
    finding = by_search(QUEUE, operations, budget)
    return replace(finding, reason=f"{conserved}: {finding.reason}") if finding.reason else finding


def out_of_order(operations: Sequence[Operation]) -> Decided | None:
    """The violation of one queue's order, if there is one.

    operations: conserved, and without a drain that overlaps any but open takes.  Raises NotUnique.
    """
    stays, empties, open_takes = _spans(operations)
    found = _wrong(stays, empties)
    if found is None:
        return None
    if open_takes:
        sure = _wrong([stay for stay in stays if stay.taken is not None], empties)
        found = sure or _wrong_in_every_case(stays, empties, open_takes, found)
    if found is None:
        return None
    values, violation = found
    return Decided(violation, seen_through(values))


def _wrong(stays: Sequence[_Stay], empties: Sequence[_Span]) -> _Found | None:
    return _overtaken(stays) or _not_empty(empties, stays)


def _wrong_in_every_case(
    stays: Sequence[_Stay], empties: Sequence[_Span], open_takes: Sequence[_Span], found: _Found
) -> _Found | None:
    """An open dequeue may have taken any remaining value, or none.  The violation that remains in every case, or None.

    found: the violation if they took none.  The values that show it in any of the cases are at stake together.
    """
    left = [place for place, stay in enumerate(stays) if stay.taken is None]
    ways_max = WAYS_TIMES_VALUES_MAX // len(stays)
    if any(take.operation.f == DRAIN for take in open_takes) or (len(left) + 1) ** len(open_takes) > ways_max:
        raise NotUnique("dequeues were never answered, and may have taken what no other dequeue took")
    at_stake = dict.fromkeys(found[0])
    involved = dict.fromkeys(found[1].operations)
    for ways in product([None, *left], repeat=len(open_takes)):
        chosen = [place for place in ways if place is not None]
        if len(set(chosen)) < len(chosen):
            continue
        changed = list(stays)
        for take, place in zip(open_takes, ways, strict=True):
            if place is not None:
                changed[place] = stays[place]._replace(taken=take)
        wrong = _wrong(changed, empties)
        if wrong is None:
            return None
        at_stake |= dict.fromkeys(wrong[0])
        involved |= dict.fromkeys(wrong[1].operations)
    for stay in stays:
        if stay.value in at_stake:
            involved |= dict.fromkeys(span.operation for span in (stay.put, stay.taken) if span is not None)
    involved |= dict.fromkeys(take.operation for take in open_takes)
    why = [*found[1].why, "Nor does it help if the dequeues that were never answered took what no other dequeue took"]
    return tuple(at_stake), replace(found[1], operations=list(involved), why=why)


def _spans(operations: Sequence[Operation]) -> tuple[list[_Stay], list[_Span], list[_Span]]:
    """(every value that certainly was in the queue, every dequeue that found nothing, all that were never answered)."""
    puts: dict[Hashable, _Span] = {}
    takes: dict[Hashable, _Span] = {}
    empties: list[_Span] = []
    open_takes: list[_Span] = []
    room = 2 * (2 + max((len(taken_by(o)) for o in operations), default=0))  # moments for the dequeues of a drain
    for o in operations:
        call, ret = room * o.call, NEVER if o.ret is None else room * o.ret
        if o.f == PUT:
            if o.input is None or o.input in puts:
                raise NotUnique(
                    f"{o.input!r} is put there more than once, or cannot be distinguished from an empty answer"
                )
            puts[o.input] = _Span(o, call, ret)
        elif not o.returned:
            open_takes.append(_Span(o, call, ret))
        elif o.f == DRAIN:
            for place, value in enumerate(taken_by(o)):
                takes[value] = _Span(o, call + 2 * place, call + 2 * place + 1)
            empties.append(_Span(o, ret - 1, ret))
        elif o.output is None:
            empties.append(_Span(o, call, ret))
        else:
            takes[o.output] = _Span(o, call, ret)
    stays = [_Stay(value, put, takes.get(value)) for value, put in puts.items()]
    return [stay for stay in stays if stay.taken is not None or stay.put.operation.returned], empties, open_takes


_Found = tuple[tuple[Hashable, ...], Violation]
"""The values at stake, and the violation."""


def _overtaken(stays: Sequence[_Stay]) -> _Found | None:
    """The first value taken before one that had been put there before it."""
    by_return = sorted(stays, key=lambda stay: stay.certain_from)
    returns = [stay.certain_from for stay in by_return]
    longest: list[_Stay] = []  # of all up to that place, the one that is taken last
    for stay in by_return:
        longest.append(stay if not longest or stay.certain_until > longest[-1].certain_until else longest[-1])
    found: tuple[int, _Stay, _Stay] | None = None
    for later in stays:
        before = bisect_left(returns, later.put.call)
        if later.taken is None or not before:
            continue
        first = longest[before - 1]
        if first.certain_until > later.taken.ret and (found is None or later.taken.ret < found[0]):
            found = later.taken.ret, first, later
    return None if found is None else _overtaken_in_words(found[1], found[2])


def _overtaken_in_words(first: _Stay, later: _Stay) -> _Found:
    a, b = first.value, later.value
    assert later.taken is not None
    put, put_later, culprit = first.put.operation, later.put.operation, later.taken.operation
    why = [real_time(put, f"{a!r} was put there", put_later, f"the enqueue of {b!r} was invoked")]
    involved = [put, put_later, culprit]
    if first.taken is None:
        words = f"{b!r} came out of the queue and {a!r}, put there before it, never did"
        why.append(f"So {a!r} had to come out first, and no answer has it")
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


def _not_empty(empties: Sequence[_Span], stays: Sequence[_Stay]) -> _Found | None:
    """The first dequeue that found nothing while some value was there at every moment."""
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
            return _told_not_empty(empty, certain)
    return None


def _told_not_empty(empty: _Span, certain: Sequence[_Stay]) -> _Found:
    """certain: in the order in which they begin.  Of all values as few as cover the span."""
    chain: list[_Stay] = []
    at, place = empty.call, 0
    while at < empty.ret:
        best: _Stay | None = None
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
)
