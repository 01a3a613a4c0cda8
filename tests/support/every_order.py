"""Brute force for keys of a register: every order of what returned and of any of the rest, tried one by one."""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, WRITE


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
