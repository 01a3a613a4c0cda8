"""Locks: a mutex, a semaphore, a lock with a lease, and a lock with fencing tokens.

*Mutex.*  A lock with acquire and release.  It is decided in O(n log n) if every release follows an acquire of the same
process.

An acquire and its release form a block: no other operation may stand between them.  In the same way, no other operation
may stand between a write and a read of its value in a register with unique values.  So each pair becomes a write and a
read of the same new number, and the register kernel decides (`kernels/register_unique_values.py`).

    acquire without an answer    need not have happened: it could only keep other processes from the lock
    release without an answer    happens at some later time, or never if no acquire follows
    acquire without a release    the lock is held for ever: its block ends after all events

If a process releases a lock that it did not acquire, or acquires it twice, a search with the model decides.  The model
does not know owners (like Jepsen's mutex).

*Semaphore.*  A semaphore with a number of permits: acquire one or several, release them.

It is decided in O(n log n) if every process releases only permits that it holds.  Let each acquire take effect at its
return, and each release at its call.  No order has fewer permits held at any moment.  So an order exists if and only if
there are never more permits held than the semaphore has.

    acquire without an answer    need not have happened: it could only hold permits
    release without an answer    took effect at its call: it can only free permits

If a process releases more permits than it holds, a search with the model decides.  The model does not know owners.

*Lease.*  A lock with a lease.  A process holds the lock until it releases the lock, or until the time that the server
stated has passed.

The answer to an acquire states for how many milliseconds the lock is certainly valid.  Without this statement no
violation could be certain: if a lease ends while its holder is paused, another process may acquire the lock.

Theory.  The server granted the lock at some time between the call of the acquire and its answer.  From then on, the
lock is held for the stated time, or until the release takes effect, which is after the call of the release.  The holds
of one lock must not overlap.  For a given order of the holds, it is best to grant each hold as early as possible: then
it also ends as early as possible.  So a state consists of the earliest times at which the last hold began and ends, and
the search tries the orders.

    acquire without an answer    need not have happened: it could only keep other processes from the lock
    acquire by the holder        renews its hold, which then ends at the later of both times
    release without an answer    happens at some later time, or never
    release after the lease      changes nothing, even if another process holds the lock by then

The clock of the harness supplies the times of calls and answers; the clock of the server measures only the length of a
lease.  Two clocks differ a little, so the fraction DRIFT of the stated time and SLACK_NS are subtracted.  If the times
of a history decrease by more than SLACK_NS, they are not from one clock, or a time is missing.  Then the verdict is
unknown.

*Fencing tokens.*  A lock with fencing tokens: acquire the lock (the answer is a token), release it, write to the
guarded store with a token.

If a lock expires, two processes may hold it at once: one holder pauses, and its lease ends meanwhile.  Fencing tokens
make this harmless (Kleppmann, "How to do distributed locking", 2016).  Every acquire gets a greater token than all
before it.  The guarded store refuses a write whose token is smaller than one that it has accepted.

    acquire   ok t              the token.  Without an answer the token is unknown
    write     t, ok             the store accepted a write with token t; `fail`: the store refused the write
    release                     has no effect on the verdict: tokens, not releases, keep the holders apart

So in real time, the tokens of accepted writes rise, and the rank check verifies this (`search.py`).  The tokens of
acquires rise, too, and no token is handed out twice.  The store accepts only tokens that an acquire has handed out.  An
acquire without an answer may have handed out any token, but only one, and tokens must still rise.

Deadlines decide whether tokens were handed out in time.  A token is handed out before the first answer that shows it:
the answer of its acquire, or of a write.  As tokens rise, it is also handed out before the first answer that shows a
greater token.  The earlier of these two answers is the deadline of the token.  A legal order exists if and only if two
conditions hold.  Each answered acquire was invoked before the deadline of its token.  And for every moment, let k be
the number of tokens that no answered acquire shows and whose deadline is at or before this moment: at least k acquires
without an answer were invoked before it.  (Proof: take the deadlines in order; a later deadline can use every acquire
that an earlier one can.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from checkers.base.checker import Budget
from checkers.kernels import operations as kinds
from checkers.kernels import register_unique_values as register
from checkers.kernels.register_unique_values import Key
from checkers.models.known_object import CHANGES, KnownObject, ObjectFinding, ObjectFunction, by_search
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, named, text_of
from checkers.models.search import Ranked, out_of_order
from checkers.models.witnesses import Decided

ACQUIRE, RELEASE, WRITE = "acquire", "release", "write"


def _step_of_mutex(state: State, operation: Operation) -> object:
    if operation.f == ACQUIRE:
        return REFUSED if state == "held" else "held"
    return "free" if state == "held" else REFUSED


MUTEX = Model("mutex", init=lambda: "free", step=_step_of_mutex, show=str)


def _judge_mutex(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge with `_pairs` if every release follows its own acquire, else with the search."""
    matched = _pairs(operations)
    if matched is None:
        return by_search(MUTEX, operations, budget)
    two = _clash(matched)
    return ObjectFinding(() if two is None else (_held_twice(two),), steps=len(operations))


