"""An append-only log: append a value (the answer names its offset), read the log from its beginning.

Offsets fix the order, so the rank check decides (`search.py`).  The rank of an append is its offset.  A read of n
values comes after offset n - 1 and before offset n.

    append v  ok [v offset]   the value is at that offset, a whole number from 0 on.  No offset is used twice, but
                              offsets may be skipped
    append v  ok v            acknowledged, with an unknown offset.  If a read shows the value, the read also shows its
                              offset.  Otherwise the value comes after all values that any read shows
    append v  no answer       the append happened if a read shows the value; otherwise it need not have happened
    read      ok [v0 v1 ...]  the whole log, from offset 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from checkers.base.checker import Budget
from checkers.base.values import MapValue, SetValue
from checkers.models.known_object import SHOWS, KnownObject, ObjectFinding, ObjectFunction, by_search
from checkers.models.model import REFUSED, Model, Operation, State, same_or_placed, text_of
from checkers.models.past import impossible
from checkers.models.search import Ranked, out_of_order
from checkers.models.witnesses import Decided


class NotRanked(ValueError):
    """The answers do not show the offset of every append, so the whole log must be searched (`whole`)."""


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge with the rank check if the answers show the offset of every append, else with the search."""
    try:
        wrong = out_of_rank(operations)
    except NotRanked:
        return by_search(whole(operations), operations, budget)
    if wrong is None:
        return ObjectFinding(steps=len(operations))
    window = sorted(wrong.operations, key=lambda o: o.call)
    certain = impossible(wrong.smaller, window, (wrong.smaller.init(),))
    if certain is False or (certain is None and _guessed(operations)):
        return by_search(whole(operations), operations, budget)
    return ObjectFinding((wrong,), steps=len(operations))


def _guessed(operations: Sequence[Operation]) -> bool:
    """Return True if a value repeats among appends with unknown offsets.

    Then a read of this value does not determine which append it shows.
    """
    unnamed = Counter(o.input for o in operations if o.f == "append" and _offset(o) is None)
    return max(unnamed.values(), default=0) > 1


def out_of_rank(operations: Sequence[Operation]) -> Decided | None:
    """Return the violation of one log; None if there is none.  Raises NotRanked."""
    appends, reads = _split(operations)
    longest = max(reads, key=lambda r: len(_shown(r)), default=None)
    holder: dict[int, Operation] = {}
    found = (
        _two_in_reads(reads, longest)
        or _two_at_an_offset(appends, longest, holder)
        or _from_nowhere(appends, reads, longest, holder)
        or _out_of_order(appends, reads, longest, holder)
    )
    return None if found is None else _with_appends(found, appends)


@dataclass(frozen=True, slots=True)
class _PartialLog:
    """The state of a log that is reduced to some values.

    entries: (value, offset) of the remaining values in order; the offset is None if no answer named it yet
    least: minimum number of entries of the whole log
    """

    entries: tuple[tuple[Hashable, int | None], ...] = ()
    least: int = 0


def whole(operations: Sequence[Operation]) -> Model:
    """Return a model of the whole log, for a search if the answers do not show the offset of every append."""
    appends, reads = _split(operations)
    values = [*(a.input for a in appends), *(value for read in reads for value in _shown(read))]
    return replace(seen_through(values), canonical=canonical)


class _Unread:
    """The state of every log that contains a value that no read shows."""

    def __repr__(self) -> str:
        return "a value that no read shows"


_UNREAD: Final = _Unread()


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    """Return a function that keeps only the length of a log that contains a value that no read shows.

    Such a value stays in the log, so no later read is possible, and the effect of an append depends only on the length.
    """
    _, reads = _split(operations)
    read = frozenset(value for each in reads for value in _shown(each))

    def one_of(state: State) -> State:
        assert isinstance(state, _PartialLog)
        if all(value in read for value, _ in state.entries):
            return state
        return _PartialLog(((_UNREAD, None),), state.least)

    return one_of


def seen_through(values: Sequence[Hashable]) -> Model:
    """Return the model of a log that is reduced to these values.

    Other values may be appended at any time, so the log may be longer than `least`, but never shorter.
    """
    at_stake = frozenset(values)

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, _PartialLog)
        return _after_append(state, operation) if operation.f == "append" else _after_read(state, operation, at_stake)

    return Model("append-log", init=_PartialLog, step=step, show=_in_words)


