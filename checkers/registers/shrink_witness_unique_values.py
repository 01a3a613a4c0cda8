"""Shrinks a register's wrong history to the smallest window that no order explains, if every value is unique.

The kernel reports that a key is wrong.  A reader wants to see four of its operations, not four thousand.  Operations
may be dropped only if this cannot create a violation: if the whole history has an order, the rest must have one too.
(To drop a write whose value is still read would create one.)  These may be dropped:

  * a read: it changes nothing;
  * a whole block: a write, its reads, and every cas that built on it;
  * the end of a chain: a cas with all operations that observed it;
  * the beginning of a chain, if the first cas that stays is weakened to a write, which demands less of the history;
  * everything before a moment at which nothing was under way, if the states that are then possible replace it.

First the history is cut at the first answer that no order explains, so this answer stands in every window.  Then
as much as possible is dropped, in large pieces first.  The independent search judges the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkers.base import independent_search as search
from checkers.base.arrays import Int32, Int64
from checkers.base.shrinking import drop_in_pieces, first_that_holds
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key

SEARCHED_MAX = 400
"""The independent search does not judge windows of more operations.  The witness reports this."""

CONFIGURATIONS_MAX = 20_000
"""Limit of one independent search.  A window that needs more is not judged again, which takes half a second at most."""

CANDIDATES_MIN, CANDIDATES_MAX = 4, 40
"""Bounds of the number of latest values tried as the right answer; CANDIDATE_OPERATIONS_MAX decides between them."""

RIVALS_TRIED = 8
"""A window with more reads has no rival: it is not looked for.  Each read costs the kernel one pass."""

CANDIDATE_OPERATIONS_MAX = 20_000_000
"""Limit of operations that the kernel reads while it tries more than CANDIDATES_MIN values."""


@dataclass(frozen=True, slots=True)
class Window:
    """Operations by their number in the key, in order of call.

    code: of the kernel.
    limit: number of positions up to the answer that no order explains, and including it.
    culprit: the operation with that answer.
    operations: no order from one of `states_before` (None is nil) explains them.
    weakened: cas operations of which only the write is counted.
    last_before: of the operations that `states_before` replaces, the one that returned last; None if there are none.
    right: values that would have been right answers of the culprit, the latest first.
    rejudged: the independent search finds no order either.
    unfinished: the budget for questions ran out, so a smaller window may exist.
    rival: the one read of the window that contradicts the culprit.  Without it all answers up to the culprit's have an
    order, so one of the two is wrong.  None if there is no such read, or more than one.  If values repeat, it
    is the latest such read, and may lie before the window.
    """

    code: int
    limit: int
    culprit: int
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
    """Some operations of a key and the states they may begin in.

    operations: numbers in the key.  since: the position at which the window begins.
    carried: operations that were under way then, and need not happen.
    weakened: each cas of which only the write is counted.
    """

    operations: Int64
    starts: tuple[int, ...] = (NIL,)
    since: int = 0
    carried: frozenset[int] = frozenset()
    weakened: frozenset[int] = frozenset()

    def without(self, gone: Collection[int]) -> Excerpt:
        left, gone = self.operations[~np.isin(self.operations, list(gone))], frozenset(gone)
        return replace(self, operations=left, carried=self.carried - gone, weakened=self.weakened - gone)


def smallest_window(key: Key, positions: int) -> Window:
    """The smallest window of a key that the kernel found not linearizable.

    Raises search.Disagreement if the independent search finds an order.
    """
    scratch = register.new_scratch(len(key.kind), positions)
    limit = _first_impossible(key, positions, scratch)
    code, left, right = (int(x) for x in register.judge_key(key, limit, scratch))
    [culprit] = (int(op) for op in np.flatnonzero(key.ret == limit - 1))
    if code == register.FROM_NOWHERE:
        answers = _right_answers(key, limit, culprit, None)
        alone = _back_to_nowhere(key, limit, culprit)
        window = Window(code, limit, culprit, alone, frozenset(), None, answers or (None,), answers)
        return judged_again(key, window, BY_KERNEL)
    register.assign_blocks(key, limit, scratch)
    answers = _right_answers(key, limit, culprit, scratch.block[: len(key.kind)])
    if code == register.TAKEN_TWICE:
        origin = int(scratch.source[left])
        both = _with_proof(key, limit, left, scratch) | _with_proof(key, limit, right, scratch)
        kept = Excerpt(np.array(sorted(both | ({origin} if origin >= 0 else set()))))
        if origin >= 0 and key.kind[origin] == CAS:
            kept = replace(kept, weakened=frozenset({origin}))
    else:
        kept = _tighten(key, limit, culprit, code, scratch)
    rival = _rival_of(key, limit, culprit, kept.operations, scratch)
    operations = tuple(kept.operations.tolist())
    window = Window(code, limit, culprit, operations, kept.weakened, None, (None,), answers, rival=rival)
    return judged_again(key, _with_past_cut(key, window), BY_KERNEL)


def _rival_of(key: Key, limit: int, culprit: int, kept: Int64, scratch: register.Scratch) -> int | None:
    """The one read of the window without which the whole history up to the culprit has an order.

    kept: the operations of the window, whose reads are few, because those that it does not need were dropped.
    """
    reads = [op for op in kept.tolist() if key.kind[op] == READ and op != culprit and key.ret[op] < limit]
    if not 0 < len(reads) <= RIVALS_TRIED:
        return None

    def explained_without(op: int) -> bool:
        return bool(register.judge_key(without(key, op), limit, scratch)[0] == register.LINEARIZABLE)

    rivals = [op for op in reads if explained_without(op)]
    return rivals[0] if len(rivals) == 1 else None


def without(key: Key, op: int) -> Key:
    """Return a key without one of its operations."""
    return Key._make(np.delete(column, op) for column in key)


def value_left(key: Key, ops: int | Int64 | slice = slice(None)) -> Int64:
    """The value that the key holds after an operation: of a read the one that it saw."""
    return np.where(key.kind[ops] == CAS, key.b[ops], key.a[ops])


def _first_impossible(key: Key, positions: int, scratch: register.Scratch) -> int:
    """The length, in positions, of the shortest prefix that has no order.

    For the whole history the kernel names two blocks, which mostly have few operations.  If these operations of a
    prefix have no order, the prefix has none.  The shortest such prefix is mostly the right one.  So the whole history
    is judged only once more, one position shorter.
    """

    def impossible(limit: int) -> bool:
        return bool(register.judge_key(key, limit, scratch)[0] >= register.FIRST_INVALID)

    code, left, right = (int(x) for x in register.judge_key(key, positions, scratch))
    if code != register.FROM_NOWHERE:
        register.assign_blocks(key, positions, scratch)
        block = scratch.block[: len(key.kind)]
        named = [block[op] if op != register.INITIAL else len(key.kind) for op in (left, right)]
        small, points = part_of(key, positions, Excerpt(np.flatnonzero(np.isin(block, named))))
        if _none_fits(small, len(points)):
            shown = first_that_holds(1, len(points), lambda p: _none_fits(small, p))
            positions = int(points[shown - 1]) + 1
            if not impossible(positions - 1):
                return positions
    return first_that_holds(1, positions, impossible)


def part_of(key: Key, limit: int, some: Excerpt) -> tuple[Key, Int32]:
    """(an excerpt as a key of its own with new positions, the old position of each).  limit: where the history ends."""
    ops = some.operations
    kind, a, b, call, ret = key.kind[ops], key.a[ops], key.b[ops], key.call[ops], key.ret[ops]
    ret[(ret >= limit) | np.isin(ops, list(some.carried))] = OPEN
    as_write = np.isin(ops, list(some.weakened))
    kind[as_write], a[as_write] = WRITE, b[as_write]
    ends = ret != OPEN
    points = np.sort(np.concatenate([call, ret[ends]]))
    ret[ends] = np.searchsorted(points, ret[ends])
    return Key(kind, a, b, np.searchsorted(points, call).astype(np.int32), ret), points


def _none_fits(key: Key, limit: int) -> bool:
    code, _, _ = register.judge_key(key, limit, register.new_scratch(len(key.kind), limit))
    return bool(code >= register.FIRST_INVALID)


def producer_of(key: Key, value: int, limit: int) -> int:
    """The operation invoked before `limit` that produces a value; -1 if there is none."""
    found = np.flatnonzero((key.kind != READ) & (value_left(key) == value) & (key.call < limit))
    return int(found[0]) if len(found) else -1


def _impossible(key: Key, limit: int, some: Excerpt) -> bool:
    """Return whether the kernel finds no order for some operations alone."""
    part, points = part_of(key, limit, some)
    return _none_fits(part, len(points))


def _back_to_nowhere(key: Key, limit: int, culprit: int) -> tuple[int, ...]:
    """The culprit and the chain of cas that its value depends on, back to a value that no operation produces."""
    kept = [culprit]
    while (made_by := producer_of(key, int(key.a[kept[-1]]), limit)) >= 0 and made_by not in kept:
        kept.append(made_by)
    return tuple(sorted(kept))


def _with_proof(key: Key, limit: int, op: int, scratch: register.Scratch) -> set[int]:
    """An operation and those that prove that it happened.

    An operation that returned proves itself.  Otherwise an operation that saw its value proves it, and so on.
    """
    proof = {op}
    while key.ret[op] >= limit:
        seen_by = np.flatnonzero((scratch.source[: len(key.kind)] == op) & scratch.happened[: len(key.kind)])
        returned = seen_by[key.ret[seen_by] < limit]
        op = int(returned[0] if len(returned) else seen_by[0])
        proof.add(op)
    return proof


def _tighten(key: Key, limit: int, culprit: int, code: int, scratch: register.Scratch) -> Excerpt:
    """The operations of the one or two clashing blocks that the clash needs."""
    n = len(key.kind)
    mine = int(scratch.block[culprit])
    roots = [mine]
    if code == register.BLOCKS_CROSS:
        first, last = scratch.first_ret, scratch.last_call
        is_root = np.append(scratch.block[:n] == np.arange(n), True)
        is_root[mine] = False
        crossing = np.flatnonzero(is_root & (first < last[mine]) & (last > first[mine]))
        roots.append(int(crossing[np.argmax(first[crossing])]))
    some = Excerpt(np.flatnonzero(np.isin(scratch.block[:n], roots)))
    size = -1
    while size != len(some.operations):
        size = len(some.operations)
        for root in roots:
            some = _shorten_chain(key, limit, some, scratch, root)
        some = drop_observers(key, some, culprit, lambda rest: _impossible(key, limit, rest))
    return some


def _shorten_chain(key: Key, limit: int, some: Excerpt, scratch: register.Scratch, root: int) -> Excerpt:
    """Drop as much of the end, then of the beginning of one block's chain as possible."""
    n, kept = len(key.kind), some.operations
    makers = kept[(key.kind[kept] != READ) & (scratch.block[kept] == root)]
    taker_of = {int(scratch.source[op]): int(op) for op in makers if key.kind[op] == CAS}
    chain = [int(op) for op in makers if op in some.weakened] or [root if root < n else register.INITIAL]
    while chain[-1] in taker_of:
        chain.append(taker_of[chain[-1]])
    place_of = {op: place for place, op in enumerate(chain)}
    place = np.array(
        [
            -1 if scratch.block[op] != root else place_of[int(op) if key.kind[op] != READ else int(scratch.source[op])]
            for op in kept
        ]
    )

    def between(start: int, length: int) -> Excerpt:
        rest = some.without(kept[((place >= 0) & (place < start)) | (place >= length)].tolist())
        return replace(rest, weakened=rest.weakened | {chain[start]}) if start else rest

    length = first_that_holds(1, len(chain), lambda x: _impossible(key, limit, between(0, x)))
    most = first_that_holds(0, length - 1, lambda x: _impossible(key, limit, between(length - 1 - x, length)))
    return between(length - 1 - most, length)


