"""Databases that keep causal or read-atomic are valid at that level, and one defect that is planted is found."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from weak_databases import KEEPS, simulate_weak

from checkers.base.verdict import Validity
from checkers.transactions.anomalies import MODELS, implied
from checkers.transactions.judge import judge_transactions


@pytest.mark.parametrize("isolation", KEEPS)
def test_a_weak_database_keeps_its_level_and_no_stronger_one(isolation: str) -> None:
    rng, valid = Random(isolation), Counter[str]()
    for _ in range(10):
        events = simulate_weak(rng, isolation, transactions=rng.choice([20, 60]), processes=rng.randint(2, 6)).events
        for level in MODELS:
            verdict = judge_transactions(events, "rw-register", consistency=level)
            assert verdict.validity is not Validity.UNKNOWN
            valid[level] += verdict.validity is Validity.VALID
    assert all(valid[level] == 10 for level in implied(KEEPS[isolation])), valid
    assert valid["serializable"] < 8 and valid["snapshot-isolation"] < 8
    if isolation == "read-atomic":
        assert valid["causal"] < 10 and valid["strong-session-causal"] < 8


@pytest.mark.parametrize("isolation", KEEPS)
def test_a_planted_defect_is_found(isolation: str) -> None:
    """A fractured read under read-atomic; under causal a write that is missed, although its effect is seen."""
    rng, found, still_atomic = Random(f"defect {isolation}"), 0, 0
    for _ in range(40):
        defect = simulate_weak(rng, isolation).with_defect(rng, isolation)
        if defect is None:
            continue
        found += 1
        verdict = judge_transactions(defect, "rw-register", consistency=KEEPS[isolation])
        assert verdict.validity is Validity.INVALID and verdict.witnesses
        atomic = judge_transactions(defect, "rw-register", consistency="read-atomic").validity
        still_atomic += atomic is Validity.VALID
    assert found > 20
    assert still_atomic > 3 if isolation == "causal" else still_atomic == 0


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("isolation", KEEPS)
def test_more_histories_of_weak_databases(isolation: str, part: int, night: Random) -> None:
    for _ in range(300):
        history = simulate_weak(night, isolation, transactions=200, processes=8, keys=6)
        level = KEEPS[isolation]
        assert judge_transactions(history.events, "rw-register", consistency=level).validity is Validity.VALID
        if (defect := history.with_defect(night, isolation)) is not None:
            assert judge_transactions(defect, "rw-register", consistency=level).validity is Validity.INVALID
