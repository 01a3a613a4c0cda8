"""A priority queue: insert a value, extract the smallest value (nil if there is none).

It is decided in O(n log n) if every extract has an answer and no operation runs inside an equal one.  Otherwise a
matching of equal inserts and extracts may lead to an order; if none does, a search decides.

*Gaps.*  Between two events of a history lies a gap.  Each operation takes effect in a gap between its call and its
return.  A value may be extracted in any gap in which no smaller value must be in the queue.

Consider the values in rising order.  The smallest value is extracted in the first possible gap, and inserted in the
last possible gap before.  So it is in the queue as briefly as possible: in any other order it is in the queue in all
these gaps, too.  The next value is extracted in the first possible gap in which no smaller value must be in the queue,
and so on.  If such a gap lies after the return of the extract, no order exists, because all smaller values are in the
queue as briefly as possible.  Otherwise these gaps define an order.  Within a gap, values that were inserted in earlier
gaps are extracted first, in rising order, and values that are extracted in later gaps are inserted last.  Equal values
do not prevent each other's extraction.  An extract that found nothing needs a gap in which no value must be in the
queue.  (To remove one value after another is the idea of Lee & Mathur, OOPSLA 2025.)

An insert without an answer happened as late as possible if its value was extracted; otherwise it need not have
happened.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from checkers.base.checker import Budget
from checkers.models.known_object import CHANGES, SHOWS, KnownObject, ObjectFinding, by_search
from checkers.models.model import Model, Operation, text_of, were
from checkers.models.objects import conservation
from checkers.models.witnesses import Decided, NoOrder

INSERT, EXTRACT = "insert", "extract-min"
NAMES = conservation.Names("priority queue", INSERT, EXTRACT)


_STEP = conservation.step_of(NAMES, lambda state, value: tuple(sorted((*state, value))))
PRIORITY_QUEUE = Model("priority-queue", init=tuple, step=_STEP)


@dataclass(frozen=True, slots=True)
class _Stay:
    """A value, and the gaps in which it must be in the queue: from `first` to `last`.

    earliest: the first gap in which it can be extracted if no smaller value is in the queue
    """

    value: Any
    insert: Operation
    extract: Operation | None
    earliest: int
    first: int
    last: int


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge conservation first, then the order."""
    if wrong := conservation.not_conserved(operations, NAMES):
        return ObjectFinding(wrong, steps=len(operations))
    if any(o.f == EXTRACT and not o.returned for o in operations):
        return by_search(PRIORITY_QUEUE, operations, budget)
    if not conservation.repeats(operations, INSERT):
        found = out_of_order(operations)
        return ObjectFinding(() if found is None else (_smaller_was_there(found),), steps=len(operations))
    for unique in conservation.told_apart(operations, INSERT, NAMES.taken_by, last_first=False):
        if (found := out_of_order(unique)) is None:
            return ObjectFinding(steps=len(operations))
        if conservation.are_interchangeable(operations, INSERT, NAMES.taken_by):
            return ObjectFinding((NoOrder(PRIORITY_QUEUE, found.extract.ret or 0),), steps=len(operations))
    return by_search(PRIORITY_QUEUE, operations, budget)


def _no_priority(value: Hashable) -> str:
    return "" if _is_whole_number(value) else f"{text_of(value)} is no whole number, so it has no priority"


def _is_whole_number(value: Hashable) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_whole_number(operation: Operation) -> str:
    """Return the reason why an answer shows no value of the queue, or ""."""
    if operation.f != EXTRACT or operation.output is None or _is_whole_number(operation.output):
        return ""
    return f"an {EXTRACT} answered {text_of(operation.output)}, which is no whole number"


@dataclass(frozen=True, slots=True)
class _Refuted:
    """An extract that has no place in any order.

    value: the extracted value; None if the extract found nothing
    insert: the insert of the value
    gaps: the first and the last gap in which the extract could take effect
    stays: the stays of all smaller values
    """

    value: Hashable
    insert: Operation | None
    extract: Operation
    gaps: tuple[int, int]
    stays: Sequence[_Stay]


def _priority(insert: Operation) -> Any:
    return insert.input.value if isinstance(insert.input, conservation.Occurrence) else insert.input


