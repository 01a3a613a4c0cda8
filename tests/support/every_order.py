"""Brute force for keys of a register: every order of what returned and of any of the rest, tried one by one."""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, WRITE, Operations
from checkers.kernels.register_unique_values import key_of

OPERATIONS_MAX = 8
KEYS_AT_ONCE = 50_000


def room_for(keys: int) -> Operations:
    """Return empty rows for so many tiny keys; who fills them sets `offsets` and `positions`."""
    rows = keys * OPERATIONS_MAX
    a, b = np.full(rows, NIL, np.int64), np.full(rows, NIL, np.int64)
    call, ret, invoked, completed = (np.full(rows, OPEN, np.int32) for _ in range(4))
    offsets, positions = np.zeros(keys + 1, np.int64), np.zeros(keys, np.int32)
    unfit, kind = np.zeros(keys, np.int8), np.zeros(rows, np.int8)
    return Operations(offsets, positions, unfit, kind, a, b, call, ret, invoked, completed)


@kernel
def with_an_order(ops: Operations) -> Int8:
    """Return 1 for each key whose answers some order explains, from nil."""
    fits = np.zeros(ops.positions.shape[0], np.int8)
    for k in range(fits.shape[0]):
        key = key_of(ops, k)
        fits[k] = some_order_fits(key.kind, key.a, key.b, key.call, key.ret)
    return fits


@kernel
def some_order_fits(kind: Int8, a: Int64, b: Int64, call: Int32, ret: Int32) -> bool:
    """Whether an order explains all answers, from nil."""
    n = kind.shape[0]
    placed, state = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
    following = np.zeros(n + 1, np.int64)
    must = 0
    for op in range(n):
        if ret[op] != OPEN:
            must |= 1 << op
    done, depth = 0, 0
    state[0] = NIL
    while True:
        if done & must == must:
            return True
        op = following[depth]
        if op == n:
            if depth == 0:
                return False
            depth -= 1
            done &= ~(1 << placed[depth])
            continue
        following[depth] = op + 1
        fits = done >> op & 1 == 0 and _answers(kind[op], a[op], state[depth])
        for other in range(n):
            if done >> other & 1 == 0 and other != op and ret[other] < call[op]:
                fits = False
        if fits:
            placed[depth] = op
            done |= 1 << op
            state[depth + 1] = _after(kind[op], a[op], b[op], state[depth])
            depth += 1
            following[depth] = 0


@kernel
def _answers(kind: int, a: int, state: int) -> bool:
    if kind == WRITE:
        return True
    return state != a if kind == MISMATCH else state == a


@kernel
def _after(kind: int, a: int, b: int, state: int) -> int:
    if kind == CAS:
        return b
    return a if kind == WRITE else state
