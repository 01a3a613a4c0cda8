"""Decides linearizability of registers and cas-registers with unique values, in one linear pass per key.

Theory.  At most one operation produces each value except nil, the initial value.  So operations form *blocks*, and the
operations of a block are contiguous in any linearization.  A block is a write with the reads of its value.  If a cas
replaced that value, the block includes the cas and the reads of its new value, and so on along the *chain*.  The reads
of the initial nil are a block too, produced before all events.

Let f(B) be the smallest return of block B, and s(B) its largest call.  If f(B) < s(B), one operation of B returned
before another one was invoked.  So B certainly lasted over the *forward zone* [f, s].  Otherwise all operations of B
overlap, and B may be put at one instant of its *backward zone* [s, f].  A history is linearizable iff

 1. inside every block, each operation returns after the call of every operation earlier in the chain, and
 2. no two blocks have f(A) < s(B) and f(B) < s(A): forward zones do not overlap one another, and no backward zone
    lies inside a forward one.

(Gibbons & Korach 1997 prove this for reads and writes.  A chain of cas is contiguous too, so its block behaves like one
of their clusters.)

An operation that never returned happened iff its value was observed, directly or through a cas that itself happened.
If its value was not observed, it is always allowed to assume that the operation never happened.  So the test is exact.

Values are found by their number (`kernels/operations.py`).  The columns of a sealed bucket contain numbers
already; other values are numbered first.  A key of n operations and p positions costs 8n + p steps, and as many words
of memory.

*Forgetting.*  `judge_and_forget` decides which operations of a growing history of registers may be forgotten, so that
online judging stays cheap.

Theory.  The judgement uses only f (the smallest return) and s (the largest call) of each block.
Take a prefix that was judged linearizable.  The *horizon* is the earliest call of an operation that is still open.
Take a block B with f(B) before the horizon.  Every later answer belongs to an operation that was called after f(B).
Consider any other block A without open operations and with f(A) < s(B) and s(A) <= s(B):

 - No further operation may observe the value of A.  A new observer x has call(x) > f(B).  Hence s(A) > f(B) and
   f(A) < s(B), which rule (2) forbids.  If A is forgotten, the kernel finds no producer of the value: the same verdict.
 - A will not begin to cross another block C.  s(A) is final by the first point.  If f(C) >= s(B), then f(C) >= s(A) for
   ever.  Otherwise s(C) > s(B) > f(A), or C would be forgotten too.  Then f(C) is final, so A and C cross already or
   never.

So all such A are forgotten, and no later verdict changes.  The block of nil, which the kernel always knows, begins
before everything and loses its reads in the same way.

A block that is kept retains three kinds of operations: the producers of its values, the read of each value that
returned first, and the read that was called last.  A later observer of an earlier value of the chain is compared with
the first returns of the later values (rule (1)).  Every later answer has a later call than all operations so far.

An operation that never returned and has not been observed is neither kept nor forgotten.  An answer may still show its
value, so the caller sets the operation aside until then (UNSEEN).  This is exact as long as values are unique, which
the kernel checks for the operations that it receives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import CAS, FIT, NIL, OPEN, READ, WRITE, Operations, are_numbers, numbered

LINEARIZABLE = 0
UNFIT = 1  # `Operations.unfit` contains the reason
PRODUCED_TWICE = 2  # condition not met: left and right produce the same value
PRODUCES_INITIAL = 3  # condition not met: left produces nil
OUT_OF_STEPS = 4
FROM_NOWHERE = 5  # left observes a value that no operation produced
TAKEN_TWICE = 6  # left and right are both a cas that happened, and both replaced the same value
CHAIN_BROKEN = 7  # left returned before right was called, and right is earlier in the chain of left
BLOCKS_CROSS = 8  # the blocks of left and right violate (2); INITIAL stands for the block of nil

FIRST_INVALID = FROM_NOWHERE
"""Codes from here on mean: not linearizable.  1 to 4 mean: not judged."""

INITIAL = -1
NOWHERE = -2
NOT_AN_OBSERVER = -3

STEPS_PER_OPERATION = 8


class Key(NamedTuple):
    """Operations of one key: slices of `Operations`."""

    kind: Int8
    a: Int64
    b: Int64
    call: Int32
    ret: Int32


class Scratch(NamedTuple):
    """Working memory, reused from key to key.  Slot n of the per-value columns stands for nil.

    source: producer of the value that an operation observes, INITIAL, NOWHERE or NOT_AN_OBSERVER
    happened: per operation
    taker: the cas that replaced the value of a producer, or -1
    read_first_ret, read_last_call: first return and last call of the reads of a producer's value; OPEN and -1 if none
    block: root of an operation's block (a write, or n for nil), -1 if the operation did not happen
    first_ret, last_call: f and s of the block of a root
    producer: per number of a value, the operation that produces it, or -1
    forward_end, backward_end, zone_root: per position, the zones that start there
    """

    source: Int32
    happened: Bools
    taker: Int32
    read_first_ret: Int32
    read_last_call: Int32
    block: Int32
    first_ret: Int32
    last_call: Int32
    producer: Int32
    forward_end: Int32
    backward_end: Int32
    zone_root: Int32


@kernel
def judge_keys(ops: Operations, steps_max: int) -> tuple[Int8, Int32, Int32, int]:
    """Judge every key within its own budget.

    Returns (code, left, right, steps):

    code: int8[keys], one of the constants above; OUT_OF_STEPS for a key that would take more than `steps_max`
    left, right: int32[keys], operations to which the code refers, numbered within the key; INITIAL stands for the
        block of nil
    steps: sum over all keys
    """
    key_count = ops.positions.shape[0]
    code = np.zeros(key_count, np.int8)
    left = np.full(key_count, INITIAL, np.int32)
    right = np.full(key_count, INITIAL, np.int32)
    scratch = scratch_for(ops)
    steps = 0
    for k in range(key_count):
        key = key_of(ops, k)
        cost = STEPS_PER_OPERATION * key.kind.shape[0] + ops.positions[k]
        if ops.unfit[k] != FIT:
            code[k] = UNFIT
        elif cost > steps_max:
            code[k] = OUT_OF_STEPS
        else:
            steps += cost
            code[k], left[k], right[k] = judge_key(key, ops.positions[k], scratch)
    return code, left, right, steps


@kernel
def key_of(ops: Operations, k: int) -> Key:
    lo, hi = ops.offsets[k], ops.offsets[k + 1]
    return Key(ops.kind[lo:hi], ops.a[lo:hi], ops.b[lo:hi], ops.call[lo:hi], ops.ret[lo:hi])


@kernel
def scratch_for(ops: Operations) -> Scratch:
    """Return working memory that suffices for each key."""
    operations_max = 0
    positions_max = 0
    for k in range(ops.positions.shape[0]):
        operations_max = max(operations_max, ops.offsets[k + 1] - ops.offsets[k])
        positions_max = max(positions_max, ops.positions[k])
    return new_scratch(operations_max, positions_max)


@kernel
def new_scratch(operations_max: int, positions_max: int) -> Scratch:
    n = operations_max + 1
    return Scratch(
        np.empty(n, np.int32),
        np.empty(n, np.bool_),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(2 * n, np.int32),
        np.empty(positions_max + 1, np.int32),
        np.empty(positions_max + 1, np.int32),
        np.empty(positions_max + 1, np.int32),
    )


@kernel
def judge_key(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Judge one key by its first `limit` positions alone, as if the harness had been killed there.

    Operations that had not returned by then are open.  Returns (code, left, right).  If a prefix is not linearizable,
    no longer prefix is either.  So a bisection finds the first position that no order explains.
    """
    if not are_numbers(key.a, key.b, s.producer.shape[0]):
        a, b = numbered(key.kind, key.a, key.b)
        return _judge_numbered(Key(key.kind, a, b, key.call, key.ret), limit, s)
    return _judge_numbered(key, limit, s)


