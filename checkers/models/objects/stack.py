"""A stack: push a value, pop the newest value (nil if there is none).

`not_conserved` needs no order: no value is popped before its push was invoked, or more often than it was pushed.  The
order is decided in near-linear time if no value is pushed twice.  Equal values become unique in a few ways, and an
order for one of these ways is an order.  A search decides if none is found for repeated values, and in the rare case
that the values taken by pops without an answer are not known.

*Gaps.*  Between two events of a history lies a gap.  An operation takes effect in a gap between its call and its
return.  The *stay* of a value lasts from the return of its push until the call of its pop: in these gaps the value must
be there (on the stack).  If all operations on some values are removed from an order, the remaining sequence is still an
order, because the other values keep their places.

Suppose that every push and every pop has an answer, and that conservation holds (`conservation.py`).

1. *A value without a stay*: its pop was called before its push returned.  Some gap lies inside both operations.  In an
   order of all other operations, push and pop fit into this gap, one right after the other.  So the history has an
   order iff the other operations have one.
2. *A gap in which no value must be there* divides the other values.  Each value was popped by a call before the gap
   ("early"), or pushed by a return after the gap ("late").  An order of the early values followed by an order of the
   late values respects real time: every early call is before the gap, and every late return is behind it.  So the
   history has an order iff both parts have one.  A pop that found nothing needs such a gap between its call and its
   return, because in any order no value must be there when the pop takes effect.  It fits between both parts.
3. *No such gap is left* from the first return of a push to the last call of a pop.  Then the stack is never empty in
   between: if it were empty at some moment, all values before the moment would be early, all values after it late, and
   no value would have to be there.  So the value that is pushed first is popped last.  Its push was called before every
   push returned, and its pop returned after every pop was called.  Any value with these two properties can be the
   first: push it before, and pop it behind, an order of the others.  So the history has an order iff there is such a
   value and the other values have an order.

`kernels/nested_stays.py` removes one value after another by rules 2 and 3.  If rule 3 finds no value, a few stays that
together occupy all the gaps prove it: among these values alone there is no such value either.  (To remove one value
after another is the idea of Lee & Mathur, OOPSLA 2025; to examine the gaps that stays occupy is the idea of Abdulla et
al., PLDI 2025.)

*Without an answer.*  If the push of a value has no answer and no answer shows the value, the value need not have been
pushed.  A push without an answer whose value was popped has no stay.  A value that stayed, that is, whose pop no answer
shows, is popped behind the end, after all other operations.  Each pop without an answer may have taken one value that
stayed, or none.

A value that stayed left the stack, if ever, after the first pop without an answer was called.  Suppose that an
operation that begins with this call and never returns pops all values that stayed.  Then every order of the history is
still an order, so if this problem has no order, the history has none.  If there is an order for some choice of the
values that pops without an answer took, it is an order of the history.  A few choices are tried: if a value lies on top
of a value that was popped, it must have left before that pop returned (`deadlines`).  If no choice has an order,
neither an order nor a violation is reported.

*Equal values.*  Each push of a repeated value is matched with a pop of an equal value.  If some values have no place in
an order, one of them exchanges its pop with an equal value, as long as no more values are stuck afterwards
(`is_told_apart_anew`).

Every order is replayed before it is reported, by code that shares nothing with the kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkers.base.checker import Budget
from checkers.kernels.nested_stays import deadlines, nest
from checkers.models.known_object import CHANGES, SHOWS, KnownObject, ObjectFinding, by_search
from checkers.models.model import NEVER, Model, Operation, named, plain, were
from checkers.models.objects import conservation
from checkers.models.search import demand_explanation, first_wrong
from checkers.models.witnesses import Decided

PUSH, POP = "push", "pop"

Int64 = npt.NDArray[np.int64]


def decide(operations: Sequence[Operation]) -> Sequence[Operation] | Decided | None:
    """Return an order of all operations that happened, or a violation if there is none; None if neither is known.

    Raises Disagreement if the order that was found does not explain the answers.

    operations: must conserve values, and no value may be pushed twice
    """
    history = _History(operations)
    for taken in history.choices():
        found = history.nested(taken)
        if not isinstance(found, _Stuck):
            demand_explanation(operations, found, STACK)
            return found
        if not history.unanswered or not history.stayed:
            return _decided(found)
    wrong = history.never_nested()
    return None if wrong is None else _decided(wrong)


@dataclass(frozen=True, slots=True)
class _Stuck:
    """Values whose stays occupy all gaps between two events, although none of the values can be the first.

    empty: the pop that found nothing in these gaps; None if the values contradict each other
    indices: indices of the two events
    left: number of values and empty pops that had no place yet
    """

    pushes: Sequence[Operation]
    pops: Sequence[Operation]
    empty: Operation | None
    indices: tuple[int, int]
    left: int


class _History:
    """The operations of a stack, with the positions of their events.

    unanswered: pops without an answer
    stayed: pushes of values that no answer shows as popped
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._indices = sorted({index for o in operations for index in (o.call, o.ret) if index is not None})
        self._place = {index: at for at, index in enumerate(self._indices)}
        self._end = len(self._indices)
        self._pops = {o.output: o for o in operations if o.f == POP and o.returned and o.output is not None}
        self._pushes = [o for o in operations if o.f == PUSH and (o.returned or o.input in self._pops)]
        self._empty = [o for o in operations if o.f == POP and o.returned and o.output is None]
        self.unanswered = [o for o in operations if o.f == POP and not o.returned]
        self.stayed = [o for o in self._pushes if o.input not in self._pops]

    def choices(self) -> Iterator[Mapping[Hashable, Operation]]:
        """Yield choices {value that stayed: the pop without an answer that took it}; the first choice is empty."""
        yield {}
        if not self.unanswered or not self.stayed:
            return
        urgent = self._most_urgent_first()
        must_leave = [each for each in urgent if each[1] < NEVER]
        for leaving, way in [(some, way) for some in (must_leave, urgent) for way in range(3)]:
            free = [self._place[o.call] for o in self.unanswered]
            pop_at = dict(zip(free, self.unanswered, strict=True))
            taken: dict[Hashable, Operation] = {}
            for push, deadline in leaving:
                if not free:
                    break
                assert push.ret is not None
                # the last pop called before the push returned, the last pop in time, or the first pop
                at = (bisect_left(free, self._place[push.ret]) - 1, bisect_left(free, deadline) - 1, 0)[way]
                taken[push.input] = pop_at[free.pop(max(0, at))]
            yield taken

    def nested(self, taken: Mapping[Hashable, Operation]) -> list[Operation] | _Stuck:
        """Return an order in which pops without an answer took these values, or the values that prevent an order."""
        pops = [self._pops.get(push.input) or taken.get(push.input) for push in self._pushes]
        places = self._places(self._pushes, pops)
        return self._order(places, pops)

    def least_stuck(self) -> list[Operation] | _Stuck:
        """Return the order for some choice; if there is none, the stuck values of the choice with the fewest."""
        stuck: list[_Stuck] = []
        for taken in self.choices():
            found = self.nested(taken)
            if not isinstance(found, _Stuck):
                return found
            stuck.append(found)
        return min(stuck, key=lambda each: each.left)

    def never_nested(self) -> _Stuck | None:
        """Return the values that prevent an order even if all values that stayed left at the first unanswered pop."""
        first = min(self.unanswered, key=lambda o: o.call)
        pops = [self._pops.get(push.input, first) for push in self._pushes]
        places = self._places(self._pushes, pops)
        places[places[:, 3] == self._end, 3] = self._end + 2
        found = self._order(places, pops)
        return found if isinstance(found, _Stuck) else None

    def _most_urgent_first(self) -> list[tuple[Operation, int]]:
        """Return (push of a value that stayed, position before which it must leave), in order of position."""
        popped = [o for o in self._pushes if o.input in self._pops]
        under = self._places(popped, [self._pops[o.input] for o in popped])
        over = self._places(self.stayed, [None] * len(self.stayed))
        last = deadlines(under, over, self._end)
        calls = np.array([self._place[o.call] for o in self._empty] + [self._end], np.int64)
        returns = np.array([self._place[o.ret or 0] for o in self._empty] + [NEVER], np.int64)
        earliest = np.minimum.accumulate(returns[::-1])[::-1]
        last = np.minimum(last, earliest[np.searchsorted(calls, over[:, 1])])
        by_place = np.argsort(last, kind="stable")
        return [(self.stayed[at], int(last[at])) for at in by_place]

    def _places(self, pushes: Sequence[Operation], pops: Sequence[Operation | None]) -> Int64:
        """Return one row for each value: positions of the call and return of its push, and of its pop.

        Pops without an answer return at the end.  Values that stayed are popped behind the end.
        """
        place, end = self._place, self._end
        rows = np.empty((len(pushes), 4), np.int64)
        for at, (push, pop) in enumerate(zip(pushes, pops, strict=True)):
            called = end + 1 if pop is None else place[pop.call]
            popped = end + 2 if pop is None else end if pop.ret is None else place[pop.ret]
            rows[at] = place[push.call], NEVER if push.ret is None else place[push.ret], called, popped
        return rows

    def _order(self, places: Int64, pops: Sequence[Operation | None]) -> list[Operation] | _Stuck:
        staying = np.flatnonzero(places[:, 1] < places[:, 2])
        stays = places[staying]
        gap_of = self._gaps_of_empty(stays)
        for at, (empty, gap) in enumerate(zip(self._empty, gap_of, strict=True)):
            last = self._place[empty.ret or 0] - 1
            if gap > last:
                left = len(stays) + len(gap_of) - at
                return self._stuck(stays, staying, (self._place[empty.call], last), left, empty)
        order, first, placed, low, high = nest(stays, self._end + 1)
        if low >= 0:
            rest = np.flatnonzero(~placed)
            return self._stuck(stays[rest], staying[rest], (low, high - 1), len(rest))
        return self._with_the_rest(staying[np.where(order < 0, -1 - order, order)], order, first, gap_of, places, pops)

    def _gaps_of_empty(self, stays: Int64) -> list[int]:
        """Return, for each pop that found nothing, the first gap behind its call in which no value must be there."""
        change = np.zeros(self._end + 3, np.int64)
        np.add.at(change, stays[:, 1], 1)
        np.add.at(change, stays[:, 2], -1)
        free = np.flatnonzero(np.cumsum(change) == 0)
        calls = [self._place[o.call] for o in self._empty]
        return [int(gap) for gap in free[np.searchsorted(free, calls)]] if calls else []

    def _with_the_rest(
        self,
        values: Int64,
        codes: Int64,
        first: Int64,
        gap_of: Sequence[int],
        places: Int64,
        pops: Sequence[Operation | None],
    ) -> list[Operation]:
        """Return the order of values with stays, completed by pops that found nothing and by values without a stay."""
        steps: list[Operation] = []
        empty = sorted(zip(gap_of, range(len(gap_of)), strict=True))
        empties = iter(empty)
        following = next(empties, None)
        for value, code, begins in zip(values.tolist(), codes.tolist(), first.tolist(), strict=True):
            while following is not None and following[0] < begins:
                steps.append(self._empty[following[1]])
                following = next(empties, None)
            push, pop = self._pushes[value], pops[value]
            if code >= 0:
                steps.append(push)
            elif pop is not None:
                steps.append(pop)
        while following is not None:
            steps.append(self._empty[following[1]])
            following = next(empties, None)
        at_once = np.flatnonzero(places[:, 1] > places[:, 2])
        called = np.maximum(places[at_once, 0], places[at_once, 2])
        by_gap = np.argsort(called, kind="stable")
        result: list[Operation] = []
        place, latest = 0, -1
        for value, gap in zip(at_once[by_gap].tolist(), called[by_gap].tolist(), strict=True):
            while place < len(steps) and max(latest, self._place[steps[place].call]) <= gap:
                latest = max(latest, self._place[steps[place].call])
                result.append(steps[place])
                place += 1
            push, pop = self._pushes[value], pops[value]
            assert pop is not None
            result += [push, pop]
        return result + steps[place:]

    def _stuck(
        self,
        stays: Int64,
        values: Int64,
        gaps: tuple[int, int],
        left: int,
        empty: Operation | None = None,
    ) -> _Stuck:
        spans = [(first, end - 1) for first, end in stays[:, 1:3].tolist()]
        chosen = [int(values[at]) for at in conservation.fewest_that_fill(spans, *gaps)]
        indices = self._indices[gaps[0]], self._indices[min(gaps[1] + 1, self._end - 1)]
        pushes = [self._pushes[value] for value in chosen]
        shown = [self._pops[push.input] for push in pushes if push.input in self._pops]
        if len(shown) < len(pushes):
            last = max(o.ret or 0 for o in (*pushes, *shown, *([empty] if empty else [])))
            shown += [o for o in self.unanswered if o.call < last]
        return _Stuck(pushes, shown, empty, indices, left)


