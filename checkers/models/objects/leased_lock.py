"""A lock with a lease: it is held until it is released, or until the time that the server itself stated has passed.

The answer to an acquire says for how many milliseconds the lock is certainly valid.  Without such a word nothing could
be said: a lease that ends while its holder is paused lets another process acquire the lock, and rightly so.

Theory.  The server granted the lock at some time between the call of the acquire and its answer.  The lock stays held
from then on for the stated time, or until the release takes effect, which is after its call.  The holds of one lock
must not overlap.  For a given order of the holds, it is best to grant each as early as possible: then it also ends as
early as possible.  So a state is the earliest time at which the last hold began and at which it ends, and the search
tries the orders.

    acquire without an answer    need not have happened: it could only keep other processes from the lock
    acquire by the holder        renews its hold, which then ends at the later of both times
    release without an answer    happens at some later time, or never
    release after the lease      changes nothing, also where another process holds the lock by then

Times are those of the harness, whose clock both ends of an operation share; a server's clock only gives a length.  Two
clocks differ a little, so DRIFT of the stated time and SLACK_NS do not count.  If the times of a history fall by more
than SLACK_NS, they are not of one clock, or one of them is missing.  Then the verdict is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkers.base.checker import Budget
from checkers.models.known_object import KnownObject, ObjectFinding, ObjectFunction, by_search
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, text_of

DRIFT = 0.001
SLACK_NS = 1_000_000
_FREE = (-1, -1, -1)
"""No process, and a hold that ended before everything."""


def step(state: State, operation: Operation) -> object:
    """state: (process that acquired last, when at the earliest it was granted, when at the earliest its hold ends)."""
    assert isinstance(state, tuple)
    holder, granted_ns, ends_ns = state
    called_ns, answered_ns = operation.time_ns
    if operation.f == "release":
        return (holder, granted_ns, min(ends_ns, max(granted_ns, called_ns))) if holder == operation.process else state
    if not operation.returned or answered_ns is None:
        return state  # if it did take the lock, it could only cause refusals
    if answered_ns <= 0:
        raise WrongOperation("an acquire has no time in whole nanoseconds, so nothing can be said of its lease")
    if holder == operation.process:
        at_ns = max(called_ns, granted_ns)
        return holder, at_ns, max(ends_ns, at_ns + lasts_ns(operation))
    at_ns = max(called_ns, ends_ns)
    return REFUSED if ends_ns > answered_ns else (operation.process, at_ns, at_ns + lasts_ns(operation))


def lasts_ns(acquire: Operation) -> int:
    """Return for how long the lock is certainly held."""
    stated_ms = acquire.output
    assert isinstance(stated_ms, int), "`no_duration` has looked at it"
    return max(0, int(stated_ms * 1_000_000 * (1 - DRIFT)) - SLACK_NS)


def no_duration(operation: Operation) -> str:
    """Return why the answer of an acquire states no time, or ""."""
    stated_ms = operation.output
    is_number = isinstance(stated_ms, int) and not isinstance(stated_ms, bool) and stated_ms >= 0
    if operation.f != "acquire" or is_number:
        return ""
    return f"an acquire answered {text_of(stated_ms)}, and no number of milliseconds"


def describe(operation: Operation) -> str:
    begins_s = operation.time_ns[0] / 1e9
    if operation.f != "acquire" or not operation.returned:
        never = "" if operation.returned else ", never answered"
        return f"{operation.f} at {begins_s:.3f} s{never}"
    return f"acquire at {begins_s:.3f} s -> valid for {operation.output} ms ({operation.node or 'no node named'})"


def show(state: State) -> str:
    assert isinstance(state, tuple)
    holder, granted_ns, ends_ns = state
    if state == _FREE:
        return "free"
    return f"process {holder} holds it from {granted_ns / 1e9:.3f} s to {ends_ns / 1e9:.3f} s at the earliest"


MODEL = Model(
    "leased-lock",
    init=lambda: _FREE,
    step=step,
    process_matters=True,
    times_matter=True,
    describe=describe,
    show=show,
)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge one lock by the search, if its times are those of one clock."""
    fell = _fallen_time(operations)
    return ObjectFinding(reason=fell, steps=len(operations)) if fell else by_search(MODEL, operations, budget)


def _fallen_time(operations: Sequence[Operation]) -> str:
    """Return the first time that lies before an earlier one, as one sentence; "" if there is none."""
    times = [(o.call, o.time_ns[0]) for o in operations]
    times += [(o.ret, o.time_ns[1]) for o in operations if o.ret is not None and o.time_ns[1] is not None]
    latest_index, latest_ns = 0, 0
    for index, time_ns in sorted(times):
        if time_ns < latest_ns - SLACK_NS:
            fall = f"the time falls from {latest_ns / 1e9:.3f} s at index {latest_index} to {time_ns / 1e9:.3f} s"
            return f"index {index}: {fall}, so nothing can be said of leases"
        if time_ns >= latest_ns:
            latest_index, latest_ns = index, time_ns
    return ""


LEASED_LOCK = KnownObject(
    MODEL.name,
    "Lock with a lease",
    "Was the lock never given to another process while a stated lease was still valid?",
    judge,
    {"acquire": ObjectFunction(answered=True), "release": ObjectFunction()},
    "a lock with a lease",
    odd_answer=no_duration,
)
