"""Which operations of a growing history of registers may be forgotten, so that each second of judging costs the same.

Theory.  `unique_values.py` decides by the blocks alone, and of a block by f (its smallest return) and s (its largest
call).  Take a prefix that it found linearizable, and a block B with f(B) before the *horizon*: the earliest call of an
operation still under way.  Every later answer belongs to an operation that was called after f(B).  Then, for every
block A other than B with f(A) < s(B) and s(A) <= s(B), of which nothing is under way:

 - no operation may see its value any more.  A new observer x has call(x) > f(B), hence s(A) > f(B) and f(A) < s(B),
   which rule (2) forbids.  With A forgotten the kernel finds the value coming from nowhere: the same verdict;
 - with no other block C will it come to cross.  s(A) is final by the point before.  If f(C) >= s(B), then
   f(C) >= s(A) for good.  Otherwise s(C) > s(B) > f(A) (or C would be forgotten too), f(C) is final, and so they cross
   already or never.

So all such A are forgotten, and nothing a longer prefix can say of the others changes.  nil's block, which the kernel
always knows, begins before everything and loses its reads in the same way.  In a block that stays, what produced its
values is kept, the read of each value that returned first, and the one that was called last of all: an observer of an
earlier value of the chain, if one is still to come, meets the first returns of the later ones (rule (1)), and of
the calls so far every answer to come is later.

An operation that never returned and was not observed so far is neither kept nor forgotten.  It may be observed at any
time, so the caller sets it aside until an answer shows its value (UNSEEN).  This is exact as long as values are unique,
which the kernel checks of the operations that it gets.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import FIT, OPEN, READ, Operations
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key, Scratch, judge_key, key_of, new_scratch

FORGET, KEEP, UNSEEN = 0, 1, 2
"""What becomes of an operation; UNSEEN: it was given up, and no answer has shown its value so far."""


@kernel
def judge_and_forget(ops: Operations, horizons: Int64) -> tuple[Int8, Int8]:
    """Judge every key; of those that are linearizable, say what is still needed.

    horizons: int64[keys], row of the earliest invoke still under way (the number of rows if there is none).
    Returns (code int8[keys], as in `unique_values.py`; fate int8[operations], KEEP for all of any other key).
    """
    key_count = ops.positions.shape[0]
    code = np.zeros(key_count, np.int8)
    fate = np.full(ops.kind.shape[0], KEEP, np.int8)
    operations_max = 0
    positions_max = 0
    for k in range(key_count):
        operations_max = max(operations_max, ops.offsets[k + 1] - ops.offsets[k])
        positions_max = max(positions_max, ops.positions[k])
    scratch = new_scratch(operations_max, positions_max)
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
    """Fill `fate` of one key, just judged linearizable with this scratch.  given_up: completed, in whatever way."""
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
    """Root of the block with the largest s among those with f before the horizon; n stands for nil's."""
    newest = -1
    for root in range(n + 1):
        if root < n and s.block[root] != root:
            continue
        if s.first_ret[root] < horizon and (newest < 0 or s.last_call[root] > s.last_call[newest]):
            newest = root
    return newest
