"""Every workload runs, is recorded and judged, in this process: a right system is valid, and a wrong one is not."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from checkers.base.results import as_object
from harness.judge.judge_run import judge
from harness.registry import WORKLOADS, load, load_subject, offered_workloads
from harness.run.clock import MACHINE
from harness.run.conductor import Conductor
from harness.run.context import prepare
from harness.run.run_folder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress
from system_under_test.canary.system import Canary

OFFERED = offered_workloads(load_subject("canary"))
BUGS = [(bug.name, workload) for bug in Canary.bugs.values() for workload in bug.workloads if workload in WORKLOADS]
TIME_LIMIT_S = {"lock": 3, "fenced-lock": 3, "repeated-register": 8}
RATE_HZ = {"repeated-register": 2_000}
"""Most writes of that workload change nothing, so few of those that are lost can show."""
SLOWER = (1, 4, 16)
"""A machine under load may not reach the rate.  The run is repeated at a lower rate and for longer then."""


def run(folder: Path, workload: str, bug: str | None = None) -> dict[str, Any]:
    """results.json of the first run of the canary that is not unknown, or of the last one."""
    results: dict[str, Any] = {}
    for times, slower in enumerate(SLOWER, start=1):
        results = run_once(folder / str(slower), workload, bug, slower, times)
        if results["verdict"] != "unknown":
            break
    return results


def run_once(folder: Path, workload: str, bug: str | None, slower: int, times: int) -> dict[str, Any]:
    """results.json of a short run: at so many times a lower rate, and so many times as long."""
    spec = Spec(
        subject="canary",
        workload=workload,
        nemesis="none",
        bug=bug,
        seed=5,
        time_limit_s=TIME_LIMIT_S.get(workload, 2) * times,
        rate_hz=RATE_HZ.get(workload, 500) / slower,
        keys=4,
        online=False,
    )
    stored = RunFolder.create(folder, spec)
    progress = Progress(Console(file=io.StringIO()))
    asyncio.run(Conductor(prepare(spec, "in-process", stored, progress, MACHINE)).run())
    return dict(as_object(judge(stored.root, None, lambda _: None, report=False)))


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