def drop_observers(key: Key, some: Excerpt, culprit: int, impossible: Callable[[Excerpt], bool]) -> Excerpt:
    """Drop every read and mismatch that is not needed: half of them at a time, then a quarter, down to one by one."""
    observers = [op for op in some.operations.tolist() if key.kind[op] in (READ, MISMATCH) and op != culprit]
    return drop_in_pieces(observers, some, lambda piece, rest: rest.without(piece), impossible)


def _with_past_cut(key: Key, window: Window) -> Window:
    """Replace the past of the window by the states it leads to, at a moment when nothing was under way.

    The operation that overwrote the value stays.  Without it a reader would not see why the answer was wrong.  A read
    that contradicts the culprit stays as well, with the operations that it is compared with.
    """
    kept, limit, weakened, rival = np.array(window.operations), window.limit, window.weakened, window.rival
    if len(kept) > SEARCHED_MAX:
        return replace(window, states_before=_held_before(key, kept))
    makers = [op for op in kept if key.kind[op] != READ and op != window.culprit]
    for cut in sorted((int(key.call[op]) for op in makers[1:]), reverse=True):
        before, after = kept[key.call[kept] < cut], kept[key.call[kept] >= cut]
        if (key.ret[before] > cut).any() or (rival is not None and rival in before):
            continue
        states = search.reachable_states(as_searched(key, limit, before, weakened))
        if _none_found(as_searched(key, limit, after, weakened), states):
            in_order = tuple(sorted(value for value in states if isinstance(value, int)))
            nil = (None,) if None in states else ()
            last = int(before[np.argmax(key.ret[before])])
            rest = tuple(int(op) for op in after)
            return replace(window, operations=rest, last_before=last, states_before=nil + in_order)
    held, kept = _begins(key, limit, window.culprit, kept, weakened)
    return replace(window, operations=tuple(int(op) for op in kept), states_before=held)


