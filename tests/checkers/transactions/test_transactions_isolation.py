"""Histories of databases that keep a level by construction: no model they keep may ever be ruled out.

Databases that keep causal or read-atomic are valid at that level, and one defect that is planted is found.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from toy_transactions import KEEPS, simulate, simulate_weak

from checkers.base.verdict import Validity
from checkers.transactions.anomalies import MODELS, implied
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model

KEPT = {
    "strict-serializable": "strict-serializable",
    "serializable": "serializable",
    "snapshot-isolation": "strong-snapshot-isolation",
    "read-committed": "strong-read-committed",
    "read-uncommitted": "read-uncommitted",
}
"""What each simulated database keeps; all but one take their snapshots and locks in real time."""

SHOWN = {
    "serializable": {"G-single-process"},
    "snapshot-isolation": {"G2-item"},
    "read-committed": {"G-single", "lost-update"},
    "read-uncommitted": {"G1a", "G1c"},
}
"""What lists show of the weaker ones before long."""


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
@pytest.mark.parametrize("isolation", KEPT)
def test_what_a_database_keeps_is_not_ruled_out(model: Model, isolation: str) -> None:
    rng, shown = Random(f"{model} {isolation}"), Counter[str]()
    for size, times in ((10, 3), (30, 3), (100, 3), (300, 2), (1000, 1)):
        for _ in range(times):
            events = simulate(rng, model, isolation, transactions=size, processes=rng.randint(2, 12), keys=4)
            verdict = judge_transactions(events, model, consistency=KEPT[isolation])
            assert verdict.validity is Validity.VALID, (verdict.reason, [w.summary for w in verdict.witnesses])
            shown.update(verdict.details["anomalies"].keys())
    if isolation == "strict-serializable":
        assert not shown
    elif model == "list-append":
        assert SHOWN[isolation] <= set(shown), shown


@pytest.mark.parametrize("isolation", ["strict-serializable", "serializable"])
def test_versions_ordered_by_time_hold_for_a_strict_database(isolation: str) -> None:
    rng, found = Random(3), 0
    for _ in range(20):
        events = simulate(rng, "rw-register", isolation, transactions=150, processes=6)
        found += judge_transactions(events, "rw-register").validity is Validity.INVALID
    assert found == 0 if isolation == "strict-serializable" else found > 0


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("isolation", KEPT)
def test_longer_histories_of_every_database(isolation: str, part: int, night: Random) -> None:
    seed = night.randrange(2**31)
    for model in ("list-append", "rw-register"):
        events = simulate(Random(seed), model, isolation, transactions=3000, processes=20, keys=10)
        verdict = judge_transactions(events, model, consistency=KEPT[isolation])
        assert verdict.validity is not Validity.INVALID


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
