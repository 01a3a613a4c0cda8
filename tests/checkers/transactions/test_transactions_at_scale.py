"""Long histories that are strictly serializable by construction: valid; and with one anomaly of each name, found and
shown by a witness of exactly its transactions.  At night they have a million transactions."""

from __future__ import annotations

from functools import lru_cache

import pytest

from bench.instruments import transaction_histories
from checkers.base.checker import Budget
from checkers.base.verdict import Validity
from checkers.kernels.transactions.columns import Transactions
from checkers.transactions.judge import judge_columns
from checkers.transactions.read import Model

LARGE, MIDDLE = 1_000_000, 30_000
CASES = [("list-append", name) for name in transaction_histories.LISTS] + [
    ("rw-register", name) for name in transaction_histories.REGISTERS
]
TOGETHER = [
    (model, name)
    for model, name in CASES
    if transaction_histories.smallest(model, name)[1] and name not in ("G1a", "dirty-update")
]


@lru_cache(maxsize=2)
def clean(model: Model, size: int) -> tuple[Transactions, int]:
    return transaction_histories.simulate(size, model)


@pytest.mark.parametrize("size", [LARGE // 10, pytest.param(LARGE, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_a_long_history_without_any_anomaly(model: Model, size: int) -> None:
    txns, events = clean(model, size)
    assert judge_columns(txns, model, events).validity is Validity.VALID


@pytest.mark.parametrize(("model", "name"), CASES)
def test_each_anomaly_among_thousands(model: Model, name: str) -> None:
    the_one_anomaly_is_found(model, name, MIDDLE)


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "name"), CASES)
def test_each_anomaly_among_a_million(model: Model, name: str) -> None:
    the_one_anomaly_is_found(model, name, LARGE)


def the_one_anomaly_is_found(model: Model, name: str, size: int) -> None:
    txns, events = clean(model, size)
    verdict = judge_columns(*with_model(transaction_histories.spliced(txns, events, model, name), model))
    assert verdict.validity is Validity.INVALID
    assert {name} <= set(verdict.details["anomalies"]) <= {name} | transaction_histories.smallest(model, name)[2]
    witness = next(w for w in verdict.witnesses if w.kind == name)
    assert all(e["process"] > txns.process.max() for e in witness.events)


@pytest.mark.parametrize(("model", "name"), TOGETHER)
def test_an_anomaly_strewn_over_the_history_makes_nearly_all_of_it_cyclic(model: Model, name: str) -> None:
    txns, events = clean(model, MIDDLE)
    spoilt, owners = transaction_histories.strewn(txns, model, name)
    verdict = judge_columns(spoilt, model, events)
    assert verdict.validity is Validity.INVALID
    assert verdict.reason == ""
    invoked = set(txns.invoked[owners].tolist())
    for witness in verdict.witnesses:
        if witness.facts.get("length", 0) <= len(witness.facts.get("cycle", [])):
            assert invoked & {e["index"] for e in witness.events}, witness.summary


@pytest.mark.parametrize("share", [1000, 30])
def test_many_anomalies_are_within_the_budget(share: int) -> None:
    txns, events = clean("list-append", MIDDLE)
    verdict = judge_columns(transaction_histories.with_stale_reads(txns, MIDDLE // share), "list-append", events)
    assert verdict.validity is Validity.INVALID
    assert {"G-single", "internal"} <= set(verdict.details["anomalies"])
    assert verdict.reason == ""


def test_a_search_that_ends_at_its_budget_still_shows_some_cycle() -> None:
    txns, events = clean("list-append", MIDDLE)
    spoilt, _ = transaction_histories.strewn(txns, "list-append", "G2-item")
    needed = 2 * len(spoilt.kind) + len(spoilt.lists) // 8
    verdict = judge_columns(spoilt, "list-append", events, Budget(steps=needed + 10))
    assert verdict.validity is Validity.INVALID
    assert "budget ended the search" in verdict.reason


def with_model(history: tuple[Transactions, int], model: Model) -> tuple[Transactions, Model, int]:
    return history[0], model, history[1]
