"""The antichain search: against the independent search on middling histories, and by construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from small_domain import Op, correct, judged, key_of, nonsense, searched

from bench.objects import VIOLATIONS, another_answer, correct_key
from checkers.base.independent_search import SearchExhausted
from checkers.kernels import register_antichain as antichain
from checkers.kernels.operations import NIL
from checkers.kernels.register_antichain import certainly_overwritten
from checkers.kernels.register_board import prepare
from checkers.kernels.register_unique_values import Key

HOLDS, NO_ORDER = antichain.LINEARIZABLE, antichain.NO_ORDER
START = np.array([NIL], np.int64)


def agrees_with_the_search(rng: Random, cases: int, largest: int) -> None:
    """No window of a history that has an order is without one, and none of its answers is called overwritten.  Of one
    without an order the whole, taken as a window, has none."""
    seen = {"valid": 0, "invalid": 0, "found in a part": 0, "found overwritten": 0}
    for _ in range(cases):
        operations = wrong_or_right(rng, largest)
        key, positions = key_of(operations)
        places = len(prepare(key, positions, START).event)
        overwritten = certainly_overwritten(prepare(key, positions, START)) >= 0
        try:
            expected = searched(operations)
        except SearchExhausted:
            continue
        assert (judged(operations) == HOLDS) == expected, operations
        if not places:
            continue

        def window(first: int, last: int, key: Key = key, positions: int = positions) -> int:
            return int(antichain.judge_window(key, positions, START, first, last, 10**9, 10**9)[0])

        if expected:
            seen["valid"] += 1
            assert not overwritten, operations
            for _ in range(5):
                last = rng.randrange(places)
                first = rng.randrange(last + 1)
                assert window(first, last) == HOLDS, (operations, first, last)
        else:
            seen["invalid"] += 1
            seen["found overwritten"] += overwritten
            seen["found in a part"] += window(places // 2, places - 1) == NO_ORDER
            assert window(0, places - 1) == NO_ORDER
    assert min(seen.values()) > cases / 20, seen


def wrong_or_right(rng: Random, largest: int) -> list[Op]:
    """Tiny nonsense, or a longer correct history with up to three answers changed."""
    if rng.random() < 0.5:
        return nonsense(rng, rng.randint(2, 9), rng.randint(2, 6), rng.randint(1, 4))
    domain = rng.randint(2, 5)
    size = rng.randint(10, largest)
    processes, open_ = rng.randint(2, 7 if size <= 40 else 5), rng.choice([0, 2, 6])
    operations = correct(rng, size, processes, domain, crash=open_ / max(20, size))
    for at in rng.sample(range(len(operations)), rng.choice([0, 1, 2, 3])):
        if operations[at].f == "read":
            operations[at] = replace(operations[at], value=rng.choice([None, *range(domain)]))
    return operations


def test_it_agrees_with_the_independent_search_and_shortcuts_never_cry_wolf() -> None:
    agrees_with_the_search(Random(5), 350, largest=80)


def every_window_of_a_right_history_has_an_order(rng: Random, cases: int) -> None:
    for _ in range(cases):
        fs = rng.choice([("read", "write", "cas"), ("cas", "cas", "read"), ("cas", "write"), ("cas", "write", "read")])
        crash = rng.choice([0, 0.1, 0.4])
        operations = correct(rng, rng.randint(4, 20), rng.randint(2, 8), rng.choice([2, 2, 3]), crash, fs)
        key, positions = key_of(operations)
        places = len(prepare(key, positions, START).event)
        for first in range(places):
            for last in range(first, places):
                code, _ = antichain.judge_window(key, positions, START, first, last, 10**9, 10**9)
                assert code == HOLDS, (operations, first, last)


def test_every_window_of_a_right_history_has_an_order() -> None:
    every_window_of_a_right_history_has_an_order(Random(6), 150)


ALL_NIGHT: dict[str, Callable[[Random], None]] = {
    "windows": lambda night: every_window_of_a_right_history_has_an_order(night, 100_000),
    "small": lambda night: agrees_with_the_search(night, 400_000, largest=40),
    **{f"middling {n}": lambda night: agrees_with_the_search(night, 25_000, largest=80) for n in range(4)},
    "large": lambda night: agrees_with_the_search(night, 10_000, largest=200),
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", ALL_NIGHT)
def test_it_agrees_all_night(what: str, night: Random) -> None:
    ALL_NIGHT[what](night)


def test_every_violation_is_found_in_every_crowd() -> None:
    for operations, clients, open_ in ((100, 100, 10), (1000, 5, 0), (1000, 30, 30), (1000, 100, 30)):
        for seed, (name, spoil) in enumerate(VIOLATIONS.items()):
            correct_one = correct_key(operations, clients, 5, open_, seed)
            wrong = spoil(*correct_one, np.random.default_rng(seed))
            for (key, positions), expected in ((correct_one, HOLDS), (wrong, NO_ORDER)):
                code, at, _ = antichain.judge_key(key, positions, START, 5_000_000, 10**9)
                assert code == expected, (operations, clients, open_, name)
                assert (at >= 0) == (expected == NO_ORDER)


def test_a_changed_answer_is_judged_in_few_steps_right_or_wrong() -> None:
    codes = set()
    for seed in range(40):
        key, positions = correct_key(1000, 30, 5, 10, seed)
        key, positions = another_answer(key, positions, np.random.default_rng(seed))
        codes.add(antichain.judge_key(key, positions, START, 5_000_000, 10**9)[0])
    assert codes <= {HOLDS, NO_ORDER}


def test_a_cas_that_must_happen_is_not_kept_back_for_one_that_need_not() -> None:
    """Both take 0 to 1; the one under way when the window begins returns first, and may have happened before it."""
    operations = [Op("write", 0, None, 0, 1), Op("cas", 0, 1, 2, 12), Op("read", 1, None, 3, 4)]
    operations += [Op("write", 0, None, 5, 6), Op("cas", 0, 1, 7, 14), Op("read", 1, None, 8, 9)]
    operations += [Op("read", 1, None, 10, 16)]
    key, positions = key_of(operations)
    assert judged(operations) == HOLDS
    places = len(prepare(key, positions, START).event)
    for first in range(places):
        for last in range(first, places):
            assert antichain.judge_window(key, positions, START, first, last, 10**6, 10**6)[0] == HOLDS


def test_what_never_returned_may_happen_in_a_window_or_before_it() -> None:
    """A write under way when the window begins may have happened, may happen in it, or never."""
    operations = [Op("write", 1, None, 0, 1), Op("write", 2, None, 2, 9), Op("read", 1, None, 3, 4)]
    operations += [Op("read", 2, None, 5, 6), Op("read", 1, None, 7, 8)]
    key, positions = key_of(operations)
    assert judged(operations) == NO_ORDER
    codes = [antichain.judge_window(key, positions, START, first, 8, 10**6, 10**6)[0] for first in range(9)]
    assert codes == [NO_ORDER] * 6 + [HOLDS] * 3


def impossible_read_in(operations: list[Op], at: float) -> Op:
    """A read at about that share of the history, answered with a value that is never written."""
    reads = [o for o in operations if o.f == "read" and o.call > at * len(operations)]
    return replace(reads[0], value=999)


@pytest.mark.parametrize(("processes", "crash"), [(5, 0.0), (5, 0.0005), (30, 0.0)])
def test_a_large_correct_history_is_accepted_and_one_wrong_answer_in_it_is_not(processes: int, crash: float) -> None:
    operations = correct(Random(processes), 20_000, processes, 5, crash)
    assert judged(operations) == HOLDS
    wrong = impossible_read_in(operations, 1.7)
    operations = [wrong if o.call == wrong.call else o for o in operations]
    assert judged(operations) == NO_ORDER


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("clients", "open_"), [(5, 0), (5, 10), (10, 0), (30, 5)])
def test_a_million_operations(seed: int, clients: int, open_: int) -> None:
    correct_one = correct_key(1_000_000, clients, 5, open_, seed)
    assert antichain.judge_key(*correct_one, START, 10**10, 10**9)[0] == HOLDS
    for spoil in VIOLATIONS.values():
        key, positions = spoil(*correct_one, np.random.default_rng(seed))
        assert antichain.judge_key(key, positions, START, 10**10, 10**9)[0] == NO_ORDER


def test_more_than_sixty_four_operations_may_be_open_at_once() -> None:
    writes = [Op("write", n % 4, None, n, 300 + n) for n in range(150)]
    reads = [Op("read", n % 4, None, 150 + n, 450 + n) for n in range(100)]
    assert judged(writes + reads) == HOLDS
    assert judged([*writes, *reads, Op("read", 9, None, 250, 600)]) == NO_ORDER
