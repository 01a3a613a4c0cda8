"""No change of a stored run leaves it valid: a share of all falsifications here, thousands at night."""

import shutil
from pathlib import Path
from random import Random

import pytest
from canary_run import canary_run
from recorded_runs import unpacked

from checkers.record.reading import BrokenFile
from checkers.sealing.seal import seal
from harness.judge.falsified_runs import JudgedFalsification, NoSuchRow, falsifications, judge_falsified_runs, summary
from harness.judge.judge_run import judge
from harness.spec import WrongSpec

HOT_REGISTER = Path(__file__).parents[3] / "examples" / "workloads" / "hot_register.py"


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("results")
    runs = canary_run(folder / "one"), canary_run(folder / "other", seed=2)
    for run in runs:
        seal(run)
    return runs


def not_noticed(results: list[JudgedFalsification]) -> list[str]:
    return [f"{r.falsification.where}, {r.falsification.what}: by {r.by}" for r in results if not r.noticed]


def test_every_change_of_a_run_of_the_canary_is_noticed(two_runs: tuple[Path, Path]) -> None:
    run, other = two_runs
    results = list(judge_falsified_runs(run, Random(1), other))
    assert len(results) > 70
    assert {where.split(":")[0] for where in summary(results)} >= {"history", "outcome.json", "manifest.json"}
    assert not_noticed(results) == []


def test_a_change_for_which_a_run_has_no_row_is_left_out(tmp_path: Path) -> None:
    run = canary_run(tmp_path / "run", workload="list-append")
    seal(run)
    [falsification, *_] = [f for f in falsifications(run, Random(1), None, 1) if "a write's ok" in f.where]
    with pytest.raises(NoSuchRow):
        falsification.apply(shutil.copytree(run, tmp_path / "copy"))
    results = list(judge_falsified_runs(run, Random(1)))
    assert results
    assert not_noticed(results) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_changes_are_noticed(two_runs: tuple[Path, Path], seed: int) -> None:
    run, other = two_runs
    results = list(judge_falsified_runs(run, Random(seed), other, per_class=20))
    assert len(results) > 1000
    assert not_noticed(results) == []


@pytest.mark.parametrize("name", ["kraft-partition", "etcd-partition"])
def test_a_share_of_all_changes_of_a_recorded_run_is_noticed(name: str, tmp_path: Path) -> None:
    run = unpacked(name, tmp_path)
    seal(run)
    results = list(judge_falsified_runs(run, Random(7), most=24))
    assert not_noticed(results) == []
    assert len(results) > 20


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["kraft-partition", "kraft-kill", "etcd-partition"])
def test_every_change_of_a_recorded_run_is_noticed(name: str, tmp_path: Path) -> None:
    run, other = unpacked(name, tmp_path / "run"), unpacked("kraft-minority-commit", tmp_path / "other")
    seal(run)
    results = list(judge_falsified_runs(run, Random(11), other, per_class=3))
    assert not_noticed(results) == []


def test_every_change_of_the_kept_file_of_a_workload_is_noticed(tmp_path: Path) -> None:
    run = canary_run(tmp_path / "run", workload=str(HOT_REGISTER))
    seal(run)
    kept = [f for f in falsifications(run, Random(1), None, 1) if f.where.startswith("kept workload")]
    assert len(kept) > 4
    for number, falsification in enumerate(kept):
        copy = shutil.copytree(run, tmp_path / str(number))
        falsification.apply(copy)
        try:
            verdict = judge(copy, None, lambda _: None, report=False)["verdict"]
        except (BrokenFile, WrongSpec):
            continue
        assert verdict != "valid", f"{falsification.where}, {falsification.what}"
