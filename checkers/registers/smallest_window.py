"""Finds the smallest window of a register's wrong history that no order explains.

The kernel reports that a key is wrong.  A reader wants to see four of its operations, not four thousand.  Operations
may be dropped only if this cannot create a violation: if the full history has an order, the reduced history must have
one too.  (Without a write whose value is still read, it might not.)  These may be dropped:

  * a read, or a mismatch: neither changes the register;
  * a value, with all operations that wrote or read it.  A cas that replaced the value stays as a plain write of its new
    value, which allows more orders.  (Take an order of the full history, and leave these operations out.  All others
    still find the values they saw, because the last mutator before them is still there.)  No value is dropped while a
    mismatch remains, because the value may explain the mismatch;
  * the past: all operations that had returned before some position.  The states that they may have led to replace
    them.  An operation under way at that position stays, and may happen at any time later, or never.

First the history is cut at the first answer that no order explains, so every window contains this answer.  The past is
cut off at the latest position from which the remaining history still has no order.  Values are dropped, and then reads.
If all values are unique, they are dropped before the past, because one pass then judges the full history.  A read that
contradicts the culprit is then searched among the few operations that are left.  The independent search judges the
result.

*Budget.*  Each question to the search kernel has a budget, and all questions together have one too.  Before each
reduction the kernel answers one question: does the smaller history still have no order?  If the budget ends before the
answer, an order may exist, and the reduction is not made.  So the window is larger, but still no order explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from checkers.base import independent_search as search
from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.shrinking import drop_in_pieces, first_that_holds
from checkers.kernels import register_antichain as antichain
from checkers.kernels import register_unique_values as register
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.register_unique_values import Key

SEARCHED_MAX = 400
"""Maximum number of operations of a window that the independent search judges.  A witness says if it exceeds this."""

CONFIGURATIONS_MAX = 20_000
"""Maximum number of configurations of one independent search, which takes half a second at most.  A window that needs
more is not judged again."""

VALUES_MAX = 64
"""Maximum number of values possible before the window.  If there are more, none of them is ruled out."""

PAST_MAX = 2_000
"""Number of positions before a cut that are judged to rule out a state at the cut.

If only older operations rule out a state, the window may still begin in this state.  Then the window is weaker, but
still correct.
"""

POSITIONS_TRIED = 20_000_000
"""Maximum number of positions judged while right answers are tried, summed over all answers."""

ANSWERS_MIN, ANSWERS_MAX = 4, 64
"""Minimum and maximum number of latest values tried as the right answer.  POSITIONS_TRIED limits it between these."""

RIVALS_TRIED = 8
"""Maximum number of reads before the culprit's answer left out, one at a time, to find a contradicting read."""


