"""Long fork: two reads saw two independent writes in opposite orders.

    write   [["w", key, value], ...]                each key is written once, never with nil; f is `txn` or `write`
    read    [["r", key, value or null], ...]        several keys at once; f is `txn` or `read`

A key is written once, so a read shows for each key whether the key's write had happened.  If two transactions read the
same keys, one of them must show every write that the other shows.  If one shows x without y, and the other y without x,
no single order of the writes explains both.  Snapshot isolation forbids this, and parallel snapshot isolation allows it
(Sovran et al. 2011; Jepsen's long-fork test).  A read must show either all or none of the keys of one write.

A read must show only values that were written, by writes that had been invoked before the read returned.  Apart from
this, real time does not count: a read may lack writes that were acknowledged before it.  So if no read shows any write,
the verdict is unknown.

*The graph.*  A read that shows x and lacks y puts x before itself, and itself before y.  An order of the writes that
explains all reads exists if and only if these edges form no cycle; any topological order is one.

    shown write -> read -> write that the read lacks

If one read shows x without y, and another shows y without x, they form the shortest cycle, which has two writes.  Reads
of different keys can form a longer cycle: x without y, y without z, z without x.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from checkers.base.checker import Budget
from checkers.kernels.codes import grouped
from checkers.kernels.transactions.dependencies import Graph, components
from checkers.models.known_object import KnownObject, ObjectFinding, ObjectFunction
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, text_of
from checkers.models.witnesses import Decided

LONG_FORK_KIND = "long fork"
CIRCLE_KIND = "writes in a circle"
HALF_KIND = "half of a write"

_Step = tuple[str, Hashable, Hashable]
"""("r" or "w", key, value or answer)."""


class _Read(NamedTuple):
    """A read of several keys.

    keys: all keys that it read
    values: key -> value, for keys whose write it showed
    """

    operation: Operation
    keys: frozenset[Hashable]
    values: Mapping[Hashable, Hashable]

    @property
    def shown(self) -> frozenset[Hashable]:
        """The keys whose write the read showed."""
        return frozenset(self.values)


_Writes = Mapping[Hashable, Sequence[tuple[Hashable, Operation]]]
"""key -> [(written value, operation that wrote it)] in order of call."""


def same_steps(invoked: Hashable, answered: Hashable) -> bool:
    """Return True if a transaction completed the invoked steps.  Only the values of reads may differ.

    Returns True also for an invoke of another form, which `judge` rejects.
    """
    given, done = _triples(invoked), _triples(answered)
    if given is None:
        return True
    if done is None or len(done) != len(given):
        return False
    return all(a == b or (a[0] == b[0] == "r" and a[1] == b[1]) for a, b in zip(given, done, strict=True))


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first value that no transaction wrote, else a fork, else a longer cycle.  Raises WrongOperation."""
    writes, reads, reason = _sorted_out(operations)
    counts = {"writes": len(writes), "reads": len(reads)}
    found = _from_nowhere(reads, writes) or _circle(reads, writes)
    if found is None and not reason and not any(len(read.keys) > 1 for read in reads):
        reason = "no read of two keys was answered, so no fork could show"
    if found is None and not reason and not any(read.values and len(read.keys) > 1 for read in reads):
        reason = "every read of several keys showed nil for all of them, so nothing shows the order of the writes"
    violations = () if found is None else (found,)
    return ObjectFinding(violations, "" if violations else reason, len(operations), counts=counts)


def _sorted_out(operations: Sequence[Operation]) -> tuple[_Writes, list[_Read], str]:
    """Return (all writes, all answered reads, reason why the verdict cannot be valid or "").  Raises WrongOperation."""
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
                words = (
                    f"index {operation.call}: a write of nil to key {text_of(key)} looks like no write to every reader"
                )
                raise WrongOperation(words)
            if f == "w":
                writes.setdefault(key, []).append((value, operation))
                if len(writes[key]) > 1:
                    reason = f"key {text_of(key)} was written more than once, so reads do not show the order of writes"
            if f == "r":
                reason = f"index {operation.call}: a transaction both reads and writes, which this model does not judge"
    return writes, reads, reason


def _values(read: Operation, steps: Sequence[_Step]) -> dict[Hashable, Hashable]:
    values: dict[Hashable, Hashable] = {}
    for _, key, value in steps:
        if values.setdefault(key, value) != value:
            raise WrongOperation(f"index {read.ret}: one read answered key {text_of(key)} with two different values")
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
    """Return the violation of the first read of a value that no transaction can have written before."""
    for read in reads:
        for key in sorted(read.values, key=repr):
            value, operation = read.values[key], read.operation
            of_value = [o for written, o in writes.get(key, ()) if written == value]
            assert operation.ret is not None
            if any(o.call < operation.ret for o in of_value):
                continue
            shown = f"a read showed {text_of(value)} of {text_of(key)}"
            words = f"{shown}, which no transaction can have written"
            if of_value:
                words = f"{shown} before any write of it can have happened"
            of_key = [o for _, o in writes.get(key, ())]
            right = f"nil for {text_of(key)}, or a value of a write that had been invoked before the answer"
            involved = list(dict.fromkeys([*of_key, operation]))
            smaller, why = _seen_through([key]), "A write that failed did not happen"
            return Decided("value from nowhere", words, involved, operation, right, smaller, [key], why)
    return None