def _begins(
    key: Key, limit: int, culprit: int, kept: Int64, weakened: frozenset[int]
) -> tuple[tuple[int | None, ...], Int64]:
    """(values that the key may have held before a window whose past was not replaced, operations that are needed).

    The operations outside the window were dropped, so the kernel's proof starts from nil.  Values are unique, so the
    proof holds from any other value as well, if the window does not observe nil.  If the window observes nil, fewer
    operations may be enough.  If the search finds an order from the true values, the window begins with nil.
    """
    states = _held_before(key, kept)

    def impossible(some: Int64) -> bool:
        return _none_found(as_searched(key, limit, some, weakened), states) is True

    if not impossible(kept):
        return (None,), kept
    observes = (key.kind != WRITE) & (key.a == NIL)
    if states != (None,) and observes[kept].any():
        for op in [op for op in kept.tolist() if op != culprit]:
            rest = kept[kept != op]
            seen = (key.kind[rest] != WRITE) & (key.a[rest] == value_left(key, op))
            needed = key.kind[op] != READ and seen.any()
            if not needed and impossible(rest):
                kept = rest
    return states, kept


def _held_before(key: Key, kept: Int64) -> tuple[int | None, ...]:
    """The values that operations outside the window may have left before its first call, nil first."""
    first = int(key.call[kept].min())
    earlier = np.flatnonzero(((key.kind == WRITE) | (key.kind == CAS)) & (key.call < first))
    earlier = earlier[~np.isin(earlier, kept)]
    over = earlier[key.ret[earlier] < first]
    last_call = int(key.call[over].max(initial=-1))
    values = {as_value(value) for value in value_left(key, earlier[key.ret[earlier] > last_call]).tolist()}
    if not len(over):
        values.add(None)
    return ((None,) if None in values else ()) + tuple(sorted(v for v in values if v is not None))


