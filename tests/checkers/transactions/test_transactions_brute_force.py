"""Tiny histories: the verdict on serializability against every order there is."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from toy_transactions import ISOLATIONS, shows_nothing, simulate, try_all_orders

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model


def tiny_history(rng: Random, model: Model) -> list[Event]:
    """Up to five transactions of any database, now and then with one answer made up."""
    events = simulate(
        rng,
        model,
        rng.choice(ISOLATIONS),
        transactions=rng.randint(2, 5),
        processes=rng.randint(2, 4),
        keys=rng.randint(1, 2),
        operations_max=3,
        trouble=rng.choice([0, 0.2]),
    )
    return _falsified(rng, events, model) if rng.random() < 0.5 else events


def _falsified(rng: Random, events: list[Event], model: Model) -> list[Event]:
    """One answer of one read replaced: by less, by more, or by another order."""
    reads = [
        (i, j) for i, e in enumerate(events) if e.type is Type.OK for j, m in enumerate(steps_of(e)) if m[0] == "r"
    ]
    if not reads:
        return events
    i, j = rng.choice(reads)
    changed = steps_of(events[i])
    values = sorted({m[2] for e in events for m in steps_of(e) if m[0] != "r" and m[1] == changed[j][1]})
    if model == "list-append":
        changed[j][2] = rng.sample(values, rng.randint(0, len(values)))
    else:
        changed[j][2] = rng.choice([None, *values])
    return [*events[:i], replace(events[i], payload=json.dumps(changed)), *events[i + 1 :]]


def steps_of(event: Event) -> list[list[object]]:
    return list(json.loads(event.payload or "[]"))


def compare(model: Model, cases: int, seed: int) -> Counter[str]:
    """Judge random histories both ways; the verdicts must be equal."""
    rng, seen = Random(seed), Counter[str]()
    for _ in range(cases):
        events = tiny_history(rng, model)
        tried = try_all_orders(events, model)
        verdict = judge_transactions(events, model)
        if shows_nothing(events):
            assert verdict.validity is Validity.UNKNOWN, events
            assert tried.strict_serializable
            seen["unknown"] += 1
            continue
        assert verdict.validity is not Validity.UNKNOWN, verdict.reason
        assert (verdict.validity is Validity.VALID) == tried.strict_serializable, (verdict.details, events)
        if tried.serializable:
            assert "serializable" not in verdict.details["ruled_out"], (verdict.details["anomalies"], events)
        plain = judge_transactions(events, model, consistency="serializable")
        assert (plain.validity is Validity.VALID) == tried.serializable, (plain.details, events)
        seen.update(verdict.details["anomalies"] or ["none"])
        seen["not strict-serializable"] += not tried.strict_serializable
        seen["found"] += verdict.validity is Validity.INVALID
    return seen


def test_lists_are_judged_exactly() -> None:
    seen = compare("list-append", 700, seed=1)
    expected = {"none", "G1a", "G-single", "G2-item", "lost-update", "internal", "incompatible-order", "G1c", "unknown"}
    assert expected <= set(seen), seen


def test_registers_are_judged_exactly() -> None:
    seen = compare("rw-register", 700, seed=2)
    assert {"none", "G1a", "G-single", "internal", "lost-update", "G1c"} <= set(seen), seen
    assert seen["found"] == seen["not strict-serializable"], seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(100))
def test_a_million_tiny_histories(part: int, night: Random) -> None:
    seed = night.randrange(2**31)
    compare("list-append", 5000, seed)
    compare("rw-register", 5000, seed)
