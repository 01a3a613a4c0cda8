"""A set that only grows: add an element, read the whole set.  Linearizable or not, exactly, in one sweep.

The sets that reads saw must form a chain S1 < S2 < ... (each inside the next), for the set only grows.  That fixes
every place up to ties: the adds of S1, the reads of S1, the adds of S2 that S1 lacks, the reads of S2, and so on; what
was acknowledged and is in no read comes last; what was never acknowledged and never seen need not have happened.  So
the rank check decides (`ranks.py`).

An element may be added twice: the add called first is taken to be the one that mattered, and none may stand earlier.

The kinds of violation are those of Jepsen's set-full: an element from nowhere, a duplicate (twice in one read), a lost
one (acknowledged, and missing from every read that began later), a stale read (missing from some such read).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from checkers.models.model import Operation, Rows, WrongOperation, facts_of
from checkers.models.ranks import NEVER, Ranked, out_of_order
from checkers.verdict import Witness


def judge(operations: Sequence[Operation], as_rows: Rows) -> tuple[list[Witness], dict[str, int]]:
    """(the violation of one set, if there is one; counts for readers).  Raises WrongOperation."""
    adds, reads = _split(operations)
    for read in reads:
        assert isinstance(read.output, tuple)
        if len(set(read.output)) < len(read.output):
            twice = next(x for x in read.output if read.output.count(x) > 1)
            return [
                _witness("duplicate", f"one read saw {twice!r} twice", [read], as_rows, read, "each element once")
            ], {}
    chain, clash = _chain(reads)
    if clash:
        one, other = clash
        only, only_other = _any(_seen(one) - _seen(other)), _any(_seen(other) - _seen(one))
        words = f"one read saw {only!r} without {only_other!r}, another {only_other!r} without {only!r}"
        words = f"{words}: no order of the two adds explains both"
        right = f"an answer with {only!r} in it, for {only_other!r} was not there without it"
        return [_witness("order cycle", words, clash, as_rows, other, right)], {}
    place_of: dict[Hashable, int] = {}
    for place, seen in enumerate(chain):
        for element in seen - (chain[place - 1] if place else frozenset()):
            place_of[element] = place
    nowhere = _any(set(place_of) - {add.input for add in adds})
    if nowhere is not None:
        read = next(r for r in reads if nowhere in _seen(r))
        words = f"a read saw {nowhere!r}, which nobody ever asked to add"
        return [_witness("value from nowhere", words, [read], as_rows, read, f"an answer without {nowhere!r}")], {}
    counts = {
        "never_read": sum(1 for add in adds if add.returned and add.input not in place_of),
        "reads": len(reads),
    }
    ranked = _ranked(adds, reads, chain, place_of)
    found = out_of_order([r for r, _ in ranked])
    if found is None:
        return [], counts
    early, late = (ranked[at][1] for at in found)
    return [_told(early, late, reads, as_rows)], counts


def _split(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    for operation in operations:
        if operation.f not in ("add", "read"):
            raise WrongOperation(f"{operation.f} is not an operation of a set that only grows (add, read)")
        if operation.f == "read" and operation.returned and not isinstance(operation.output, tuple | None):
            raise WrongOperation(f"a read of a set answered {operation.output!r}, which is no list")
    adds = [o for o in operations if o.f == "add"]
    reads = [o for o in operations if o.f == "read" and o.returned]
    return adds, [_with_tuple(read) for read in reads]


def _with_tuple(read: Operation) -> Operation:
    return read if read.output is not None else replace(read, output=())


def _seen(read: Operation) -> frozenset[Hashable]:
    assert isinstance(read.output, tuple)
    return frozenset(read.output)


def _chain(reads: Sequence[Operation]) -> tuple[list[frozenset[Hashable]], list[Operation]]:
    """The distinct sets that were read, each inside the next; or two reads neither of which is inside the other."""
    chain: list[frozenset[Hashable]] = []
    last: Operation | None = None
    for read in sorted(reads, key=lambda r: len(_seen(r))):
        seen = _seen(read)
        if last is not None and not chain[-1] <= seen:
            return chain, sorted([last, read], key=lambda o: o.call)
        if not chain or chain[-1] != seen:
            chain.append(seen)
        last = read
    return chain, []


def _ranked(
    adds: Sequence[Operation],
    reads: Sequence[Operation],
    chain: Sequence[frozenset[Hashable]],
    place_of: dict[Hashable, int],
) -> list[tuple[Ranked, Operation]]:
    """Every operation that must have happened, with its rank.  adds are in order of call."""
    rank_of_read = {seen: 2 * place + 1 for place, seen in enumerate(chain)}
    ranked = []
    taken_part: set[Hashable] = set()
    for add in adds:
        place = place_of.get(add.input, len(chain))
        if not add.returned and (place == len(chain) or add.input in taken_part):
            continue
        ret = NEVER if add.ret is None else add.ret
        ranked.append((Ranked(2 * place, add.call, ret, add.input not in taken_part), add))
        taken_part.add(add.input)
    ranked += [(Ranked(rank_of_read[_seen(r)], r.call, r.ret or 0), r) for r in reads]
    return ranked


def _told(early: Operation, late: Operation, reads: Sequence[Operation], as_rows: Rows) -> Witness:
    """early returned before late was called, and yet must come after it."""
    if early.f == "add" and late.f == "read":
        later = [r for r in reads if r.call > (early.ret or 0)]
        missing = all(early.input not in _seen(r) for r in later)
        words = f"the add of {early.input!r} was acknowledged before a read was asked that did not see it"
        kind, right = "lost" if missing else "stale read", f"an answer with {early.input!r} in it"
        return _witness(kind, words, [early, late], as_rows, late, right)
    if early.f == "read" and late.f == "read":
        gone = _any(_seen(early) - _seen(late))
        words = f"a read saw {gone!r}, and a read asked after its answer did not"
        return _witness("stale read", words, [early, late], as_rows, late, f"an answer with {gone!r} in it")
    if early.f == "read":
        words = f"a read saw {late.input!r}, or what must have come after it, before it was asked to be added"
        right = f"an answer without {late.input!r}"
        return _witness("value from nowhere", words, [early, late], as_rows, early, right)
    words = f"{late.input!r} was seen without {early.input!r}, whose add had returned before {late.input!r} was asked"
    between = [r for r in reads if late.input in _seen(r) and early.input not in _seen(r)]
    right = f"an answer with both of them, or without {late.input!r}"
    return _witness("order cycle", words, [early, late, *between[:1]], as_rows, (between or [late])[0], right)


def _witness(
    kind: str, summary: str, involved: Iterable[Operation], as_rows: Rows, culprit: Operation, expected: str
) -> Witness:
    in_order = sorted(involved, key=lambda o: o.call)
    return Witness(kind, summary, as_rows(in_order), facts=facts_of(in_order, culprit, expected))


def _any(elements: Iterable[Hashable]) -> Hashable | None:
    return min(elements, key=repr, default=None)
