"""A log that is only appended to: append a value (the answer names its offset), read the log from its beginning.

Offsets say the order outright, so the rank check decides (`ranks.py`): an append stands at its offset, a read of n
values after offset n - 1 and before offset n.

    append v  ok [v offset]   the value stands at that offset (offsets may be left out, never used twice)
    append v  ok v            acknowledged, offset unknown: found by its value if a read shows it, else it comes after
                              all that any read shows
    append v  no answer       happened if a read shows it, else it need not have
    read      ok [v0 v1 ...]  the whole log, from offset 0
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from checkers.models.model import Operation, Rows, WrongOperation, facts_of
from checkers.models.ranks import NEVER, Ranked, out_of_order
from checkers.verdict import Witness


def judge(operations: Sequence[Operation], as_rows: Rows) -> list[Witness]:
    """The violation of one log, if there is one.  Raises WrongOperation."""
    appends, reads = _split(operations)
    longest = max(reads, key=lambda r: len(_shown(r)), default=None)
    shown = _shown(longest) if longest is not None else ()
    for read in reads:
        if _shown(read) != shown[: len(_shown(read))]:
            at = next(i for i, (a, b) in enumerate(zip(_shown(read), shown, strict=False)) if a != b)
            words = f"one read saw {_shown(read)[at]!r} at offset {at}, another {shown[at]!r}"
            right = f"the same value at offset {at} for every reader"
            both = [read, *([longest] if longest else [])]
            return [_witness("two values at one offset", words, both, as_rows, read, right)]
    holder: dict[int, Operation] = {}
    for append in appends:
        offset = _offset(append)
        if offset is None:
            continue
        if offset in holder or (offset < len(shown) and shown[offset] != append.input):
            other = holder.get(offset, longest)
            assert other is not None
            held = other.input if other.f == "append" else shown[offset]
            words = f"{append.input!r} was acknowledged at offset {offset}, where {held!r} stands"
            right = "an offset of its own"
            return [_witness("two values at one offset", words, [append, other], as_rows, append, right)]
        holder[offset] = append
    return _ranked_check(appends, reads, shown, holder, as_rows)


def _ranked_check(
    appends: Sequence[Operation],
    reads: Sequence[Operation],
    shown: tuple[Hashable, ...],
    holder: dict[int, Operation],
    as_rows: Rows,
) -> list[Witness]:
    unplaced: dict[Hashable, list[Operation]] = {}
    for append in appends:
        if _offset(append) is None:
            unplaced.setdefault(append.input, []).append(append)
    for offset, value in enumerate(shown):
        if offset in holder:
            continue
        if not unplaced.get(value):
            words = f"a read saw {value!r} at offset {offset}, and nobody appended it there"
            read = next(r for r in reads if len(_shown(r)) > offset)
            right = f"an answer without {value!r} there"
            return [_witness("value from nowhere", words, [read], as_rows, read, right)]
        holder[offset] = unplaced[value].pop(0)
    ranked = [(Ranked(2 * offset, a.call, NEVER if a.ret is None else a.ret), a) for offset, a in holder.items()]
    end = 2 * len(shown)
    if any(a.returned for waiting in unplaced.values() for a in waiting) and any(at >= len(shown) for at in holder):
        raise WrongOperation("some acknowledged appends name their offset and others, never read, do not")
    for waiting in unplaced.values():
        ranked += [(Ranked(end, a.call, a.ret or 0, must_precede=False), a) for a in waiting if a.returned]
    ranked += [(Ranked(2 * len(_shown(r)) - 1, r.call, r.ret or 0), r) for r in reads]
    found = out_of_order([r for r, _ in ranked])
    if found is None:
        return []
    early, late = (ranked[at][1] for at in found)
    kind, words, culprit, right = _told(early, late)
    return [_witness(kind, words, [early, late], as_rows, culprit, right)]


def _told(early: Operation, late: Operation) -> tuple[str, str, Operation, str]:
    """(kind, words, which of them is wrong, what would have been right).

    early returned before late was called, and yet stands behind it in the log.
    """
    if late.f == "read" and early.f == "append":
        words = f"{early.input!r} was acknowledged before a read was asked that did not show it"
        return "stale read", words, late, f"an answer that shows {early.input!r}"
    if late.f == "read":
        words = "a read showed less than one that had been answered before it was asked"
        return "stale read", words, late, f"an answer of {len(_shown(early))} values or more"
    if early.f == "read":
        words = f"a read showed {late.input!r}, or what stands behind it, before it was appended"
        return "value from nowhere", words, early, f"an answer that ends before {late.input!r}"
    words = f"{early.input!r} was acknowledged before {late.input!r} was asked, and stands behind it in the log"
    return "order cycle", words, late, f"an offset behind that of {early.input!r}"


def _split(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    for operation in operations:
        if operation.f not in ("append", "read"):
            raise WrongOperation(f"{operation.f} is not an operation of an append-only log (append, read)")
        if operation.f == "read" and operation.returned and not isinstance(operation.output, tuple | None):
            raise WrongOperation(f"a read of a log answered {operation.output!r}, which is no list")
    appends = [o for o in operations if o.f == "append"]
    return appends, [o for o in operations if o.f == "read" and o.returned]


def _shown(read: Operation) -> tuple[Hashable, ...]:
    shown = read.output or ()
    assert isinstance(shown, tuple)
    return shown


def _offset(append: Operation) -> int | None:
    answer = append.output
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], int) and answer != append.input:
        return answer[1]
    return None


def _witness(
    kind: str, summary: str, involved: Sequence[Operation], as_rows: Rows, culprit: Operation, expected: str
) -> Witness:
    in_order = sorted(involved, key=lambda o: o.call)
    return Witness(kind, summary, as_rows(in_order), facts=facts_of(in_order, culprit, expected))
