"""A small run on every backend with nodes: valid when nothing is planted, and found when something is."""

from pathlib import Path

import pytest
from command_line import NO_SPARK, krucible
from docker_things import needs_docker, needs_namespaces
from whole_runs import enough, outcome_of, results_of

from checkers.record.faults import Achieved
from checkers.record.reading import RunRecord
from harness.judge.judge_run import decide
from harness.registry import load_subject
from system_under_test.etcd import BINARY, OF_DEBIAN
from tests.support.records_of_runs import results_in

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


PACKAGED = pytest.mark.skipif(not Path(BINARY).exists(), reason=f"no {BINARY} here: install Debian's etcd-server")


@pytest.mark.parametrize(
    ("backend", "subject", "version", "mutations"),
    [
        pytest.param("docker", "kraft", "", 9, marks=needs_docker),
        pytest.param("namespaces", "etcd", OF_DEBIAN, 3, marks=(*needs_namespaces, PACKAGED)),
        pytest.param("namespaces", "etcd", "", 3, marks=(*needs_namespaces, pytest.mark.nightly)),
    ],
)
def test_a_clean_system_is_valid_under_partitions_and_a_falsified_row_is_noticed(
    tmp_path: Path, backend: str, subject: str, version: str, mutations: int
) -> None:
    """The newest etcd is built from its source at night: that takes minutes of processor time on a new machine."""
    chosen = ("--set", f"version={version}") if version else ()
    done = enough(tmp_path, backend, "--subject", subject, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_of(tmp_path)
    assert results["verdict"] == "valid"
    assert results["judged_by"].startswith("Spark")
    achieved = {fault.achieved for fault in RunRecord(tmp_path / "latest").faults}
    assert achieved - {Achieved.SKIPPED} == {Achieved.INSTALLED}, "a card may find no leader on a busy machine"
    assert (tmp_path / "latest" / "report.html").stat().st_size > 100_000
    online = outcome_of(tmp_path)["online"]
    assert (online["findings"], online["failure"]) == ([], "")
    assert online["looks"] >= 5 and online["completions"] > 100
    assert (online["trace_rows"] > 300) == (subject == "kraft")
    falsified = krucible("mutate", str(tmp_path / "latest"))
    assert falsified.returncode == 0, falsified.stdout + falsified.stderr
    assert len(falsified.stdout.splitlines()) >= mutations


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("docker", marks=(*needs_docker, pytest.mark.nightly)),
        pytest.param("namespaces", marks=needs_namespaces),
    ],
)
def test_a_planted_bug_is_found_by_the_checker_it_was_planted_for(tmp_path: Path, backend: str) -> None:
    """On docker, test_early_ends finds it after every change."""
    done = enough(tmp_path, backend, "--bug", "minority-commit", *NO_SPARK)
    assert done.returncode == 1, done.stdout + done.stderr
    assert decide(load_subject("kraft").bugs["minority-commit"], results_in(results_of(tmp_path))).found
