"""Files of kept clusters: whole, listed, stale after a death or a new start of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.backends.backend import Entrance
from harness.backends.leftovers import (
    KeptCluster,
    current_owner,
    forget,
    kept_clusters,
    kept_in,
    note,
    release,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def kept(folder: Path, run_id: str = "r1", owner: str = "") -> KeptCluster:
    entrance = Entrance("n1", "docker exec -it n1 bash", "198.18.0.2", "/data", "/log")
    since = f"2026-11-25T17:00:0{run_id[-1]}+00:00"
    return KeptCluster(run_id, str(folder), "a test", "docker", "invalid", owner or current_owner(), since, (entrance,))


def test_what_is_noted_is_listed_until_it_is_forgotten(tmp_path: Path) -> None:
    first, second = kept(tmp_path / "a"), kept(tmp_path / "b", "r2")
    note(first)
    note(second)
    assert kept_clusters() == [second, first]
    assert kept_in(tmp_path / "a") == first and kept_in(tmp_path / "c") is None
    assert first.alive and first.why_stale == ""
    forget("r1")
    forget("r1")
    assert kept_clusters() == [second]


def test_a_keeper_of_an_earlier_start_of_the_machine_is_stale_and_says_so(tmp_path: Path) -> None:
    pid, start, _, namespace, host = current_owner().split(":", 4)
    stale = kept(tmp_path, owner=":".join((pid, start, "another-boot", namespace, host)))
    assert "this machine was started anew" in stale.why_stale
    note(stale)
    assert list(release(stale)) == []  # and this process, whose number it names, lives on
    assert kept_clusters() == []


def test_a_dead_keeper_is_stale(tmp_path: Path) -> None:
    print_owner = "from harness.backends.leftovers import current_owner; print(current_owner())"
    owner = subprocess.run([sys.executable, "-c", print_owner], capture_output=True, text=True, check=True).stdout
    assert "the process that kept it has ended" in kept(tmp_path, owner=owner.strip()).why_stale


KEEPER = """
import signal, sys, time
from harness.backends.leftovers import current_owner
signal.signal(signal.SIGTERM, {})
print(current_owner(), flush=True)
time.sleep(1000)
"""


def keeper(handler: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", KEEPER.format(handler)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_release_ends_the_keeper_and_reports_what_it_left(tmp_path: Path) -> None:
    process, owner = keeper("lambda *_: sys.exit(0)")
    cluster = kept(tmp_path, owner=owner)
    note(replace(cluster, left=("the network x",)))
    assert list(release(cluster)) == ["the network x"]
    assert process.wait(1000) == 0 and kept_clusters() == []


def test_a_keeper_that_does_not_end_is_killed(tmp_path: Path) -> None:
    process, owner = keeper("signal.SIG_IGN")
    (left,) = release(kept(tmp_path, owner=owner), limit_s=0.1)
    assert f"the process {process.pid} did not remove everything" in left
    assert process.wait(1000) == -9


def test_a_file_that_is_none_is_passed_over(tmp_path: Path) -> None:
    note(kept(tmp_path))
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "krucible" / "kept"
    (folder / "broken.json").write_text("{")
    (folder / "older.json").write_text('{"run_id": "r0"}')
    assert len(kept_clusters()) == 1
