"""What the docker backend says to nft and to the user; no engine needed."""

from __future__ import annotations

import subprocess
import threading
from importlib import metadata
from pathlib import Path

import pytest
from docker_things import seconds_until
from hypothesis import given
from hypothesis import strategies as st

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
PORT_OF = {"n1": 12, "n2": 14, "c1": 21}


def test_a_cut_replaces_the_whole_set_in_one_transaction() -> None:
    text = engine.replace_cut(("bridge", "krucible_x"), {("n1", "c1"), ("n2", "n1")}, PORT_OF)
    assert text.splitlines() == [
        "flush set bridge krucible_x cut",
        "add element bridge krucible_x cut { 12 . 21, 14 . 12 }",
    ]


def test_healing_everything_only_flushes() -> None:
    assert engine.replace_cut(("bridge", "krucible_x"), (), PORT_OF) == "flush set bridge krucible_x cut\n"


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True))
def test_every_run_id_gives_a_table_that_the_sweep_finds_with_its_owner(run_id: str) -> None:
    table = engine.table_of(run_id)
    listing = "table ip nat\n" + f"table {table[0]} {table[1]}\n" + "table bridge somebody_elses\n"
    assert list(engine.tables_in(listing)) == [table]
    assert engine.owner_in(engine.make_table(table, "1:2:boot:3:host")) == "1:2:boot:3:host"


def test_a_table_without_an_owner_belongs_to_no_run() -> None:
    assert engine.owner_in("table bridge krucible_x {\n}\n") == ""


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
