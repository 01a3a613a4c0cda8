"""No change of a stored run leaves it valid: a share of all tamperings here, thousands at night."""

from pathlib import Path
from random import Random

import pytest
from canary_run import canary_run
from recorded_runs import unpacked

from checkers.sealing.seal import seal
from harness.judge.tampering import Tampered, summary, tamper


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("results")
    runs = canary_run(folder / "one"), canary_run(folder / "other", seed=2)
    for run in runs:
        seal(run)
    return runs


def not_noticed(results: list[Tampered]) -> list[str]:
    return [f"{r.tampering.where}, {r.tampering.what}: by {r.by}" for r in results if not r.noticed]


def test_every_change_of_a_run_of_the_canary_is_noticed(two_runs: tuple[Path, Path]) -> None:
    run, other = two_runs
    results = list(tamper(run, Random(1), other))
    assert len(results) > 70
    assert {where.split(":")[0] for where in summary(results)} >= {"history", "outcome.json", "manifest.json"}
    assert not_noticed(results) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_changes_are_noticed(two_runs: tuple[Path, Path], seed: int) -> None:
    run, other = two_runs
    results = list(tamper(run, Random(seed), other, per_class=20))
    assert len(results) > 1000
    assert not_noticed(results) == []


@pytest.mark.parametrize("name", ["kraft-partition", "etcd-partition"])
def test_a_share_of_all_changes_of_a_recorded_run_is_noticed(name: str, tmp_path: Path) -> None:
    run = unpacked(name, tmp_path)
    seal(run)
    results = list(tamper(run, Random(7), most=40))
    assert not_noticed(results) == []
    assert len(results) > 30


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["kraft-partition", "kraft-kill", "etcd-partition"])
def test_every_change_of_a_recorded_run_is_noticed(name: str, tmp_path: Path) -> None:
    run, other = unpacked(name, tmp_path / "run"), unpacked("kraft-minority-commit", tmp_path / "other")
    seal(run)
    results = list(tamper(run, Random(11), other, per_class=3))
    assert not_noticed(results) == []
