"""Long fork: two reads saw two independent writes in opposite orders.

    write   [["w", key, value]]                     each key is written once; f is `txn` or `write`
    read    [["r", key, value or null], ...]        all keys of one group at once; f is `txn` or `read`

A key is written once, so a read shows for each key whether its write had happened.  Of two reads of the same keys, one
must show every write that the other shows.  If one shows x without y, and the other y without x, no single order of the
writes explains both.  Snapshot isolation forbids this, and parallel snapshot isolation allows it (Sovran et al. 2011;
Jepsen's long-fork test).  Without a fork, the reads of one group form a chain, so one pass over sorted reads decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

from checkers.base.checker import Budget
from checkers.models.known_object import Decided, KnownObject, ObjectFinding
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation

LONG_FORK_KIND = "long fork"


class _Read(NamedTuple):
    """A read.  keys: all keys that it read.  shown: those whose write it showed."""

    operation: Operation
    keys: frozenset[Hashable]
    shown: frozenset[Hashable]


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first fork, or a value that nothing wrote.  Raises WrongOperation."""
    writes, reads, reason = _sorted_out(operations)
    counts = {"writes": len(writes), "reads": len(reads)}
    groups: dict[frozenset[Hashable], list[_Read]] = {}
    for read in reads:
        groups.setdefault(read.keys, []).append(read)
    found = _from_nowhere(reads, writes)
    for group in groups.values():
        found = found or _fork(group, writes)
    if found is None and not reason and not any(len(keys) > 1 for keys in groups):
        reason = "no read of two keys was answered, so no fork could show"
    violations = () if found is None else (found,)
    return ObjectFinding(violations, "" if violations else reason, len(operations), counts=counts)


def _sorted_out(operations: Sequence[Operation]) -> tuple[dict[Hashable, Operation], list[_Read], str]:
    """(the write of each key, all answered reads, why the history cannot be valid, or "").  Raises WrongOperation."""
    writes: dict[Hashable, Operation] = {}
    reads: list[_Read] = []
    reason = ""
    for operation in operations:
        steps = _steps(operation)
        if all(f == "r" for f, _, _ in steps):
            if operation.returned:
                keys = frozenset(key for _, key, _ in steps)
                reads.append(_Read(operation, keys, frozenset(key for _, key, v in steps if v is not None)))
            continue
        for f, key, _ in steps:
            if f == "w" and writes.setdefault(key, operation) is not operation:
                reason = f"key {key!r} was written more than once, so reads do not show the order of writes"
            if f == "r":
                reason = f"index {operation.call}: a transaction both reads and writes, which this model does not judge"
    return writes, reads, reason


def _steps(operation: Operation) -> list[tuple[str, Hashable, Hashable]]:
    found = operation.output if operation.returned and operation.output is not None else operation.input
    if isinstance(found, tuple) and found and all(isinstance(e, tuple) and len(e) == 3 for e in found):
        steps = [(str(f), key, value) for f, key, value in found]
        if all(f in ("r", "w") for f, _, _ in steps):
            return steps
    words = 'is no list of ["w", key, value] and ["r", key, answer]'
    raise WrongOperation(f"index {operation.call}: {found!r:.60} {words}")


def _from_nowhere(reads: Sequence[_Read], writes: dict[Hashable, Operation]) -> Decided | None:
    for read in reads:
        for key in sorted(read.shown - set(writes), key=repr):
            words = f"a read showed a value of {key!r}, which no transaction wrote"
            why = [f"No write of {key!r} is in the history, answered or not"]
            operation = read.operation
            violation = Violation("value from nowhere", words, [operation], operation, f"nil of {key!r}", why)
            return Decided(violation, _seen_through(frozenset({key})))
    return None


def _fork(group: Sequence[_Read], writes: dict[Hashable, Operation]) -> Decided | None:
    in_order = sorted(group, key=lambda read: len(read.shown))
    for one, other in pairwise(in_order):
        if one.shown <= other.shown:
            continue
        x = min(one.shown - other.shown, key=repr)
        y = min(other.shown - one.shown, key=repr)
        first, later = sorted((one, other), key=lambda read: read.operation.ret or 0)
        words = f"one read showed {x!r} without {y!r}, another {y!r} without {x!r}: the two writes have no order"
        why = [
            f"The first of these reads needs {x!r} written before {y!r}, the second needs the opposite order",
            f"Only {x!r} and {y!r} matter here; all other keys are left out",
        ]
        involved = [writes[key] for key in (x, y) if key in writes] + [first.operation, later.operation]
        right = "an answer that shows all that the other read showed, or nothing more than it"
        operations = list(dict.fromkeys(involved))
        violation = Violation(LONG_FORK_KIND, words, operations, later.operation, right, why)
        return Decided(violation, _seen_through(frozenset({x, y})))
    return None


def _seen_through(keys: frozenset[Hashable]) -> Model:
    """The model of reads and writes that is reduced to these keys."""

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, frozenset)
        steps = [each for each in _steps(operation) if each[1] in keys]
        wrote = frozenset(key for f, key, _ in steps if f == "w")
        shown = frozenset(key for f, key, value in steps if f == "r" and value is not None)
        read = frozenset(key for f, key, _ in steps if f == "r")
        if operation.returned and shown != state & read:
            return REFUSED
        return state | wrote

    return Model("long-fork", init=frozenset, step=step)


LONG_FORK = KnownObject("long-fork", "Long fork", "Do all reads see the writes in one order?", judge, whole=True)