_Pair = tuple[Operation, Operation | None]


def _pairs(operations: Sequence[Operation]) -> list[_Pair] | None:
    """Return every answered acquire with its release; None if a process does not alternate between acquire and release.

    operations: operations in order of call
    """
    holding: dict[int, Operation] = {}
    found: list[_Pair] = []
    for operation in operations:
        if operation.f == ACQUIRE and operation.process not in holding:
            if operation.returned:
                holding[operation.process] = operation
        elif operation.f == RELEASE and operation.process in holding:
            found.append((holding.pop(operation.process), operation))
        else:
            return None
    return found + [(acquire, None) for acquire in holding.values()]


def _clash(matched: Sequence[_Pair]) -> tuple[_Pair, _Pair] | None:
    """Return two pairs that cannot both have held the lock; None if there are none."""
    points = sorted(
        {o.call for pair in matched for o in pair if o is not None}
        | {o.ret for pair in matched for o in pair if o is not None and o.ret is not None}
    )
    place = {index: at for at, index in enumerate(points)}
    count = len(matched)
    end = len(points)
    kind, value = (
        np.tile(np.array([kinds.WRITE, kinds.READ], np.int8), count),
        np.repeat(np.arange(count, dtype=np.int64), 2),
    )
    call, ret = np.empty(2 * count, np.int32), np.empty(2 * count, np.int32)
    open_ended = 0
    for n, (acquire, release) in enumerate(matched):
        assert acquire.ret is not None
        call[2 * n], ret[2 * n] = place[acquire.call], place[acquire.ret]
        if release is not None and release.ret is not None:
            call[2 * n + 1], ret[2 * n + 1] = place[release.call], place[release.ret]
        else:
            call[2 * n + 1] = place[release.call] if release is not None else end
            ret[2 * n + 1] = end + 1 + open_ended
            open_ended += 1
    limit = end + 1 + open_ended
    key = Key(kind, value, np.full(2 * count, kinds.NIL, np.int64), call, np.minimum(ret, kinds.OPEN - 1))
    code, left, right = register.judge_key(key, limit, register.new_scratch(2 * count, limit))
    if code < register.FIRST_INVALID:
        return None
    return matched[left // 2], matched[right // 2]


def _held_twice(two: tuple[_Pair, _Pair]) -> Decided:
    """Return the violation of two pairs.

    The other pairs can be left out, because leaving them out never removes an order of these two.
    """
    one, other = (acquire for acquire, _ in two)
    first, later = sorted((one, other), key=lambda o: o.ret or 0)
    lock = "the lock" if one.key is None else f"lock {one.key}"
    held = f"{_who(first)} held {lock} from {_when(first)} on, and {_who(later)} held it from {_when(later)} on"
    why = "Neither can come before the other: a lock is held from the answer of its acquire until a release is invoked"
    right = f"no answer before {_who(first)} had released the lock"
    return Decided("held twice", held, [o for pair in two for o in pair if o is not None], later, right, MUTEX, why=why)


def _who(operation: Operation) -> str:
    """Return the process and the node to which it sent the operation, in words."""
    return f"process {operation.process}" + (f" (through {operation.node})" if operation.node else "")


def _when(acquire: Operation) -> str:
    """Return the time of the answer in words, or its index if the history has no times."""
    answered_ns = acquire.time_ns[1]
    return f"{answered_ns / 1e9:.2f} s" if answered_ns else f"index {acquire.ret}"


_QUESTION = "Was the lock never held by two processes at once?"
MUTEX_OBJECT = KnownObject(
    "mutex", "Lock", _QUESTION, _judge_mutex, dict.fromkeys((ACQUIRE, RELEASE), ObjectFunction()), "a mutex"
)


PERMITS_MAX = 1_000_000


def _permits_of(operation: Operation) -> int:
    """Return the number of permits of an operation; nil is one.  Raises WrongOperation."""
    count = 1 if operation.input is None else operation.input
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise WrongOperation(f"index {operation.call}: {operation.f} needs a number of permits, not {count!r:.60}")
    return count


def _same_number(invoked: Hashable, answered: Hashable) -> bool:
    """Return False if the answer is a number of permits that differs from the invoked one; nil invokes one permit."""
    return not isinstance(answered, int) or answered == (1 if invoked is None else invoked)


def semaphore(permits: int) -> Model:
    """Return the model of a semaphore.  Its state is the number of held permits."""

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, int)
        after = state + _permits_of(operation) * (1 if operation.f == ACQUIRE else -1)
        return after if 0 <= after <= permits else REFUSED

    return Model(f"semaphore:{permits}", init=int, step=step, show=lambda state: f"{state} of {permits} held")


