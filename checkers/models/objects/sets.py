"""A set that only grows: add an element, read the whole set.  One sweep decides exactly whether it is linearizable.

The set only grows, so the sets that reads saw must form a chain S1 < S2 < ... (each a subset of the next).  This fixes
the order, except for ties: the adds of S1, the reads of S1, the adds of S2 that S1 lacks, the reads of S2, and so on.
Adds that were acknowledged but that no read saw come last.  Adds that were neither acknowledged nor seen need not have
happened.  So the rank check decides (`search.py`).

If an element is added twice, the add that was called first counts.  The other adds may have any later place.

The kinds of violation are those of Jepsen's set-full.  A value from nowhere was never added.  A duplicate occurs twice
in one read.  A lost element was acknowledged, and is missing from every read that began later.  If it is missing only
from some of these reads, the violation is a stale read.

*Unique ids.*  A generator of ids: no two answers have the same id.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from checkers.base.checker import Budget
from checkers.base.values import MapValue
from checkers.models.known_object import CHANGES, SHOWS, KnownObject, ObjectFinding, ObjectFunction
from checkers.models.model import NEVER, REFUSED, Model, Operation, State, WrongOperation, text_of
from checkers.models.search import Ranked, out_of_order
from checkers.models.witnesses import Decided

LOST = "acknowledged element lost"
"""Kind of a violation: an element was acknowledged, and every read that began later lacks it."""


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find a violation of one set.

    The counts of the result are the numbers of acknowledged elements, of acknowledged elements that no read showed, and
    of elements that were acknowledged before the last read was invoked but that this read lacks.
    """
    adds = [o for o in operations if o.f == "add"]
    reads = [o for o in operations if o.f == "read" and o.returned]
    chain, clash = _chain(reads)
    place_of: dict[Hashable, int] = {}
    for place, seen in enumerate(chain):
        for element in seen - (chain[place - 1] if place else frozenset()):
            place_of[element] = place
    ranked = _ranked(adds, reads, chain, place_of) if not clash else []
    found = _twice(reads) or _from_nowhere(adds, reads, clash) or (_neither_inside(*clash) if clash else None)
    if found is None and (pair := out_of_order([r for r, _ in ranked])) is not None:
        early, late = (ranked[at][1] for at in pair)
        found = _out_of_order(early, late, adds, reads)
    acknowledged = {add.input for add in adds if add.returned}
    counts = {"acknowledged": len(acknowledged), "never_read": len(acknowledged - set().union(*map(_seen, reads)))}
    counts["missing_from_last_read"] = len(_missing(adds, reads)[1])
    violations = () if found is None else (_with_adds(found, adds),)
    return ObjectFinding(violations, steps=len(operations), counts=counts)


def seen_through(elements: Sequence[Hashable]) -> Model:
    """Return the model of a set that is reduced to these elements."""
    at_stake = frozenset(elements)

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, frozenset)
        if operation.f == "add":
            return state | ({operation.input} & at_stake)
        seen = [x for x in _answer(operation) if x in at_stake]
        return state if len(seen) == len(state) and state == frozenset(seen) else REFUSED

    return Model("set", init=frozenset, step=step, observers=frozenset({"read"}))


def _with_adds(violation: Decided, adds: Sequence[Operation]) -> Decided:
    """Add to a violation the adds of its elements that were invoked before its last answer.

    An add is left out if its element had certainly been added before, because it changes nothing in any order.
    """
    elements, end = violation.about, max(o.ret for o in violation.operations if o.ret is not None)
    first_ret = {x: min((a.ret for a in adds if a.input == x and a.ret is not None), default=NEVER) for x in elements}
    concerned = [a for a in adds if a.input in first_ret and a.call < min(end, first_ret[a.input])]
    others = [o for o in violation.operations if o not in concerned]
    return replace(violation, operations=[*concerned, *others])


