"""What dequeues without an answer can have taken from a first-in-first-out queue, in O(n log n).

An open dequeue may have taken any remaining value at any later time, or none.  One assignment of values to open
dequeues is the best: the values in the order in which their enqueues returned, the dequeues in order of call.  If it
leaves a violation, every assignment does.  Proof: turn any assignment without a violation into this one.  No step makes
a violation, because the time in which values are certainly in the queue never grows, as a whole.

    a, b remain, a's enqueue returned first; only b was taken    give b's dequeue to a
    both were taken, and a's dequeue was called later            swap the two dequeues
    a value remains, and so does a dequeue                       give the dequeue to the value
    a dequeue remains that was called earlier than another       use it instead

For a witness, a value that must have been taken has a *deadline*:

    out of order   a later value came out: the earlier value's dequeue was invoked before that dequeue returned
    not empty      a dequeue found nothing: likewise, if the value was there when that dequeue was invoked

Each open dequeue takes one value at most.  So for every moment, at least as many open dequeues must have been invoked
by then as values have their deadline until then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from checkers.models.model import Operation
from checkers.models.projection import Violation, real_time
from checkers.models.ranks import NEVER


class Span(NamedTuple):
    """The call and the return of an operation, or of one of the dequeues of a drain."""

    operation: Operation
    call: int
    ret: int


class Stay(NamedTuple):
    """The time of a value in the queue.  put: its enqueue.  taken: its dequeue; None if there is none."""

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
    """A value that must have been taken.  place: of its stay.  moment: until when.  by: what shows this.

    by_value: the later value that came out; None if `by` found nothing.
    """

    place: int
    moment: int
    by: Span
    by_value: Stay | None


Found = tuple[tuple[Hashable, ...], Violation]
"""The values that a violation is about, and the violation."""


def deadlines(stays: Sequence[Stay], empties: Sequence[Span]) -> list[Deadline]:
    """The deadlines of all values that must have been taken and were not, the earliest first."""
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
    """The same stays, in which open dequeues have taken what remains: the best assignment of all."""
    left = sorted((stay.put.ret, place) for place, stay in enumerate(stays) if stay.taken is None)
    given = dict(zip((place for _, place in left), sorted(takes, key=lambda take: take.call), strict=False))
    return [stay._replace(taken=given.get(place, stay.taken)) for place, stay in enumerate(stays)]


def first_unmet(due: Sequence[Deadline], takes: Sequence[Span]) -> int:
    """The number of the first deadlines that cannot all be met; 0 if all can.  due: in order of moment."""
    calls = sorted(take.call for take in takes)
    for number, deadline in enumerate(due):
        if number == len(calls) or calls[number] > deadline.moment:
            return number + 1
    return 0


def not_in_time(stays: Sequence[Stay], due: Sequence[Deadline], takes: Sequence[Span]) -> Found:
    """The violation of deadlines of which too few open dequeues were invoked.

    due: these deadlines, in order of moment.  takes: all open dequeues.  Those invoked too late for them are left out.
    """
    last = due[-1]
    in_time = [take.operation for take in takes if take.call <= last.moment]
    late = [stays[deadline.place] for deadline in due]
    later = [deadline.by_value for deadline in due if deadline.by_value is not None]
    values = tuple(dict.fromkeys(stay.value for stay in (*late, *later)))
    involved = [stay.put.operation for stay in (*late, *later)]
    involved += [deadline.by.operation for deadline in due] + in_time
    named = ", ".join(repr(stay.value) for stay in late[:4]) + ", …" * (len(late) > 4)
    culprit = last.by.operation
    first = late[-1].put.operation
    if last.by_value is not None:
        kind, did = "out of order", f"{last.by_value.value!r} came out of the queue"
        then = f"the enqueue of {last.by_value.value!r} was invoked"
        why = [real_time(first, f"{late[-1].value!r} was put there", last.by_value.put.operation, then)]
    else:
        kind, did = "not empty", f"a {culprit.f} found nothing"
        why = [real_time(first, f"{late[-1].value!r} was put there", culprit, f"the {culprit.f} was invoked")]
    count = f"the {len(in_time)} dequeues" if len(in_time) > 1 else "the one dequeue"
    words = f"{did}, but {named}, which {'were' if len(late) > 1 else 'was'} put there before, never did"
    if in_time:
        words += f", and {count} without an answer can have taken {len(in_time)} of them at most"
        why.append(f"Each of these {len(late)} values had to be taken before, and no answer shows that it was")
    why.append(f"Only {named} and what came out before matter here; what else the queue holds is left out")
    operations = list(dict.fromkeys(involved))
    right = f"an answer of {late[-1].value!r}, or a value before it"
    return values, Violation(kind, words, operations, culprit, right, why)


def always_there(found: Found, stays: Sequence[Stay], takes: Sequence[Span]) -> Found:
    """The violation of a dequeue that found nothing, with all that open dequeues may have taken before it returned.

    found: the violation that the best assignment leaves.  The same holds for these values and dequeues alone.
    """
    values, violation = found
    end = violation.culprit.ret
    assert end is not None
    late = [stay for stay in stays if stay.taken is None and (stay.put.operation.ret or 0) < end]
    in_time = [take.operation for take in takes if take.operation.call < end]
    at_stake = dict.fromkeys((*values, *(stay.value for stay in late)))
    involved = [span.operation for stay in stays if stay.value in at_stake for span in (stay.put, stay.taken) if span]
    operations = list(dict.fromkeys([*involved, *in_time, violation.culprit]))
    open_too = "The violation remains if dequeues that were never answered took values that no other dequeue took"
    return tuple(at_stake), replace(violation, operations=operations, why=[*violation.why, open_too])
