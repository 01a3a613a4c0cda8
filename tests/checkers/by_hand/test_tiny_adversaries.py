"""No history hangs a judge, however small and unusual it is; the judges of registers also agree with the search."""

from __future__ import annotations

from random import Random

import pytest
from histories import Script, operations_of
from tiny_adversaries import ASK, nonsense

from checkers.base.checker import Budget
from checkers.base.history import MalformedHistory
from checkers.base.independent_search import linearizable
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.by_hand.judge_file import Ask, judge_as

pytestmark = pytest.mark.timeout(1200, method="thread")  # also kills a hanging compiled kernel


def test_a_circle_of_cas_is_a_value_from_nowhere() -> None:
    script = Script()
    for expected, new in ((1, 2), (1, 3), (3, 1)):
        script.invoke(0, "cas", expected, new).ok(0)
    verdict = judge_events(script.events, "cas-register")
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].kind == "value from nowhere"


def test_a_circle_of_cas_beside_a_broken_chain_ends() -> None:
    script = Script()
    script.invoke(0, "write", 5).ok(0).invoke(0, "write", 6).ok(0).invoke(0, "read").ok(0, 5)
    for expected, new in ((1, 2), (2, 1)):
        script.invoke(0, "cas", expected, new).ok(0)
    assert judge_events(script.events, "cas-register").validity is Validity.INVALID


def test_a_circle_of_cas_without_an_observer_need_not_have_happened() -> None:
    script = Script()
    script.invoke(0, "cas", 1, 2).info(0).invoke(1, "cas", 2, 1).info(1).invoke(2, "write", 7).ok(2)
    script.invoke(2, "read").ok(2, 7)
    assert judge_events(script.events, "cas-register").validity is Validity.VALID


@pytest.mark.parametrize("model", ASK)
def test_nonsense_ends_with_a_verdict(model: str) -> None:
    judge_nonsense(model, Random(model), 300)


@pytest.mark.nightly
@pytest.mark.parametrize("model", ASK)
def test_nonsense_ends_with_a_verdict_all_night(model: str, night: Random) -> None:
    judge_nonsense(model, night, 20_000)


def judge_nonsense(model: str, rng: Random, cases: int) -> None:
    seen: dict[Validity, int] = {}
    for _ in range(cases):
        events = nonsense(model, rng, rng.randint(1, 8))
        try:
            verdict = judge_as(events, Ask(model), Budget())
        except MalformedHistory:
            continue
        seen[verdict.validity] = seen.get(verdict.validity, 0) + 1
        if model == "cas-register" and verdict.validity in (Validity.VALID, Validity.INVALID):
            assert linearizable(operations_of(events)) == (verdict.validity is Validity.VALID), events
    # By chance alone, no consumer polls each acknowledged message.
    usual = Validity.UNKNOWN if model == "kafka" else Validity.VALID
    assert seen[usual] and seen[Validity.INVALID], seen
