"""What is valid at a level is valid at all weaker ones; defects are found; and the cost stays near-linear.

Read-uncommitted (Adya's PL-1) forbids a cycle of writes, G0, and lets reads show anything that was written.

Each case states which of its three variants a history of lists fits, and why.  Two lists of one key that contradict one
another prove no order of its writes, so they allow every variant and forbid every stronger level.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from adversarial_histories import adversarial
from toy_transactions import ISOLATIONS, KEEPS, of_one_process, simulate, simulate_weak, with_another_answer

from bench.instruments import transaction_histories
from bench.instruments.transaction_histories import LISTS, REGISTERS, history
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.catalog import BY_MODEL
from checkers.transactions.anomalies import ENDINGS, MODELS, implied
from checkers.transactions.checker import OF_TRANSACTIONS
from checkers.transactions.judge import judge_transactions, judge_transcript
from checkers.transactions.read import Model
from checkers.transactions.tape import at_once, one_after_another


def histories(model: Model, rng: Random, cases: int) -> Iterator[list[Event]]:
    """Every anomaly by name, tiny histories, histories of every simulated database, right ones and falsified ones."""
    for texts, together, _ in (LISTS if model == "list-append" else REGISTERS).values():
        yield history(texts, together)
    for _ in range(cases):
        yield adversarial(rng, model, unique=True)
        yield simulate(rng, model, "strict-serializable", transactions=4, keys=2, values=rng.choice([1, 2, 4]))
        events = simulate(rng, model, rng.choice(ISOLATIONS), transactions=rng.choice([10, 30, 60]))
        yield events
        yield with_another_answer(rng, events, model)
        if model == "rw-register":
            weak = simulate_weak(rng, isolation := rng.choice(list(KEEPS)), transactions=rng.choice([10, 30]))
            yield weak.events
            yield weak.with_defect(rng, isolation) or with_another_answer(rng, weak.events, model)


def demand_hierarchy(model: Model, rng: Random, cases: int) -> Counter[str]:
    """Raises AssertionError if a level is valid, and a weaker one is not; or if a stronger one is not ruled out."""
    seen = Counter[str]()
    for events in histories(model, rng, cases):
        verdicts = {level: judge_transactions(events, model, consistency=level) for level in MODELS}
        for level, verdict in verdicts.items():
            seen[str(verdict.validity)] += 1
            for weaker in implied(level) - {level}:
                if verdict.validity is Validity.VALID:
                    assert verdicts[weaker].validity is not Validity.INVALID, (level, weaker, events)
                if verdicts[weaker].validity is Validity.INVALID:
                    assert level in verdicts[weaker].details["ruled_out"], (level, weaker, events)
            for other in verdict.details.get("ruled_out", ()):
                assert verdicts[other].validity is not Validity.VALID, (level, other, events)
    return seen


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_what_is_valid_at_a_level_is_valid_at_all_weaker_ones(model: Model) -> None:
    seen = demand_hierarchy(model, Random(f"hierarchy {model}"), 4)
    assert seen["valid"] > 100 and seen["invalid"] > 100, seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_the_hierarchy_all_night(model: Model, part: int, night: Random) -> None:
    print(demand_hierarchy(model, night, 1_000))


# Simulated databases with one planted defect


def with_stale_read(rng: Random, events: list[Event]) -> list[Event] | None:
    """A committed read shows the version before, which a transaction had overwritten long ago."""
    versions: dict[str, list[int]] = {}
    chosen: list[tuple[int, int, int]] = []
    for at, event in enumerate(events):
        for place, (f, key, value) in enumerate(json.loads(event.payload or "[]") if event.type is Type.OK else []):
            if f != "r":
                versions.setdefault(key, []).append(value)
            elif value is not None and len(seen := versions.get(key, [])) > 8 and value in seen[-3:]:
                chosen.append((at, place, seen[-8]))
    if not chosen:
        return None
    at, place, old = rng.choice(chosen)
    steps = json.loads(events[at].payload or "[]")
    if any(step[0] != "r" and step[1] == steps[place][1] for step in steps[:place]):
        return None
    steps[place][2] = old
    return [replace(e, payload=json.dumps(steps)) if n == at else e for n, e in enumerate(events)]


@pytest.mark.parametrize(
    ("isolation", "level"),
    [("strict-serializable", "strict-serializable"), ("snapshot-isolation", "strong-snapshot-isolation")],
)
def test_one_stale_read_of_a_simulated_database_is_found(isolation: str, level: str) -> None:
    rng, found = Random(isolation), 0
    for _ in range(25):
        events = simulate(rng, "rw-register", isolation, transactions=150, processes=4, keys=2, trouble=0)
        assert judge_transactions(events, "rw-register", consistency=level).validity is Validity.VALID
        stale = with_stale_read(rng, events)
        if stale is not None:
            found += 1
            assert judge_transactions(stale, "rw-register", consistency=level).validity is Validity.INVALID
    assert found > 15


# Cost in steps, which the load of the machine does not change

STEPS_PER_TRANSACTION = {
    ("serial", "strict-serializable"): 4,
    ("serial", "serializable"): 4,
    ("snapshots", "strong-snapshot-isolation"): 8,
    ("snapshots", "snapshot-isolation"): 8,
}
"""The most steps for a transaction, at any size: one look at each event, and few steps back."""


@pytest.mark.parametrize("case", STEPS_PER_TRANSACTION)
def test_the_steps_of_a_decision_grow_with_the_history_and_no_faster(case: tuple[str, str]) -> None:
    database, level = case
    for count in (1_000, 4_000, 16_000):
        transcript, _, _ = transaction_histories.simulate_sessions(count, 8, count, snapshots=database == "snapshots")
        verdict = judge_transcript(transcript, consistency=level)
        assert verdict.validity is Validity.VALID
        assert verdict.details["search"]["steps"] <= STEPS_PER_TRANSACTION[case] * count


def test_time_stamps_of_the_system_need_no_step_back() -> None:
    history, begin, end = transaction_histories.simulate_sessions(4_000, 8, 400, snapshots=True)
    stamped = transaction_histories.by_session(history, (begin, end))
    verdict = judge_transcript(stamped, consistency="strong-session-snapshot-isolation")
    assert verdict.validity is Validity.VALID and verdict.details["search"]["taken back"] == 0


def test_an_order_that_keeps_sessions_answers_for_the_weaker_level() -> None:
    """Without the order of sessions the same history takes more than a thousand times as many steps."""
    history, _, _ = transaction_histories.simulate_sessions(2_000, 8, 2_000)
    verdict = judge_transcript(
        transaction_histories.by_session(history), Budget(steps=2_000_000), consistency="serializable"
    )
    assert verdict.validity is Validity.VALID


def test_a_workload_may_name_a_weaker_level() -> None:
    """Each is in the catalog under its own name."""
    assert {c.name for c in OF_TRANSACTIONS} == {
        f"{model}{ending}"
        for model in ("list-append", "rw-register")
        for ending in ("", *(f"-{end}" for end in ENDINGS.values()))
    }
    assert all(BY_MODEL[c.name] is c for c in OF_TRANSACTIONS)


VARIANTS = ("read-uncommitted", "strong-session-read-uncommitted", "strong-read-uncommitted")
ALL, NONE = 3, 0
"""How many of VARIANTS a history fits.  Each of them allows more than the next one."""


CASES: dict[str, tuple[list[Event], int, set[str]]] = {
    "two lists of a key in opposite orders": (at_once("ax1", "ax2", "rx12", "rx21"), ALL, {"incompatible-order"}),
    "the same, one after another: real time orders the writes, and nothing shows the contrary": (
        one_after_another("ax1", "ax2", "rx12", "rx21"),
        ALL,
        {"incompatible-order"},
    ),
    "the same in one process": (
        of_one_process(one_after_another("ax1", "ax2", "rx12", "rx21")),
        ALL,
        {"incompatible-order"},
    ),
    "two keys in opposite orders are a cycle of writes": (at_once("ax1 ay1", "ax2 ay2", "rx12", "ry21"), NONE, {"G0"}),
    "a key with contradicting lists adds no edge to such a cycle": (
        at_once("ax1 ay1", "ax2 ay2", "rx12", "rx21", "ry21"),
        ALL,
        {"incompatible-order"},
    ),
    "nor does the longest of them, with a third element": (
        at_once("ax1 ay1", "ax2 ay2", "ax3", "rx123", "rx21", "ry21"),
        ALL,
        {"incompatible-order"},
    ),
    "and it hides no cycle of other keys": (
        at_once("ax1 ay1 az1", "ax2 ay2 az2", "rx12", "rx21", "ry12", "rz21"),
        NONE,
        {"incompatible-order", "G0"},
    ),
    "a list against real time": (one_after_another("ax1", "ax2", "rx21"), 2, {"G0-realtime"}),
    "a list against real time and a list that agrees with it": (
        one_after_another("ax1", "ax2", "rx21", "rx12"),
        ALL,
        {"incompatible-order"},
    ),
    "a list against the order of a process": (
        of_one_process(one_after_another("ax1", "ax2", "rx21")),
        1,
        {"G0-process"},
    ),
    "an append that stands in a list twice": (at_once("ax1", "ax2", "rx121"), NONE, {"duplicate-elements"}),
    "an element that no transaction appended": (at_once("ax1", "rx19"), NONE, {"unwritten-read"}),
}


@pytest.mark.parametrize("name", CASES)
def test_which_levels_a_history_fits(name: str) -> None:
    """Those `against …` are serializable without real time or sessions; every other case rules out all other levels."""
    events, fits, anomalies = CASES[name]
    for level in MODELS if fits in (ALL, NONE) else VARIANTS:
        right = level in VARIANTS[:fits]
        verdict = judge_transactions(events, "list-append", consistency=level)
        assert verdict.validity is (Validity.VALID if right else Validity.INVALID), level
        if level in VARIANTS and not right:
            assert anomalies & set(verdict.details["anomalies"]), (level, verdict.details["anomalies"])
            assert level in verdict.details["ruled_out"]
    strongest = judge_transactions(events, "list-append", consistency="strict-serializable")
    assert set(strongest.details["ruled_out"]) & set(VARIANTS) == set(VARIANTS[fits:])


def test_lists_that_contradict_one_another_name_both_reads() -> None:
    events = at_once("ax1", "ax2", "rx12", "rx21")
    (witness, *_) = judge_transactions(events, "list-append", consistency="read-committed").witnesses
    assert witness.kind == "incompatible-order"
    assert "T1 read x as [1, 2]" in witness.summary and "T2 read x as [2, 1]" in witness.summary
