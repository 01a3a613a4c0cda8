"""A planted bug that was missed is no success; found means by its own checker, through its own mechanism."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.base.results import PlantedBugResult, Results, RunVerdict
from harness.judge.judge_run import demand
from system_under_test.subject import Bug
from tests.support.results_of_runs import results_in

BUG = Bug("stale-read", "reads are not confirmed", "linearizability", ("stale read",))
STALE = {"verdict": "invalid", "reason": "", "witness": [{"kind": "stale read", "summary": "n1 answered an old value"}]}
OTHER = {"verdict": "invalid", "reason": "", "witness": [{"kind": "lost write", "summary": "a write is gone"}]}
VALID = {"verdict": "valid", "reason": "", "witness": []}
UNKNOWN = {"verdict": "unknown", "reason": "its budget ran out", "witness": []}


CODES = {"valid": 0, "invalid": 1, "unknown": 2}


@pytest.mark.parametrize(
    ("verdict", "checkers", "found", "reason"),
    [
        ("invalid", {"linearizability": STALE}, True, "linearizability found: stale read"),
        ("valid", {"linearizability": VALID}, False, "linearizability is valid"),
        ("valid", {"log-matching": VALID}, False, "linearizability did not judge this run"),
        ("unknown", {"linearizability": UNKNOWN}, False, "linearizability is unknown: its budget ran out"),
        (
            "invalid",
            {"linearizability": OTHER},
            False,
            "linearizability found only lost write, where stale read would count",
        ),
        ("invalid", {"linearizability": VALID, "log-matching": STALE}, False, "linearizability is valid"),
    ],
)
def test_what_counts_as_found_and_a_valid_run_that_missed_it_is_unknown(
    verdict: str, checkers: dict[str, Any], found: bool, reason: str
) -> None:
    judged = results_in({"verdict": verdict, "exit_code": CODES[verdict], "checkers": checkers})
    results = demand(BUG, judged)
    assert results.planted == PlantedBugResult("stale-read", found, reason)
    ends = "invalid" if verdict == "invalid" else "unknown"
    assert (results.verdict, results.exit_code) == (ends, CODES[ends])


def test_a_clean_run_is_left_alone() -> None:
    results = Results(RunVerdict.VALID, exit_code=0)
    assert demand(None, results) == results
