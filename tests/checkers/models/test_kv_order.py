"""Strings whose order the gets show: against the independent search, by example, and in the shape of a real history."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bench.objects import string_history
from checkers.base import independent_search
from checkers.base.independent_search import Disagreement
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.model import Operation
from checkers.models.objects.kv import KV, has_order
from checkers.models.search import demand_explanation

Row = tuple[str, str | None, int, int | None]
"""(f, value of a write or answer of a get, index of the call, index of the return)."""


def of_rows(*rows: Row) -> list[Operation]:
    made = [
        Operation(f, None if f == "get" else value, None if ret is None else value, "k", call, "n1", call, ret)
        for f, value, call, ret in rows
    ]
    return sorted(made, key=lambda o: o.call)


def tiny_strings(rng: Random, *, unique: bool) -> list[Operation]:
    """Up to seven operations of a string, in which up to two answers of gets are falsified."""
    fresh, words = iter("abcdefg"), ("a", "b", "c", "ab")[: rng.randint(1, 4)]
    puts = rng.choice((1, 3))
    state, states, done = "", [""], []
    for _ in range(rng.randint(2, 7)):
        f = rng.choices(("get", "put", "append"), (5, puts, 4))[0]
        value = "" if f == "get" else next(fresh) if unique else rng.choice(words)
        state = value if f == "put" else state + value
        states.append(state)
        done.append([f, state if f == "get" else value])
    gets = [each for each in done if each[0] == "get"]
    for _ in range(rng.choice((0, 0, 1, 1, 2)) if gets else 0):
        get = rng.choice(gets)
        get[1] = rng.choice((rng.choice(states), get[1][:-1], get[1] + rng.choice("abcd")))
    width = rng.choice((0.3, 1.5, 3, 6))
    times = [(at - rng.random() * width, at, 0) for at in range(len(done))]
    times += [(at + rng.random() * width, at, 1) for at in range(len(done))]
    index = {(at, end): place for place, (_, at, end) in enumerate(sorted(times))}
    rows = [(f, value, index[at, 0], index[at, 1]) for at, (f, value) in enumerate(done)]
    return of_rows(*(row if rng.random() < 0.88 else (*row[:3], None) for row in rows))


def compare(rng: Random, cases: int) -> Counter[tuple[bool, bool | None]]:
    """Raises AssertionError where the rule and the independent search differ."""
    seen = Counter[tuple[bool, bool | None]]()
    for _ in range(cases):
        unique = rng.random() < 0.6
        operations = tiny_strings(rng, unique=unique)
        kept = [o for o in operations if o.returned or o.f != "get"]
        exists = independent_search.linearizable(kept, [""], KV.step, 100_000)  # type: ignore[arg-type]
        found = has_order(operations, KV)
        assert found in ((exists,) if unique else (exists, None)), operations
        seen[exists, found] += 1
    return seen


def test_the_rule_says_what_every_order_says() -> None:
    seen = compare(Random(1), 3000)
    assert seen[True, True] > 1500 and seen[False, False] > 400, seen
    assert seen[True, None] + seen[False, None] < 100, seen


@pytest.mark.nightly
def test_the_rule_says_what_every_order_says_of_200_000_histories(night: Random) -> None:
    compare(night, 200_000)


def test_nothing_is_claimed_of_empty_writes() -> None:
    operations = of_rows(("put", "", 0, 1), ("append", "a", 2, 3), ("get", "a", 4, 5))
    assert has_order(operations, KV) is None


def test_a_wrong_order_is_refused() -> None:
    a, b, get = of_rows(("append", "a", 0, 3), ("append", "b", 1, 2), ("get", "ab", 4, 5))
    demand_explanation([a, b, get], [a, b, get], KV)
    for wrong in ([b, a, get], [a, b], [a, get, b], [a, b, b, get]):
        with pytest.raises(Disagreement):
            demand_explanation([a, b, get], wrong, KV)


@pytest.mark.parametrize("seed", range(4))
def test_a_history_of_fifty_clients_needs_no_search(seed: int) -> None:
    """Several of them took two million steps of the search."""
    events = string_history(Random(seed))
    verdict = judge_events(events, "kv")
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at["steps"] == verdict.looked_at["operations"] == 1712
