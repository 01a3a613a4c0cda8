"""Every model against the independent search, on random histories of its object."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from simulated_objects import OBJECTS, history, mixed_up

from checkers.base.checker import Budget
from checkers.base.independent_search import SearchExhausted
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, judge_as, judge_events
from checkers.models import search as model_search
from checkers.models.model import operations_of
from checkers.models.objects.kv import KV
from checkers.models.search import judge_object
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
