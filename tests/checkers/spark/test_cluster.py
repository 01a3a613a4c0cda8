"""A standalone cluster gives the verdicts of in process, bit for bit, even if its processes are killed or frozen."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_address import HOST, free_ports
from spark_cluster import Cluster, Driver, assert_same, can_hide_folders, comparable, descendants, end, runs, until
from waiting import is_alive
from wrong_run import NEVER_INVALID, run_that_is_wrong_everywhere

from checkers.base.results import as_object
from checkers.base.stored_run import StoredRun
from checkers.catalog import CATALOG
from checkers.judging import judge_run, results_of
from checkers.spark.session import SparkJudge

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

DELAY_S = 0.15
"""Added to each part, so that there is a middle to kill something in; the run has some forty parts."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return run_that_is_wrong_everywhere(tmp_path_factory.mktemp("wrong") / "run")


@pytest.fixture(scope="module")
def in_process(run: StoredRun) -> dict[str, Any]:
    return as_written(as_object(results_of(judge_run(run, list(CATALOG.values())))))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as two_workers:
        yield two_workers


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(cluster.master, tmp_path_factory.mktemp("driver")) as process:
        yield process


def as_written(results: dict[str, Any]) -> dict[str, Any]:
    """As read back from results.json, and without what is another each time."""
    return comparable(json.loads(json.dumps(results)))


def test_every_checker_says_the_same_in_process_on_local_spark_and_on_a_cluster(
    run: StoredRun, in_process: dict[str, Any], spark: SparkJudge, driver: Driver
) -> None:
    verdicts = {name: entry["verdict"] for name, entry in in_process["checkers"].items()}
    assert verdicts == dict.fromkeys(CATALOG, "invalid") | NEVER_INVALID
    on_local_spark = judge_run(run, list(CATALOG.values()), spark)
    assert "local[*,4]" in on_local_spark.judged_by
    assert as_written(as_object(results_of(on_local_spark))) == in_process
    results = driver.judge(run.root).results()
    by = results["judged_by"]
    assert by.startswith("Spark ") and f" on spark://{HOST}:" in by
    assert "compiled" not in by and "sent" not in by
    assert_same(results, in_process)


def test_a_node_killed_in_the_middle(
    run: StoredRun, in_process: dict[str, Any], cluster: Cluster, driver: Driver
) -> None:
    """Its worker's virtual machine and then its executor's, as when the power goes."""
    until(lambda: len(cluster.executors()) == 2, "both executors to be there")
    job = driver.judge(run.root, DELAY_S)
    job.wait_for(6)
    executor = cluster.executors()[0]
    cluster.workers[0].kill()
    end(executor)
    try:
        assert_same(job.results(), in_process)
        assert len(cluster.workers) == 1
    finally:
        cluster.add_worker()  # otherwise later tests wait for two executors


def test_an_executor_frozen_in_the_middle_costs_seconds(
    run: StoredRun, in_process: dict[str, Any], cluster: Cluster, driver: Driver
) -> None:
    until(lambda: len(cluster.executors()) == 2, "both executors to be there")
    began = time.monotonic()
    driver.judge(run.root).results()
    calm_s = time.monotonic() - began
    job = driver.judge(run.root, DELAY_S)
    job.wait_for(6)
    frozen = cluster.executors()[0]
    began = time.monotonic()
    os.kill(frozen, signal.SIGSTOP)
    try:
        assert_same(job.results(), in_process)
    finally:
        end(frozen)
    assert time.monotonic() - began < 45 + 3 * calm_s, "Spark's own patience is two and a half minutes"


@pytest.mark.skipif(not can_hide_folders(), reason="needs the right to make namespaces of mounts")
def test_a_node_that_cannot_read_the_run_folder_is_sent_the_bytes(
    run: StoredRun, in_process: dict[str, Any], cluster: Cluster, driver: Driver
) -> None:
    cluster.workers[0].kill()
    cluster.add_worker(hidden=run.root)
    until(lambda: len(cluster.executors()) == 2, "the blind executor to be there")
    until(lambda: "were sent" in driver.judge(run.root).results()["judged_by"], "a part to be sent")
    results = driver.judge(run.root).results()
    assert_same(results, in_process)
    assert "MB of files were sent, because nodes cannot read the run folder" in results["judged_by"]


def test_a_master_that_is_not_there_costs_nothing_and_the_run_is_judged(
    run: StoredRun, in_process: dict[str, Any], tmp_path: Path
) -> None:
    with Driver(master := f"spark://{HOST}:{free_ports(1)[0]}", tmp_path) as driver:
        results = driver.judge(run.root).results()
        assert not any(runs(pid, "java") for pid in descendants(driver.pid)), "no Spark was even started"
    address = master.removeprefix("spark://")
    assert results["judged_by"] == (f"in process (no Spark master answers at {master} ({address}: Connection refused))")
    assert_same(results, in_process)


@pytest.mark.nightly
def test_a_cluster_without_workers_is_given_up_and_the_run_is_judged(
    run: StoredRun, in_process: dict[str, Any], tmp_path: Path
) -> None:
    with (
        Cluster(tmp_path / "cluster", workers=0) as cluster,
        Driver(cluster.master, tmp_path, KRUCIBLE_SPARK_START_S="8") as driver,
    ):
        results = driver.judge(run.root).results()
    assert results["judged_by"].startswith(f"in process ({cluster.master} gave us no executor within 8 s: it has no ")
    assert_same(results, in_process)


@pytest.mark.nightly
def test_nodes_without_numba_are_named_and_the_run_is_judged(
    run: StoredRun, in_process: dict[str, Any], tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        Driver(cluster.master, tmp_path, PYSPARK_PYTHON=str(bare)) as driver,
    ):
        results = driver.judge(run.root).results()
    assert re.search(r"in process \(the workers on .* cannot judge: ModuleNotFoundError", results["judged_by"])
    assert_same(results, in_process)


@pytest.mark.nightly
def test_nodes_with_another_processor_compile_once_and_say_the_same(
    run: StoredRun, in_process: dict[str, Any], tmp_path: Path
) -> None:
    other = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with Cluster(tmp_path / "cluster", workers=1, **other) as cluster:
        judged_by = []
        for _ in range(2):
            with Driver(cluster.master, tmp_path) as driver:
                results = driver.judge(run.root).results()
            assert_same(results, in_process)
            judged_by.append(results["judged_by"])
    assert re.search(r"compiled \d+ kernels anew \(\d+ s\)", judged_by[0])
    assert "compiled" not in judged_by[1]


SUPPORT = Path(__file__).parents[2] / "support"
TESTS = """
import sys, time
from pathlib import Path
from spark_cluster import Cluster

with Cluster(Path(sys.argv[1]), workers=0) as cluster:
    print(cluster.processes[0].pid, flush=True)
    time.sleep(600)
"""


def test_a_master_ends_with_killed_tests_that_started_it(tmp_path: Path) -> None:
    path = os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])
    words = [sys.executable, "-c", TESTS, str(tmp_path / "cluster")]
    tests = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert tests.stdout is not None
    master = int(tests.stdout.readline())
    assert is_alive(master)
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    until(lambda: not is_alive(master), "the master to end")