@dataclass(frozen=True, slots=True)
class Window:
    """The smallest window of a wrong key.  Operations are numbers within the key, in order of call.

    limit: number of positions up to and including the answer that no order explains
    culprit: the operation with that answer
    from_nowhere: True if no operation can have produced the value that the culprit saw
    operations: the operations that no order from any of `states_before` explains
    weakened: cas operations of which only the write is counted
    last_before: the operation that returned last before the window, one that the window needs if there is any; or None
    states_before: the states in which the window may begin; None stands for nil
    right: values that would have been right answers of the culprit, the latest first
    rejudged: True if the independent search finds no order either
    unfinished: True if the budget for questions ran out, so a smaller window may exist
    rival: the only read of the window that contradicts the culprit.  Without this read all answers up to the culprit's
        have an order, so either this read or the culprit has a wrong answer.  None if there is no such read, or more
        than one.  If values repeat, it is the latest such read, and may lie before the window.
    """

    limit: int
    culprit: int
    from_nowhere: bool
    operations: tuple[int, ...]
    weakened: frozenset[int]
    last_before: int | None
    states_before: tuple[int | None, ...]
    right: tuple[int | None, ...]
    rejudged: bool = False
    unfinished: bool = False
    rival: int | None = None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some operations of a key and the states in which they may begin.

    operations: numbers within the key
    since: position at which the window begins
    carried: operations that were under way at `since`; they need not happen
    weakened: cas operations of which only the write is counted
    """

    operations: Int64
    starts: tuple[int, ...] = (NIL,)
    since: int = 0
    carried: frozenset[int] = frozenset()
    weakened: frozenset[int] = frozenset()

    def without(self, gone: Collection[int]) -> Excerpt:
        return self.of(~np.isin(self.operations, list(gone)))

    def of(self, some: Bools) -> Excerpt:
        """Return the excerpt without the operations that are false in `some`."""
        left = self.operations[some]
        if not (self.carried or self.weakened):
            return replace(self, operations=left)
        kept = frozenset(left.tolist())
        return replace(self, operations=left, carried=self.carried & kept, weakened=self.weakened & kept)


STEPS_OF_ONE = 20_000_000
"""Maximum number of steps of one question."""

STEPS_BESIDES = 20_000
"""Number of steps added to each question for the time in which Python makes its arrays (0.5 ms, measured)."""

POSITIONS_PER_STEP = 2
"""Number of positions that the linear kernel judges in the time of one step of the search (18 ns each, measured)."""

STEPS_IN_ALL, STEPS_IN_ALL_PER_POSITION = 200_000_000, 10
"""Maximum number of steps of all questions of one witness, which take 5 to 10 s of a core for a history of some
million operations."""

SIZE_BYTES_MAX = 1_000_000_000


class Questions:
    """The questions to the kernel about one witness, with the steps that are left for them."""

    def __init__(self, positions: int, steps_in_all: int | None = None) -> None:
        """Set the budget, which grows with the key's `positions`, so that a few questions may be about all of them."""
        self._positions = positions
        in_all = STEPS_IN_ALL + STEPS_IN_ALL_PER_POSITION * positions
        self._left = in_all if steps_in_all is None else steps_in_all

    @property
    def ran_out(self) -> bool:
        """Return True if no steps are left.  Then no further question gets an answer."""
        return self._left <= 0

    def code(self, key: Key, limit: int, starts: Sequence[int] = (NIL,), whole: bool = False) -> int:
        """Return the search kernel's code for the first `limit` positions of a key; OUT_OF_STEPS if no step is left.

        If values are unique and the key begins with nil, one linear pass decides.

        starts: values that the key may hold at first
        whole: True if the question is about the full history, so that its budget grows with the number of positions
        """
        if self._left <= 0:
            return antichain.OUT_OF_STEPS
        self._left -= STEPS_BESIDES
        if tuple(starts) == (NIL,) and not (key.kind == MISMATCH).any():
            self._left -= limit // POSITIONS_PER_STEP
            code, _, _ = register.judge_key(key, limit, register.new_scratch(len(key.kind), limit))
            if code == register.LINEARIZABLE or code >= register.FIRST_INVALID:
                return antichain.LINEARIZABLE if code == register.LINEARIZABLE else antichain.NO_ORDER
        allowed = STEPS_OF_ONE + (10 * self._positions if whole else 0)
        code, _, steps = antichain.judge_key(
            key, limit, np.array(starts, np.int64), max(1, min(allowed, self._left)), SIZE_BYTES_MAX
        )
        self._left -= int(steps)
        return int(code)

    def has_no_order(self, key: Key, limit: int, starts: Sequence[int] = (NIL,), whole: bool = False) -> bool:
        """Return True if it is certain that no order exists.  The parameters are those of `code`."""
        return self.code(key, limit, starts, whole) == antichain.NO_ORDER