BY_KERNEL = "the register kernel"


def judged_again(key: Key, window: Window, judged_by: str, carried: frozenset[int] = frozenset()) -> Window:
    """Return the window after the independent search has judged it, unless it is too large.

    carried: operations that need not happen.  Raises search.Disagreement if the search finds an order.
    """
    operations = as_searched(key, window.limit, window.operations, window.weakened, carried)
    again = _none_found(operations, window.states_before) if len(operations) <= SEARCHED_MAX else None
    if again is False:
        raise search.Disagreement(f"{judged_by} and the independent search disagree about a window")
    return replace(window, weakened=window.weakened & frozenset(window.operations), rejudged=again is True)


def _none_found(operations: Sequence[search.RegisterOperation], states: Iterable[search.State]) -> bool | None:
    """Return whether the independent search finds no order; None if it takes too long."""
    try:
        return not search.linearizable(operations, states, _with_mismatch, CONFIGURATIONS_MAX)
    except search.SearchExhausted:
        return None


def _with_mismatch(state: search.State, operation: search.RegisterOperation) -> object:
    if operation.f == "mismatch":
        return state if state != operation.value else search.REFUSED
    return search.register(state, operation)


_NAMES = {READ: "read", WRITE: "write", CAS: "cas", MISMATCH: "mismatch"}