def semaphore_object(permits: int) -> KnownObject:
    """Return the object for a semaphore with this number of permits."""
    model = semaphore(permits)

    def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
        if not _each_releases_its_own(operations):
            return by_search(model, operations, budget)
        found = _too_many(operations, permits)
        return ObjectFinding(() if found is None else (found,), steps=len(operations))

    question = f"Were never more than {permits} permits held at once?"
    functions = dict.fromkeys((ACQUIRE, RELEASE), ObjectFunction(_same_number))
    return KnownObject(model.name, "Semaphore", question, judge, functions, "a semaphore")


def _each_releases_its_own(operations: Sequence[Operation]) -> bool:
    """Return True if each process releases only permits that it holds.  Raises WrongOperation.

    operations: operations in order of call
    """
    held = Counter[int]()
    fits = True
    for operation in operations:
        count = _permits_of(operation)
        if operation.f == ACQUIRE:
            held[operation.process] += count if operation.returned else 0
        else:
            held[operation.process] -= count
            fits = fits and held[operation.process] >= 0
    return fits


def _too_many(operations: Sequence[Operation], permits: int) -> Decided | None:
    """Return the violation at the first acquire that cannot have obtained its permits; None if there is none."""
    moments: list[tuple[int, int, Operation]] = []
    for operation in operations:
        if operation.f == RELEASE:
            moments.append((operation.call, -_permits_of(operation), operation))
        elif operation.ret is not None:
            moments.append((operation.ret, _permits_of(operation), operation))
    moments.sort(key=lambda moment: moment[0])
    held, count = dict[int, list[Operation]](), 0
    for index, change, operation in moments:
        held.setdefault(operation.process, []).append(operation)
        count += change
        if not _holds(held[operation.process]):
            del held[operation.process]
        if count > permits:
            return _too_many_held(index, operation, count, permits, held)
    return None


def _holds(operations: Sequence[Operation]) -> int:
    return sum(_permits_of(o) * (1 if o.f == ACQUIRE else -1) for o in operations)


def _too_many_held(
    index: int, culprit: Operation, count: int, permits: int, held: dict[int, list[Operation]]
) -> Decided:
    holders = [f"process {process} holds {_holds(own)}" for process, own in sorted(held.items())]
    words = f"at index {index} the answer of process {culprit.process} leaves {count} of {permits} permits held"
    why = f"A process certainly holds its permits until it invokes their release: {', '.join(holders)}"
    right = "no answer before others had released their permits"
    operations = [o for own in held.values() for o in own]
    return Decided("too many held", words, operations, culprit, right, semaphore(permits), why=why)


DRIFT = 0.001
SLACK_NS = 1_000_000
_FREE = (-1, -1, -1)
"""The first state: no process has acquired the lock, and the last hold ended before all events."""


