"""Every workload runs, is recorded and judged, in this process: a right system is valid, and a wrong one is not."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.judge.judge_run import judge
from harness.registry import WORKLOADS
from harness.run.conductor import Conductor
from harness.run.progress import Progress
from harness.run.run_folder import RunFolder
from harness.spec import Spec
from system_under_test.canary.subject import Canary

BUGS = [(bug.name, workload) for bug in Canary.bugs.values() for workload in bug.workloads if workload in WORKLOADS]
TIME_LIMIT_S = {"lock": 3, "fenced-lock": 3, "repeated-register": 8}
RATE_HZ = {"repeated-register": 2_000}
"""Most writes of that workload change nothing, so few of those that are lost can show."""

pytestmark = pytest.mark.timeout(600)


def run(folder: Path, workload: str, bug: str | None = None) -> dict[str, Any]:
    """results.json of a short run of the canary."""
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
    stored = RunFolder.create(folder, spec)
    progress = Progress(Console(file=io.StringIO()))
    asyncio.run(Conductor(spec, "in-process", stored, progress).run())
    return dict(judge(stored.root, None, lambda _: None, report=False))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_right_system_is_valid(workload: str, tmp_path: Path) -> None:
    results = run(tmp_path, workload)
    assert results["verdict"] == "valid", results["checkers"]
    (kind,) = {entry.load() for name, entry in WORKLOADS.items() if name == workload}
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
    assert {workload for _, workload in BUGS} == set(WORKLOADS)