def _stuck_at(operations: Sequence[Operation]) -> conservation.Stuck | None:
    """Return the values that prevent an order of operations with unique values; None if there is an order.

    Raises Disagreement as `decide` does."""
    found = _History(operations).least_stuck()
    if isinstance(found, _Stuck):
        return conservation.Stuck(found.left, [push.input for push in found.pushes])
    demand_explanation(operations, found, STACK)
    return None


def _decided(stuck: _Stuck) -> Decided:
    values, empty = [push.input for push in stuck.pushes], stuck.empty
    shown = [*stuck.pushes, *stuck.pops, *([empty] if empty is not None else [])]
    kind, words = "out of order", f"no order of {named(values)} has the newest one popped first"
    why = "At each moment one of these values was certainly there, so the value pushed first is popped last"
    if empty is not None:
        kind, words = "not empty", f"a {POP} found nothing while {were(values)} there"
        why = "A value is certainly there from the return of its push until a pop can take it"
    right = "an answer of the value that is on top, or nil if there is none"
    return Decided(kind, words, shown, empty or first_wrong(shown, _has_none), right, STACK, values, why)


def _has_none(operations: Sequence[Operation]) -> bool:
    history = _History(operations)
    return isinstance(history.never_nested() if history.unanswered else history.nested({}), _Stuck)


NAMES = conservation.Names("stack", PUSH, POP)


STACK = Model(
    "stack",
    init=tuple,
    step=conservation.step_of(NAMES, lambda state, value: (value, *state)),
    show=lambda state: plain(state[::-1]) if isinstance(state, tuple) else plain(state),
    canonical=conservation.no_more_than_were_put(PUSH),
)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge conservation first, and then the order."""
    if wrong := conservation.not_conserved(operations, NAMES):
        return ObjectFinding(wrong, steps=len(operations))
    if conservation.repeats(operations, PUSH):
        for unique in conservation.told_apart(operations, PUSH, NAMES.taken_by, last_first=True):
            if conservation.is_told_apart_anew(unique, NAMES, _stuck_at, budget):
                return ObjectFinding(steps=len(operations))
        return by_search(STACK, operations, budget)
    found = decide(operations)
    if found is None:
        return by_search(STACK, operations, budget)
    return ObjectFinding((found,) if isinstance(found, Decided) else (), steps=len(operations))


STACK_OBJECT = KnownObject(
    "stack",
    "Stack",
    "Does every value come out once, the newest one first?",
    judge,
    {PUSH: CHANGES, POP: SHOWS},
    "a stack",
    container=True,
)