def _step_of_lease(state: State, operation: Operation) -> object:
    """Return the state after an operation, or REFUSED.

    state: (process that acquired last, earliest time of the grant in ns, earliest time at which its hold ends in ns)
    """
    assert isinstance(state, tuple)
    holder, granted_ns, ends_ns = state
    called_ns, answered_ns = operation.time_ns
    if operation.f == RELEASE:
        return (holder, granted_ns, min(ends_ns, max(granted_ns, called_ns))) if holder == operation.process else state
    if not operation.returned or answered_ns is None:
        return state  # an unanswered acquire that took the lock could only cause refusals
    if answered_ns <= 0:
        raise WrongOperation("an acquire has no time in whole nanoseconds, so its lease cannot be judged")
    if holder == operation.process:
        at_ns = max(called_ns, granted_ns)
        return holder, at_ns, max(ends_ns, at_ns + _lasts_ns(operation))
    at_ns = max(called_ns, ends_ns)
    return REFUSED if ends_ns > answered_ns else (operation.process, at_ns, at_ns + _lasts_ns(operation))


def _lasts_ns(acquire: Operation) -> int:
    """Return the time in ns for which the lock is certainly held."""
    stated_ms = acquire.output
    assert isinstance(stated_ms, int), "`_no_duration` has rejected other types"
    return max(0, int(stated_ms * 1_000_000 * (1 - DRIFT)) - SLACK_NS)


def _no_duration(operation: Operation) -> str:
    """Return the reason why the answer of an acquire states no time, or ""."""
    stated_ms = operation.output
    is_number = isinstance(stated_ms, int) and not isinstance(stated_ms, bool) and stated_ms >= 0
    if operation.f != ACQUIRE or is_number:
        return ""
    return f"an acquire answered {text_of(stated_ms)}, which is no number of milliseconds"


def _described(operation: Operation) -> str:
    begins_s = operation.time_ns[0] / 1e9
    if operation.f != ACQUIRE or not operation.returned:
        never = "" if operation.returned else ", never answered"
        return f"{operation.f} at {begins_s:.3f} s{never}"
    return f"acquire at {begins_s:.3f} s -> valid for {operation.output} ms ({operation.node or 'no node named'})"


def _lease_in_words(state: State) -> str:
    assert isinstance(state, tuple)
    holder, granted_ns, ends_ns = state
    if state == _FREE:
        return "free"
    return f"process {holder} holds it from {granted_ns / 1e9:.3f} s to {ends_ns / 1e9:.3f} s at the earliest"


LEASED = Model(
    "leased-lock",
    init=lambda: _FREE,
    step=_step_of_lease,
    process_matters=True,
    times_matter=True,
    describe=_described,
    show=_lease_in_words,
)