def no_list(operation: Operation) -> str:
    """Return the reason why the answer of a read shows no elements, or ""."""
    if operation.f != "read" or (
        isinstance(operation.output, tuple | None) and not isinstance(operation.output, MapValue)
    ):
        return ""
    return f"a read answered {text_of(operation.output)}, which is no list"


def _answer(read: Operation) -> tuple[Hashable, ...]:
    assert isinstance(read.output, tuple | None)
    return read.output or ()


def _seen(read: Operation) -> frozenset[Hashable]:
    return frozenset(_answer(read))


def _chain(reads: Sequence[Operation]) -> tuple[list[frozenset[Hashable]], list[Operation]]:
    """Return (the distinct sets that were read, each a subset of the next; two reads of which neither is a subset).

    The second list is empty if all sets form a chain.
    """
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


def _missing(adds: Sequence[Operation], reads: Sequence[Operation]) -> tuple[set[Hashable], set[Hashable]]:
    """Return (elements acknowledged before the last read was invoked, elements of these that the last read lacks)."""
    last = max(reads, key=lambda read: read.call, default=None)
    if last is None:
        return set(), set()
    certain = {add.input for add in adds if add.ret is not None and add.ret < last.call}
    return certain, certain - _seen(last)


def _ranked(
    adds: Sequence[Operation],
    reads: Sequence[Operation],
    chain: Sequence[frozenset[Hashable]],
    place_of: dict[Hashable, int],
) -> list[tuple[Ranked, Operation]]:
    """Return every operation that must have happened, with its rank.

    adds: adds in order of call
    """
    rank_of_read = {seen: 2 * place + 1 for place, seen in enumerate(chain)}
    ranked = []
    taken_part: set[Hashable] = set()
    for add in adds:
        place = place_of.get(add.input, len(chain))
        if not add.returned and (place == len(chain) or add.input in taken_part):
            continue
        ret = add.ends
        ranked.append((Ranked(2 * place, add.call, ret, add.input not in taken_part), add))
        taken_part.add(add.input)
    ranked += [(Ranked(rank_of_read[_seen(r)], r.call, r.ret or 0), r) for r in reads]
    return ranked


def _violation(kind: str, summary: str, shown: Sequence[Operation], right: str, *about: Hashable) -> Decided:
    """Return the violation of an answer.

    shown: the operations that show it; the wrong answer comes last
    """
    return Decided(kind, summary, shown, shown[-1], right, seen_through(about), about, _STAYS)


_STAYS = "A set that only grows contains an element at most once, and elements never leave the set"


def _twice(reads: Sequence[Operation]) -> Decided | None:
    for read in reads:
        if len(_seen(read)) < len(_answer(read)):
            element = next(x for x in _answer(read) if _answer(read).count(x) > 1)
            words = f"one read saw {text_of(element)} twice"
            return _violation("duplicate", words, [read], "each element once", element)
    return None


def _neither_inside(one: Operation, other: Operation) -> Decided:
    a, b = _any(_seen(one) - _seen(other)), _any(_seen(other) - _seen(one))
    first, second = text_of(a), text_of(b)
    words = f"one read saw {first} without {second}, another {second} without {first}: no order of the adds fits both"
    return _violation("order cycle", words, [one, other], f"an answer with {first}, or without {second}", a, b)


def _from_nowhere(adds: Sequence[Operation], reads: Sequence[Operation], clash: Sequence[Operation]) -> Decided | None:
    """Return the violation of an element that no add can have put into the set before it was read.

    clash: two reads that fit into no chain.  In these reads, elements that were added too late count, too
    """
    added: dict[Hashable, Operation] = {}
    for add in adds:
        added.setdefault(add.input, add)
    unknown = frozenset[Hashable]().union(*map(_seen, reads)) - added.keys()
    if not unknown:
        for read in clash:
            if (early := _any(x for x in _seen(read) if added[x].call > (read.ret or 0))) is not None:
                return _read_too_early(read, early, added[early])
        return None
    element = _any(unknown)  # the element may be nil
    read = next(r for r in reads if element in _seen(r))
    words = f"a read saw {text_of(element)}, and no add of it can have happened: a failed add did not happen"
    return _violation("value from nowhere", words, [read], f"an answer without {text_of(element)}", element)