def smallest_window(
    key: Key, positions: int, impossible_at: int | None = None, questions: Questions | None = None
) -> Window:
    """Return the smallest window of a key without an order.

    impossible_at: position at which the search kernel had proved that there is no order; None if values are unique
    questions: budget of questions to the kernel; if it runs out, the window is larger, and `Window.unfinished` is True
    Raises Disagreement if the independent search finds an order.
    """
    ask = Questions(positions) if questions is None else questions
    limit = _first_impossible(ask, key, positions, impossible_at)
    [culprit] = (int(op) for op in np.flatnonzero(key.ret == limit - 1))
    excerpt, rival = Excerpt(np.flatnonzero(key.call < limit)), None
    needed = excerpt.operations

    def impossible(some: Excerpt) -> bool:
        return _impossible(ask, key, limit, some)

    alone = _back_to_nowhere(key, limit, culprit, unique=impossible_at is None)
    if alone:
        excerpt = Excerpt(np.array(alone))
    elif impossible_at is None:
        excerpt = _tightened(key, excerpt, culprit, impossible)
        needed = excerpt.operations
        few = np.count_nonzero(key.kind[needed] == READ) <= RIVALS_TRIED  # else an untried read may contradict it too
        rivals = list(rivals_among(key, limit, culprit, needed, ask, RIVALS_TRIED)) if few else []
        rival = rivals[0] if len(rivals) == 1 else None
        excerpt = _cut_past_of_few(ask, key, limit, excerpt, [culprit] if rival is None else [culprit, rival])
    else:
        excerpt = _tightened(key, _cut_past(ask, key, limit, excerpt), culprit, impossible)
    window = Window(
        limit=limit,
        culprit=culprit,
        from_nowhere=bool(alone),
        operations=tuple(excerpt.operations.tolist()),
        weakened=excerpt.weakened,
        last_before=_last_before(key, excerpt.since, needed),
        states_before=tuple(as_value(value) for value in excerpt.starts),
        right=_right_answers(ask, key, limit, culprit),
        rival=rival,
        unfinished=ask.ran_out,
    )
    return _judged_again(key, window, excerpt.carried)


