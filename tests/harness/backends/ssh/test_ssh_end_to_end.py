"""A whole run on hosts with clocks of their own: KRaft is partitioned, judged on Spark, and valid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from docker_things import needs_docker
from ssh_hosts import ssh_hosts

pytestmark = [*needs_docker, pytest.mark.spark, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parents[4]


def test_a_partitioned_quorum_on_three_hosts_is_valid(tmp_path: Path) -> None:
    servers, clients = ("s1", "s2", "s3"), ("k1", "k2")
    with ssh_hosts(tmp_path, (*servers, *clients), ahead_s={"s1": 100_000, "k1": 5_000}) as hosts:
        inventory, results = hosts.inventory(servers, clients), tmp_path / "results"
        words = ["run", "--backend", "ssh", "--inventory", inventory, "--nodes", "3", "--nemesis", "partition"]
        words += ["--time-limit", "30", "--rate", "100", "--seed", "5", "--results", str(results)]
        subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, check=True, timeout=1000)
        assert [hosts.left_on(host) for host in hosts.address_of] == [[], [], [], [], []]
    found = json.loads((results / "latest" / "results.json").read_text())
    verdicts = {name: checker["verdict"] for name, checker in found["checkers"].items()}
    assert found["verdict"] == "valid"
    assert verdicts["answers-after-commit"] == "not applicable"
    assert verdicts["nodes-stay-up"] == verdicts["linearizability"] == "valid"
    test = json.loads((results / "latest" / "test.json").read_text())
    assert abs(test["clocks"]["n1"]["ahead_ns"] - 100_000 * 10**9) <= test["clocks"]["n1"]["error_ns"]
