"""Nothing is left, however the harness ends: killed at any moment, interrupted, or dead since long.

What is left is looked for by this file's own means (docker's command line), by label and by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from docker_things import left_of, needs_docker, processes_of, seconds_until
from held_cluster import HeldCluster
from waiting import PATIENCE_S

from harness.backends import docker_engine as engine
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.docker_backend import DockerBackend
from harness.backends.docker_engine import connect
from harness.backends.docker_image import ensure_image
from harness.backends.leftovers import current_owner
from system_under_test.subject import NodeGone

pytestmark = needs_docker


@pytest.fixture(autouse=True, scope="module")
def image() -> str:
    return ensure_image(print)


class Harness(HeldCluster):
    def __init__(self, run_id: str) -> None:
        super().__init__("docker", run_id)

    def kill_and_count(self, with_group: bool = True) -> float:
        """kill -9; seconds until nothing is left of it, processes included."""
        self.kill(with_group)
        took_s = seconds_until(lambda: not left_of(self.run_id))
        seconds_until(lambda: not processes_of(self.run_id) and not left_of(self.run_id))
        return took_s


@pytest.fixture
def harness() -> Iterator[Harness]:
    started = Harness(f"kill-{os.getpid()}-{time.monotonic_ns() % 10**9}")
    yield started
    started.kill_if_alive()
    engine.remove_run(connect(), started.run_id)


def test_killed_while_everything_runs(harness: Harness) -> None:
    harness.wait_for("up")
    assert len([thing for thing in left_of(harness.run_id) if thing.startswith("container")]) == 4
    print(f"gone after {harness.kill_and_count():.1f} s")


@pytest.mark.parametrize(
    "after_s", [1.5, *(pytest.param(random.Random(n).uniform(0.0, 8.0), marks=pytest.mark.nightly) for n in range(20))]
)
def test_killed_at_any_moment(harness: Harness, after_s: float) -> None:
    time.sleep(after_s)
    print(f"gone after {harness.kill_and_count():.1f} s")


def test_killed_with_a_node_paused(harness: Harness) -> None:
    """A frozen container cannot be killed, and does not see that its stdin ended."""
    harness.wait_for("up")
    pause = ["docker", "pause", f"krucible-{harness.run_id}-n2"]  # refused while the node waits for its FUSE disk
    seconds_until(lambda: subprocess.run(pause, check=False, capture_output=True, timeout=120).returncode == 0)
    harness.kill_and_count()


@pytest.mark.parametrize("when", ["creating", "up"])
def test_interrupted(harness: Harness, when: str) -> None:
    if when == "up":
        harness.wait_for("up")
    else:
        time.sleep(1.0)
    harness.process.send_signal(signal.SIGINT)
    harness.process.wait(PATIENCE_S)
    assert left_of(harness.run_id) == []
    seconds_until(lambda: not processes_of(harness.run_id))


async def test_a_creation_that_fails_says_why_in_one_sentence_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = engine.create

    def refuse_n2(client: Any, plan: engine.ContainerPlan) -> str:
        if plan.hostname == "n2":
            raise APIError("500 Server Error", explanation="no space left on device")
        return create(client, plan)

    monkeypatch.setattr(engine, "create", refuse_n2)
    backend = DockerBackend(ClusterSpec(f"fails-{os.getpid()}", ("n1", "n2", "n3"), ("c1",), seed=1))
    try:
        with pytest.raises(BackendUnavailable, match=r"could not bring the nodes up: no space left on device$"):
            await backend.create(print)
    finally:
        await backend.destroy()
    assert left_of(backend.spec.run_id) == []


def test_the_sweep_removes_what_a_dead_run_left_and_spares_the_living(image: str) -> None:
    """The dead run's reaper is dead as well: everything stays until the next run begins."""
    number = f"{os.getpid()}-{time.monotonic_ns() % 10**9}"
    dead, living = f"dead-{number}", f"living-{number}"
    words = "from harness.backends.leftovers import current_owner; print(current_owner())"
    gone = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, timeout=120, text=True, check=True
    ).stdout.strip()
    try:
        for run_id, owner in ((dead, gone), (living, current_owner())):
            _leave_behind(image, run_id, owner)
        asyncio.run(_create_and_destroy(f"next-{number}"))
        assert left_of(dead) == []
        kinds = sorted(thing.split()[0] for thing in left_of(living))
        assert kinds == ["container", "labelled", "labelled", "labelled", "network"]
    finally:
        for run_id in (dead, living):
            engine.remove_run(connect(), run_id)


def _leave_behind(image: str, run_id: str, owner: str) -> None:
    labels = ["--label", f"krucible.run={run_id}", "--label", f"krucible.owner={owner}"]
    for command in (
        ["docker", "network", "create", "--internal", *labels, f"krucible-{run_id}"],
        ["docker", "volume", "create", *labels, f"krucible-{run_id}"],
        ["docker", "create", "--name", f"krucible-{run_id}-n1", *labels, image, "true"],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=120)


async def _create_and_destroy(run_id: str) -> None:
    backend = DockerBackend(ClusterSpec(run_id, ("n1",), (), seed=1))
    try:
        await backend.create(print)
    finally:
        await backend.destroy()


ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Proxy:
    """A socket that leads to the engine while `open` holds."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._server: asyncio.Server | None = None
        self._connected: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._carry, self.place)

    async def cut(self) -> None:
        """No new connection is made, and those that exist end."""
        assert self._server is not None
        self._server.close()
        self.place.unlink(missing_ok=True)
        for writer in list(self._connected):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(ENGINE.removeprefix("unix://"))
        self._connected |= {writer, back}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        for end in (writer, back):
            end.close()
            self._connected.discard(end)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


@pytest.mark.skipif(not ENGINE.startswith("unix://"), reason="needs an engine behind a local socket")
async def test_nodes_end_with_the_connection_and_the_reaper_removes_them_when_the_engine_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, run_id = Proxy(tmp_path / "engine.sock"), f"cut-engine-{os.getpid()}"
    await proxy.open()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{proxy.place}")
    backend = DockerBackend(ClusterSpec(run_id, ("n1", "n2"), ("c1",), seed=1))
    try:
        await backend.create(print)
        await proxy.cut()
        with pytest.raises(NodeGone):
            while True:
                await backend.state("n1")
        with pytest.raises(NodeGone):
            await backend.cut({("n1", "n2")})
    finally:
        monkeypatch.setattr("harness.backends.docker_engine.REMOVE_S_MAX", 1.0)
        await backend.destroy()
    assert backend.leftovers, "what could not be removed is reported"
    await proxy.open()
    await asyncio.to_thread(seconds_until, lambda: not left_of(run_id))
    await asyncio.to_thread(seconds_until, lambda: not processes_of(run_id))
    await proxy.cut()
