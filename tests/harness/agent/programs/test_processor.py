"""What Linux measured of processors, read from its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.agent.children import (
    NOT_KNOWN_S,
    of_processes,
    pressure_s,
)

PRESSURE = "some avg10=62.70 avg60=56.62 avg300=28.01 total=125054995\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def test_the_pressure_is_the_sum_in_which_some_process_waited(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(PRESSURE)
    assert pressure_s(tmp_path / "cpu") == 125.054995


def test_a_kernel_that_does_not_measure_it_is_known_as_such(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("")
    assert pressure_s(tmp_path / "cpu") == pressure_s(tmp_path / "none") == NOT_KNOWN_S


def test_the_threads_of_all_processes_add_up(tmp_path: Path) -> None:
    for pid, tid, ran, waited in ((7, 7, 3, 1), (7, 8, 2, 5), (9, 9, 1, 1), (11, 11, 50, 50)):
        thread = tmp_path / str(pid) / "task" / str(tid)
        thread.mkdir(parents=True)
        (thread / "schedstat").write_text(f"{ran * 10**9} {waited * 10**9} 12\n")
    assert of_processes({7, 9}, tmp_path) == (7.0, 6.0)
    assert of_processes(set(), tmp_path) == of_processes({12}, tmp_path) == (NOT_KNOWN_S, NOT_KNOWN_S)


def test_this_process_ran() -> None:
    waited_s, ran_s = of_processes({os.getpid()})
    assert (ran_s > 0 and waited_s >= 0) or not Path("/proc/self/schedstat").exists()


def test_a_process_that_ends_while_its_threads_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder was there when it was looked for, and is gone when it is read."""
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert of_processes([27], tmp_path) == (NOT_KNOWN_S, NOT_KNOWN_S)
