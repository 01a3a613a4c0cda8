"""Shrinks a register's wrong history to the smallest window that no order explains, if values repeat.

As in `shrink_witness_unique_values.py`, operations may be dropped only if this cannot create a violation: if the whole
history has an order, the rest must have one too.  With repeated values there are no blocks.  These may be dropped:

  * a read, or a mismatch: it changes nothing;
  * a value, with all operations that wrote or read it.  A cas that replaced it stays as a write of the new value, which
    demands less.  (Take an order of the whole history, and leave these operations out.  All others still find the
    values they saw, because the last mutator before them is still there.)  No value is dropped while a mismatch
    remains, because the value may explain the mismatch;
  * the past: all operations that had returned before some moment, if the states they can lead to replace them.
    An operation under way at that moment stays, and may happen at any time later, or never.

First the history is cut at the first answer that no order explains.  Then the past is cut off at the latest moment from
which the rest still has no order.  Then reads are dropped, then values, then reads again.  The independent search
judges the result.

*Budget.*  Each question to the search kernel has a budget, and all together have one too.  Before each step the kernel
answers one question: does the smaller history still have no order?  If the budget ends before the answer, an order may
exist, and the step is not made.  So the window stays larger, and it is still one that no order explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkers.base import independent_search as search
from checkers.base.arrays import Int64
from checkers.base.drop_in_pieces import drop_in_pieces
from checkers.base.first_that_holds import first_that_holds
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.registers import antichain
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key
from checkers.registers.shrink_witness_unique_values import CONFIGURATIONS_MAX, SEARCHED_MAX, Window, as_value

VALUES_MAX = 64
"""If more values than this are possible before the window, none of them is ruled out."""

PAST_MAX = 2_000
"""Number of positions before a moment that are judged to rule out a state at that moment.

If only older operations rule out a state, the window may still begin with it.  Then the window demands less, not more.
"""

POSITIONS_TRIED = 20_000_000
"""Limit of positions that are judged again while right answers are tried, all answers together."""

RIVALS_TRIED = 8
"""How many reads before the culprit's answer are left out, one at a time, to find one that contradicts it."""

NO_ORDER = 9
"""`Window.code` of windows made here, unless it is `register.FROM_NOWHERE`."""


@dataclass(frozen=True, slots=True)
class _Excerpt:
    """Some operations of a key and the states they may begin in.

    operations: numbers in the key.  since: the position at which the window begins.
    carried: operations that were under way then, and need not happen.
    weakened: each cas of which only the write is counted.
    """

    operations: Int64
    starts: tuple[int, ...]
    since: int = 0
    carried: frozenset[int] = frozenset()
    weakened: frozenset[int] = frozenset()


def smallest_window(key: Key, positions: int, impossible_at: int, questions: Questions | None = None) -> Window:
    """The smallest window of a key without an order.

    impossible_at: the position at which the search kernel was certain that there is no order.
    questions: the budget of questions to the kernel.  If it runs out, the window is larger, and `Window.unfinished` is
    true.
    Raises search.Disagreement if the independent search finds an order.
    """
    ask = Questions(positions) if questions is None else questions
    made = _first_made(key)
    limit = _first_impossible(ask, key, positions, impossible_at + 1, made)
    [culprit] = (int(op) for op in np.flatnonzero(key.ret == limit - 1))
    everything = _Excerpt(np.flatnonzero(key.call < limit), (NIL,))
    produced = _values_before(made, limit)
    from_nowhere = key.kind[culprit] in (READ, CAS) and int(key.a[culprit]) not in produced
    excerpt = everything
    if from_nowhere:
        excerpt = replace(everything, operations=np.array([culprit]))
    else:
        excerpt = _cut_past(ask, key, limit, everything, made)
        excerpt = _drop_observers(ask, key, limit, excerpt, culprit)
        excerpt = _drop_values(ask, key, limit, excerpt, culprit, produced)
        excerpt = _drop_observers(ask, key, limit, excerpt, culprit)
    return Window(
        code=register.FROM_NOWHERE if from_nowhere else NO_ORDER,
        limit=limit,
        culprit=culprit,
        operations=tuple(int(op) for op in excerpt.operations),
        weakened=excerpt.weakened,
        last_before=_last_before(key, excerpt.since),
        states_before=tuple(as_value(value) for value in excerpt.starts),
        right=_right_answers(ask, key, limit, culprit, produced),
        rejudged=_rejudged(key, limit, excerpt),
        unfinished=ask.ran_out,
    )


