"""One seed decides everything: a fresh process with another hash seed makes the same run, row by row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_runs
from same_run import first_difference

from checkers.base.results import as_object
from checkers.record.reading import RunRecord
from harness.judge.judge_run import judge
from harness.spec import Spec

SPEC = Spec(nemesis="partition,kill,power", backend="simulator", nodes=3, rate_hz=40.0, keys=3, time_limit_s=12.0)
"""Online checks are on: they must not disturb what they watch."""


def in_a_fresh_process(results: Path, seed: int, hash_seed: int) -> Path:
    program = [sys.executable, simulated_runs.__file__, str(results), json.dumps({**SPEC.to_json(), "seed": seed})]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The same seed under two hash seeds, and another seed."""
    results = tmp_path_factory.mktemp("results")
    return tuple(in_a_fresh_process(results, seed, hash_seed) for seed, hash_seed in ((5, 0), (5, 4711), (6, 0)))  # type: ignore[return-value]


def test_history_traces_faults_and_files_are_equal_byte_for_byte(runs: tuple[Path, Path, Path]) -> None:
    first, again, _ = runs
    assert first_difference(first, again) == ""
    assert RunRecord(first).faults, "faults took part"


def test_the_verdict_is_the_same_with_all_that_was_looked_at(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(root, tmp_path / str(number) / root.name) for number, root in enumerate(runs[:2])]
    found = [judge(root, None, lambda _: None, report=False) for root in copies]  # which seals it
    judged = [as_object(each)["checkers"] for each in found]
    told = ("verdict", "looked_at", "reason", "witness")
    verdicts = [{name: {part: found[part] for part in told} for name, found in checkers.items()} for checkers in judged]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["linearizability"]["looked_at"]["operations"] > 100
    assert not [name for name, found in verdicts[0].items() if found["verdict"] == "invalid"]


def test_another_seed_is_another_run(runs: tuple[Path, Path, Path]) -> None:
    first, _, other = runs
    assert first_difference(first, other).startswith("history.arrows, row ")


@pytest.mark.parametrize("changed", ["schedule.json", "trace/n2.jsonl"])
def test_the_first_difference_names_its_file_and_row(runs: tuple[Path, Path, Path], changed: str) -> None:
    first, again, _ = runs
    before = (again / changed).read_text()
    lines = before.splitlines(keepends=True)
    (again / changed).write_text("".join([*lines[:7], "else\n", *lines[8:]]))
    try:
        assert first_difference(first, again).startswith(f"{changed}, row 7: ")
    finally:
        (again / changed).write_text(before)
