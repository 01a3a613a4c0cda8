"""The antichain search put to the proof in bulk: tiny keys of few values, tried in every order (a quarter of a million
with the other tests, ten million at night)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from every_order import some_order_fits

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.registers.antichain import LINEARIZABLE, NO_ORDER, judge_window, measure_key, prepare
from checkers.kernels.registers.unique_values import Key

OPERATIONS_MAX = 8
STEPS_MAX = SIZE_BYTES_MAX = 10**9
WINDOWS = 3
"""How many windows of each key that has an order are judged by themselves."""


def sweep(count: int, seed: int) -> None:
    wrong, lied, seen = _sweep(count, seed)
    assert wrong < 0, f"seed {seed}, case {wrong}: the search and all orders disagree"
    assert lied < 0, f"seed {seed}, case {lied}: a window of a key that has an order is reported to have none"
    assert min(seen) > count // 20, f"[without an order, with one]: {seen}"


def test_a_quarter_of_a_million_tiny_keys_in_every_order() -> None:
    sweep(250_000, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_ten_million_tiny_keys_of_few_values_in_every_order(part: int, night: Random) -> None:
    sweep(1_000_000, seed=night.randrange(2**31))


@kernel
def _sweep(count: int, seed: int) -> tuple[int, int, Int64]:
    """(the first case in which the search and all orders disagree or -1, the first with a wrong window or -1, how many
    had no order and how many had one)"""
    np.random.seed(seed)
    seen = np.zeros(2, np.int64)
    starts = np.array([NIL], np.int64)
    for case in range(count):
        n = np.random.randint(2, OPERATIONS_MAX + 1)
        kind, a, b, call, ret, positions = _random_key(n, np.random.randint(2, 6), np.random.randint(1, 5))
        key = Key(kind, a, b, call, ret)
        expected = some_order_fits(kind, a, b, call, ret)
        code, _, _, _ = measure_key(key, positions, starts, STEPS_MAX, SIZE_BYTES_MAX)
        if (code == LINEARIZABLE) != expected or (code == NO_ORDER) == expected:
            return case, -1, seen
        seen[int(expected)] += 1
        if expected and not _windows_have_orders(key, positions, starts):
            return -1, case, seen
    return -1, -1, seen


@kernel
def _windows_have_orders(key: Key, positions: int, starts: Int64) -> bool:
    places = prepare(key, positions, starts).event.shape[0]
    for _ in range(WINDOWS if places > 0 else 0):
        last = np.random.randint(places)
        first = np.random.randint(last + 1)
        code, _ = judge_window(key, positions, starts, first, last, STEPS_MAX, SIZE_BYTES_MAX)
        if code != LINEARIZABLE:
            return False
    return True


@kernel
def _random_key(n: int, processes: int, domain: int) -> tuple[Int8, Int64, Int64, Int32, Int32, int]:
    """Nonsense of few values: anything may be answered, or stay open.  A cas puts another value than it expects."""
    kind, a, b = np.empty(n, np.int8), np.full(n, NIL, np.int64), np.full(n, NIL, np.int64)
    call, ret = np.empty(n, np.int32), np.full(n, OPEN, np.int32)
    kinds = 4 if np.random.random() < 0.4 else 3
    crash = 0.3 * np.random.randint(2)
    busy = np.empty(processes, np.int64)
    invoked, now_busy, position = 0, 0, 0
    while invoked < n or now_busy > 0:
        if invoked < n and now_busy < processes and (now_busy == 0 or np.random.random() < 0.6):
            draw = np.random.randint(kinds)
            kind[invoked] = READ if draw == 0 else (WRITE if draw == 1 else (CAS if draw == 2 else MISMATCH))
            value = np.random.randint(domain + 1)
            a[invoked] = _coded(value)
            if kind[invoked] == CAS:
                b[invoked] = _coded((value + 1 + np.random.randint(domain)) % (domain + 1))
            call[invoked] = position
            busy[now_busy] = invoked
            invoked, now_busy, position = invoked + 1, now_busy + 1, position + 1
            continue
        at = np.random.randint(now_busy)
        op = busy[at]
        now_busy -= 1
        busy[at] = busy[now_busy]
        if np.random.random() >= crash:
            ret[op] = position
            position += 1
    return kind, a, b, call, ret, position


@kernel
def _coded(value: int) -> int:
    return NIL if value == 0 else value
