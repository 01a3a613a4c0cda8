"""The antichain search put to the proof in bulk: tiny keys of few values, tried in every order (a hundred thousand
with the other tests, ten million at night)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from every_order import KEYS_AT_ONCE, OPERATIONS_MAX, room_for, with_an_order

from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, READ, WRITE, Operations
from checkers.kernels.registers.antichain import LINEARIZABLE, NO_ORDER, judge_keys, judge_window
from checkers.kernels.registers.board import prepare
from checkers.kernels.registers.unique_values import Key, key_of

STEPS_MAX = SIZE_BYTES_MAX = 10**9
START = np.array([NIL], np.int64)


def sweep(count: int, seed: int, keys_with_windows: int) -> None:
    """Judge random keys both ways, and windows of the first that have an order."""
    rng, seen = Random(seed), np.zeros(2, np.int64)
    for part in range(count // KEYS_AT_ONCE):
        ops = room_for(KEYS_AT_ONCE)
        _fill(ops, seed + part)
        every = np.arange(KEYS_AT_ONCE, dtype=np.int32)
        codes, _, _ = judge_keys(ops, every, START, np.full(KEYS_AT_ONCE, STEPS_MAX), SIZE_BYTES_MAX)
        has_order = with_an_order(ops)
        wrong = np.flatnonzero(codes != np.where(has_order, LINEARIZABLE, NO_ORDER))
        assert not len(wrong), f"seed {seed + part}, case {wrong[0]}: the search and all orders disagree"
        seen += np.bincount(has_order, minlength=2)
        for k in np.flatnonzero(has_order)[:keys_with_windows].tolist():
            assert window_has_an_order(key_of(ops, k), int(ops.positions[k]), rng), f"seed {seed + part}, case {k}"
    assert min(seen) > count // 20, f"[without an order, with one]: {seen}"


def window_has_an_order(key: Key, positions: int, rng: Random) -> bool:
    """Judge a random window of a key that has an order."""
    places = len(prepare(key, positions, START).event)
    if not places:
        return True
    last = rng.randrange(places)
    code, _ = judge_window(key, positions, START, rng.randrange(last + 1), last, STEPS_MAX, SIZE_BYTES_MAX)
    return bool(code == LINEARIZABLE)


def test_a_hundred_thousand_tiny_keys_in_every_order() -> None:
    sweep(100_000, seed=1, keys_with_windows=2_000)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_ten_million_tiny_keys_of_few_values_in_every_order(part: int, night: Random) -> None:
    sweep(1_000_000, night.randrange(2**31), keys_with_windows=10_000)


@kernel
def _fill(ops: Operations, seed: int) -> None:
    np.random.seed(seed)
    for k in range(ops.positions.shape[0]):
        ops.offsets[k + 1] = ops.offsets[k] + np.random.randint(2, OPERATIONS_MAX + 1)
        ops.positions[k] = _random_key(key_of(ops, k), np.random.randint(2, 6), np.random.randint(1, 5))


@kernel
def _random_key(key: Key, processes: int, domain: int) -> int:
    """Nonsense of few values: anything may be answered, or stay open.  A cas puts another value than it expects."""
    n = key.kind.shape[0]
    kinds = 4 if np.random.random() < 0.4 else 3
    crash = 0.3 * np.random.randint(2)
    busy = np.empty(processes, np.int64)
    invoked, now_busy, position = 0, 0, 0
    while invoked < n or now_busy > 0:
        if invoked < n and now_busy < processes and (now_busy == 0 or np.random.random() < 0.6):
            draw = np.random.randint(kinds)
            key.kind[invoked] = READ if draw == 0 else (WRITE if draw == 1 else (CAS if draw == 2 else MISMATCH))
            value = np.random.randint(domain + 1)
            key.a[invoked] = _coded(value)
            if key.kind[invoked] == CAS:
                key.b[invoked] = _coded((value + 1 + np.random.randint(domain)) % (domain + 1))
            key.call[invoked] = position
            busy[now_busy] = invoked
            invoked, now_busy, position = invoked + 1, now_busy + 1, position + 1
            continue
        at = np.random.randint(now_busy)
        op = busy[at]
        now_busy -= 1
        busy[at] = busy[now_busy]
        if np.random.random() >= crash:
            key.ret[op] = position
            position += 1
    return position


@kernel
def _coded(value: int) -> int:
    return NIL if value == 0 else value
