"""Tests that are killed leave no Spark behind: its processes end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import is_alive, until

SUPPORT = Path(__file__).parents[2] / "support"
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
    path = os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])
    words = [sys.executable, "-c", TESTS, str(tmp_path / "cluster")]
    tests = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert tests.stdout is not None
    master = int(tests.stdout.readline())
    assert is_alive(master)
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    until(lambda: not is_alive(master))