@inner_kernel
def _judge_numbered(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    code, left, right = _find_producers(key, limit, s)
    if code == LINEARIZABLE:
        code, left, right = _find_sources(key, limit, s)
    if code == LINEARIZABLE:
        code, left, right = _decide_what_happened(key, limit, s)
    if code == LINEARIZABLE:
        code, left, right = _find_circles(key, s)
    if code == LINEARIZABLE:
        code, left, right = _link_chains(key, limit, s)
    if code == LINEARIZABLE:
        code, left, right = _walk_chains(key, limit, s)
    if code == LINEARIZABLE:
        code, left, right = _sweep_zones(key.kind.shape[0], limit, s)
    return code, left, right


@inner_kernel
def _produces(key: Key, op: int) -> int:
    return int(key.b[op] if key.kind[op] == CAS else key.a[op])


@inner_kernel
def _find_producers(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Store the producer of each value, and verify that each value has at most one."""
    n = key.kind.shape[0]
    for op in range(n):
        if key.a[op] != NIL:
            s.producer[key.a[op]] = -1
        if key.b[op] != NIL:
            s.producer[key.b[op]] = -1
    for op in range(n):
        if key.kind[op] == READ or key.call[op] >= limit:
            continue
        value = _produces(key, op)
        if value == NIL:
            return PRODUCES_INITIAL, op, op
        if s.producer[value] >= 0:
            return PRODUCED_TWICE, s.producer[value], op
        s.producer[value] = op
    return LINEARIZABLE, INITIAL, INITIAL


@inner_kernel
def _find_sources(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Find the producer of the value that each read and cas observes.

    A returned operation that observed a value without a producer is a violation.
    """
    n = key.kind.shape[0]
    for op in range(n):
        s.source[op] = NOT_AN_OBSERVER
        if key.kind[op] == WRITE or key.call[op] >= limit:
            continue
        value = key.a[op]
        if value == NIL:
            s.source[op] = INITIAL
            continue
        s.source[op] = s.producer[value] if s.producer[value] >= 0 else NOWHERE
        if s.source[op] == NOWHERE and key.ret[op] < limit:
            return FROM_NOWHERE, op, op
    return LINEARIZABLE, INITIAL, INITIAL


@inner_kernel
def _decide_what_happened(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Set `happened`: a returned operation happened, and an open one iff a happened operation observed its value."""
    n = key.kind.shape[0]
    for op in range(n):
        s.happened[op] = key.ret[op] < limit and key.call[op] < limit
    for op in range(n):
        if key.kind[op] == WRITE or key.ret[op] >= limit or key.call[op] >= limit:
            continue
        seen = s.source[op]
        while seen >= 0 and not s.happened[seen]:
            s.happened[seen] = True
            if key.kind[seen] == WRITE:
                break
            seen = s.source[seen]
            if seen == NOWHERE:
                return FROM_NOWHERE, op, op
    return LINEARIZABLE, INITIAL, INITIAL


@inner_kernel
def _find_circles(key: Key, s: Scratch) -> tuple[int, int, int]:
    """Find a circle of cas: each replaced a value that another cas of the circle produced, so no write began the chain.

    Walks over sources end only if there is no circle, so this check comes first.  Each operation is visited once:
    `block` contains the walk that visited the operation (the number of the walk's first operation), or -1.
    """
    n = key.kind.shape[0]
    for op in range(n):
        s.block[op] = -1
    for first in range(n):
        if key.kind[first] != CAS or not s.happened[first]:
            continue
        op = first
        while op >= 0 and key.kind[op] == CAS and s.block[op] < 0:
            s.block[op] = first
            op = s.source[op]
        if op >= 0 and key.kind[op] == CAS and s.block[op] == first:
            return FROM_NOWHERE, op, op
    return LINEARIZABLE, INITIAL, INITIAL


@inner_kernel
def _link_chains(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Link each value to the cas that replaced it, and collect the reads of each value."""
    n = key.kind.shape[0]
    for value in range(n + 1):
        s.taker[value] = -1
        s.read_first_ret[value] = OPEN
        s.read_last_call[value] = -1
    for op in range(n):
        if key.kind[op] == WRITE or not s.happened[op]:
            continue
        value = s.source[op] if s.source[op] >= 0 else n
        if key.kind[op] == READ:
            s.read_first_ret[value] = min(s.read_first_ret[value], key.ret[op])
            s.read_last_call[value] = max(s.read_last_call[value], key.call[op])
        elif s.taker[value] >= 0:
            return TAKEN_TWICE, s.taker[value], op
        else:
            s.taker[value] = op
    return LINEARIZABLE, INITIAL, INITIAL


@inner_kernel
def _walk_chains(key: Key, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Verify rule (1) along every chain, and compute f and s of every block.  A chain begins with nil or a write."""
    n = key.kind.shape[0]
    for op in range(n):
        s.block[op] = -1
    for root in range(n + 1):
        is_initial = root == n
        if not is_initial and (key.kind[root] != WRITE or not s.happened[root]):
            continue
        first, last, broken = OPEN, -1, -1
        link = root
        while link >= 0:
            if link < n:
                s.block[link] = root
                ret = key.ret[link] if key.ret[link] < limit else OPEN
                if ret < last:
                    broken = link
                first, last = min(first, ret), max(last, key.call[link])
            if s.read_last_call[link] >= 0:
                if s.read_first_ret[link] < last:
                    broken = link
                first, last = min(first, s.read_first_ret[link]), max(last, s.read_last_call[link])
            if broken >= 0:
                return CHAIN_BROKEN, broken, broken
            link = s.taker[link]
        s.first_ret[root] = INITIAL if is_initial else first
        s.last_call[root] = last
    return LINEARIZABLE, INITIAL, INITIAL


@inner_kernel
def _sweep_zones(n: int, limit: int, s: Scratch) -> tuple[int, int, int]:
    """Verify rule (2) in one sweep over the positions.  The block of nil begins before all others: its f is -1."""
    s.forward_end[:limit] = -1
    s.backward_end[:limit] = -1
    for root in range(n):
        if s.block[root] != root:
            continue
        first, last = s.first_ret[root], s.last_call[root]
        if first < last:
            s.forward_end[first] = last
            s.zone_root[first] = root
        else:
            s.backward_end[last] = first
            s.zone_root[last] = root
    end, holder = s.last_call[n], n
    for position in range(limit):
        if s.forward_end[position] >= 0:
            if position < end:
                return BLOCKS_CROSS, holder if holder < n else INITIAL, s.zone_root[position]
            end, holder = s.forward_end[position], s.zone_root[position]
        elif s.backward_end[position] >= 0 and s.backward_end[position] < end:
            return BLOCKS_CROSS, holder if holder < n else INITIAL, s.zone_root[position]
    return LINEARIZABLE, INITIAL, INITIAL


FORGET, KEEP, UNSEEN = 0, 1, 2
"""Results of `judge_and_forget` for an operation; UNSEEN: it never returned, and no answer has shown its value."""


@kernel
def judge_and_forget(ops: Operations, horizons: Int64) -> tuple[Int8, Int8]:
    """Judge every key, and decide which operations of linearizable keys are still needed.

    Returns (code int8[keys], as of `judge_keys`; fate int8[operations], KEEP in keys that are not linearizable).

    horizons: int64[keys], row of the earliest open invoke (the number of rows if there is none)
    """
    key_count = ops.positions.shape[0]
    code = np.zeros(key_count, np.int8)
    fate = np.full(ops.kind.shape[0], KEEP, np.int8)
    scratch = scratch_for(ops)
    for k in range(key_count):
        if ops.unfit[k] != FIT:
            code[k] = UNFIT
            continue
        key = key_of(ops, k)
        code[k], _, _ = judge_key(key, ops.positions[k], scratch)
        if code[k] == LINEARIZABLE:
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
    """Fill `fate` of one key, which was just judged linearizable with this scratch.

    given_up: per operation, True if it has a completion (of an open operation: an info)
    """
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
