"""A lock with fencing tokens: acquire it (the answer is a token), release it, write to the guarded store with a token.

If a lock expires, two processes may hold it at once: one holder pauses, and its lease ends meanwhile.  Fencing tokens
make this harmless (Kleppmann, "How to do distributed locking", 2016).  Every acquire gets a greater token than all
before it.  The guarded store refuses a write whose token is smaller than one that it has accepted.

    acquire   ok t              the token.  Without an answer the token is unknown, so nothing follows from it
    write     t, ok             the store accepted a write with token t; `fail`: the store refused it
    release                     has no effect on the verdict: tokens and not releases keep the holders apart

So in real time, the tokens of accepted writes rise, and the rank check decides about them (`search.py`).  The tokens of
acquires rise, too, and no token is handed out twice.  The store accepts only tokens that an acquire has handed out.  An
acquire without an answer may have handed out any token, but only one, and in turn.

About tokens deadlines decide.  A token is handed out before the first answer that shows it: that of its acquire, or of
a write.  As tokens rise, it is also handed out before the first answer that shows a greater one.  The earlier of both
is its deadline.  There is a legal order exactly if each answered acquire was invoked before the deadline of its token,
and if, for every moment, at least as many acquires without an answer were invoked before it as tokens of no answered
acquire have their deadline until then.  (Take the deadlines in order; each later one can use every acquire that an
earlier one can.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checkers.base.checker import Budget
from checkers.models.known_object import CHANGES, KnownObject, ObjectFinding, ObjectFunction
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, named, text_of
from checkers.models.search import Ranked, out_of_order
from checkers.models.witnesses import Decided

ACQUIRE, WRITE, RELEASE = "acquire", "write", "release"


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first violation of one lock.  Raises WrongOperation."""
    for write in (o for o in operations if o.f == WRITE):
        token_of(write)
    acquires = [o for o in operations if o.f == ACQUIRE and o.returned]
    writes = [o for o in operations if o.f == WRITE and o.returned]
    counts = {"tokens": len(acquires), "guarded_writes": len(writes)}
    violation = _twice(acquires) or _backwards(acquires) or _accepted_too_late(writes)
    violation = violation or _after_deadline(operations, acquires, writes)
    reason = "" if acquires or writes else "no acquire was answered and no write was accepted, so no token was shown"
    found = () if violation is None else (violation,)
    return ObjectFinding(found, "" if found else reason, steps=len(operations), counts=counts)


_Handed = tuple[int | None, ...]
"""Tokens in the order in which they were handed out.  None: one that no answer has shown yet."""


class _Lock(NamedTuple):
    """handed: every way in which tokens may have been handed out.  accepted: the greatest token of an accepted write,
    None at first."""

    handed: frozenset[_Handed] = frozenset([()])
    accepted: int | None = None


def step(state: State, operation: Operation) -> object:
    assert isinstance(state, _Lock)
    if operation.f == RELEASE or (operation.f == WRITE and not operation.returned):
        return state
    if operation.f == WRITE:
        token = token_of(operation)
        if state.accepted is not None and token < state.accepted:
            return REFUSED
        handed = frozenset(way for each in state.handed for way in _with_token(each, token))
        return _Lock(handed, token) if handed else REFUSED
    last = token_of(operation) if operation.returned else None
    rising = [each for each in state.handed if last is None or all(t is None or t < last for t in each)]
    return _Lock(frozenset((*each, last) for each in rising), state.accepted) if rising else REFUSED


def _with_token(handed: _Handed, token: int) -> Iterator[_Handed]:
    """Return the same, if it holds this token, else all ways in which a token that no answer has shown yet may be this
    one."""
    if token in handed:
        yield handed
        return
    for place, there in enumerate(handed):
        before, after = handed[:place], handed[place + 1 :]
        if there is None and all(t is None or t < token for t in before) and all(t is None or t > token for t in after):
            yield (*before, token, *after)


def show(state: State) -> str:
    assert isinstance(state, _Lock)
    ways = sorted(", ".join("?" if t is None else str(t) for t in each) for each in state.handed)
    handed = f"tokens {' or '.join(ways)} handed out" if any(ways) else "no token handed out"
    return f"{handed}, {'no write accepted' if state.accepted is None else f'token {state.accepted} accepted'}"


FENCED = Model("fenced-lock", init=_Lock, step=step, show=show)


def token_of(operation: Operation) -> int:
    """Return the token of an answered acquire, or of a write.  Raises WrongOperation."""
    token: Hashable = operation.output if operation.f == ACQUIRE else operation.input
    if isinstance(token, tuple) and token:  # a write may have the form (token, value)
        token = token[0]
    if not isinstance(token, int) or isinstance(token, bool):
        article = "an" if operation.f == ACQUIRE else "a"
        words = f"the token of {article} {operation.f} is {text_of(token)}, which is no integer"
        raise WrongOperation(f"index {operation.call}: {words}")
    return token


