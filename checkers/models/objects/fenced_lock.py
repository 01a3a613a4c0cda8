"""A lock with fencing tokens: acquire it (the answer is a token), release it, write to the guarded store with a token.

If a lock expires, two processes may hold it at once: one holder pauses, and its lease ends meanwhile.  Fencing tokens
make this harmless (Kleppmann, "How to do distributed locking", 2016).  Every acquire gets a greater token than all
before it.  The guarded store refuses a write whose token is smaller than one that it has accepted.

    acquire   ok t              the token.  Without an answer the token is unknown, so nothing follows from it
    write     t, ok             the store accepted a write with token t; `fail`: the store refused it
    release                     has no effect on the verdict: tokens and not releases keep the holders apart

So in real time, both the tokens of acquires and the tokens of accepted writes rise, and the rank check decides
(`ranks.py`).  No token is handed out twice.  The store accepts only tokens that an acquire has handed out.  An acquire
without an answer may have handed out any token, but only one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Sequence

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import Decided, KnownObject, ObjectFinding
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation, real_time
from checkers.models.ranks import Ranked, out_of_order

ACQUIRE, WRITE, RELEASE = "acquire", "write", "release"


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first violation of one lock.  Raises WrongOperation."""
    acquires = [o for o in operations if _known(o).f == ACQUIRE and o.returned]
    writes = [o for o in operations if o.f == WRITE and o.returned]
    counts = {"tokens": len(acquires), "guarded_writes": len(writes)}
    violation = _twice(acquires) or _backwards(acquires) or _accepted_too_late(writes)
    if violation is not None:
        found: Decided | None = Decided(violation, FENCED)
    else:
        found = _never_handed_out(operations, acquires, writes)
    return ObjectFinding(() if found is None else (found,), steps=len(operations), counts=counts)


def step(state: State, operation: Operation) -> object:
    """state: (the token of the last acquire, the greatest token of an accepted write), each None at first."""
    assert isinstance(state, tuple)
    last, accepted = state
    if operation.f == RELEASE or not operation.returned:
        return state
    token = token_of(operation)
    if operation.f == ACQUIRE:
        return (token, accepted) if last is None or token > last else REFUSED
    return (last, token) if accepted is None or token >= accepted else REFUSED


def show(state: State) -> str:
    assert isinstance(state, tuple)
    last, accepted = state
    handed_out = "no token handed out" if last is None else f"token {last} handed out last"
    return f"{handed_out}, {'no write accepted' if accepted is None else f'token {accepted} accepted'}"


FENCED = Model("fenced-lock", init=lambda: (None, None), step=step, show=show)


def token_of(operation: Operation) -> int:
    """The token of an answered acquire, or of a write.  Raises WrongOperation."""
    token: Hashable = operation.output if operation.f == ACQUIRE else operation.input
    if isinstance(token, tuple) and token:  # a write may have the form (token, value)
        token = token[0]
    if not isinstance(token, int) or isinstance(token, bool):
        article = "an" if operation.f == ACQUIRE else "a"
        words = f"the token of {article} {operation.f} is {token!r}, which is no integer"
        raise WrongOperation(f"index {operation.call}: {words}")
    return token


def _known(operation: Operation) -> Operation:
    if operation.f not in (ACQUIRE, WRITE, RELEASE):
        words = f"{operation.f} is not an operation of a lock with fencing tokens (acquire, write, release)"
        raise WrongOperation(words)
    if operation.f == WRITE or (operation.f == ACQUIRE and operation.returned):
        token_of(operation)
    return operation


def _twice(acquires: Sequence[Operation]) -> Violation | None:
    first: dict[int, Operation] = {}
    for acquire in sorted(acquires, key=lambda o: o.ret or 0):
        token = token_of(acquire)
        if (other := first.setdefault(token, acquire)) is not acquire:
            words = f"token {token} was handed out to process {other.process} and to process {acquire.process}"
            why = ["Every acquire gets a token of its own", "All other tokens are left out"]
            return Violation("token handed out twice", words, [other, acquire], acquire, "a greater token", why)
    return None


def _backwards(acquires: Sequence[Operation]) -> Violation | None:
    pair = out_of_order([Ranked(token_of(o), o.call, o.ret or 0) for o in acquires])
    if pair is None:
        return None
    early, late = (acquires[at] for at in pair)
    words = f"token {token_of(late)} was handed out after token {token_of(early)}, which is greater"
    why = [real_time(early, f"Token {token_of(early)} was handed out", late, "the other acquire was invoked")]
    right = f"a token greater than {token_of(early)}"
    return Violation("tokens out of order", words, [early, late], late, right, why)


