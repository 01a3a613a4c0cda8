"""What dead runs left behind, and clusters that are kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reaped_things import BUSY
from waiting import PATIENCE_S, is_alive, until

from harness.backends import leftovers
from harness.backends.backend import Entrance

HARNESS = """
import os, signal, sys, time
from harness.backends.leftovers import Reaper
late = "late" in sys.argv
reaper = Reaper("reaped_things:reap", {"run_id": "r1", "folder": sys.argv[1], "one_is_late": late}, 1.0)
if "forks" in sys.argv and os.fork() == 0:
    time.sleep(1000)
    os._exit(0)
print(reaper.pid, flush=True)
if "dismiss" in sys.argv:
    reaper.dismiss()
if "exit" in sys.argv:
    sys.exit(0)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def reaper_finds_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(here), str(here.parents[2]))))


def harness(folder: Path, *how: str) -> tuple[subprocess.Popen[str], int]:
    """A process that owns a reaper, and the reaper's pid."""
    (folder / "r1-container").touch()
    (folder / "r2-container").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(folder), *how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def ignored(pid: int) -> set[int]:
    """The signals that a process ignores."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn:"))
    mask = int(line.split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("how", [(), ("late",), ("exit",), ("forks",)])
def test_after_a_harness_that_ends_all_is_removed_and_other_runs_are_left_alone(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    """late: one thing appears only later.  forks: a child holds the pipe open."""
    process, reaper = harness(tmp_path, *how)
    if "exit" not in how:
        process.kill()
    process.wait(PATIENCE_S)
    until(lambda: not is_alive(reaper))
    assert names(tmp_path) == {"r2-container"}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def test_the_reaper_survives_what_the_terminal_sends(tmp_path: Path) -> None:
    process, reaper = harness(tmp_path)
    sent = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    until(lambda: set(sent) <= ignored(reaper))
    for number in sent:
        os.kill(reaper, number)
    process.kill()
    process.wait()
    until(lambda: names(tmp_path) == {"r2-container"})


def test_a_harness_that_is_done_dismisses_it_and_nothing_is_touched(tmp_path: Path) -> None:
    process, reaper = harness(tmp_path, "dismiss", "exit")
    assert process.wait(PATIENCE_S) == 0
    until(lambda: not is_alive(reaper))
    assert names(tmp_path) == {"r1-container", "r2-container"}


def test_an_engine_that_fails_is_asked_again_and_the_reason_is_kept(tmp_path: Path) -> None:
    (tmp_path / BUSY).touch()
    process, reaper = harness(tmp_path)
    process.kill()
    process.wait()
    log = Path(tempfile.gettempdir()) / f"krucible-reaper-{reaper}.log"
    until(lambda: log.exists() and "the engine is busy" in log.read_text())
    (tmp_path / BUSY).unlink()
    until(lambda: names(tmp_path) == {"r2-container"})
    until(lambda: not is_alive(reaper))
    assert not log.exists()


def owner_of_a_dead_process() -> str:
    words = "from harness.backends.leftovers import current_owner; print(current_owner())"
    return subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.strip()


def changed(owner: str, part: int, value: str) -> str:
    parts = owner.split(":", 4)
    parts[part] = value
    return ":".join(parts)


@pytest.mark.parametrize(
    ("part", "value", "dead"), [(0, None, False), (1, "1", True), (2, "00000000-0000-0000-0000-000000000000", True)]
)
def test_an_owner_is_this_process_since_its_start_and_boot(part: int, value: str | None, dead: bool) -> None:
    assert (
        leftovers.is_dead(changed(leftovers.current_owner(), part, value) if value else leftovers.current_owner())
        is dead
    )


def test_a_finished_process_is_dead_unless_it_cannot_be_seen_from_here(tmp_path: Path) -> None:
    owner = owner_of_a_dead_process()
    assert leftovers.is_dead(owner)
    assert "the process that kept the cluster has ended" in kept(tmp_path, owner=owner).why_stale
    assert not leftovers.is_dead(changed(owner, 3, "1"))  # another pid namespace
    assert not leftovers.is_dead(changed(owner, 4, "another-machine"))


def test_a_corpse_is_dead() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from harness.backends.leftovers import current_owner; print(current_owner(), flush=True)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    child.stdout.read()  # its output has ended: it is a zombie, or soon will be
    try:
        while not leftovers.is_dead(owner):
            time.sleep(0.01)
    finally:
        child.wait()


@given(st.text())
def test_nonsense_is_never_called_dead(owner: str) -> None:
    assert not leftovers.is_dead(owner) or owner.count(":") >= 4


def test_the_sweep_removes_the_dead_and_nothing_else() -> None:
    tried: list[str] = []
    dead = owner_of_a_dead_process()
    runs = {"mine": leftovers.current_owner(), "dead": dead, "stuck": dead, "unknown": "", "odd": "x:y"}

    def remove(run_id: str) -> str:
        tried.append(run_id)
        return "it has active endpoints" if run_id == "stuck" else ""

    assert leftovers.sweep(runs, remove) == leftovers.Swept(removed=("dead",), left=("it has active endpoints",))
    assert tried == ["dead", "stuck"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def kept(folder: Path, run_id: str = "r1", owner: str = "") -> leftovers.KeptCluster:
    entrance = Entrance("n1", "docker exec -it n1 bash", "198.18.0.2", "/data", "/log")
    since = f"2026-11-25T17:00:0{run_id[-1]}+00:00"
    return leftovers.KeptCluster(
        run_id, str(folder), "a test", "docker", "invalid", owner or leftovers.current_owner(), since, (entrance,)
    )


def test_what_is_noted_is_listed_until_it_is_forgotten(tmp_path: Path) -> None:
    first, second = kept(tmp_path / "a"), kept(tmp_path / "b", "r2")
    leftovers.note(first)
    leftovers.note(second)
    assert leftovers.kept_clusters() == [second, first]
    assert first.alive and first.why_stale == ""
    leftovers.forget("r1")
    leftovers.forget("r1")
    assert leftovers.kept_clusters() == [second]


def test_a_keeper_of_an_earlier_start_of_the_machine_is_stale(tmp_path: Path) -> None:
    pid, start, _, namespace, host = leftovers.current_owner().split(":", 4)
    stale = kept(tmp_path, owner=":".join((pid, start, "another-boot", namespace, host)))
    assert stale.why_stale
    leftovers.note(stale)
    assert list(leftovers.release(stale)) == []  # this process, whose id the record contains, still runs
    assert leftovers.kept_clusters() == []


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
    leftovers.note(replace(cluster, left=("the network x",)))
    assert list(leftovers.release(cluster)) == ["the network x"]
    assert process.wait(1000) == 0 and leftovers.kept_clusters() == []


def test_a_keeper_that_does_not_end_is_killed(tmp_path: Path) -> None:
    process, owner = keeper("signal.SIG_IGN")
    (left,) = leftovers.release(kept(tmp_path, owner=owner), limit_s=0.1)
    assert f"the process {process.pid} did not remove everything" in left
    assert process.wait(1000) == -9


def test_a_file_that_is_none_is_passed_over(tmp_path: Path) -> None:
    leftovers.note(kept(tmp_path))
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "krucible" / "kept"
    (folder / "broken.json").write_text("{")
    (folder / "older.json").write_text('{"run_id": "r0"}')
    assert len(leftovers.kept_clusters()) == 1