def _first_impossible(ask: Questions, key: Key, positions: int, certain: int, made: tuple[Int64, Int64]) -> int:
    """The length, in positions, of the shortest prefix that has no order.  certain: a lower bound of it.

    The kernel reads events ahead, so it is certain before the prefix ends.  Mostly the events near `certain` have no
    order by themselves.  Then the whole history is judged only once more, one position shorter.
    """
    earlier, near = max(0, certain - PAST_MAX), min(positions, certain + PAST_MAX)

    def shown(limit: int) -> bool:
        excerpt = _since(key, earlier, limit, made)
        return len(excerpt.starts) <= VALUES_MAX and _impossible(ask, key, limit, excerpt)

    def impossible(limit: int) -> bool:
        return ask.has_no_order(key, limit, (NIL,), whole=True)

    if earlier and shown(near):
        positions = first_that_holds(certain, near, shown, times=4)
        if positions == certain or not impossible(positions - 1):
            return _to_the_last_return(key, positions)
        positions -= 1
    return _to_the_last_return(key, first_that_holds(certain, positions, impossible, times=4))


def _to_the_last_return(key: Key, limit: int) -> int:
    """The length of a prefix without the calls at its end.  A call without a return forbids no order.

    There are such calls only if a question had no answer within its budget.
    """
    return int(key.ret[key.ret < limit].max()) + 1


def _last_before(key: Key, since: int) -> int | None:
    """The operation that returned last before a position; None if there is none."""
    last = int(np.argmax(np.where(key.ret < since, key.ret, -1)))
    return last if key.ret[last] < since else None


def _impossible(ask: Questions, key: Key, limit: int, excerpt: _Excerpt) -> bool:
    if ask.ran_out:
        return False
    chosen, end = _as_key(key, limit, excerpt)
    return ask.has_no_order(chosen, end, excerpt.starts)