def _accepted_too_late(writes: Sequence[Operation]) -> Violation | None:
    pair = out_of_order([Ranked(token_of(o), o.call, o.ret or 0) for o in writes])
    if pair is None:
        return None
    early, late = (writes[at] for at in pair)
    words = f"a write with token {token_of(late)} was accepted after one with token {token_of(early)}"
    why = [real_time(early, f"Token {token_of(early)} was accepted", late, "the other write was invoked")]
    why.append("The store has to refuse a token that is smaller than one it has accepted")
    return Violation("stale token accepted", words, [early, late], late, "a refusal", why)


def _never_handed_out(
    operations: Sequence[Operation], acquires: Sequence[Operation], writes: Sequence[Operation]
) -> Decided | None:
    """The first accepted write whose token no acquire can have handed out by then.

    acquires, writes: those of `operations` that returned.  An acquire without an answer explains one token of the
    writes that returned after its call.  As later writes can use every acquire that earlier ones can, counting decides.
    """
    by_token = {token_of(acquire): acquire for acquire in acquires}
    opened = [o for o in operations if o.f == ACQUIRE and not o.returned]
    unexplained: dict[int, Operation] = {}
    for write in sorted(writes, key=lambda o: o.ret or 0):
        assert write.ret is not None
        token = token_of(write)
        acquire = by_token.get(token)
        if token in unexplained or (acquire is not None and acquire.call < write.ret):
            continue
        if acquire is not None:
            why = [real_time(write, "The write was accepted", acquire, f"the acquire of token {token} was invoked")]
            why.append("No other acquire can have handed out the same token")
            return _wrong_write(token, why, [write], [acquire])
        unexplained[token] = write
        before = opened[: bisect_left(opened, write.ret, key=_invoked)]
        if len(unexplained) > len(before):
            return _wrong_write(token, _counted(unexplained, before), list(unexplained.values()), before)
    return None


def _invoked(operation: Operation) -> int:
    return operation.call


def _counted(unexplained: Collection[int], opened: Sequence[Operation]) -> list[str]:
    """Why so few open acquires do not explain so many tokens, the last of which is one too many."""
    *others, token = unexplained
    if not opened:
        return [f"No acquire was answered with token {token}, and none without an answer can have handed it out"]
    several = ", ".join(map(str, [*others, token]))
    return [
        f"No acquire was answered with any of the tokens {several}",
        f"Each acquire without an answer can have handed out one token, and only {len(opened)} of them "
        f"{'was' if len(opened) == 1 else 'were'} invoked before this write was accepted",
    ]


def _wrong_write(token: int, why: Sequence[str], writes: Sequence[Operation], acquires: Sequence[Operation]) -> Decided:
    words = f"a write with token {token} was accepted, and no acquire had handed out this token"
    involved = [*acquires, *writes]
    violation = Violation("token never handed out", words, involved, writes[-1], "a refusal", why)
    return Decided(violation, seen_through(frozenset(map(token_of, writes))))


def seen_through(tokens: frozenset[int]) -> Model:
    """The model of a lock and its store that is reduced to some tokens, and to acquires without an answer.

    The state is (the tokens that were handed out, the number of acquires whose token is not known yet).
    """

    def seen(state: State, operation: Operation) -> object:
        assert isinstance(state, tuple)
        handed_out, unknown = state
        if operation.f == ACQUIRE and not operation.returned:
            return handed_out, unknown + 1
        token = token_of(operation)
        if token in handed_out:
            return REFUSED if operation.f == ACQUIRE else state
        if operation.f == ACQUIRE:
            return handed_out | {token}, unknown
        if not operation.returned:
            return state
        return (handed_out | {token}, unknown - 1) if unknown else REFUSED

    def in_words(state: State) -> str:
        assert isinstance(state, tuple)
        handed_out, unknown = state
        if not handed_out:
            words = f"no token of {', '.join(map(str, sorted(tokens)))} handed out"
        else:
            words = f"token {', '.join(map(str, sorted(handed_out)))} handed out"
        return words + (f", and {unknown} that nobody knows" if unknown else "")

    return Model("fenced-lock", init=lambda: (frozenset(), 0), step=seen, show=in_words)


FENCED_LOCK = KnownObject(
    "fenced-lock",
    "Lock with fencing tokens",
    "Do tokens rise, and is no write with an older token accepted?",
    judge,
    fixed={WRITE: the_same},
)