def _judge_lease(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge one lock with the search if its times are from one clock."""
    fell = _fallen_time(operations)
    return ObjectFinding(reason=fell, steps=len(operations)) if fell else by_search(LEASED, operations, budget)


def _fallen_time(operations: Sequence[Operation]) -> str:
    """Return a sentence about the first time that is smaller than an earlier one; "" if there is none."""
    times = [(o.call, o.time_ns[0]) for o in operations]
    times += [(o.ret, o.time_ns[1]) for o in operations if o.ret is not None and o.time_ns[1] is not None]
    latest_index, latest_ns = 0, 0
    for index, time_ns in sorted(times):
        if time_ns < latest_ns - SLACK_NS:
            fall = f"the time falls from {latest_ns / 1e9:.3f} s at index {latest_index} to {time_ns / 1e9:.3f} s"
            return f"index {index}: {fall}, so leases cannot be judged"
        if time_ns >= latest_ns:
            latest_index, latest_ns = index, time_ns
    return ""


LEASED_LOCK = KnownObject(
    LEASED.name,
    "Lock with a lease",
    "Was the lock never given to another process while a stated lease was still valid?",
    _judge_lease,
    {ACQUIRE: ObjectFunction(answered=True), RELEASE: ObjectFunction()},
    "a lock with a lease",
    odd_answer=_no_duration,
)


def _judge_fenced(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first violation of one lock.  Raises WrongOperation."""
    for write in (o for o in operations if o.f == WRITE):
        _token_of(write)
    acquires = [o for o in operations if o.f == ACQUIRE and o.returned]
    writes = [o for o in operations if o.f == WRITE and o.returned]
    counts = {"tokens": len(acquires), "guarded_writes": len(writes)}
    violation = _handed_out_twice(acquires) or _backwards(acquires) or _accepted_too_late(writes)
    violation = violation or _after_deadline(operations, acquires, writes)
    reason = "" if acquires or writes else "no acquire was answered and no write was accepted, so no token was shown"
    found = () if violation is None else (violation,)
    return ObjectFinding(found, "" if found else reason, steps=len(operations), counts=counts)


_Handed = tuple[int | None, ...]
"""Tokens in the order in which they were handed out; None stands for a token that no answer has shown yet."""


class _Tokens(NamedTuple):
    """The state of a lock with fencing tokens.

    handed: every sequence in which tokens may have been handed out
    accepted: the greatest token of an accepted write, or None"""

    handed: frozenset[_Handed] = frozenset([()])
    accepted: int | None = None


def _step_of_fenced(state: State, operation: Operation) -> object:
    assert isinstance(state, _Tokens)
    if operation.f == RELEASE or (operation.f == WRITE and not operation.returned):
        return state
    if operation.f == WRITE:
        token = _token_of(operation)
        if state.accepted is not None and token < state.accepted:
            return REFUSED
        handed = frozenset(way for each in state.handed for way in _with_token(each, token))
        return _Tokens(handed, token) if handed else REFUSED
    last = _token_of(operation) if operation.returned else None
    rising = [each for each in state.handed if last is None or all(t is None or t < last for t in each)]
    return _Tokens(frozenset((*each, last) for each in rising), state.accepted) if rising else REFUSED


def _with_token(handed: _Handed, token: int) -> Iterator[_Handed]:
    """Yield `handed` if it contains the token; else yield every way in which an unknown token of `handed` may be it."""
    if token in handed:
        yield handed
        return
    for place, there in enumerate(handed):
        before, after = handed[:place], handed[place + 1 :]
        if there is None and all(t is None or t < token for t in before) and all(t is None or t > token for t in after):
            yield (*before, token, *after)


def _tokens_in_words(state: State) -> str:
    assert isinstance(state, _Tokens)
    ways = sorted(", ".join("?" if t is None else str(t) for t in each) for each in state.handed)
    handed = f"tokens {' or '.join(ways)} handed out" if any(ways) else "no token handed out"
    return f"{handed}, {'no write accepted' if state.accepted is None else f'token {state.accepted} accepted'}"


FENCED = Model("fenced-lock", init=_Tokens, step=_step_of_fenced, show=_tokens_in_words)


def _token_of(operation: Operation) -> int:
    """Return the token of an answered acquire or of a write.  Raises WrongOperation if it is no integer."""
    token: Hashable = operation.output if operation.f == ACQUIRE else operation.input
    if isinstance(token, tuple) and token:  # a write may have the form (token, value)
        token = token[0]
    if not isinstance(token, int) or isinstance(token, bool):
        article = "an" if operation.f == ACQUIRE else "a"
        words = f"the token of {article} {operation.f} is {text_of(token)}, which is no integer"
        raise WrongOperation(f"index {operation.call}: {words}")
    return token


def _no_token(operation: Operation) -> str:
    """Return the reason why the answer of an acquire shows no token, or ""."""
    if operation.f == ACQUIRE:
        try:
            _token_of(operation)
        except WrongOperation as problem:
            return str(problem).partition(": ")[2]
    return ""


def _handed_out_twice(acquires: Sequence[Operation]) -> Decided | None:
    first: dict[int, Operation] = {}
    for acquire in sorted(acquires, key=_ends):
        token = _token_of(acquire)
        if (other := first.setdefault(token, acquire)) is not acquire:
            words = f"token {token} was handed out to process {other.process} and to process {acquire.process}"
            return _of_tokens("token handed out twice", words, [other, acquire], "a greater token")
    return None


def _of_tokens(kind: str, summary: str, shown: Sequence[Operation], right: str, why: str = "") -> Decided:
    """Return the violation of an answer.

    shown: the operations that show it; the wrong answer comes last
    """
    return Decided(kind, summary, shown, shown[-1], right, FENCED, why=why)


def _backwards(acquires: Sequence[Operation]) -> Decided | None:
    pair = out_of_order([Ranked(_token_of(o), o.call, o.ends) for o in acquires])
    if pair is None:
        return None
    early, late = (acquires[at] for at in pair)
    words = f"token {_token_of(late)} was handed out after token {_token_of(early)}, which is greater"
    return _of_tokens("tokens out of order", words, [early, late], f"a token greater than {_token_of(early)}")


def _accepted_too_late(writes: Sequence[Operation]) -> Decided | None:
    pair = out_of_order([Ranked(_token_of(o), o.call, o.ends) for o in writes])
    if pair is None:
        return None
    early, late = (writes[at] for at in pair)
    words = f"a write with token {_token_of(late)} was accepted after a write with token {_token_of(early)}"
    why = "The store must refuse a token that is smaller than a token that it has accepted"
    return _of_tokens("stale token accepted", words, [early, late], "a refusal", why)


def _after_deadline(
    operations: Sequence[Operation], acquires: Sequence[Operation], writes: Sequence[Operation]
) -> Decided | None:
    """Return the violation of the first token that no acquire can have handed out in time.

    acquires, writes: the acquires and the writes of `operations` that returned"""
    shown: dict[int, Operation] = {}
    for operation in sorted([*acquires, *writes], key=_ends):
        shown.setdefault(_token_of(operation), operation)
    due = _deadlines(shown)
    for acquire in acquires:
        if (first := due[_token_of(acquire)]).ret < acquire.call:  # type: ignore[operator]
            return _acquired_too_late(first, acquire)
    opened = [o for o in operations if o.f == ACQUIRE and not o.returned]
    answered = {_token_of(acquire) for acquire in acquires}
    unanswered = sorted(shown.keys() - answered, key=lambda token: (due[token].ends, token))
    for count, token in enumerate(unanswered, 1):
        before = opened[: bisect_left(opened, due[token].ends, key=lambda o: o.call)]
        if count > len(before):
            return _not_in_time(unanswered[:count], shown, due, before)
    return None


def _deadlines(shown: Mapping[int, Operation]) -> dict[int, Operation]:
    """Return {token: the operation whose answer is the token's deadline}.

    shown: token -> the operation that showed it first
    """
    due: dict[int, Operation] = {}
    first: Operation | None = None
    for token in sorted(shown, reverse=True):
        if first is None or shown[token].ends <= first.ends:
            first = shown[token]
        due[token] = first
    return due


def _acquired_too_late(first: Operation, acquire: Operation) -> Decided:
    """Return the violation of an acquire that was invoked too late to hand out its token.

    first: an accepted write with this token or a greater one, which returned before the acquire was called
    """
    token, used = _token_of(acquire), _token_of(first)
    if used == token:
        words = f"a write with token {token} was accepted, and no acquire had handed out this token"
        return _of_tokens("token never handed out", words, [acquire, first], "a refusal")
    words = f"token {token} was handed out after token {used}, which is greater, had been accepted in a write"
    return _of_tokens("tokens out of order", words, [first, acquire], f"a token greater than {used}")


def _not_in_time(
    tokens: Sequence[int], shown: Mapping[int, Operation], due: Mapping[int, Operation], opened: Sequence[Operation]
) -> Decided:
    """Return the violation of tokens that too few acquires can have handed out.

    tokens: tokens that no answered acquire shows; the last of them is one too many
    opened: acquires without an answer that were invoked in time
    """
    token = tokens[-1]
    operations = dict.fromkeys([*opened, *(shown[each] for each in tokens), *(due[each] for each in tokens)])
    words = f"a write with token {token} was accepted, and no acquire can have handed out this token"
    why = (
        f"No acquire was answered with {named(sorted(tokens))}.  An acquire without an answer can have handed out one "
    )
    why += f"token, before the first answer that shows this or a greater one; {len(opened)} were invoked in time"
    return _of_tokens("token never handed out", words, sorted(operations, key=_ends), "a refusal", why)


def _ends(operation: Operation) -> int:
    return operation.ends


FENCED_LOCK = KnownObject(
    "fenced-lock",
    "Lock with fencing tokens",
    "Do tokens rise, and is no write with an older token accepted?",
    _judge_fenced,
    {ACQUIRE: ObjectFunction(answered=True), WRITE: CHANGES, RELEASE: ObjectFunction()},
    "a lock with fencing tokens",
    odd_answer=_no_token,
)
