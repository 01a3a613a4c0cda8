"""Every workload runs, is recorded and judged, on virtual time: a right system is valid, and a wrong one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from canary_run import recorded

from checkers.base.results import as_object
from harness.judge.judge_run import judge
from harness.registry import WORKLOADS, load, load_subject, offered_workloads
from harness.spec import Spec
from system_under_test.canary.system import Canary

OFFERED = offered_workloads(load_subject("canary"))
BUGS = [(bug.name, workload) for bug in Canary.bugs.values() for workload in bug.workloads if workload in WORKLOADS]
TIME_LIMIT_S = {"lock": 3, "fenced-lock": 3, "repeated-register": 8}
RATE_HZ = {"repeated-register": 2_000}
"""Most writes of that workload change nothing, so few of those that are lost can show."""


def run(folder: Path, workload: str, bug: str | None = None) -> dict[str, Any]:
    """results.json of a short run."""
    spec = Spec(
        subject="canary",
        workload=workload,
        nemesis="none",
        bug=bug,
        seed=5,
        time_limit_s=TIME_LIMIT_S.get(workload, 2),
        rate_hz=RATE_HZ.get(workload, 500),
        keys=4,
        online=False,
    )
    return dict(as_object(judge(recorded(folder, spec), None, lambda _: None, report=False)))


@pytest.mark.parametrize("workload", OFFERED)
def test_a_right_system_is_valid(workload: str, tmp_path: Path) -> None:
    results = run(tmp_path, workload)
    assert results["verdict"] == "valid", results["checkers"]
    kind = load(WORKLOADS[workload])
    for checker in kind.checkers:  # type: ignore[attr-defined]
        assert results["checkers"][checker]["verdict"] == "valid"


@pytest.mark.parametrize(("bug", "workload"), BUGS)
def test_a_wrong_system_is_found_by_the_workloads_own_checker(bug: str, workload: str, tmp_path: Path) -> None:
    results = run(tmp_path, workload, bug)
    planted = Canary.bugs[bug]
    entry = results["checkers"][planted.found_by]
    assert results["verdict"] == entry["verdict"] == "invalid"
    kinds = {witness["kind"] for witness in entry["witness"]}
    assert not planted.witness_kinds or kinds & set(planted.witness_kinds), kinds


def test_every_workload_has_a_switch_that_its_checker_finds() -> None:
    assert {workload for _, workload in BUGS} == set(OFFERED)
