"""Decides which operations of a growing history of registers may be forgotten, so that online judging stays cheap.

Theory.  `unique_values.py` decides by blocks, of which it uses only f (the smallest return) and s (the largest call).
Take a prefix that it found linearizable.  The *horizon* is the earliest call of an operation that is still open.  Take
a block B with f(B) before the horizon.  Every later answer belongs to an operation that was called after f(B).
Consider any other block A without open operations and with f(A) < s(B) and s(A) <= s(B):

 - No further operation may observe the value of A.  A new observer x has call(x) > f(B).  Hence s(A) > f(B) and
   f(A) < s(B), which rule (2) forbids.  If A is forgotten, the kernel finds no producer of the value: the same verdict.
 - A will not begin to cross another block C.  s(A) is final by the first point.  If f(C) >= s(B), then f(C) >= s(A) for
   ever.  Otherwise s(C) > s(B) > f(A), or C would be forgotten too.  Then f(C) is final, so A and C cross already or
   never.

So all such A are forgotten, and no later verdict changes.  The block of nil, which the kernel always knows, begins
before everything and loses its reads in the same way.

A block that stays keeps three kinds of operations: the producers of its values, the read of each value that returned
first, and the read that was called last.  A later observer of an earlier value of the chain is compared with the first
returns of the later values (rule (1)).  Every later answer has a later call than all operations so far.

An operation that never returned and was not observed so far is neither kept nor forgotten.  It may be observed at any
time, so the caller sets it aside until an answer shows its value (UNSEEN).  This is exact as long as values are unique,
which the kernel checks for the operations that it gets.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import FIT, OPEN, READ, Operations
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key, Scratch, judge_key, key_of, scratch_for

FORGET, KEEP, UNSEEN = 0, 1, 2
"""What happens to an operation; UNSEEN: it never returned, and no answer has shown its value so far."""


@kernel
def judge_and_forget(ops: Operations, horizons: Int64) -> tuple[Int8, Int8]:
    """Judge every key, and decide which operations of linearizable keys are still needed.

    horizons: int64[keys], row of the earliest open invoke (the number of rows if there is none).
    Returns (code int8[keys], as in `unique_values.py`; fate int8[operations], KEEP in every other key).
    """
    key_count = ops.positions.shape[0]
    code = np.zeros(key_count, np.int8)
    fate = np.full(ops.kind.shape[0], KEEP, np.int8)
    scratch = scratch_for(ops)
    for k in range(key_count):
        if ops.unfit[k] != FIT:
            code[k] = register.UNFIT
            continue
        key = key_of(ops, k)
        code[k], _, _ = judge_key(key, ops.positions[k], scratch)
        if code[k] == register.LINEARIZABLE:
            lo, hi = ops.offsets[k], ops.offsets[k + 1]
            given_up = ops.completed[lo:hi] >= 0
            horizon = 0
            for op in range(lo, hi):
                horizon += ops.invoked[op] < horizons[k]
                horizon += ops.ret[op] != OPEN and ops.completed[op] < horizons[k]
            _decide(key, given_up, horizon, scratch, fate[lo:hi])
    return code, fate


@kernel
def _decide(key: Key, given_up: np.ndarray, horizon: int, s: Scratch, fate: Int8) -> None:
    """Fill `fate` of one key, which was just judged linearizable with this scratch.  given_up: it has a completion."""
    n = key.kind.shape[0]
    newest = _newest_settled(n, horizon, s)
    needed = np.zeros(n + 1, np.bool_)
    for root in range(n + 1):
        settled = newest >= 0 and s.first_ret[root] < s.last_call[newest] and s.last_call[root] <= s.last_call[newest]
        needed[root] = root == newest or not settled
    for op in range(n):
        if key.kind[op] != READ and s.happened[op] and not given_up[op]:
            needed[s.block[op]] = True
    for op in range(n):
        if not s.happened[op]:
            fate[op] = UNSEEN if given_up[op] else KEEP
            continue
        producer = op if key.kind[op] != READ else s.source[op]
        root = s.block[producer] if producer >= 0 else n
        fate[op] = FORGET
        if not needed[root]:
            continue
        value = s.source[op] if producer >= 0 else n
        if key.kind[op] != READ or key.ret[op] == s.read_first_ret[value] or key.call[op] == s.last_call[root]:
            fate[op] = KEEP


@kernel
def _newest_settled(n: int, horizon: int, s: Scratch) -> int:
    """Return the root of the block with the largest s among blocks with f before the horizon; n stands for nil."""
    newest = -1
    for root in range(n + 1):
        if root < n and s.block[root] != root:
            continue
        if s.first_ret[root] < horizon and (newest < 0 or s.last_call[root] > s.last_call[newest]):
            newest = root
    return newest
