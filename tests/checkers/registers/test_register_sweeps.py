"""The kernels of registers put to the proof in bulk: tiny keys tried in every order (200,000 of unique values and
100,000 of few values with the other tests, ten million of each at night), and a hundred thousand of middling size
before the independent search (a share, all at night).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from every_order import KEYS_AT_ONCE, OPERATIONS_MAX, room_for, with_an_order
from histories import by_construction, judged_alone, operations_of

from checkers.base.arrays import Int8, Int64
from checkers.base.history import Type
from checkers.base.independent_search import linearizable
from checkers.kernels import register_antichain as antichain
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, READ, WRITE, Operations
from checkers.kernels.register_board import prepare
from checkers.kernels.register_unique_values import BLOCKS_CROSS, FIRST_INVALID, LINEARIZABLE, Key, judge_keys, key_of

STEPS_MAX = 10**9
START = np.array([NIL], np.int64)
NOWHERE_VALUE = 99


def sweep_tiny(count: int, seed: int) -> None:
    """Judge random keys both ways; every code of the kernel must be given, and not seldom."""
    seen = np.zeros(BLOCKS_CROSS + 1, np.int64)
    for part in range(count // KEYS_AT_ONCE):
        ops = room_for(KEYS_AT_ONCE)
        _fill(ops, seed + part)
        codes, _, _, _ = judge_keys(ops, STEPS_MAX)
        wrong = np.flatnonzero((codes == LINEARIZABLE) != with_an_order(ops))
        assert not len(wrong), f"seed {seed + part}, case {wrong[0]}: the kernel is wrong"
        seen += np.bincount(codes, minlength=len(seen))
    assert set(seen.nonzero()[0].tolist()) == {LINEARIZABLE, *range(FIRST_INVALID, BLOCKS_CROSS + 1)}
    assert min(seen[seen > 0]) > count // 500, f"some were hardly ever tried: {seen}"


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


def test_200_000_tiny_keys_of_unique_values_in_every_order() -> None:
    sweep_tiny(200_000, seed=1)


def test_a_share_of_the_middling_sweep() -> None:
    sweep_middling(150, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_ten_million_tiny_keys_of_unique_values_in_every_order(part: int, night: Random) -> None:
    sweep_tiny(1_000_000, seed=night.randrange(2**31))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_a_hundred_thousand_middling_keys_before_the_search(part: int, night: Random) -> None:
    sweep_middling(5_000, seed=night.randrange(2**31))


@kernel
def _fill(ops: Operations, seed: int) -> None:
    np.random.seed(seed)
    for k in range(ops.positions.shape[0]):
        ops.offsets[k + 1] = ops.offsets[k] + np.random.randint(2, OPERATIONS_MAX + 1)
        key = key_of(ops, k)
        ops.positions[k] = _random_key(key, np.random.randint(2, 5))
        if np.random.randint(2) == 0:
            _move_apart(key.a)
            _move_apart(key.b)


@kernel
def _random_key(key: Key, processes: int) -> int:
    """Unique values (operation i produces i) and otherwise nonsense: anything may be answered, or stay open."""
    kind, a, n = key.kind, key.a, key.kind.shape[0]
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
                key.b[invoked] = invoked
            key.call[invoked] = position
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
        key.ret[op] = position
        position += 1
    return position


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
def _move_apart(values: Int64) -> None:
    """Replace values by others in the same relation, too far apart to be numbers."""
    for i in range(values.shape[0]):
        if values[i] != NIL:
            values[i] = (values[i] - 50) * 10**16


def sweep_few_values(count: int, seed: int, keys_with_windows: int) -> None:
    """Judge random keys both ways, and windows of the first that have an order."""
    rng, seen = Random(seed), np.zeros(2, np.int64)
    for part in range(count // KEYS_AT_ONCE):
        ops = room_for(KEYS_AT_ONCE)
        _fill_few_values(ops, seed + part)
        every = np.arange(KEYS_AT_ONCE, dtype=np.int32)
        codes, _, _ = antichain.judge_keys(ops, every, START, np.full(KEYS_AT_ONCE, STEPS_MAX), 10**9)
        has_order = with_an_order(ops)
        wrong = np.flatnonzero(codes != np.where(has_order, antichain.LINEARIZABLE, antichain.NO_ORDER))
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
    code, _ = antichain.judge_window(key, positions, START, rng.randrange(last + 1), last, STEPS_MAX, 10**9)
    return bool(code == antichain.LINEARIZABLE)


def test_a_hundred_thousand_tiny_keys_of_few_values_in_every_order() -> None:
    sweep_few_values(100_000, seed=1, keys_with_windows=2_000)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_ten_million_tiny_keys_of_few_values_in_every_order(part: int, night: Random) -> None:
    sweep_few_values(1_000_000, night.randrange(2**31), keys_with_windows=10_000)


@kernel
def _fill_few_values(ops: Operations, seed: int) -> None:
    np.random.seed(seed)
    for k in range(ops.positions.shape[0]):
        ops.offsets[k + 1] = ops.offsets[k] + np.random.randint(2, OPERATIONS_MAX + 1)
        ops.positions[k] = _key_of_few_values(key_of(ops, k), np.random.randint(2, 6), np.random.randint(1, 5))


@kernel
def _key_of_few_values(key: Key, processes: int, domain: int) -> int:
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
