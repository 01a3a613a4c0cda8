"""Whole runs on hosts: kept, entered and released; partitioned, killed and cut from power, on clocks of their own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import NO_SPARK, kept_in, krucible
from docker_things import needs_docker
from ssh_hosts import SshHosts, ssh_hosts
from waiting import until

from harness.backends.leftovers import release

pytestmark = needs_docker
LIMIT_S = 1000


def on_host(command: str, text: str) -> str:
    """What a printed command answers to what is typed."""
    done = subprocess.run(
        shlex.split(command), input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hosts_of_a_kept_run_are_entered_as_it_is_printed_and_released_whole(hosts: SshHosts, tmp_path: Path) -> None:
    inventory = hosts.inventory(("alpha",), ("beta", "gamma"))
    words = ["--backend", "ssh", "--inventory", inventory, "--nodes", "1", "--nemesis", "none", "--time-limit", "2"]
    words += ["--rate", "50", "--results", str(tmp_path / "results"), "--keep", "always", "--json", *NO_SPARK]
    command = [sys.executable, "-m", "harness", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    try:
        assert '"kept":' in done.stdout, done.stdout + done.stderr
        kept: dict[str, Any] = json.loads(done.stdout)["kept"]
        server, client, other = kept["entrances"]
        assert [server["node"], client["node"], other["node"]] == ["n1", "c1", "c2"]
        of_release = f"{sys.executable} -m harness release {kept['folder']}"
        for printed in (server["command"], server["logs"], client["client"], of_release):
            assert printed in done.stderr
        assert "server.log" in on_host(server["command"], f"ls {server['logs']}\nexit\n")
        asked = lambda: on_host(client["client"], "write k0 4711\nread k0\n")  # noqa: E731
        until(lambda: "ok 4711" in asked())
        assert all(map(hosts.left_on, hosts.address_of))
        ended = krucible("release", kept["folder"])
        assert (ended.returncode, ended.stdout) == (0, f"released the cluster of {kept['folder']}\n")
        assert [hosts.left_on(host) for host in hosts.address_of] == [[], [], []]
    finally:
        if (still := kept_in((tmp_path / "results" / "latest").resolve())) is not None:
            release(still)


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


@pytest.mark.spark
@pytest.mark.nightly
def test_a_partitioned_quorum_on_three_hosts_is_valid(tmp_path: Path) -> None:
    test, verdicts = valid_run(tmp_path, "kraft", "partition")
    assert verdicts["answers-after-commit"] == "not applicable"
    assert verdicts["nodes-stay-up"] == verdicts["linearizability"] == "valid"
    assert abs(test["clocks"]["n1"]["ahead_ns"] - 100_000 * 10**9) <= test["clocks"]["n1"]["error_ns"]


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("nemesis", ["kill,partition", "power"])
def test_etcd_on_three_hosts_is_valid(tmp_path: Path, nemesis: str) -> None:
    _, verdicts = valid_run(tmp_path, "etcd", nemesis)
    assert verdicts["nodes-stay-up"] == verdicts["linearizability"] == "valid"
