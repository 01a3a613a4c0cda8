"""What a user waived stands in the first line of the verdict, with what fell short of it."""

from __future__ import annotations

from typing import Any

from harness.story.headline import verdict_in_words
from tests.support.results_of_runs import results_in

SHORT = "elections won under a fault: got 0, wanted at least 1"


def results(verdict: str, waived: list[dict[str, str]], silences: list[str] | None = None) -> dict[str, Any]:
    vacuity = {"verdict": verdict, "looked_at": {"operations": 7}, "details": {"waived": waived}, "reason": "too weak"}
    availability = {"verdict": "valid", "looked_at": {}, "details": {"waived": silences or []}}
    return {"verdict": verdict, "checkers": {"vacuity": vacuity, "availability": availability}}


def test_a_valid_run_begins_with_what_was_waived() -> None:
    words = verdict_in_words(results_in(results("valid", [{"name": "elections", "shortfall": SHORT}])), None)
    assert words == (
        "Valid, but elections was waived: 2 checkers looked and found nothing wrong in 7 operations. "
        "Elections won under a fault: got 0, wanted at least 1."
    )


def test_it_says_so_also_where_the_demand_was_met() -> None:
    both = [{"name": "elections", "shortfall": ""}, {"name": "availability", "shortfall": ""}]
    words = verdict_in_words(results_in(results("valid", both, ["no operation succeeded for 45.0 s"])), None)
    assert words.startswith("Valid, but elections and availability were waived: ")
    assert words.endswith("No operation succeeded for 45.0 s.")


def test_any_other_verdict_ends_with_it() -> None:
    words = verdict_in_words(results_in(results("unknown", [{"name": "elections", "shortfall": SHORT}])), None)
    assert words == "Unknown: too weak. Waived: elections."


def test_without_a_waiver_nothing_is_said() -> None:
    assert "waived" not in verdict_in_words(results_in(results("valid", [])), None).lower()