def rivals_among(
    key: Key, limit: int, culprit: int, some: Iterable[int], ask: Questions, most: int | None = None
) -> Iterator[int]:
    """Yield each read among `some` that contradicts the culprit, the latest first: without this read, all answers up to
    the culprit's have an order.

    most: maximum number of reads that are tried; None: RIVALS_TRIED, and fewer if the history is long
    """
    most = min(RIVALS_TRIED, max(1, POSITIONS_TRIED // limit)) if most is None else most
    reads = [op for op in map(int, some) if key.kind[op] == READ and op != culprit and key.ret[op] < limit]
    reads.sort(key=lambda op: -int(key.ret[op]))
    for op in reads[:most]:
        rest = Key._make(np.delete(column, op) for column in key)
        if ask.code(rest, limit, whole=True) == antichain.LINEARIZABLE:
            yield op


def value_left(key: Key, ops: int | Int64 | slice = slice(None)) -> Int64:
    """Return the value that the key holds after an operation; after a read, this is the value that the read saw."""
    return np.where(key.kind[ops] == CAS, key.b[ops], key.a[ops])


def producer_of(key: Key, value: int, limit: int) -> int:
    """Return the operation invoked before `limit` that produces a value; -1 if there is none."""
    found = np.flatnonzero(_mutates(key) & (value_left(key) == value) & (key.call < limit))
    return int(found[0]) if len(found) else -1


def as_value(number: int) -> int | None:
    """Convert a number of a value column to a value; None stands for nil."""
    return None if number == NIL else number


def _first_impossible(ask: Questions, key: Key, positions: int, impossible_at: int | None) -> int:
    """Return the length, in positions, of the shortest prefix that has no order.

    The search kernel reads events ahead, so it is certain before the prefix ends.  Usually the events near that
    position have no order on their own.  Then the full history is judged only once more, one position shorter.
    """

    def impossible(limit: int) -> bool:
        return ask.has_no_order(key, limit, whole=True)

    if impossible_at is None:
        return _to_the_last_return(key, first_that_holds(1, positions, impossible))
    certain = impossible_at + 1
    earlier, near = max(0, certain - PAST_MAX), min(positions, certain + PAST_MAX)
    everything = Excerpt(np.arange(len(key.kind)))

    def shown(limit: int) -> bool:
        excerpt = _since(key, earlier, limit, everything)
        return len(excerpt.starts) <= VALUES_MAX and _impossible(ask, key, limit, excerpt)

    if earlier and shown(near):
        positions = first_that_holds(certain, near, shown, times=4)
        if positions == certain or not impossible(positions - 1):
            return _to_the_last_return(key, positions)
        positions -= 1
    return _to_the_last_return(key, first_that_holds(certain, positions, impossible, times=4))


def _to_the_last_return(key: Key, limit: int) -> int:
    """Return the length of a prefix without the calls at its end.  A call without a return forbids no order.

    Such calls exist only if the budget ran out before a question was answered.
    """
    return int(key.ret[key.ret < limit].max()) + 1


def _last_before(key: Key, since: int, some: Int64) -> int | None:
    """Return the operation, one of `some` if possible, that returned last before a position; None if none did."""
    for ops in (some, np.arange(len(key.kind))):
        before = ops[key.ret[ops] < since]
        if len(before):
            return int(before[np.argmax(key.ret[before])])
    return None


def part_of(key: Key, limit: int, some: Excerpt) -> tuple[Key, Int32]:
    """Return an excerpt as a separate key with new positions, and the old position of each new position.

    limit: position at which the history ends
    """
    ops = some.operations
    kind, a, b, call, ret = key.kind[ops], key.a[ops], key.b[ops], key.call[ops], key.ret[ops]
    ret[(ret >= limit) | _among(ops, some.carried)] = OPEN
    as_write = _among(ops, some.weakened)
    kind[as_write], a[as_write] = WRITE, b[as_write]
    ends = ret != OPEN
    points = np.sort(np.concatenate([call, ret[ends]]))
    ret[ends] = np.searchsorted(points, ret[ends])
    return Key(kind, a, b, np.searchsorted(points, call).astype(np.int32), ret), points


def _among(ops: Int64, some: frozenset[int]) -> Bools:
    return np.isin(ops, list(some)) if some else np.zeros(len(ops), bool)


def _impossible(ask: Questions, key: Key, limit: int, excerpt: Excerpt) -> bool:
    if ask.ran_out:
        return False
    part, points = part_of(key, limit, excerpt)
    return ask.has_no_order(part, len(points), excerpt.starts)


def _back_to_nowhere(key: Key, limit: int, culprit: int, unique: bool) -> list[int]:
    """Return the culprit and each cas that its value depends on if no operation can have produced it, else []."""
    if unique:
        code, _, _ = register.judge_key(key, limit, register.new_scratch(len(key.kind), limit))
        if code != register.FROM_NOWHERE:
            return []
    elif key.kind[culprit] not in (READ, CAS) or key.a[culprit] == NIL:
        return []
    kept = [culprit]
    while (made_by := producer_of(key, int(key.a[kept[-1]]), limit)) >= 0 and made_by not in kept:
        if not unique:
            return []
        kept.append(made_by)
    return sorted(kept)


def _mutates(key: Key) -> Any:
    return (key.kind == WRITE) | (key.kind == CAS)


def _held(key: Key, since: int) -> tuple[int, ...]:
    """Return the values that a key may hold at a position, ascending.

    These are all values except those that had certainly been overwritten.
    """
    makers = np.flatnonzero(_mutates(key) & (key.call < since))
    over = makers[key.ret[makers] < since]
    last_call = int(key.call[over].max(initial=-1))
    values = set(value_left(key, makers[key.ret[makers] > last_call]).tolist())
    return tuple(sorted(values if len(over) else values | {NIL}))


def _since(key: Key, since: int, limit: int, some: Excerpt) -> Excerpt:
    """Return the excerpt from a position on: the operations called since then, and the mutators under way there."""
    ops = some.operations
    carried = ops[(key.call[ops] < since) & (key.ret[ops] > since) & _mutates(key)[ops]]
    kept = np.sort(np.concatenate([carried, ops[(key.call[ops] >= since) & (key.call[ops] < limit)]]))
    weakened = some.weakened & frozenset(kept.tolist()) if some.weakened else some.weakened
    return Excerpt(kept, _held(key, since), since, frozenset(carried.tolist()), weakened)


def _cut_past(ask: Questions, key: Key, limit: int, some: Excerpt) -> Excerpt:
    """Return the excerpt that begins at the latest position from which the remaining operations have no order.

    Positions are tried from the end backwards, first in steps that double, and then by halving.
    """
    moments = key.call[some.operations]
    found = {len(moments): some}

    def impossible_since(moments_left: int) -> bool:
        excerpt = _from_moment(ask, key, limit, int(moments[-moments_left]), some)
        if excerpt is not None:
            found[moments_left] = excerpt
        return excerpt is not None

    return found[first_that_holds(1, len(moments), impossible_since, times=2)]


def _cut_past_of_few(ask: Questions, key: Key, limit: int, some: Excerpt, stays: Sequence[int]) -> Excerpt:
    """Return the excerpt of few operations that begins at the latest position at which none of them is under way and
    from which they have no order.

    stays: the culprit, and other operations to keep.  The last operation that overwrote a value stays as well, because
        without it a reader would not see why the answer was wrong.
    """
    few, ops = part_of(key, limit, some), some.operations
    alone = Excerpt(np.arange(len(ops)))
    others = ops[_mutates(key)[ops] & (value_left(key, ops) != key.a[stays[0]]) & (ops != stays[0])]
    latest = min(int(key.call[op]) for op in [*stays, *others[-1:].tolist()])
    moments = few[0].call[(ops > ops[0]) & (key.call[ops] <= latest)][::-1].tolist()
    for moment in moments if len(ops) <= SEARCHED_MAX else []:
        if not _since(few[0], moment, len(few[1]), alone).carried:
            rest = _from_moment(ask, few[0], len(few[1]), moment, alone)
            if rest is not None:
                gone = ops[few[0].call < moment].tolist()
                return replace(some.without(gone), starts=rest.starts, since=int(few[1][moment]))
    rest = _from_moment(ask, key, limit, int(key.call[ops[0]]), some)
    if rest is not None:
        rest = _tightened(key, rest, stays[0], lambda left: _impossible(ask, key, limit, left))
        if np.isin(others, rest.operations).any():
            return rest
    return some


def _from_moment(ask: Questions, key: Key, limit: int, since: int, some: Excerpt) -> Excerpt | None:
    """Return the excerpt from a position on, or None if it has an order from a possible state there."""
    excerpt = _since(key, since, limit, some)
    held = list(excerpt.starts)
    if len(held) <= VALUES_MAX and not _impossible(ask, key, limit, excerpt):
        held = [value for value in held if _may_hold(ask, key, since, value)]
        excerpt = replace(excerpt, starts=tuple(held))
    if not held or not _impossible(ask, key, limit, excerpt):
        return None
    if 1 < len(held) <= VALUES_MAX:
        certain = tuple(value for value in held if _may_hold(ask, key, since, value))
        excerpt = replace(excerpt, starts=certain or excerpt.starts)
    return excerpt


def _may_hold(ask: Questions, key: Key, since: int, value: int) -> bool:
    """Return False if the past certainly forbids a read of this value at this position, else True."""
    if ask.ran_out:
        return True
    earlier = max(0, since - PAST_MAX)
    everything = Excerpt(np.flatnonzero(key.call < since))
    recent = _since(key, earlier, since, everything) if earlier else everything
    past, points = part_of(key, since, recent)
    end = len(points)
    columns: tuple[Any, ...] = past
    cells = (READ, value, NIL, end, end + 1)
    read = (np.append(column, np.array([cell], column.dtype)) for column, cell in zip(columns, cells, strict=True))
    return not ask.has_no_order(Key._make(read), end + 2, recent.starts)


def _tightened(key: Key, some: Excerpt, culprit: int, impossible: Callable[[Excerpt], bool]) -> Excerpt:
    """Drop every value, read and mismatch that is not needed: large pieces first, single ones last."""

    def drop_observers(rest: Excerpt) -> Excerpt:
        observers = [op for op in rest.operations.tolist() if key.kind[op] in (READ, MISMATCH) and op != culprit]
        return drop_in_pieces(observers, rest, lambda piece, left: left.without(piece), impossible)

    if (key.kind[some.operations] == MISMATCH).any():
        some = drop_observers(some)
    return drop_observers(_drop_values(key, some, culprit, impossible))


def _drop_values(key: Key, some: Excerpt, culprit: int, impossible: Callable[[Excerpt], bool]) -> Excerpt:
    """Drop every value that is not needed, with all operations that wrote or read it."""
    if (key.kind[some.operations] == MISMATCH).any():
        return some
    needed = {int(key.a[culprit]), int(value_left(key, culprit))}
    made = dict.fromkeys(value_left(key, some.operations).tolist())
    values = [value for value in made if value not in needed]

    def without(gone_values: Sequence[int], rest: Excerpt) -> Excerpt:
        ops = rest.operations
        gone = np.isin(value_left(key, ops), gone_values)
        replaced = ops[~gone & (key.kind[ops] == CAS) & np.isin(key.a[ops], gone_values)]
        return replace(rest, weakened=rest.weakened | set(replaced.tolist())).of(~gone)

    return drop_in_pieces(values, some, without, impossible)


def _right_answers(ask: Questions, key: Key, limit: int, culprit: int) -> tuple[int | None, ...]:
    """Return the values that would have been right answers if the culprit were a read, the latest first."""
    changed = key._replace(kind=key.kind.copy(), a=key.a.copy())
    changed.kind[culprit] = READ
    most = max(ANSWERS_MIN, min(ANSWERS_MAX, POSITIONS_TRIED // limit))
    made = dict.fromkeys(value_left(key, np.flatnonzero(_mutates(key) & (key.call < limit)))[::-1].tolist())
    right = []
    for value in dict.fromkeys([*list(made)[:most], NIL]):
        changed.a[culprit] = value
        if ask.code(changed, limit) == antichain.LINEARIZABLE:
            right.append(as_value(value))
    return tuple(right)


def _judged_again(key: Key, window: Window, carried: frozenset[int]) -> Window:
    """Judge a window with the independent search, unless it is too large.  Returns the window with `rejudged` set.

    Raises search.Disagreement if the search finds an order.

    carried: operations that need not happen
    """
    operations = _as_searched(key, window, carried)
    again = None
    if len(operations) <= SEARCHED_MAX:
        try:
            again = not search.linearizable(operations, window.states_before, _with_mismatch, CONFIGURATIONS_MAX)
        except search.SearchExhausted:
            again = None
    if again is False:
        raise search.Disagreement("the kernel and the independent search disagree about a window")
    return replace(window, weakened=window.weakened & frozenset(window.operations), rejudged=again is True)


def _with_mismatch(state: search.State, operation: search.RegisterOperation) -> object:
    if operation.f == "mismatch":
        return state if state != operation.value else search.REFUSED
    return search.register(state, operation)


_NAMES = {READ: "read", WRITE: "write", CAS: "cas", MISMATCH: "mismatch"}


def _as_searched(key: Key, window: Window, carried: frozenset[int]) -> list[search.RegisterOperation]:
    """Return operations in the form of the independent search, without reads that got no answer.

    Positions replace indices, because their order is the same.  carried: operations that need not happen.
    """
    operations = []
    for op in window.operations:
        ret = int(key.ret[op]) if key.ret[op] < window.limit and op not in carried else None
        f, value, value2 = _NAMES[int(key.kind[op])], as_value(int(key.a[op])), as_value(int(key.b[op]))
        if op in window.weakened:
            f, value = "write", value2
        if ret is not None or f in ("write", "cas"):
            operations.append(search.RegisterOperation(f, value, value2, int(key.call[op]), ret))
    return operations
