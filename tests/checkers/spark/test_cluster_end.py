"""Tests that are killed leave no Spark behind: its processes end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import sys, time
from pathlib import Path
from spark_cluster import Cluster

with Cluster(Path(sys.argv[1]), workers=0) as cluster:
    print(cluster.processes[0].pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.spark
def test_a_master_ends_with_the_tests_that_started_it(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    words = [sys.executable, "-c", TESTS, str(tmp_path / "cluster")]
    tests = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert tests.stdout is not None
    master = int(tests.stdout.readline())
    assert lives(master)
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    deadline = time.monotonic() + 120
    while lives(master):
        assert time.monotonic() < deadline, "the master outlived its tests"
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
