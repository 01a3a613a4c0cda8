"""Makes histories of one register that are correct by construction, and can make one late answer certainly wrong.

`VIOLATIONS` explains why each answer is wrong; no search is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.registers.unique_values import Key

NEW, OTHER = 777, 778
"""Values that are written once each, for the violations that need them."""


def correct_key(
    operations: int, clients: int, domain: int, open_: int, seed: int, observed: bool = False
) -> tuple[Key, int]:
    """A register's history correct by construction, and how many positions it has.

    domain 0: unique values, and then a cas expects what it finds.  open_: how many mutators never return.
    observed: a cas that failed stays as an observation; else it is left out.
    """
    kind, a, b, call, ret, positions = _simulated(operations, clients, domain, open_, seed)
    kept = np.ones(len(kind), np.bool_) if observed else kind != MISMATCH
    b[kind == MISMATCH] = NIL
    return Key(kind[kept], a[kept], b[kept], call[kept], ret[kept]), positions


@kernel
def _simulated(
    operations: int, clients: int, domain: int, open_: int, seed: int
) -> tuple[Int8, Int64, Int64, Int32, Int32, int]:
    """A third each of reads, writes and cas; a cas that does not match is a MISMATCH."""
    np.random.seed(seed)
    kind = np.empty(operations, np.int8)
    a = np.empty(operations, np.int64)
    b = np.full(operations, NIL, np.int64)
    call = np.empty(operations, np.int32)
    ret = np.full(operations, OPEN, np.int32)
    current = np.full(clients, -1, np.int64)
    effective = np.zeros(clients, np.bool_)
    register_holds = np.int64(NIL)
    invoked = done = position = left_open = 0
    while done < operations:
        c = np.random.randint(clients)
        op = current[c]
        if op < 0:
            if invoked == operations:
                continue
            op = invoked
            invoked += 1
            kind[op] = np.random.randint(3)
            a[op] = np.random.randint(domain) if domain else op
            if kind[op] == CAS:
                b[op] = np.random.randint(domain) if domain else op
                if not domain:
                    a[op] = register_holds
            call[op] = position
            position += 1
            current[c] = op
            effective[c] = False
        elif not effective[c]:
            effective[c] = True
            if kind[op] == READ:
                a[op] = register_holds
            elif kind[op] == WRITE:
                register_holds = a[op]
            elif register_holds == a[op] and a[op] != b[op]:
                register_holds = b[op]
            elif register_holds == a[op]:
                kind[op] = READ
            else:
                kind[op] = MISMATCH
        else:
            crash = left_open < open_ and op > (left_open + 1) * operations // (open_ + 1)
            if crash and (kind[op] == WRITE or kind[op] == CAS):
                left_open += 1
            else:
                ret[op] = position
                position += 1
            current[c] = -1
            done += 1
    return kind, a, b, call, ret, position


def never_written(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """A late read answers a value that no client wrote."""
    return _answered(key, rng, 999), positions


def long_gone(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """A late read answers nil.  No client writes nil, and the first write that returned had overwritten it."""
    return _answered(key, rng, NIL), positions


def taken_twice(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """A value is written once, and two cas both took it away."""
    at = _late(positions, rng)
    more = [(WRITE, NEW, NIL, at, at + 9), (CAS, NEW, 0, at + 3, at + 20), (CAS, NEW, 1, at + 5, at + 25)]
    return _with(key, positions, more)


def came_back(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """Two values are written once each, at the same time; reads one after another saw the first, the second, and the
    first again."""
    at = _late(positions, rng)
    more = [(WRITE, NEW, NIL, at, at + 40), (WRITE, OTHER, NIL, at + 1, at + 41)]
    more += [(READ, NEW, NIL, at + 5, at + 9), (READ, OTHER, NIL, at + 12, at + 20), (READ, NEW, NIL, at + 25, at + 30)]
    return _with(key, positions, more)


def changed_too_often(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """After all the rest one client alone saw the value change more often than operations are open."""
    times = int((key.ret == OPEN).sum()) + 2
    more = [(READ, n % 2, NIL, positions + 2 * n, positions + 2 * n + 1) for n in range(times)]
    return _with(key, positions, more)


VIOLATIONS: dict[str, Callable[[Key, int, np.random.Generator], tuple[Key, int]]] = {
    "never written": never_written,
    "long gone": long_gone,
    "taken twice": taken_twice,
    "came back": came_back,
    "changed too often": changed_too_often,
}


def another_answer(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """A late read answers another value of the domain; whether that is wrong only a search can tell."""
    reads = _late_reads(key)
    at = int(rng.choice(reads))
    return _answered(key, rng, int((key.a[at] + 1 + rng.integers(4)) % 5), at), positions


def _late(positions: int, rng: np.random.Generator) -> int:
    return int(positions * rng.uniform(0.85, 0.95))


def _late_reads(key: Key) -> Int64:
    reads = np.flatnonzero((key.kind == READ) & (key.ret != OPEN))
    return reads[int(len(reads) * 0.85) : int(len(reads) * 0.95) + 1]


def _answered(key: Key, rng: np.random.Generator, value: int, at: int | None = None) -> Key:
    a = key.a.copy()
    a[int(rng.choice(_late_reads(key))) if at is None else at] = value
    return key._replace(a=a)


def _with(key: Key, positions: int, more: Sequence[tuple[int, int, int, int, int]]) -> tuple[Key, int]:
    """With more operations (kind, a, b, call, ret) of clients of their own, whose events stand before those at the
    same positions."""
    kind, a, b, call, ret = (np.array(column, np.int64) for column in zip(*more, strict=True))
    kinds = np.concatenate([kind, key.kind]).astype(np.int8)
    calls, rets = np.concatenate([call, key.call]), np.concatenate([ret, key.ret]).astype(np.int64)
    ends = np.flatnonzero(rets != OPEN)
    order = np.argsort(np.concatenate([calls, rets[ends]]), kind="stable")
    new = np.empty(len(order), np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    new_ret = np.full(len(rets), OPEN, np.int32)
    new_ret[ends] = new[len(calls) :]
    by_call = np.argsort(new[: len(calls)])
    changed = Key(kinds, np.concatenate([a, key.a]), np.concatenate([b, key.b]), new[: len(calls)], new_ret)
    return Key._make(column[by_call] for column in changed), len(order)