def _after_append(state: _PartialLog, append: Operation) -> object:
    offset = _offset(append)
    if offset is None:
        return _PartialLog((*state.entries, (append.input, None)), state.least + 1)
    if offset < state.least:
        return REFUSED
    return _PartialLog((*state.entries, (append.input, offset)), offset + 1)


def _after_read(state: _PartialLog, read: Operation, at_stake: frozenset[Hashable]) -> object:
    """Return the state after a read, or REFUSED.

    A read is possible if it shows the entries in their order and at their offsets, and has at least `least` values.
    """
    shown = tuple((value, offset) for offset, value in enumerate(_shown(read)) if value in at_stake)
    fits = len(shown) == len(state.entries) and len(_shown(read)) >= state.least
    for (value, offset), (held, known) in zip(shown, state.entries, strict=False):
        fits = fits and value == held and known in (None, offset)
    return _PartialLog(shown, len(_shown(read))) if fits else REFUSED


def _in_words(state: State) -> str:
    assert isinstance(state, _PartialLog)
    entries = [
        f"{text_of(value)} at {offset}" if offset is not None else text_of(value) for value, offset in state.entries
    ]
    last = max((offset for _, offset in state.entries if offset is not None), default=-1)
    if state.least > max(last + 1, len(entries)):
        entries.append(f"{state.least} entries at least")
    return f"[{', '.join(entries)}]"


def _with_appends(violation: Decided, appends: Sequence[Operation]) -> Decided:
    """Add to a violation the appends of its values that were invoked before its last answer."""
    end = max(o.ret for o in violation.operations if o.ret is not None)
    concerned = [a for a in appends if a.input in violation.about and a.call < end]
    others = [o for o in violation.operations if o not in concerned]
    return replace(violation, operations=[*concerned, *others])


def _violation(kind: str, summary: str, shown: Sequence[Operation], right: str, *about: Hashable) -> Decided:
    """Return the violation of an answer.

    shown: the operations that show it; the wrong answer comes first
    """
    return Decided(kind, summary, shown, shown[0], right, seen_through(about), about, _STAYS)


_STAYS = "An offset of a log contains one value, and values never leave the log"
_TWO_VALUES = "two values at one offset"


def _two_in_reads(reads: Sequence[Operation], longest: Operation | None) -> Decided | None:
    for read in reads:
        assert longest is not None
        for at, (value, other) in enumerate(zip(_shown(read), _shown(longest), strict=False)):
            if value != other:
                words = f"one read saw {text_of(value)} at offset {at}, another {text_of(other)}"
                right = f"the same value at offset {at} for every reader"
                return _violation(_TWO_VALUES, words, [read, longest], right, value, other)
    return None


def _two_at_an_offset(
    appends: Sequence[Operation], longest: Operation | None, holder: dict[int, Operation]
) -> Decided | None:
    """Return the violation of two values that appends name at one offset.

    holder: is filled with the appends that name their offsets
    """
    shown = _shown(longest)
    for append in appends:
        offset = _offset(append)
        if offset is None:
            continue
        if offset in holder or (offset < len(shown) and shown[offset] != append.input):
            other = holder.get(offset, longest)
            assert other is not None
            held = other.input if other.f == "append" else shown[offset]
            words = f"{text_of(append.input)} was acknowledged at offset {offset}, which contains {text_of(held)}"
            values = dict.fromkeys((append.input, held))
            return _violation(_TWO_VALUES, words, [append, other], "an offset of its own", *values)
        holder[offset] = append
    return None


def _from_nowhere(
    appends: Sequence[Operation], reads: Sequence[Operation], longest: Operation | None, holder: dict[int, Operation]
) -> Decided | None:
    """Return the violation of a read value that no append can have written.

    holder: is filled with the appends whose offsets only reads show
    """
    unplaced = _unplaced(appends, holder)
    for offset, value in enumerate(_shown(longest)):
        if offset in holder:
            continue
        if not unplaced.get(value):
            seen = f"a read saw {text_of(value)} at offset {offset}"
            words = f"{seen}, and no append can have put it there: a failed append did not happen"
            read = next(r for r in reads if len(_shown(r)) > offset)
            return _violation("value from nowhere", words, [read], f"an answer without {text_of(value)} there", value)
        holder[offset] = unplaced[value].pop(0)
    return None