def _circle(reads: Sequence[_Read], writes: _Writes) -> Decided | None:
    """Return the violation of a cycle with few reads; None if an order of the writes explains all reads."""
    write_of = _numbered(writes)
    different: dict[_Seen, _Read] = {}
    for read in reads:
        lacked = frozenset(write_of[key] for key in read.keys - read.shown if key in write_of)
        different.setdefault(_Seen(frozenset(write_of[key] for key in read.values), lacked), read)
    kept = list(different.values())
    steps = [_in_keys(link, kept[link.read], write_of) for link in _circle_of(list(different))]
    if not steps:
        return None
    keys = list(dict.fromkeys(key for _, x, y in steps for key in (x, y)))
    kind, right = CIRCLE_KIND, "an answer that fits into one order of the writes together with the other reads"
    seen = ", ".join(f"{text_of(x)} without {text_of(y)}" for _, x, y in steps)
    words = f"{len(steps)} reads showed {seen}: the writes have no order"
    if len(steps) == 1:
        kind, right = HALF_KIND, "an answer that shows both or none"
        words = f"a read showed {seen}, and one transaction wrote both"
    elif len(steps) == 2 and all(a[2] == b[1] for a, b in (steps, steps[::-1])):
        kind = LONG_FORK_KIND
    shown = sorted((read for read, _, _ in steps), key=lambda o: o.ends)
    involved = list(dict.fromkeys([*(write for key in keys for _, write in writes[key]), *shown]))
    why = "A read that shows one write without another comes after the first and before the second"
    return Decided(kind, words, involved, shown[-1], right, _seen_through(keys), keys, why)


def _numbered(writes: _Writes) -> dict[Hashable, int]:
    """Return {key: number of the key's write}; of several writes of a key, the first counts."""
    found: dict[Hashable, int] = {}
    for place, (key, of_key) in enumerate(writes.items()):
        found[key] = of_key[0][1].call if len(of_key) == 1 else -1 - place
    return found


def _in_keys(link: _Link, read: _Read, write_of: Mapping[Hashable, int]) -> tuple[Operation, Hashable, Hashable]:
    """Return (the read, a key whose write it showed, a key whose write it lacked)."""
    shown = min((key for key in read.values if write_of[key] == link.shown), key=repr)
    lacked = (key for key in read.keys - read.shown if write_of.get(key) == link.lacked)
    return read.operation, shown, min(lacked, key=repr)


def _seen_through(keys: Collection[Hashable]) -> Model:
    """Return the model of reads and writes, restricted to these keys. The state is a set of (key, value)."""

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


_READS = ObjectFunction(same_steps, given=True, answered=True)
LONG_FORK = KnownObject(
    "long-fork",
    "Long fork",
    "Do all reads see the writes in one order?",
    judge,
    {"txn": _READS, "write": ObjectFunction(same_steps, given=True), "read": _READS},
    "a long-fork test",
    whole=True,
)


_MOST_STARTS = 200
"""Maximum number of writes of a strongly connected component from which the shortest cycle is searched.

Each search takes time linear in the size of the component."""


class _Seen(NamedTuple):
    """The numbers of the writes that one read showed, and of those that it lacked."""

    shown: frozenset[int]
    lacked: frozenset[int]


class _Link(NamedTuple):
    """One read of a cycle.

    read: position of the read
    shown, lacked: numbers of a write that it showed and of a write that it lacked
    """

    read: int
    shown: int
    lacked: int


def _circle_of(reads: Sequence[_Seen]) -> list[_Link]:
    """Return a cycle with few reads; the `lacked` write of each link is the `shown` write of the next.

    Returns [] if an order explains all reads.  A cycle of one read means that the read showed only a part of a write.
    """
    writes = sorted({write for read in reads for some in read for write in some})
    node = {write: len(reads) + at for at, write in enumerate(writes)}
    edges = [(node[write], place) for place, read in enumerate(reads) for write in read.shown]
    edges += [(place, node[write]) for place, read in enumerate(reads) for write in read.lacked]
    source, target = np.array(edges, np.int32).reshape(-1, 2).T.copy()
    first, rows = grouped(source, len(reads) + len(writes))
    graph = Graph(first, target[rows], np.zeros(len(rows), np.int8))
    knot_of = components(graph, np.empty(0, np.int32))
    sizes = np.bincount(knot_of)
    if not len(sizes) or sizes.max() == 1:
        return []
    smallest = int(np.argmin(np.where(sizes > 1, sizes, len(knot_of) + 1)))
    starts = [n for n in np.flatnonzero(knot_of == smallest).tolist() if n >= len(reads)]

    def following(of: int) -> list[int]:
        targets: list[int] = graph.target[first[of] : first[of + 1]].tolist()
        return sorted(n for n in targets if knot_of[n] == smallest)

    nodes = min((_shortest(following, start) for start in starts[:_MOST_STARTS]), key=len)
    shown = [writes[n - len(reads)] for n in nodes[::2]]
    return [_Link(read, shown[at], shown[(at + 1) % len(shown)]) for at, read in enumerate(nodes[1::2])]


def _shortest(following: Callable[[int], Sequence[int]], start: int) -> list[int]:
    """Return the nodes of a shortest cycle through `start`, beginning with `start`.

    A cycle exists because all nodes are in one strongly connected component.
    """
    before: dict[int, int] = {}
    waiting = deque([start])
    while start not in before:
        node = waiting.popleft()
        for then in following(node):
            if then not in before:
                before[then] = node
                waiting.append(then)
    nodes = [before[start]]
    while nodes[-1] != start:
        nodes.append(before[nodes[-1]])
    return nodes[::-1]
