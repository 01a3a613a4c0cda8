"""Adversarial histories at every level, against every execution (`every_execution.py`) and every choice of
dependencies (`every_dependency.py`), in both directions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from adversarial_histories import adversarial
from every_dependency import levels_of_choices
from every_execution import executed, levels_that_fit
from toy_transactions import of_one_process

from checkers.base.history import Event
from checkers.base.verdict import VIOLATIONS_BY_KIND, Validity
from checkers.kernels.transactions.columns import NEVER
from checkers.transactions.anomalies import BASE_MODELS, MODELS, PROCESS, REALTIME, implied, model_name, parts_of
from checkers.transactions.judge import judge_transactions, judge_transcript
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.transactions.tape import at_once, one_after_another


def compare(model: Model, rng: Random, cases: int, *, unique: bool) -> Counter[str]:
    """Raises AssertionError where a verdict and the executions differ, or where levels contradict one another."""
    seen = Counter[str]()
    for _ in range(cases):
        events = adversarial(rng, model, unique=unique)
        possible = levels_that_fit(executed(events, model), model)
        chosen = levels_of_choices(events, model)
        seen["chosen"] += chosen is not None
        told = {level for level in MODELS if unique or parts_of(level)[0] != "read-uncommitted"}
        assert chosen is None or chosen & told == possible & told, (sorted(chosen ^ possible), events)
        valid = set()
        for level in MODELS:
            verdict = judge_transactions(events, model, consistency=level)
            if verdict.validity is Validity.UNKNOWN:
                assert level in possible or "written twice" in verdict.reason, (level, verdict.reason, events)
                nothing = "nothing" in verdict.reason or "no transaction committed" in verdict.reason
                seen["nothing shown" if nothing else f"undecided {parts_of(level)[0]}"] += 1
                assert nothing or not unique, (level, verdict.reason, events)
                continue
            found = verdict.validity is Validity.VALID
            if unique or parts_of(level)[0] != "read-uncommitted":
                assert found == (level in possible), (level, verdict.validity, verdict.details, events)
                wrong = possible & set(verdict.details["ruled_out"])
                assert unique is False or not wrong, (level, wrong, verdict.details, events)
                seen["valid" if found else "invalid"] += 1
            if found:
                valid.add(level)
            else:
                assert not any(level in implied(stronger) for stronger in valid), (level, valid, events)
        for stronger in valid:
            assert implied(stronger) <= valid, (stronger, valid, events)
    return seen


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_no_execution_contradicts_a_verdict(model: Model, unique: bool) -> None:
    seen = compare(model, Random(f"{model} {unique}"), 40, unique=unique)
    assert seen["valid"] > 100 < seen["invalid"] and seen["chosen"] > 20, seen


def compare_sessions(model: Model, rng: Random, cases: int, *, unique: bool) -> Counter[str]:
    """The same of histories by session, in which all transactions overlap: no level in real time is asked.

    Raises AssertionError where a verdict and the executions differ."""
    seen = Counter[str]()
    for _ in range(cases):
        events = adversarial(rng, model, unique=unique)
        possible = levels_that_fit(executed(events, model), model)
        history = by_sessions(read_transactions(events, model))
        for level in (level for level in MODELS if parts_of(level)[1] != REALTIME):
            verdict = judge_transcript(history, consistency=level)
            seen[str(verdict.validity)] += 1
            if verdict.validity is Validity.UNKNOWN:
                assert level in possible or "written twice" in verdict.reason, (level, verdict.reason, events)
            elif unique or parts_of(level)[0] != "read-uncommitted":
                assert (verdict.validity is Validity.VALID) == (level in possible), (level, verdict, events)
                wrong = possible & set(verdict.details["ruled_out"])
                assert not (unique and wrong), (level, wrong, verdict.details, events)
    return seen


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_no_execution_contradicts_a_verdict_without_real_time(model: Model, unique: bool) -> None:
    """Some orders of all transactions contradict a session."""
    seen = compare_sessions(model, Random(f"sessions {model} {unique}"), 20, unique=unique)
    assert seen["valid"] > 50 and seen["invalid"] > 30, seen


def by_sessions(history: Transcript) -> Transcript:
    txns = history.txns
    count = len(txns.status)
    place = np.arange(count, dtype=np.int64)
    completed = np.where(txns.completed == NEVER, NEVER, count + place)
    return replace(history, txns=txns._replace(invoked=place, completed=completed), event_count=2 * count, timed=False)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(50))
@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_100_000_histories_contradict_no_verdict(model: Model, unique: bool, part: int, night: Random) -> None:
    print(compare(model, night, 2_000, unique=unique))


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_20_000_histories_by_session_contradict_no_verdict(
    model: Model, unique: bool, part: int, night: Random
) -> None:
    print(compare_sessions(model, night, 2_000, unique=unique))


def test_all_levels_are_compared() -> None:
    every = {model_name(b, v) for b in BASE_MODELS for v in ("", PROCESS, REALTIME)}
    assert set(MODELS) == every - {"strong-read-atomic", "strong-causal"} and len(MODELS) == 19


EXAMPLES: dict[str, tuple[Model, list[Event], str, str, tuple[str, ...]]] = {
    "a read shows no order where it may show anything": (
        "rw-register",
        of_one_process(one_after_another("=x2 wx1", "wx2")),
        "strong-session-read-uncommitted",
        "strong-session-read-committed",
        ("G1c-process",),
    ),
    "a second read of a key shows intermediate data": (
        "list-append", at_once("ax1 ax2", "rx rx1"), "read-uncommitted", "read-committed", ("G1b",)
    ),
    "a read shows a later append of its own, and a later read lacks it": (
        "list-append", at_once("rx1 rx ax1"), "read-uncommitted", "read-committed", ("future-read",)
    ),
    "a list read after an append of its own shows what was visible": (
        "list-append", at_once("ay1", "ry1 ax1", "ax2 rx12 ry"), "read-atomic", "causal", ("no-order",)
    ),
}  # fmt: skip
"""A history, a level that it fits, one that it does not, and the violations of that one."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_level_and_the_next_one_are_told_apart(name: str) -> None:
    model, events, fits, breaks, kinds = EXAMPLES[name]
    levels = levels_of_choices(events, model)
    assert levels is not None and fits in levels and breaks not in levels
    assert judge_transactions(events, model, consistency=fits).validity is Validity.VALID
    verdict = judge_transactions(events, model, consistency=breaks)
    assert tuple(verdict.details[VIOLATIONS_BY_KIND]) == kinds
