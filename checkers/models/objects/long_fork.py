"""Long fork: two reads saw two independent writes in opposite orders.

    write   [["w", key, value]]                     each key is written once, never with nil; f is `txn` or `write`
    read    [["r", key, value or null], ...]        all keys of one group at once; f is `txn` or `read`

A key is written once, so a read shows for each key whether its write had happened.  Of two reads of the same keys, one
must show every write that the other shows.  If one shows x without y, and the other y without x, no single order of the
writes explains both.  Snapshot isolation forbids this, and parallel snapshot isolation allows it (Sovran et al. 2011;
Jepsen's long-fork test).  Without a fork, the reads of one group form a chain, so one pass over sorted reads decides.

A read shows only values that were written, and only writes that had been invoked before it returned.  Apart from this,
real time orders nothing: a read may lack writes that were acknowledged before it.  So if no read shows any write, the
verdict is unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from checkers.base.checker import Budget
from checkers.models.known_object import Decided, KnownObject, ObjectFinding
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation, real_time

LONG_FORK_KIND = "long fork"

_Step = tuple[str, Hashable, Hashable]
"""("r" or "w", key, value or answer)."""


class _Read(NamedTuple):
    """A read.  keys: all keys that it read.  values: key -> value, of those whose write it showed."""

    operation: Operation
    keys: frozenset[Hashable]
    values: Mapping[Hashable, Hashable]

    @property
    def shown(self) -> frozenset[Hashable]:
        """The keys whose write it showed."""
        return frozenset(self.values)


_Writes = Mapping[Hashable, Sequence[tuple[Hashable, Operation]]]
"""key -> (written value, its write), in order of call."""


def same_steps(invoked: Hashable, answered: Hashable) -> bool:
    """Whether a transaction completed the steps that were invoked.  Only the values of reads may differ.

    An invoke of another form is left to `judge`, which refuses it.
    """
    given, done = _triples(invoked), _triples(answered)
    if given is None:
        return True
    if done is None or len(done) != len(given):
        return False
    return all(a == b or (a[0] == b[0] == "r" and a[1] == b[1]) for a, b in zip(given, done, strict=True))


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
    if found is None and not reason and not any(read.values for read in reads):
        reason = "every read showed nil for every key, so nothing shows the order of the writes"
    violations = () if found is None else (found,)
    return ObjectFinding(violations, "" if violations else reason, len(operations), counts=counts)


def _sorted_out(operations: Sequence[Operation]) -> tuple[_Writes, list[_Read], str]:
    """(all writes, all answered reads, why the history cannot be valid, or "").  Raises WrongOperation."""
    writes: dict[Hashable, list[tuple[Hashable, Operation]]] = {}
    reads: list[_Read] = []
    reason = ""
    for operation in operations:
        steps = _steps(operation)
        if all(f == "r" for f, _, _ in steps):
            if operation.output is not None:
                keys = frozenset(key for _, key, _ in steps)
                reads.append(_Read(operation, keys, _values(operation, steps)))
            continue
        for f, key, value in steps:
            if f == "w" and value is None:
                words = f"index {operation.call}: a write of nil to key {key!r} looks like no write to every reader"
                raise WrongOperation(words)
            if f == "w":
                writes.setdefault(key, []).append((value, operation))
                if len(writes[key]) > 1:
                    reason = f"key {key!r} was written more than once, so reads do not show the order of writes"
            if f == "r":
                reason = f"index {operation.call}: a transaction both reads and writes, which this model does not judge"
    return writes, reads, reason


def _values(read: Operation, steps: Sequence[_Step]) -> dict[Hashable, Hashable]:
    values: dict[Hashable, Hashable] = {}
    for _, key, value in steps:
        if values.setdefault(key, value) != value:
            raise WrongOperation(f"index {read.ret}: one read answered key {key!r} with two different values")
    return {key: value for key, value in values.items() if value is not None}


def _steps(operation: Operation) -> list[_Step]:
    found = operation.output if operation.output is not None else operation.input
    steps = _triples(found)
    if steps and all(f in ("r", "w") for f, _, _ in steps):
        return steps
    words = 'is no list of ["w", key, value] and ["r", key, answer]'
    raise WrongOperation(f"index {operation.call}: {found!r:.60} {words}")


def _triples(value: Hashable) -> list[_Step] | None:
    if isinstance(value, tuple) and all(isinstance(e, tuple) and len(e) == 3 for e in value):
        return [(str(f), key, answer) for f, key, answer in value]
    return None


def _from_nowhere(reads: Sequence[_Read], writes: _Writes) -> Decided | None:
    """The first read of a value that no transaction wrote, or whose write was invoked after the read returned."""
    for read in reads:
        for key in sorted(read.values, key=repr):
            value, operation = read.values[key], read.operation
            of_value = [o for written, o in writes.get(key, ()) if written == value]
            assert operation.ret is not None
            if any(o.call < operation.ret for o in of_value):
                continue
            if of_value:
                words = f"a read showed {value!r} of {key!r} before any write of it can have happened"
                first = "the first write of it that may have happened was invoked"
                why = [real_time(operation, "The read was answered", of_value[0], first)]
            else:
                words = f"a read showed {value!r} of {key!r}, which no transaction can have written"
                may = f"No write of {value!r} to {key!r} that may have happened is in the history"
                why = [f"{may}, answered or not; one that failed did not happen"]
            of_key = [o for _, o in writes.get(key, ())]
            right = "nil, or a value that a write had been invoked with before the answer"
            involved = list(dict.fromkeys([*of_key, operation]))
            violation = Violation("value from nowhere", words, involved, operation, f"{right}, of {key!r}", why)
            return Decided(violation, _seen_through(frozenset({key})))
    return None


def _fork(group: Sequence[_Read], writes: _Writes) -> Decided | None:
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
        involved = [write for key in (x, y) for _, write in writes[key]] + [first.operation, later.operation]
        right = "an answer that shows all that the other read showed, or nothing more than it"
        operations = list(dict.fromkeys(involved))
        violation = Violation(LONG_FORK_KIND, words, operations, later.operation, right, why)
        return Decided(violation, _seen_through(frozenset({x, y})))
    return None


def _seen_through(keys: frozenset[Hashable]) -> Model:
    """The model of reads and writes that is reduced to these keys.  The state is a set of (key, value)."""

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, frozenset)
        steps = [each for each in _steps(operation) if each[1] in keys]
        wrote = {key: value for f, key, value in steps if f == "w"}
        if operation.output is not None:
            read = {key for f, key, _ in steps if f == "r"}
            shown = {(key, value) for f, key, value in steps if f == "r" and value is not None}
            if shown != {(key, value) for key, value in state if key in read}:
                return REFUSED
        return frozenset((key, value) for key, value in state if key not in wrote) | frozenset(wrote.items())

    return Model("long-fork", init=frozenset, step=step)


LONG_FORK = KnownObject(
    "long-fork",
    "Long fork",
    "Do all reads see the writes in one order?",
    judge,
    whole=True,
    fixed={"txn": same_steps, "write": same_steps, "read": same_steps},
)
