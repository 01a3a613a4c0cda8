"""What the docker backend says to the user; no engine needed."""

from __future__ import annotations

import subprocess
import threading
from importlib import metadata
from pathlib import Path

import pytest
from docker_things import seconds_until

from harness.backends.agent_cluster import addresses
from harness.backends.backend import BackendUnavailable
from harness.backends.builds import (
    NODE_WHEELS,
    Interrupted,
    node_code,
    run_watched,
    wheel_requirements,
)
from harness.backends.docker import engine, image
from harness.backends.docker.engine import connect, why_unavailable
from harness.backends.docker.image import unpack_debian

ADDRESS_OF = {"n1": "198.18.0.11", "n2": "198.18.0.12", "c1": "198.18.0.101"}


def test_addresses_are_fixed_by_place() -> None:
    (subnet, *_) = engine.RANGE.subnets(new_prefix=24)
    assert addresses(subnet, ("n1", "n2"), ("c1",)) == ADDRESS_OF


def test_no_engine_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(BackendUnavailable, match=r"^Docker does not run here .*--backend namespaces\.$"):
        connect()
    assert "\n" not in (why_unavailable() or "\n")


def test_an_engine_that_does_not_listen_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert (why_unavailable() or "").startswith("Docker does not answer (")


def test_nodes_get_the_versions_of_pyproject() -> None:
    assert [line.split(">")[0] for line in wheel_requirements()] == sorted(NODE_WHEELS)


def test_a_tree_that_is_still_being_installed_names_the_wheels_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_installed)
    assert [line.split(">")[0] for line in wheel_requirements()] == sorted(NODE_WHEELS)


def test_only_what_runs_on_nodes_is_copied_there() -> None:
    code = node_code()
    assert {"harness/agent/process.py", "checkers/base/history.py", "system_under_test/subject.py"} <= code.keys()
    assert not [path for path in code if path.startswith(("harness/backends", "checkers/kernels", "tests"))]


def test_without_root_and_registry_the_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image.os, "geteuid", lambda: 1000)
    with (
        pytest.raises(BackendUnavailable, match=r"run `sudo python -m harness\.backends\.docker build` once"),
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
    listing = ["ps", "-ww", "-eo", "args"]  # what was killed ends a moment later
    seconds_until(lambda: "sleep 997.531" not in subprocess.check_output(listing, text=True))
