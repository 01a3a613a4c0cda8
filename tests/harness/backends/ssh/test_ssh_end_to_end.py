"""Whole runs on hosts with clocks of their own: partitioned, killed, cut from power, judged on Spark, and valid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docker_things import needs_docker
from ssh_hosts import ssh_hosts

pytestmark = [*needs_docker, pytest.mark.spark, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parents[4]


def valid_run(folder: Path, subject: str, nemesis: str) -> tuple[dict[str, Any], dict[str, str]]:
    """test.json and the verdicts of the checkers.  One host is over a day ahead of the others, and one over an hour."""
    servers, clients = ("s1", "s2", "s3"), ("k1", "k2")
    with ssh_hosts(folder, (*servers, *clients), ahead_s={"s1": 100_000, "k1": 5_000}, disk=True) as hosts:
        inventory, results = hosts.inventory(servers, clients), folder / "results"
        words = ["run", "--backend", "ssh", "--inventory", inventory, "--nodes", "3", "--subject", subject]
        words += ["--nemesis", nemesis, "--time-limit", "30", "--rate", "100", "--seed", "5", "--results", str(results)]
        subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, check=True, timeout=1000)
        assert [hosts.left_on(host) for host in hosts.address_of] == [[], [], [], [], []]
    found = json.loads((results / "latest" / "results.json").read_text())
    assert found["verdict"] == "valid"
    verdicts = {name: checker["verdict"] for name, checker in found["checkers"].items()}
    return json.loads((results / "latest" / "test.json").read_text()), verdicts


def test_a_partitioned_quorum_on_three_hosts_is_valid(tmp_path: Path) -> None:
    test, verdicts = valid_run(tmp_path, "kraft", "partition")
    assert verdicts["answers-after-commit"] == "not applicable"
    assert verdicts["nodes-stay-up"] == verdicts["linearizability"] == "valid"
    assert abs(test["clocks"]["n1"]["ahead_ns"] - 100_000 * 10**9) <= test["clocks"]["n1"]["error_ns"]


@pytest.mark.parametrize("nemesis", ["kill,partition", "power"])
def test_etcd_on_three_hosts_is_valid(tmp_path: Path, nemesis: str) -> None:
    _, verdicts = valid_run(tmp_path, "etcd", nemesis)
    assert verdicts["nodes-stay-up"] == verdicts["linearizability"] == "valid"
