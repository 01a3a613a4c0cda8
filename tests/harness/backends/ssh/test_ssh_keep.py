"""`run --keep` on hosts: the printed commands enter them, clients answer there, and a release leaves nothing behind."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_line import NO_SPARK
from docker_things import needs_docker
from ssh_hosts import ssh_hosts
from waiting import until

from harness.backends.leftovers import kept_in, release

pytestmark = needs_docker
LIMIT_S = 1000


def krucible(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def on_host(command: str, text: str) -> str:
    """What a printed command answers to what is typed."""
    done = subprocess.run(
        shlex.split(command), input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hosts_of_a_kept_run_are_entered_as_it_is_printed_and_released_whole(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, ("s1", "k1", "k2")) as hosts:
        words = ["--backend", "ssh", "--inventory", hosts.inventory(("s1",), ("k1", "k2")), "--nodes", "1"]
        words += ["--nemesis", "none", "--time-limit", "2", "--rate", "50", "--results", str(tmp_path / "results")]
        done = krucible("run", *words, "--keep", "always", "--json", *NO_SPARK)
        try:
            assert '"kept":' in done.stdout, done.stdout + done.stderr
            kept: dict[str, Any] = json.loads(done.stdout)["kept"]
            server, client, other = kept["entrances"]
            assert [server["node"], client["node"], other["node"]] == ["n1", "c1", "c2"]
            for printed in (
                server["command"],
                server["logs"],
                client["client"],
                f"{sys.executable} -m harness release {kept['folder']}",
            ):
                assert printed in done.stderr
            assert "server.log" in on_host(server["command"], f"ls {server['logs']}\nexit\n")
            asked = lambda: on_host(client["client"], "write k0 4711\nread k0\n")  # noqa: E731
            until(lambda: "ok 4711" in asked())
            assert all(hosts.left_on(host) for host in ("s1", "k1", "k2"))
            ended = krucible("release", kept["folder"])
            assert (ended.returncode, ended.stdout) == (0, f"released the cluster of {kept['folder']}\n")
            assert [hosts.left_on(host) for host in ("s1", "k1", "k2")] == [[], [], []]
        finally:
            if (still := kept_in((tmp_path / "results" / "latest").resolve())) is not None:
                release(still)
