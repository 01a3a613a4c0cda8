"""The register kernel put to the proof in bulk: millions of tiny keys tried in every order (a million with the other
tests, ten at night), and a hundred thousand of middling size before the independent search (a share, all at night).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from every_order import some_order_fits
from histories import by_construction, judged_alone

from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.history import Type
from checkers.base.independent_search import linearizable, operations_of
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, NIL, OPEN, READ, WRITE
from checkers.kernels.registers.unique_values import (
    BLOCKS_CROSS,
    FIRST_INVALID,
    LINEARIZABLE,
    Key,
    judge_key,
    new_scratch,
)

OPERATIONS_MAX = 8
NOWHERE_VALUE = 99


def sweep_tiny(count: int, seed: int) -> np.ndarray:
    """Judge random keys both ways; how often each code of the kernel was given."""
    disagreement, codes = _sweep(count, seed)
    assert disagreement < 0, f"seed {seed}, case {disagreement}: the kernel is wrong"
    seen = {code: int(codes[code]) for code in range(len(codes)) if codes[code]}
    judged = {LINEARIZABLE, *range(FIRST_INVALID, BLOCKS_CROSS + 1)}
    assert set(seen) == judged
    assert min(seen.values()) > count // 500, f"some were hardly ever tried: {seen}"
    return codes


def sweep_middling(count: int, seed: int) -> dict[bool, int]:
    """Correct histories of 30 to 150 operations, of which one answer is changed to one seen nearby or nowhere."""
    rng = Random(seed)
    seen = {True: 0, False: 0}
    for case in range(count):
        operations, processes = rng.randint(30, 150), rng.randint(2, 6)
        events = list(by_construction(rng, operations, processes, cas=rng.choice([0, 0.2, 0.4]), crash=0.05))
        answers = [e for e in events if e.f == "read" and e.type is Type.OK]
        if not answers:
            continue
        changed = rng.choice(answers)
        near = [e.value for e in answers if abs(e.index - changed.index) < 30]
        events[changed.index] = replace(changed, value=rng.choice(near) if rng.random() < 0.98 else 10**6)
        expected = linearizable(operations_of(events))
        assert (judged_alone(events)[0] == LINEARIZABLE) == expected, f"seed {seed}, case {case}"
        seen[expected] += 1
    assert min(seen.values()) > count // 10
    return seen


def test_a_million_tiny_keys_in_every_order() -> None:
    sweep_tiny(1_000_000, seed=1)


def test_a_share_of_the_middling_sweep() -> None:
    sweep_middling(300, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_ten_million_tiny_keys_in_every_order(part: int, night: Random) -> None:
    sweep_tiny(1_000_000, seed=night.randrange(2**31))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_a_hundred_thousand_middling_keys_before_the_search(part: int, night: Random) -> None:
    sweep_middling(5_000, seed=night.randrange(2**31))


@kernel
def _sweep(count: int, seed: int) -> tuple[int, Int64]:
    """(the first case in which the kernel and all orders disagree or -1, how often each code was given)"""
    np.random.seed(seed)
    codes = np.zeros(BLOCKS_CROSS + 1, np.int64)
    scratch = new_scratch(OPERATIONS_MAX, 2 * OPERATIONS_MAX)
    for case in range(count):
        n = np.random.randint(2, OPERATIONS_MAX + 1)
        kind, a, b, call, ret, positions = _random_key(n, np.random.randint(2, 5))
        expected = some_order_fits(kind, a, b, call, ret)
        if np.random.randint(2) == 0:
            far_a, far_b = _far_apart(a), _far_apart(b)
            code, _, _ = judge_key(Key(kind, far_a, far_b, call, ret), positions, scratch)
        else:
            code, _, _ = judge_key(Key(kind, a, b, call, ret), positions, scratch)
        if (code == LINEARIZABLE) != expected:
            return case, codes
        codes[code] += 1
    return -1, codes


@kernel
def _random_key(n: int, processes: int) -> tuple[Int8, Int64, Int64, Int32, Int32, int]:
    """Unique values (operation i produces i) and otherwise nonsense: anything may be answered, or stay open."""
    kind, a, b = np.empty(n, np.int8), np.full(n, NIL, np.int64), np.full(n, NIL, np.int64)
    call, ret = np.empty(n, np.int32), np.full(n, OPEN, np.int32)
    busy = np.empty(processes, np.int64)
    invoked, now_busy, position = 0, 0, 0
    while invoked < n or now_busy > 0:
        if invoked < n and now_busy < processes and (now_busy == 0 or np.random.random() < 0.55):
            draw = np.random.randint(4)
            kind[invoked] = READ if draw < 2 else (WRITE if draw == 2 else CAS)
            if kind[invoked] == WRITE:
                a[invoked] = invoked
            elif kind[invoked] == CAS:
                a[invoked] = _some_value(kind, invoked)
                b[invoked] = invoked
            call[invoked] = position
            busy[now_busy] = invoked
            invoked, now_busy, position = invoked + 1, now_busy + 1, position + 1
            continue
        at = np.random.randint(now_busy)
        op = busy[at]
        now_busy -= 1
        busy[at] = busy[now_busy]
        if kind[op] == READ:
            a[op] = _some_value(kind, invoked)
        elif np.random.random() < 0.12:
            continue
        ret[op] = position
        position += 1
    return kind, a, b, call, ret, position


@kernel
def _some_value(kind: Int8, invoked: int) -> int:
    """nil, an invoked value (most likely one of the last three), or a value that was never invoked."""
    if np.random.random() < 0.03:
        return NOWHERE_VALUE
    start = max(0, invoked - 3) if np.random.random() < 0.7 else 0
    for _ in range(4):
        op = np.random.randint(start, invoked + 1)
        if op < invoked and kind[op] != READ:
            return op
    return NIL


@kernel
def _far_apart(values: Int64) -> Int64:
    """Other values in the same relation, too far apart to be numbers."""
    far = values.copy()
    for i in range(values.shape[0]):
        if values[i] != NIL:
            far[i] = (values[i] - 50) * 10**16
    return far