def _as_key(key: Key, limit: int, excerpt: _Excerpt) -> tuple[Key, int]:
    """(the excerpt as a key of its own with new positions, the number of these positions)."""
    ops = excerpt.operations[key.call[excerpt.operations] < limit]
    kind, a, b = key.kind[ops].copy(), key.a[ops].copy(), key.b[ops]
    call, ret = key.call[ops].astype(np.int64), key.ret[ops].astype(np.int64)
    ret[(ret >= limit) | np.isin(ops, list(excerpt.carried))] = OPEN
    as_write = np.isin(ops, list(excerpt.weakened))
    kind[as_write], a[as_write] = WRITE, b[as_write]
    ends = np.flatnonzero(ret != OPEN)
    order = np.argsort(np.concatenate([call, ret[ends]]), kind="stable")
    new = np.empty(len(order), np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    new_ret = np.full(len(ops), OPEN, np.int32)
    new_ret[ends] = new[len(ops) :]
    return Key(kind, a, b, new[: len(ops)], new_ret), len(order)


def _first_made(key: Key) -> tuple[Int64, Int64]:
    """(all values that an operation may produce, ascending; for each the position of its first such call).

    nil is among the values, with the position -1.
    """
    makers = (key.kind == WRITE) | (key.kind == CAS)
    values = np.append(np.where(key.kind == CAS, key.b, key.a)[makers], NIL)
    calls = np.append(key.call[makers], -1)
    order = np.argsort(calls, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    return found, calls[order][first].astype(np.int64)


def _values_before(made: tuple[Int64, Int64], position: int) -> list[int]:
    """nil and all values that an operation may have produced before a position, ascending.  made: of `_first_made`."""
    values, first = made
    return [int(value) for value in values[first < position]]


def _cut_past(ask: Questions, key: Key, limit: int, everything: _Excerpt, made: tuple[Int64, Int64]) -> _Excerpt:
    """The excerpt from the latest moment from which the rest has no order.

    Moments are tried from the end backwards in steps that double, and then by halving.
    """
    moments = key.call[everything.operations]
    best, best_at, failed_at = everything, 0, len(moments)
    size = 1
    while size < len(moments):
        at = len(moments) - size
        excerpt = _from_moment(ask, key, limit, int(moments[at]), made)
        if excerpt is not None:
            best, best_at = excerpt, at
            break
        failed_at = at
        size *= 2
    while best_at + 1 < failed_at:
        at = (best_at + failed_at) // 2
        excerpt = _from_moment(ask, key, limit, int(moments[at]), made)
        if excerpt is None:
            failed_at = at
        else:
            best, best_at = excerpt, at
    return best


def _from_moment(ask: Questions, key: Key, limit: int, since: int, made: tuple[Int64, Int64]) -> _Excerpt | None:
    """The excerpt from a position on; None unless it has no order from any state that the past may have led to."""
    excerpt = _since(key, since, limit, made)
    held = list(excerpt.starts)
    if len(held) <= VALUES_MAX and not _impossible(ask, key, limit, excerpt):
        held = [value for value in held if _may_hold(ask, key, since, value, made)]
        excerpt = replace(excerpt, starts=tuple(held))
    if not held or not _impossible(ask, key, limit, excerpt):
        return None
    if len(held) <= VALUES_MAX:
        certain = tuple(value for value in held if _may_hold(ask, key, since, value, made))
        excerpt = replace(excerpt, starts=certain or excerpt.starts)
    return excerpt


def _since(key: Key, since: int, limit: int, made: tuple[Int64, Int64]) -> _Excerpt:
    """The operations called from a position on, and the mutators that are under way there."""
    mutates = (key.kind == WRITE) | (key.kind == CAS)
    carried = np.flatnonzero((key.call < since) & (key.ret > since) & mutates)
    later = np.flatnonzero((key.call >= since) & (key.call < limit))
    operations = np.sort(np.concatenate([carried, later]))
    return _Excerpt(operations, tuple(_values_before(made, since)), since, frozenset(carried.tolist()))


def _may_hold(ask: Questions, key: Key, since: int, value: int, made: tuple[Int64, Int64]) -> bool:
    """Whether the key may hold a value at a position.  It may, unless the past certainly forbids such a read."""
    if ask.ran_out:
        return True
    earlier = max(0, since - PAST_MAX)
    recent = _since(key, earlier, since, made) if earlier else _Excerpt(np.flatnonzero(key.call < since), (NIL,))
    past, end = _as_key(key, since, recent)
    window = Key(
        np.append(past.kind, np.int8(READ)),
        np.append(past.a, np.int64(value)),
        np.append(past.b, np.int64(NIL)),
        np.append(past.call, np.int32(end)),
        np.append(past.ret, np.int32(end + 1)),
    )
    return not ask.has_no_order(window, end + 2, recent.starts)


def _drop_observers(ask: Questions, key: Key, limit: int, excerpt: _Excerpt, culprit: int) -> _Excerpt:
    """Drop every read and mismatch that is not needed: half of them at a time, then a quarter, down to one by one."""
    observers = [int(op) for op in excerpt.operations if key.kind[op] in (READ, MISMATCH) and op != culprit]
    return drop_in_pieces(
        observers, excerpt, lambda some, rest: _without(rest, set(some)), lambda p: _impossible(ask, key, limit, p)
    )


def _drop_values(
    ask: Questions, key: Key, limit: int, excerpt: _Excerpt, culprit: int, produced: list[int]
) -> _Excerpt:
    """Drop every value that is not needed, with all operations that wrote or read it."""
    if (key.kind[excerpt.operations] == MISMATCH).any():
        return excerpt
    needed = {int(key.a[culprit]), int(key.b[culprit]) if key.kind[culprit] == CAS else int(key.a[culprit])}
    values = [value for value in produced if value not in needed]

    def without(some: Sequence[int], rest: _Excerpt) -> _Excerpt:
        gone, weakened = set(), set(rest.weakened)
        for op in map(int, rest.operations):
            saw = key.kind[op] == READ or (key.kind[op] == CAS and op not in weakened)
            made = int(key.b[op]) if key.kind[op] == CAS else int(key.a[op])
            if (key.kind[op] != READ and made in some) or (key.kind[op] == READ and int(key.a[op]) in some):
                gone.add(op)
            elif saw and int(key.a[op]) in some:
                weakened.add(op)
        return replace(_without(rest, gone), weakened=frozenset(weakened - gone))

    return drop_in_pieces(values, excerpt, without, lambda smaller: _impossible(ask, key, limit, smaller))


def _without(excerpt: _Excerpt, gone: set[int]) -> _Excerpt:
    left = np.array([op for op in excerpt.operations if int(op) not in gone], np.int64)
    return replace(excerpt, operations=left, carried=excerpt.carried - gone)


def _right_answers(ask: Questions, key: Key, limit: int, culprit: int, produced: list[int]) -> tuple[int | None, ...]:
    """The values with which the culprit has an order.  At most VALUES_MAX values are tried."""
    changed = Key(key.kind.copy(), key.a.copy(), key.b, key.call, key.ret)
    changed.kind[culprit] = READ
    right = []
    for value in produced[: min(VALUES_MAX, max(1, POSITIONS_TRIED // limit))]:
        changed.a[culprit] = value
        if ask.code(changed, limit, (NIL,)) == antichain.LINEARIZABLE:
            right.append(as_value(value))
    return tuple(right)


def latest_rival(key: Key, limit: int, culprit: int, ask: Questions) -> int | None:
    """The latest read before the culprit's answer without which all answers so far have an order.

    At most RIVALS_TRIED reads are tried.  None if there is none among them.
    """
    reads = np.flatnonzero((key.kind == READ) & (key.ret < limit) & (np.arange(len(key.kind)) != culprit))
    latest = reads[np.argsort(-key.ret[reads])]
    for op in latest[: min(RIVALS_TRIED, max(1, POSITIONS_TRIED // limit))].tolist():
        others = np.arange(len(key.kind)) != op
        rest = Key(key.kind[others], key.a[others], key.b[others], key.call[others], key.ret[others])
        if ask.code(rest, limit, (NIL,), whole=True) == antichain.LINEARIZABLE:
            return int(op)
    return None


def _rejudged(key: Key, limit: int, excerpt: _Excerpt) -> bool:
    """Whether the independent search finds no order either; False if the window is too large for it.

    Raises Disagreement if it finds one.
    """
    if len(excerpt.operations) > SEARCHED_MAX:
        return False
    chosen, _ = _as_key(key, limit, excerpt)
    names = {READ: "read", WRITE: "write", CAS: "cas", MISMATCH: "mismatch"}
    operations = [
        search.RegisterOperation(
            names[int(kind)], as_value(int(a)), as_value(int(b)), int(call), int(ret) if ret != OPEN else None
        )
        for kind, a, b, call, ret in zip(*chosen, strict=True)
        if ret != OPEN or kind in (WRITE, CAS)
    ]
    try:
        if search.linearizable(operations, [as_value(v) for v in excerpt.starts], _with_mismatch, CONFIGURATIONS_MAX):
            raise search.Disagreement("the antichain kernel and the independent search disagree about a window")
    except search.SearchExhausted:
        return False
    return True


def _with_mismatch(state: search.State, operation: search.RegisterOperation) -> object:
    if operation.f == "mismatch":
        return state if state != operation.value else search.REFUSED
    return search.register(state, operation)


STEPS_OF_ONE = 20_000_000
"""Steps of one question."""

STEPS_BESIDES = 20_000
"""Additional steps of each question, for the time in which Python makes its arrays (0.5 ms, measured)."""

STEPS_IN_ALL, STEPS_IN_ALL_PER_POSITION = 200_000_000, 10
"""Steps of all questions of one witness: at most 5 to 10 s of a core for a history of some million operations."""

SIZE_BYTES_MAX = 1_000_000_000


class Questions:
    """The steps that are left for one witness."""

    def __init__(self, positions: int, steps_in_all: int | None = None) -> None:
        """positions: of the whole key.  The budget grows with them, so a few questions may be about a long history."""
        self._positions = positions
        in_all = STEPS_IN_ALL + STEPS_IN_ALL_PER_POSITION * positions
        self._left = in_all if steps_in_all is None else steps_in_all

    @property
    def ran_out(self) -> bool:
        """Whether no steps are left.  Then no further question gets an answer."""
        return self._left <= 0

    def code(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> int:
        """The kernel's code for the first `limit` positions of a key; OUT_OF_STEPS if no step is left.

        starts: values that the key may hold at first.  whole: the question is about the whole history, so its budget
        grows with the number of positions.
        """
        if self._left <= 0:
            return antichain.OUT_OF_STEPS
        allowed = STEPS_OF_ONE + (10 * self._positions if whole else 0)
        code, _, steps = antichain.judge_key(
            key, limit, np.array(starts, np.int64), min(allowed, self._left), SIZE_BYTES_MAX
        )
        self._left -= int(steps) + STEPS_BESIDES
        return int(code)

    def has_no_order(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> bool:
        """Whether it is certain that no order exists.  Parameters as of `code`."""
        return self.code(key, limit, starts, whole) == antichain.NO_ORDER
