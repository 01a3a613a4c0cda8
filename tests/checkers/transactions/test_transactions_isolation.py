"""Histories of databases that keep a level by construction: no model they keep may ever be ruled out."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from toy_transactions import simulate

from checkers.base.verdict import Validity
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