def out_of_order(operations: Sequence[Operation]) -> _Refuted | None:
    """Return the first extract, in rising order of values, that has no place; None if there is an order.

    operations: must insert every value (or `Occurrence`) once and conserve values; every extract must have an answer
    """
    indices = sorted({index for o in operations for index in (o.call, o.ret) if index is not None})
    place = {index: at for at, index in enumerate(indices)}
    end = len(indices)
    extracts = {o.output: o for o in operations if o.f == EXTRACT}
    free = _FreeGaps(end)
    stays: list[_Stay] = []
    for _, equal in groupby(sorted((o for o in operations if o.f == INSERT), key=_priority), key=_priority):
        smaller = len(stays)
        for insert in equal:
            extract = extracts.get(insert.input)
            first = end if insert.ret is None else place[insert.ret]
            if extract is None:
                stays.append(_Stay(insert.input, insert, None, end, first, end - 1))
                continue
            assert extract.ret is not None
            earliest = max(place[extract.call], place[insert.call])
            gap = free.first_from(earliest)
            if gap > place[extract.ret] - 1:
                gaps = earliest, place[extract.ret] - 1
                return _Refuted(insert.input, insert, extract, gaps, stays[:smaller])
            stays.append(_Stay(insert.input, insert, extract, earliest, first, gap - 1))
        for stay in stays[smaller:]:
            free.block(stay.first, stay.last)
    for empty in (o for o in operations if o.f == EXTRACT and o.returned and o.output is None):
        last = place[empty.ret or 0] - 1
        if free.first_from(place[empty.call]) > last:
            return _Refuted(None, None, empty, (place[empty.call], last), stays)
    return None


class _FreeGaps:
    """The gaps in which no value must be in the queue.

    Gap g lies behind the event with index g.  All calls together take near-linear time.
    """

    def __init__(self, count: int) -> None:
        self._next = list(range(count + 2))

    def first_from(self, gap: int) -> int:
        root = gap
        while self._next[root] != root:
            root = self._next[root]
        while self._next[gap] != root:
            self._next[gap], gap = root, self._next[gap]
        return root

    def block(self, first: int, last: int) -> None:
        """Block the gaps from first to last."""
        gap = self.first_from(first) if first <= last else last + 1
        while gap <= last:
            self._next[gap] = gap + 1
            gap = self.first_from(gap)


def _smaller_was_there(found: _Refuted) -> Decided:
    """Return the violation of an extract, with the smaller values that occupied all its gaps.

    It also contains the values that prevented an earlier extraction of these smaller values.
    """
    filling = _filling(*found.gaps, found.stays)
    needed = _with_what_kept_them(filling, found.stays)
    values = [stay.value for stay in filling]
    took = f"took {text_of(found.value)}" if found.insert is not None else "found nothing"
    words = f"an {EXTRACT} {took} while {were(values)} in the queue"
    why = "A value is in the queue from the return of its insert until it can be extracted: after all smaller values"
    own = [o for o in (found.insert, found.extract) if o is not None]
    involved = [o for stay in needed for o in (stay.insert, stay.extract) if o is not None]
    right, about = f"an answer of {min(values)!r}", [stay.value for stay in needed]
    return Decided("out of order", words, [*involved, *own], found.extract, right, PRIORITY_QUEUE, about, why)


def _filling(low: int, high: int, stays: Sequence[_Stay]) -> list[_Stay]:
    """Return a few of these stays that together occupy all gaps from low to high."""
    return [stays[at] for at in conservation.fewest_that_fill([(stay.first, stay.last) for stay in stays], low, high)]


def _with_what_kept_them(filling: Sequence[_Stay], stays: Sequence[_Stay]) -> list[_Stay]:
    """Return these stays and, for each value that could not be extracted at once, the stays of smaller values that
    occupied the gaps before.
    """
    number = {stay.value: at for at, stay in enumerate(stays)}
    needed: dict[Any, _Stay] = {}
    left = list(filling)
    while left:
        stay = left.pop()
        if stay.value in needed:
            continue
        needed[stay.value] = stay
        if stay.extract is not None and stay.earliest <= stay.last:
            left += _filling(stay.earliest, stay.last, stays[: number[stay.value]])
    return list(needed.values())


PRIORITY_QUEUE_OBJECT = KnownObject(
    "priority-queue",
    "Priority queue",
    "Does every value come out once, the smallest one first?",
    judge,
    {INSERT: CHANGES, EXTRACT: SHOWS},
    "a priority queue",
    odd_answer=_no_whole_number,
    container=True,
    odd_put=_no_priority,
)
