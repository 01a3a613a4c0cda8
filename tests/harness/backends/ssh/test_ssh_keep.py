"""`run --keep` on hosts: the printed commands enter them, clients answer there, and a release leaves nothing behind."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_line import NO_SPARK, krucible
from docker_things import needs_docker
from ssh_hosts import SshHosts
from waiting import until

from harness.backends.leftovers import kept_in, release

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
