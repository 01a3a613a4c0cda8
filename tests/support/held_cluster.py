"""A small harness for the tests to kill: it makes a cluster, reports that, and holds it.

    python held_cluster.py docker <run id>
    python held_cluster.py ssh <run id> <inventory> [wanted capabilities]

Prints "creating" when it begins, "up" when everything answers (a server runs, a link is cut).  SIGINT ends it in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.backends.backend import ClusterSpec
from harness.backends.docker_backend import DockerBackend
from harness.backends.ssh_backend import SshBackend

SERVERS, CLIENTS = ("n1", "n2"), ("c1",)


class HeldCluster:
    """The process that holds a cluster, in a session of its own."""

    def __init__(self, kind: str, run_id: str, *more: str) -> None:
        self.run_id = run_id
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", sys.executable, __file__, kind, run_id, *more],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.wait_for("creating")

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def kill(self, with_group: bool = True) -> None:
        if with_group:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(60)

    def kill_if_alive(self) -> None:
        if self.process.poll() is None:
            self.kill()


def backend(kind: str, run_id: str, inventory: str = "", *wanted: str) -> DockerBackend | SshBackend:
    spec = ClusterSpec(run_id, SERVERS, CLIENTS, seed=1, wanted=frozenset(wanted), inventory=inventory)
    return DockerBackend(spec) if kind == "docker" else SshBackend(spec)


async def hold(cluster: DockerBackend | SshBackend) -> None:
    try:
        print("creating", flush=True)
        await cluster.create(lambda words: None)
        await cluster.node("n1").start(["sleep", "1000"])
        await cluster.cut({("n1", "n2")})
        print("up", flush=True)
        await asyncio.sleep(1000)
    finally:
        await asyncio.shield(cluster.destroy())


if __name__ == "__main__":
    asyncio.run(hold(backend(*sys.argv[1:])))
