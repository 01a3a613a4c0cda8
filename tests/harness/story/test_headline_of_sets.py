"""The headline of a set says how much was lost, and else what the first witness shows."""

from __future__ import annotations

from typing import Any

import pytest

from harness.story.headline import headline
from tests.support.results_of_runs import results_in

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
