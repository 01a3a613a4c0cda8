"""A planted bug that was missed is no success; found means by its own checker, through its own mechanism."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.base.results import PlantedBugResult, Results, RunVerdict
from harness.judge.judge_run import demand
from harness.story.headline import verdict_in_words
from system_under_test.subject import Bug
from tests.support.records_of_runs import header_of
from tests.support.results_of_runs import results_in

BUG = Bug("stale-read", "reads are not confirmed", "linearizability", ("stale read",))
STALE = {"verdict": "invalid", "reason": "", "witness": [{"kind": "stale read", "summary": "n1 answered an old value"}]}
OTHER = {"verdict": "invalid", "reason": "", "witness": [{"kind": "lost write", "summary": "a write is gone"}]}
VALID = {"verdict": "valid", "reason": "", "witness": []}
UNKNOWN = {"verdict": "unknown", "reason": "its budget ran out", "witness": []}


def judged(verdict: str, code: int, **checkers: dict[str, Any]) -> Results:
    return demand(BUG, results_in({"verdict": verdict, "exit_code": code, "checkers": checkers}))


@pytest.mark.parametrize(
    ("verdict", "code", "checkers", "found", "reason", "ends"),
    [
        ("invalid", 1, {"linearizability": STALE}, True, "linearizability found: stale read", ("invalid", 1)),
        ("valid", 0, {"linearizability": VALID}, False, "linearizability is valid", ("unknown", 2)),
        ("valid", 0, {"log-matching": VALID}, False, "linearizability did not judge this run", ("unknown", 2)),
        (
            "unknown",
            2,
            {"linearizability": UNKNOWN},
            False,
            "linearizability is unknown: its budget ran out",
            ("unknown", 2),
        ),
        (
            "invalid",
            1,
            {"linearizability": OTHER},
            False,
            "linearizability found only lost write, where stale read would count",
            ("invalid", 1),
        ),
        (
            "invalid",
            1,
            {"linearizability": VALID, "log-matching": STALE},
            False,
            "linearizability is valid",
            ("invalid", 1),
        ),
    ],
)
def test_what_counts_as_found(
    verdict: str, code: int, checkers: dict[str, Any], found: bool, reason: str, ends: tuple[str, int]
) -> None:
    results = judged(verdict, code, **checkers)
    assert results.planted == PlantedBugResult("stale-read", found, reason)
    assert (results.verdict, results.exit_code) == ends


def test_a_missed_bug_stands_in_the_first_line() -> None:
    results = judged("valid", 0, linearizability=VALID)
    words = verdict_in_words(results, header_of({"spec": {"bug": "stale-read", "subject": "kraft"}}))
    assert words.startswith("Unknown: planted bug stale-read: not found by linearizability.")


def test_a_clean_run_is_left_alone() -> None:
    results = Results(RunVerdict.VALID, exit_code=0)
    assert demand(None, results) == results
