"""What the docker backend says to the user; no engine needed.

An engine that refuses: no sweep and no clean-up fails a run, and each says what is left, why, and what to do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import APIError
from docker_things import seconds_until

from harness.backends import docker_engine as engine
from harness.backends import docker_image as image
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.builds import NODE_WHEELS, Interrupted, run_watched, wheel_requirements
from harness.backends.docker_backend import DockerBackend
from harness.backends.docker_engine import connect, why_unavailable
from harness.backends.docker_image import unpack_debian
from harness.backends.leftovers import current_owner


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("unix:///no.sock", r"Docker does not run here .*--backend namespaces\.$"),
        ("tcp://127.0.0.1:1", r"Docker does not answer \("),
    ],
)
def test_no_engine_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, host: str, words: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert re.match(words, why_unavailable() or "")
    with pytest.raises(BackendUnavailable, match=f"^{words}"):
        connect()


def test_a_tree_that_is_still_being_installed_names_the_wheels_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_installed)
    assert [line.split(">")[0] for line in wheel_requirements()] == sorted(NODE_WHEELS)


def test_without_root_and_registry_the_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image.os, "geteuid", lambda: 1000)
    with (
        pytest.raises(BackendUnavailable, match=r"run `sudo python -m harness\.backends\.docker_image build` once"),
        unpack_debian(tmp_path, print, threading.Event()),
    ):
        pass


def test_a_watched_command_gives_status_and_last_line() -> None:
    assert run_watched(["sh", "-c", "echo one; echo two; exit 3"], threading.Event()) == (3, "two")


def test_a_watched_command_ends_with_all_it_started_when_ordered_to_stop() -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(Interrupted):
        run_watched(["sh", "-c", "sleep 997.531 & sleep 997.531"], stop)
    listing = ["ps", "-ww", "-eo", "args"]  # a killed process ends a moment later
    seconds_until(lambda: "sleep 997.531" not in subprocess.check_output(listing, text=True))


STUCK = "error while removing network: network krucible-r1 id 6f0c has active endpoints"
OF_A_DEAD_PROCESS = ":".join(("1", "1", "an earlier boot", *current_owner().split(":", 4)[3:]))


def refusal(status: int, words: str) -> APIError:
    response = requests.Response()
    response.status_code = status
    return APIError("refused", response=response, explanation=words)


class FakeEngine:
    """The part of `docker.APIClient` that clean-up uses.  stuck: networks that it never removes."""

    def __init__(self, **networks: str) -> None:
        self.api = self
        self.there = {name: {"Id": name, "Name": name, "Labels": engine.labels(*of)} for name, of in pairs(networks)}
        self.stuck: set[str] = set()
        self.subnet_refusals: list[APIError] = []
        self.created: list[str] = []
        self.disconnected: list[str] = []
        self.running: list[str] = []
        self.leaving = self.leaving_max = 0
        self.asleep = False
        self.closed = False

    def containers(self, **_: Any) -> list[Any]:
        if self.asleep:
            raise requests.ReadTimeout("Read timed out. (read timeout=60)")
        return [{"Id": name, "State": "running"} for name in self.running]

    def remove_container(self, name: str, **_: Any) -> None:
        self.leaving += 1
        self.leaving_max = max(self.leaving_max, self.leaving)
        time.sleep(0.02)  # long enough for another thread to start
        self.leaving -= 1
        self.running.remove(name)

    def volumes(self, **_: Any) -> dict[str, Any]:
        return {"Volumes": None}

    def networks(self, filters: dict[str, str]) -> list[Any]:
        key, _, value = filters["label"].partition("=")
        return [n for n in self.there.values() if not value or n["Labels"].get(key) == value]

    def remove_network(self, name: str) -> None:
        if name in self.stuck:
            raise refusal(403, STUCK)
        del self.there[name]

    def inspect_network(self, name: str) -> dict[str, Any]:
        return {"Containers": {"ep-1": {"Name": f"{name}-n1"}}}

    def disconnect_container_from_network(self, name: str, network: str, force: bool) -> None:
        assert force
        self.disconnected.append(name)

    def create_network(self, name: str, ipam: Any, **_: Any) -> None:
        if self.subnet_refusals:
            raise self.subnet_refusals.pop(0)
        self.created.append(ipam["Config"][0]["Subnet"])

    def images(self, **_: Any) -> list[Any]:
        raise refusal(500, "the storage driver is busy")

    def close(self) -> None:
        self.closed = True


def pairs(networks: dict[str, str]) -> list[tuple[str, tuple[str, str]]]:
    return [(name, (name.removeprefix("krucible_"), owner)) for name, owner in networks.items()]


def test_a_network_that_cannot_be_removed_is_one_sentence_with_the_engines_words() -> None:
    docker = FakeEngine(krucible_r1=current_owner())
    docker.stuck = {"krucible_r1"}
    left = engine.remove_run(docker, "r1", limit_s=30.0, stuck_s=0.1)
    assert STUCK in left
    assert "restart Docker" in left
    assert "\n" not in left
    assert "krucible_r1-n1" in docker.disconnected  # the engine's stale endpoints were removed by force


def test_containers_leave_their_network_one_after_another() -> None:
    """Two at the same moment can block an engine before Docker 23 for ever."""
    docker = FakeEngine(krucible_r1=current_owner())
    docker.running = ["n1", "n2", "n3"]
    assert engine.remove_run(docker, "r1") == ""
    assert not docker.running
    assert docker.leaving_max == 1


def test_a_sweep_of_an_engine_that_does_not_answer_is_a_sentence_as_well() -> None:
    docker = FakeEngine(krucible_r1=OF_A_DEAD_PROCESS)
    docker.asleep = True
    assert engine.sweep_dead(docker).left == ("dead runs could not be looked for: Read timed out. (read timeout=60)",)
    assert "Read timed out" in engine.remove_run(docker, "r1", limit_s=0.1)


def test_a_taken_subnet_and_a_refused_one_lead_to_another() -> None:
    docker = FakeEngine()
    docker.subnet_refusals = [
        refusal(403, "Pool overlaps with other one on this address space"),
        refusal(500, "failed to allocate gateway (198.18.7.1): Address already in use"),
    ]
    subnet = engine.create_network(docker, "krucible-r9", {})
    assert docker.created == [str(subnet)]


def test_an_engine_that_makes_no_network_at_all_gets_five_requests() -> None:
    docker = FakeEngine()
    docker.subnet_refusals = [refusal(500, "no space left on device") for _ in range(1000)]
    with pytest.raises(BackendUnavailable, match=r"makes no network \(no space left on device\)"):
        engine.create_network(docker, "krucible-r9", {})
    assert len(docker.subnet_refusals) == 1000 - engine.REFUSALS_MAX


async def test_the_end_of_a_run_survives_it_and_hands_the_rest_to_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.remove_run, "__defaults__", (30.0, 0.1))
    ends: list[str] = []

    class FakeReaper:
        def dismiss(self) -> None:
            ends.append("dismissed")

        def take_over(self) -> None:
            ends.append("took over")

    docker = FakeEngine(krucible_r1=current_owner())
    docker.stuck = {"krucible_r1"}
    backend = DockerBackend(ClusterSpec("r1", ("n1",), (), seed=1))
    backend._client, backend._reaper = docker, FakeReaper()
    await backend.destroy()
    await backend.destroy()
    assert docker.closed
    assert ends == ["took over"]
    assert len(backend.leftovers) == 1
    assert STUCK in backend.leftovers[0]


OTHER_PACKAGES = ("numpy", "numba", "pyarrow", "pyspark", "rich", "click", "jinja2", "kio", "networkx", "matplotlib")


def test_building_the_image_imports_no_package_but_docker() -> None:
    program = "import json, sys, harness.backends.docker_image; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = set(json.loads(printed))
    assert "docker" in imported
    assert not imported & set(OTHER_PACKAGES)
