"""Every model against the independent search, on random histories of its object.

Strings whose order the gets show: against the independent search, by example, and in the shape of a real history.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from simulated_objects import OBJECTS, history, mixed_up

from bench.objects import string_history
from checkers.base import independent_search
from checkers.base.checker import Budget
from checkers.base.independent_search import Disagreement, SearchExhausted
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, judge_as, judge_events
from checkers.models import search as model_search
from checkers.models.model import Operation, operations_of
from checkers.models.objects.kv import KV, has_order
from checkers.models.search import demand_explanation, judge_object
from checkers.registers.judge_history import CAS_REGISTER

SMALL, LONGER = (2, 12), (30, 80)
SOME_CRASH, FEW_CRASH = (0, 0, 0.15), (0, 0.02)
EMPTY = ("out of order", "not empty")
COMPARED: list[tuple[str, int, tuple[int, int], tuple[float, ...], tuple[str, ...]]] = [
    *((name, 250, SMALL, SOME_CRASH, ()) for name in ("kv", "counter", "set", "append-log", "mutex")),
    *((name, 250, SMALL, (0, 0, 0.1), ()) for name in ("stack", "priority-queue", "semaphore")),
    *((f"{name} of few values", 250, SMALL, (0, 0.1), ()) for name in ("stack", "priority-queue")),
    ("queue", 80, SMALL, SOME_CRASH, ()),  # whose search takes 10 times as long
    ("queue of unique values", 2000, SMALL, SOME_CRASH, (*EMPTY, "duplicate", "value from nowhere")),
    ("queue without some answers", 1000, (4, 11), (0.2, 0.3), EMPTY),
    ("append-log with some offsets", 1500, (2, 9), (0, 0.15), ()),
    ("multi-register", 150, (2, 8), (0, 0.1), ()),
    *((name, 30, LONGER, FEW_CRASH, ()) for name in ("kv", "counter", "set", "append-log", "mutex")),
    ("queue", 6, (30, 60), FEW_CRASH, ()),
    ("queue of unique values", 15, (20, 40), (0, 0.01), ()),
]
"""(object, histories, their operations, shares of operations without an answer, kinds of violations that they have)."""


@pytest.mark.parametrize(("name", "cases", "sizes", "crashes", "kinds"), COMPARED)
def test_a_model_agrees_with_the_independent_search(
    name: str, cases: int, sizes: tuple[int, int], crashes: tuple[float, ...], kinds: tuple[str, ...]
) -> None:
    seen = agrees(name, Random(name), cases, sizes, crashes)
    assert min(seen[True], seen[False]) > cases / 20, seen
    assert seen["not decided"] < cases / 5, seen
    assert all(seen[kind] > 20 for kind in kinds), seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("name", "sizes", "crashes"), [(name, *rest) for name, _, *rest, _ in COMPARED])
def test_a_model_agrees_with_the_independent_search_all_night(
    name: str, sizes: tuple[int, int], crashes: tuple[float, ...], part: int, night: Random
) -> None:
    cases = {"queue": 200, "queue of unique values": 500}.get(name, 5_000) if sizes[0] > 10 else 25_000
    agrees(name, night, cases * (10 if name == "queue of unique values" and sizes == SMALL else 1), sizes, crashes)


def agrees(name: str, rng: Random, cases: int, sizes: tuple[int, int], crashes: tuple[float, ...]) -> Counter[Any]:
    """Histories whose answers are those of the object, or a few of them changed.

    A queue whose values repeat may be beyond both searches; nothing else is.
    """
    what, seen = OBJECTS[name], Counter[Any]()
    for _ in range(cases):
        simulated, moved, lies = what.make(rng), rng.random() < what.moved, rng.choice([0, 1, 2])
        crash = 0 if name == "mutex" else rng.choice(crashes)
        events = history(simulated, rng, rng.randint(*sizes), rng.randint(1, 4), crash, 0 if moved else lies)
        events = mixed_up(events, rng, 2 * lies) if moved else events
        verdict = judge_as(events, Ask(what.model), Budget())
        if verdict.validity is Validity.UNKNOWN and "nothing" in verdict.reason:
            seen["nothing shown"] += 1
            continue
        try:
            expected = what.explains(simulated, events)
        except SearchExhausted:
            expected = None
        if expected is None or verdict.validity is Validity.UNKNOWN:
            assert what.model == "queue", verdict.reason
            seen["not decided"] += 1
            continue
        assert verdict.validity is (Validity.VALID if expected else Validity.INVALID), (verdict.reason, events)
        assert expected or lies or what.step
        assert all(witness.facts.get("rejudged", True) for witness in verdict.witnesses), events
        seen[expected] += 1
        seen.update(witness.kind for witness in verdict.witnesses)
    return seen


def test_the_table_and_the_plain_search_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, kv = Random(12), OBJECTS["kv"]
    for _ in range(60):
        events = history(kv.make(rng), rng, rng.randint(4, 14), 4, 0.1, rng.choice([0, 1, 2]))
        expected = kv.explains(kv.make(rng), events)
        for first, most, steps in ((50, 2_000_000, 10_000), (0, 2_000_000, 0), (0, 0, 0), (0, 0, 10_000)):
            monkeypatch.setattr(model_search, "ENTRIES_FIRST_PER_OPERATION", first)
            monkeypatch.setattr(model_search, "ENTRIES_MAX", most)
            monkeypatch.setattr(model_search, "STEPS_FIRST", steps)
            monkeypatch.setattr(model_search, "STEPS_FIRST_PER_OPERATION", 0)
            answer = judge_object(KV, operations_of(events), Budget())
            assert answer.linearizable is expected


def test_a_register_as_a_model_agrees_with_the_register_kernels() -> None:
    rng = Random(4)
    for _ in range(100):
        events = history(OBJECTS["register"].make(rng), rng, rng.randint(2, 15), 4, 0.1, rng.choice([0, 1]))
        assert judge_events(events, CAS_REGISTER).validity is judge_events(events, "register").validity


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
