"""The headline of a run, and its notes."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.record.outcome import Phase, ProcessorSums, RunOutcome
from harness.story.headline import REFUSED_MIN, headline, notes, verdict_in_words
from tests.support.records_of_runs import results_in

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
        (
            {"acknowledged": 3, "missing_from_last_read": 1},
            "Invalid: of 3 acknowledged elements, 1 is missing from the last read.",
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


def waived_results(verdict: str, waived: list[dict[str, str]], silences: list[str] | None = None) -> dict[str, Any]:
    vacuity = {"verdict": verdict, "looked_at": {"operations": 7}, "details": {"waived": waived}, "reason": "too weak"}
    availability = {"verdict": "valid", "looked_at": {}, "details": {"waived": silences or []}}
    return {"verdict": verdict, "checkers": {"vacuity": vacuity, "availability": availability}}


def test_a_valid_run_begins_with_what_was_waived() -> None:
    words = verdict_in_words(results_in(waived_results("valid", [{"name": "elections", "shortfall": SHORT}])), None)
    assert words == (
        "Valid, but elections was waived: 2 checkers looked and found nothing wrong in 7 operations. "
        "Elections won under a fault: got 0, wanted at least 1."
    )


def test_it_says_so_also_where_the_demand_was_met() -> None:
    both = [{"name": "elections", "shortfall": ""}, {"name": "availability", "shortfall": ""}]
    words = verdict_in_words(results_in(waived_results("valid", both, ["no operation succeeded for 45.0 s"])), None)
    assert words.startswith("Valid, but elections and availability were waived: ")
    assert words.endswith("No operation succeeded for 45.0 s.")


def test_any_other_verdict_ends_with_it() -> None:
    words = verdict_in_words(results_in(waived_results("unknown", [{"name": "elections", "shortfall": SHORT}])), None)
    assert words == "Unknown: too weak. Waived: elections."


def test_without_a_waiver_nothing_is_said() -> None:
    assert "waived" not in verdict_in_words(results_in(waived_results("valid", [])), None).lower()


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
    assert any("may be the mistake of the leader" in note for note in found) is forwards


def test_a_busy_machine_is_named_with_what_it_means_for_the_verdict() -> None:
    sums = ProcessorSums(0, 0.0), ProcessorSums(10**9, 0.9)
    outcome = RunOutcome(processor={"n1": sums}, phases=(Phase("main", 0, 10**9),))
    (note,) = notes(results_in({}), outcome)
    assert note.startswith("The machine was busy: processes waited for a processor for 90% of the time.")
    assert note.endswith("makes no right answer wrong: if it kept the run from testing enough, the verdict is unknown.")