def _out_of_order(early: Operation, late: Operation, adds: Sequence[Operation], reads: Sequence[Operation]) -> Decided:
    """Return the violation of two operations: `early` returned before `late` was called, but must come after it."""
    x, y = early.input, late.input
    if early.f == "add" and late.f == "read":
        later = [r for r in reads if r.call > (early.ret or 0)]
        kind, words = "stale read", f"the add of {text_of(x)} was acknowledged before a read was invoked that lacks it"
        if all(x not in _seen(r) for r in later):
            certain, missing = _missing(adds, reads)
            kind, words = LOST, f"{len(missing)} of {len(certain)} acknowledged elements are missing from the last read"
            words += f", such as {text_of(x)}"
        return _violation(kind, words, [early, late], f"an answer with {text_of(x)} in it", x)
    if early.f == "read" and late.f == "read":
        gone = _any(_seen(early) - _seen(late))
        words = f"a read saw {text_of(gone)}, and a read invoked after its answer did not"
        return _violation("stale read", words, [early, late], f"an answer with {text_of(gone)} in it", gone)
    if early.f == "read":
        return _read_too_early(early, y, late)
    seen = f"{text_of(y)} was seen without {text_of(x)}"
    words = f"{seen}, whose add had returned before the add of {text_of(y)} was invoked"
    between = next(r for r in reads if y in _seen(r) and x not in _seen(r))
    right = f"an answer with both of them, or without {text_of(y)}"
    return _violation("order cycle", words, [early, between], right, x, y)


def _read_too_early(read: Operation, element: Hashable, add: Operation) -> Decided:
    """Return the violation of a read that saw an element too early.

    add: the first add of the element, which was invoked after the read was answered
    """
    words = f"a read saw {text_of(element)} before any add of it can have happened"
    return _violation("value from nowhere", words, [add, read], f"an answer without {text_of(element)}", element)


def _any(elements: Iterable[Hashable]) -> Hashable | None:
    return min(elements, key=repr, default=None)


SET = KnownObject(
    "set",
    "Set",
    "Does every read show what had been added before, and nothing that was never added?",
    judge,
    {"add": CHANGES, "read": SHOWS},
    "a set that only grows",
    odd_answer=no_list,
)


def _judge_ids(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first id that was handed out twice.  Raises WrongOperation if an earlier operation is no `generate`."""
    first: dict[Hashable, Operation] = {}
    for operation in operations:
        if operation.f != "generate":
            raise WrongOperation(f"{operation.f} is not an operation of a generator of ids (generate)")
        if operation.returned and first.setdefault(operation.output, operation) is not operation:
            found = operation.output
            words, right = f"the id {text_of(found)} was handed out twice", "an id that no answer had named before"
            both = [first[found], operation]
            twice = Decided("duplicate", words, both, operation, right, _one_id(found), [found])
            return ObjectFinding((twice,), steps=len(operations))
    return ObjectFinding(steps=len(operations))


def _one_id(value: Hashable) -> Model:
    """Return the model of a generator that is reduced to one id.  The state is True if the id was handed out."""

    def step(state: State, operation: Operation) -> object:
        return REFUSED if state else True

    return Model(
        "unique-ids", init=bool, step=step, show=lambda state: text_of(value) if state else f"no {text_of(value)}"
    )


UNIQUE_IDS = KnownObject(
    "unique-ids",
    "Unique ids",
    "Was no id handed out twice?",
    _judge_ids,
    {"generate": ObjectFunction(answered=True)},
    odd_answer=lambda o: "a generator of ids answered nil, which is no id" if o.output is None else "",
)
