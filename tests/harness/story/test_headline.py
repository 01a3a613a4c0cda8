"""The headline of a run and its notes; and what to do after it: commands in the words of the caller who started it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkers.base.results import Results, RunVerdict
from checkers.record.header_and_outcome import Header, Phase, ProcessorSums, RunOutcome
from harness.spec import Spec
from harness.started import program as started_as
from harness.story.headline import REFUSED_MIN, headline, next_steps, notes, shortfalls, verdict_in_words
from tests.support.records_of_runs import header_of, results_in

SUMMARY = "one read saw 1 without 2, another 2 without 1"


def results(**looked_at: Any) -> dict[str, Any]:
    witness = {"kind": "order cycle", "summary": SUMMARY, "events": []}
    checker = {"verdict": "invalid", "looked_at": looked_at, "witness": [witness], "title": "Set"}
    return {"verdict": "invalid", "exit_code": 1, "checkers": {"set": checker}}


@pytest.mark.parametrize(
    ("looked_at", "head"),
    [
        (
            {"acknowledged": 1876, "missing_from_last_read": 119},
            "Invalid: of 1,876 acknowledged elements, 119 are missing from the last read.",
        ),
        ({"acknowledged": 3, "missing_from_last_read": 0}, f"Invalid: {SUMMARY}."),
        ({"acknowledged": 3}, f"Invalid: {SUMMARY}."),
        ({"missing_from_last_read": "many"}, f"Invalid: {SUMMARY}."),
    ],
)
def test_the_headline_of_a_set(looked_at: dict[str, Any], head: str) -> None:
    assert headline(results_in(results(**looked_at)), {}) == head


def test_the_headline_of_a_queue_counts_what_was_lost_and_no_other_violation_does() -> None:
    witness = {"kind": "acknowledged element lost", "summary": "4 was lost", "events": []}
    queue = {"verdict": "invalid", "looked_at": {"acknowledged": 9, "never_taken": 2}, "witness": [witness]}
    run = {"verdict": "invalid", "checkers": {"queue": queue | {"title": "Queue"}}}
    assert headline(results_in(run), {}) == "Invalid: of 9 acknowledged elements, 2 were never taken out."
    witness["kind"] = "order cycle"
    assert headline(results_in(run), {}) == "Invalid: 4 was lost."


def test_who_had_acknowledged_what_was_lost_stands_behind_it() -> None:
    run = results(acknowledged=3, missing_from_last_read=1)
    run["lost_elements"] = "It was acknowledged by n1, during fault 1 (partition)."
    words = "Invalid: of 3 acknowledged elements, 1 is missing from the last read. "
    assert headline(results_in(run), {}) == words + run["lost_elements"]


SHORT = "elections won under a fault: got 0, wanted at least 1"


def waived_results(verdict: str, waived: list[dict[str, str]], silences: list[str]) -> dict[str, Any]:
    vacuity = {"verdict": verdict, "looked_at": {"operations": 7}, "details": {"waived": waived}, "reason": "too weak"}
    availability = {"verdict": "valid", "looked_at": {}, "details": {"waived": silences}}
    return {"verdict": verdict, "checkers": {"vacuity": vacuity, "availability": availability}}


ONE = [{"name": "elections", "shortfall": SHORT}]
BOTH = [{"name": "elections", "shortfall": ""}, {"name": "availability", "shortfall": ""}]
FINE = "2 checkers looked and found nothing wrong in 7 operations."


@pytest.mark.parametrize(
    ("verdict", "waived", "silences", "words"),
    [
        ("valid", ONE, [], f"Valid, but elections was waived: {FINE} {SHORT.capitalize()}."),
        ("valid", BOTH, ["it was silent"], f"Valid, but elections and availability were waived: {FINE} It was silent."),
        ("unknown", ONE, [], "Unknown: too weak. Waived: elections."),
        ("valid", [], [], f"Valid: {FINE}"),
    ],
)
def test_a_verdict_names_what_was_waived(
    verdict: str, waived: list[dict[str, str]], silences: list[str], words: str
) -> None:
    assert verdict_in_words(results_in(waived_results(verdict, waived, silences)), None) == words


@pytest.mark.parametrize("refused", [0, REFUSED_MIN - 1, REFUSED_MIN])
def test_a_client_that_connects_late_is_reported(refused: int) -> None:
    results = {"checkers": {"statistics": {"details": {"refused_connections": refused}}}}
    found = [note for note in notes(results_in(results), RunOutcome()) if "connect in `open`" in note]
    assert len(found) == (refused >= REFUSED_MIN)


@pytest.mark.parametrize("forwards", [False, True])
def test_where_servers_pass_requests_on_the_one_that_answered_is_not_blamed(forwards: bool) -> None:
    witness = {"kind": "stale read", "summary": "it is old", "events": [{"index": 1, "node": "n2"}], "facts": {}}
    results = {"checkers": {"linearizability": {"verdict": "invalid", "witness": [witness]}}}
    found = notes(results_in(results), RunOutcome(declares={"forwards": forwards}))
    assert any("may come from the leader" in note for note in found) is forwards


def test_a_busy_machine_is_named_with_what_it_means_for_the_verdict() -> None:
    sums = ProcessorSums(0, 0.0), ProcessorSums(10**9, 0.9)
    outcome = RunOutcome(processor={"n1": sums}, phases=(Phase("main", 0, 10**9),))
    (note,) = notes(results_in({}), outcome)
    assert note.startswith("The machine was busy: processes waited for a processor for 90% of the time.")
    assert note.endswith("wrong. If the run tested too little for this reason, the verdict is unknown.")


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
    commands = [step.command for step in next_steps(INVALID, installed, "a b", logs=False, valid="b c")]
    assert commands[:2] == [f"{program} replay 'a b' --times 5", f"{program} shrink 'a b'"]
    assert not any("check-logs" in command for command in commands)
    assert f"{program} compare 'a b' 'b c'" in commands


def test_every_command_keeps_the_folder_and_the_store_that_the_caller_gave() -> None:
    made = test_of("krucible run --nemesis partition --seed 7 --results 'a b' --store s3://bucket/runs")
    beside = "--results 'a b' --store s3://bucket/runs"
    again = f"{started_as()} run --nemesis partition --seed"
    commands = [step.command for step in next_steps(VALID, made, RUN, logs=False)]
    assert commands[:2] == [f"{again} 7 {beside}", f"{again} 8 {beside}"], "a valid run leads to the next seed"
    assert not any("shrink" in command for command in commands)


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
