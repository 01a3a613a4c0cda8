"""The reaper, with files in place of containers: it acts when the harness is dead, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from reaped_things import BUSY
from waiting import PATIENCE_S, is_alive, until

from harness.backends.leftovers import Reaper

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
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(here), str(here.parents[3]))))


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


def test_a_killed_harness_is_cleaned_up_after_and_other_runs_are_left_alone(tmp_path: Path) -> None:
    process, reaper = harness(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: names(tmp_path) == {"r2-container"})
    until(lambda: not is_alive(reaper))


def test_what_appears_late_is_removed_too(tmp_path: Path) -> None:
    process, reaper = harness(tmp_path, "late")
    process.kill()
    process.wait()
    until(lambda: not is_alive(reaper))
    assert names(tmp_path) == {"r2-container"}


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


def test_a_harness_that_merely_ends_is_cleaned_up_after(tmp_path: Path) -> None:
    process, _ = harness(tmp_path, "exit")
    assert process.wait(PATIENCE_S) == 0
    until(lambda: names(tmp_path) == {"r2-container"})


def test_a_forked_child_that_holds_the_pipe_open_does_not_fool_it(tmp_path: Path) -> None:
    process, reaper = harness(tmp_path, "forks")
    process.kill()
    process.wait()
    until(lambda: names(tmp_path) == {"r2-container"})
    until(lambda: not is_alive(reaper))
    os.killpg(process.pid, signal.SIGKILL)


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


def test_dismissing_twice_is_safe(tmp_path: Path) -> None:
    reaper = Reaper("reaped_things:reap", {"run_id": "r1", "folder": str(tmp_path)})
    reaper.dismiss()
    reaper.dismiss()