def _unplaced(appends: Sequence[Operation], holder: dict[int, Operation]) -> dict[Hashable, list[Operation]]:
    placed = {append.call for append in holder.values()}
    unplaced: dict[Hashable, list[Operation]] = {}
    for append in appends:
        if append.call not in placed:
            unplaced.setdefault(append.input, []).append(append)
    return unplaced


def _out_of_order(
    appends: Sequence[Operation], reads: Sequence[Operation], longest: Operation | None, holder: dict[int, Operation]
) -> Decided | None:
    """Return the violation that the rank check finds.  Raises NotRanked if some offset is unknown.

    holder: offset -> the append of its value, for every offset that an answer names or a read shows
    """
    unread = [a for waiting in _unplaced(appends, holder).values() for a in waiting if a.returned]
    length = len(_shown(longest))
    if unread and any(at >= length for at in holder):
        raise NotRanked("some acknowledged appends name their offset and others, never read, do not")
    ranked = [(Ranked(2 * offset, a.call, a.ends), a) for offset, a in holder.items()]
    ranked += [(Ranked(2 * length, a.call, a.ret or 0, must_precede=False), a) for a in unread]
    ranked += [(Ranked(2 * len(_shown(r)) - 1, r.call, r.ret or 0), r) for r in reads]
    pair = out_of_order([r for r, _ in ranked])
    if pair is None:
        return None
    early, late = (ranked[at][1] for at in pair)
    return _in_wrong_order(early, late, longest)


def _in_wrong_order(early: Operation, late: Operation, longest: Operation | None) -> Decided:
    """Return the violation of two operations: `early` returned before `late` was called, but follows it in the log.

    longest: the longest read; it shows offsets that the answers of appends did not show
    """
    x, y = text_of(early.input), text_of(late.input)
    if late.f == "read" and early.f == "append":
        words = f"{x} was acknowledged before a read was invoked that did not show {x}"
        return _violation("stale read", words, [late, early], f"an answer that shows {x}", early.input)
    if late.f == "read":
        words = "a read showed fewer values than a read that had been answered before its invoke"
        return _violation("stale read", words, [late, early], f"an answer of {len(_shown(early))} values or more")
    if early.f == "read":
        words = f"a read showed {y} before any append of {y} that may have happened was invoked"
        return _violation("value from nowhere", words, [early, late], f"an answer that ends before {y}", late.input)
    words = f"{x} was acknowledged before the append of {y} was invoked, but {x} stands behind {y} in the log"
    shows = [longest] if longest is not None and None in (_offset(early), _offset(late)) else []
    right = f"an offset behind that of {x}"
    return _violation("order cycle", words, [late, early, *shows], right, early.input, late.input)


def _split(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    appends = [o for o in operations if o.f == "append"]
    return appends, [o for o in operations if o.f == "read" and o.returned]


def _shown(read: Operation | None) -> tuple[Hashable, ...]:
    shown = read.output or () if read is not None else ()
    assert isinstance(shown, tuple)
    return shown


def _offset(append: Operation) -> int | None:
    """Return the offset that the answer of an append names; None if it names none."""
    answer = append.output
    if not isinstance(answer, tuple) or len(answer) != 2 or answer == append.input or answer[1] is None:
        return None
    assert isinstance(answer[1], int), "`odd_answer` has rejected other types"
    return answer[1]


def odd_answer(operation: Operation) -> str:
    """Return the reason why the answer of an append names no valid offset or the answer of a read is no list, or ""."""
    answer = operation.output
    if operation.f == "read":
        is_list = isinstance(answer, tuple | None) and not isinstance(answer, MapValue | SetValue)
        return "" if is_list else f"a read of a log answered {text_of(answer)}, which is no list"
    if not isinstance(answer, tuple) or len(answer) != 2 or answer == operation.input or answer[1] is None:
        return ""
    offset = answer[1]
    if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
        return ""
    words = f"an append to a log was acknowledged at offset {text_of(offset)}"
    return f"{words}, which is no whole number from 0 on"


APPEND_LOG = KnownObject(
    "append-log",
    "Append-only log",
    "Does every acknowledged value stay at its offset, for every reader?",
    judge,
    {"append": ObjectFunction(same_or_placed, given=True), "read": SHOWS},
    "an append-only log",
    odd_answer=odd_answer,
)