def as_searched(
    key: Key, limit: int, kept: Iterable[int], weakened: frozenset[int], optional: frozenset[int] = frozenset()
) -> list[search.RegisterOperation]:
    """Return operations in the form of the independent search, without observers that show nothing.

    Positions replace indices: their order is the same.  weakened: each cas of which only the write is counted.
    optional: operations that need not happen."""
    operations = []
    for op in map(int, kept):
        ret = int(key.ret[op]) if key.ret[op] < limit and op not in optional else None
        f, value, value2 = _NAMES[int(key.kind[op])], as_value(int(key.a[op])), as_value(int(key.b[op]))
        if op in weakened:
            f, value = "write", value2
        if ret is not None or f in ("write", "cas"):
            operations.append(search.RegisterOperation(f, value, value2, int(key.call[op]), ret))
    return operations


def as_value(number: int) -> int | None:
    """A number of a value column as a value; None for nil."""
    return None if number == NIL else number


def right_answers(
    key: Key, culprit: int, values: Iterable[int], has_order: Callable[[Key], bool]
) -> tuple[int | None, ...]:
    """The values of some with which the culprit, as a read, has an order."""
    changed = key._replace(kind=key.kind.copy(), a=key.a.copy())
    changed.kind[culprit] = READ
    right = []
    for value in values:
        changed.a[culprit] = value
        if has_order(changed):
            right.append(as_value(value))
    return tuple(right)


def _right_answers(key: Key, limit: int, culprit: int, block: Int32 | None) -> tuple[int | None, ...]:
    """The values with which the culprit has an order, the latest first.

    block: of every operation, if known.  Then the few operations of the tried values' blocks rule out most values
    without the rest of the history.
    """
    tried = max(CANDIDATES_MIN, min(CANDIDATES_MAX, CANDIDATE_OPERATIONS_MAX // len(key.kind)))
    makers = np.flatnonzero((key.kind != READ) & (key.call < limit))[-tried:][::-1]
    scratch = register.new_scratch(len(key.kind), limit)
    some = None
    if block is not None and (block[makers] >= 0).all():
        some = Excerpt(np.union1d(np.flatnonzero(np.isin(block, block[makers])), [culprit]))

    def has_order(changed: Key) -> bool:
        if some is not None and _impossible(changed, limit, some):
            return False
        return bool(register.judge_key(changed, limit, scratch)[0] == register.LINEARIZABLE)

    return right_answers(key, culprit, [*value_left(key, makers).tolist(), NIL], has_order)