def no_token(operation: Operation) -> str:
    """Return why the answer of an acquire shows no token, or ""."""
    if operation.f == ACQUIRE:
        try:
            token_of(operation)
        except WrongOperation as problem:
            return str(problem).partition(": ")[2]
    return ""


def _twice(acquires: Sequence[Operation]) -> Decided | None:
    first: dict[int, Operation] = {}
    for acquire in sorted(acquires, key=_ends):
        token = token_of(acquire)
        if (other := first.setdefault(token, acquire)) is not acquire:
            words = f"token {token} was handed out to process {other.process} and to process {acquire.process}"
            return _violation("token handed out twice", words, [other, acquire], "a greater token")
    return None


def _violation(kind: str, summary: str, shown: Sequence[Operation], right: str, why: str = "") -> Decided:
    """Return the violation of an answer.  shown: what shows it, the wrong answer last."""
    return Decided(kind, summary, shown, shown[-1], right, FENCED, why=why)


def _backwards(acquires: Sequence[Operation]) -> Decided | None:
    pair = out_of_order([Ranked(token_of(o), o.call, o.ends) for o in acquires])
    if pair is None:
        return None
    early, late = (acquires[at] for at in pair)
    words = f"token {token_of(late)} was handed out after token {token_of(early)}, which is greater"
    return _violation("tokens out of order", words, [early, late], f"a token greater than {token_of(early)}")


def _accepted_too_late(writes: Sequence[Operation]) -> Decided | None:
    pair = out_of_order([Ranked(token_of(o), o.call, o.ends) for o in writes])
    if pair is None:
        return None
    early, late = (writes[at] for at in pair)
    words = f"a write with token {token_of(late)} was accepted after one with token {token_of(early)}"
    why = "The store has to refuse a token that is smaller than one it has accepted"
    return _violation("stale token accepted", words, [early, late], "a refusal", why)


def _after_deadline(
    operations: Sequence[Operation], acquires: Sequence[Operation], writes: Sequence[Operation]
) -> Decided | None:
    """Return the first token that no acquire can have handed out in time.

    acquires, writes: those of `operations` that returned."""
    shown: dict[int, Operation] = {}
    for operation in sorted([*acquires, *writes], key=_ends):
        shown.setdefault(token_of(operation), operation)
    due = _deadlines(shown)
    for acquire in acquires:
        if (first := due[token_of(acquire)]).ret < acquire.call:  # type: ignore[operator]
            return _acquired_too_late(first, acquire)
    opened = [o for o in operations if o.f == ACQUIRE and not o.returned]
    answered = {token_of(acquire) for acquire in acquires}
    unanswered = sorted(shown.keys() - answered, key=lambda token: (due[token].ends, token))
    for count, token in enumerate(unanswered, 1):
        before = opened[: bisect_left(opened, due[token].ends, key=lambda o: o.call)]
        if count > len(before):
            return _not_in_time(unanswered[:count], shown, due, before)
    return None


def _deadlines(shown: Mapping[int, Operation]) -> dict[int, Operation]:
    """token -> the operation whose answer is its deadline.  shown: token -> the operation that showed it first."""
    due: dict[int, Operation] = {}
    first: Operation | None = None
    for token in sorted(shown, reverse=True):
        if first is None or shown[token].ends <= first.ends:
            first = shown[token]
        due[token] = first
    return due


def _acquired_too_late(first: Operation, acquire: Operation) -> Decided:
    """first: an accepted write with the token of the acquire or a greater one, which returned before its call."""
    token, used = token_of(acquire), token_of(first)
    if used == token:
        words = f"a write with token {token} was accepted, and no acquire had handed out this token"
        return _violation("token never handed out", words, [acquire, first], "a refusal")
    words = f"token {token} was handed out after token {used}, which is greater, had been accepted in a write"
    return _violation("tokens out of order", words, [first, acquire], f"a token greater than {used}")


def _not_in_time(
    tokens: Sequence[int], shown: Mapping[int, Operation], due: Mapping[int, Operation], opened: Sequence[Operation]
) -> Decided:
    """tokens: those of no answered acquire, the last of which is one too many.  opened: the acquires for them."""
    token = tokens[-1]
    operations = dict.fromkeys([*opened, *(shown[each] for each in tokens), *(due[each] for each in tokens)])
    words = f"a write with token {token} was accepted, and no acquire can have handed out this token"
    why = (
        f"No acquire was answered with {named(sorted(tokens))}.  An acquire without an answer can have handed out one "
    )
    why += f"token, before the first answer that shows this or a greater one; {len(opened)} were invoked in time"
    return _violation("token never handed out", words, sorted(operations, key=_ends), "a refusal", why)


def _ends(operation: Operation) -> int:
    return operation.ends


FENCED_LOCK = KnownObject(
    "fenced-lock",
    "Lock with fencing tokens",
    "Do tokens rise, and is no write with an older token accepted?",
    judge,
    {ACQUIRE: ObjectFunction(answered=True), WRITE: CHANGES, RELEASE: ObjectFunction()},
    "a lock with fencing tokens",
    odd_answer=no_token,
)
