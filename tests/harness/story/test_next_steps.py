"""What to do after a run: commands in the words of the caller who started it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkers.base.results import Results, RunVerdict
from checkers.record.header import Header
from harness.spec import Spec
from harness.started import program as started_as
from harness.story.next_steps import next_steps, shortfalls
from tests.support.records_of_runs import header_of, results_in

RUN = "results/test-partition/a-run"
VALID = results_in({"verdict": "valid"})
STALE = {"verdict": "invalid", "witness": [{"kind": "stale"}]}
INVALID = results_in({"verdict": "invalid", "checkers": {"registers": STALE}})


def test_of(rerun: str, **spec: Any) -> Header:
    return header_of({"rerun": rerun, "spec": Spec(**({"seed": 7} | spec)).to_json()})


test_of.__test__ = False  # type: ignore[attr-defined]


def unknown(*criteria: dict[str, Any], **checkers: str) -> Results:
    vacuity = {"verdict": "unknown", "details": {"criteria": list(criteria)}}
    others = {name: {"verdict": "unknown", "reason": reason} for name, reason in checkers.items()}
    return results_in({"verdict": "unknown", "checkers": ({"vacuity": vacuity} if criteria else {}) | others})


def criterion(name: str, value: float, least: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "least": least, "met": value >= least, "demanded": True, "words": name} | more


MADE = test_of("make test-partition SEED=7")


def test_a_violation_is_replayed_shrunk_and_run_again() -> None:
    commands = [step.command for step in next_steps(INVALID, MADE, RUN, logs=True)]
    program = started_as()
    assert commands == [
        f"{program} replay {RUN} --times 5",
        f"{program} shrink {RUN}",
        f"{program} check-logs {RUN}",
        "make test-partition SEED=7",
        f"{program} analyze {RUN}",
    ]
    installed = test_of("krucible run --nemesis partition --seed 7")
    commands = [step.command for step in next_steps(INVALID, installed, "a b", logs=False)]
    assert commands[:2] == [f"{program} replay 'a b' --times 5", f"{program} shrink 'a b'"]
    assert not any("check-logs" in command for command in commands)


def test_a_run_is_compared_with_the_last_valid_one() -> None:
    commands = [step.command for step in next_steps(INVALID, test_of("make test-kill"), RUN, logs=False, valid="b c")]
    assert f"{started_as()} compare {RUN} 'b c'" in commands


def test_every_command_keeps_the_folder_and_the_store_that_the_caller_gave() -> None:
    made = test_of("krucible run --nemesis partition --seed 7 --results 'a b' --store s3://bucket/runs")
    beside = "--results 'a b' --store s3://bucket/runs"
    again = f"{started_as()} run --nemesis partition --seed"
    commands = [step.command for step in next_steps(VALID, made, RUN, logs=False)]
    assert commands[:2] == [f"{again} 7 {beside}", f"{again} 8 {beside}"]


KILL = "run --nemesis kill --seed 7"


@pytest.mark.parametrize(
    ("rerun", "backend", "command"),
    [
        ("make test-kill SEED=7", "docker", "make test-kill SEED=7 KEEP=on-violation"),
        (f"krucible {KILL}", "namespaces", f"{started_as()} {KILL} --keep on-violation"),
        (f"krucible {KILL}", "simulator", None),
        ("python -m harness find redis --seed 7", "docker", None),
        (f"krucible {KILL}", "elsewhere", None),
    ],
)
def test_a_violation_leads_to_a_cluster_that_stays_up_where_one_can(
    rerun: str, backend: str, command: str | None
) -> None:
    made = test_of(rerun)
    made = replace(made, spec={**made.spec, "backend": backend})
    kept = [step.command for step in next_steps(INVALID, made, RUN, logs=True) if "on-violation" in step.command]
    assert kept == ([command] if command else [])


@pytest.mark.parametrize(
    ("backend", "words"), [("simulator", "byte for byte the same"), ("docker", "later ones may differ")]
)
def test_the_same_seed_gives_the_same_run_on_virtual_time_alone(backend: str, words: str) -> None:
    made = test_of("make test-partition SEED=7", backend=backend)
    [again] = [step for step in next_steps(VALID, made, RUN, logs=False) if "same seed" in step.words]
    assert words in again.words


def test_a_valid_run_leads_to_the_next_seed() -> None:
    commands = [s.command for s in next_steps(VALID, test_of("make test-partition SEED=7"), RUN, logs=True)]
    assert "make test-partition SEED=8" in commands and not any("shrink" in command for command in commands)


@pytest.mark.parametrize(
    ("name", "value", "least", "wanted", "got", "command"),
    [
        ("share of ok operations in faults", 0.04, 0.1, "at least 10 %", "4 %", "TIME_LIMIT=120"),
        ("elections won under a fault", 0, 1, "at least 1", "0", "TIME_LIMIT=120 RECOVERY_LIMIT=60 HOLDS=2"),
        ("share of the scheduled rate", 0.5, 0.8, "at least 80 %", "50 %", "RATE=100"),
        ("keys with concurrency", 2, 5.0, "at least 5", "2", "KEYS=5"),
        ("ran to its end", 0, 1, "yes", "no", ""),
    ],
)
def test_each_shortfall_is_a_line_with_a_run_that_makes_up_for_it(
    name: str, value: float, least: float, wanted: str, got: str, command: str
) -> None:
    results = unknown(criterion(name, value, least), criterion("ok operations", 9, 1))
    (found,) = shortfalls(results, test_of("make test-partition SEED=7"), RUN)
    assert (found.what, found.wanted, found.got) == (name, wanted, got)
    assert found.command == f"make test-partition SEED=7 {command}".strip()
    (found,) = shortfalls(results, test_of("krucible run --nemesis partition --seed 7"), RUN)
    assert found.command.startswith(f"{started_as()} run --nemesis partition --seed 7")


def test_every_reason_is_told_in_full() -> None:
    reasons = [f"link n{i} to n{i + 1}: not proven for 3.2 s" for i in range(30)]
    found = shortfalls(unknown(evidence="; ".join(reasons)), test_of("make test-partition SEED=7"), RUN)
    assert [each.words for each in found] == [f"{reason}." for reason in reasons]
    assert {each.command for each in found} == {f"{started_as()} analyze {RUN}"}


def test_what_was_not_demanded_is_no_shortfall_and_other_verdicts_have_none() -> None:
    results = unknown(criterion("harness kept up", 0, 1, demanded=False), criterion("ok operations", 0, 9))
    assert [each.what for each in shortfalls(results, test_of("make test-partition SEED=7"), RUN)] == ["ok operations"]
    for without in (replace(results, verdict=RunVerdict.VALID), replace(results, not_tested=True)):
        assert shortfalls(without, test_of("make test-partition SEED=7"), RUN) == []


def test_a_planted_bug_that_was_missed_asks_for_another_seed() -> None:
    results = results_in({"verdict": "unknown", "planted": {"bug": "stale-read", "found": False}})
    (found,) = shortfalls(results, test_of("make test-partition SEED=7 BUG=stale-read", bug="stale-read"), RUN)
    assert "SEED=8" in found.command and "BUG=stale-read" in found.command


def test_what_a_run_chose_itself_stays_its_choice() -> None:
    """test.json holds the backend that was found; the caller named none."""
    results = unknown(criterion("keys with concurrency", 2, 5))
    (found,) = shortfalls(results, test_of("make test-partition SEED=7", backend="docker"), RUN)
    assert found.command == "make test-partition SEED=7 KEYS=5"
    (found,) = shortfalls(results, test_of("make test-partition SEED=7 BACKEND=docker", backend="docker"), RUN)
    assert found.command == "make test-partition SEED=7 KEYS=5 BACKEND=docker"


def test_figures_of_recovery_ask_for_a_longer_run_and_not_for_a_lower_rate() -> None:
    rate = criterion("share of the scheduled rate", 0.3, 0.8, advice="only 1 s was calm; give a longer --time-limit")
    rates = (rate, {**rate, "advice": "give a lower --rate"})
    (longer,), (slower,) = (shortfalls(unknown(one), MADE, RUN) for one in rates)
    assert "TIME_LIMIT=120" in longer.command and "RATE" not in longer.command
    assert "RATE=100" in slower.command


def test_without_faults_nothing_is_replayed_or_shrunk() -> None:
    made = test_of("make test-none SEED=7", nemesis="none")
    shorts = [step.short for step in next_steps(INVALID, made, RUN, logs=False)]
    assert "again" in shorts and not {"replay", "shrink"} & set(shorts)
