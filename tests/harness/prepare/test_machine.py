"""Set-up waits for what a run needs; all else is compiled behind it, or waited for where that is wanted."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from harness.prepare import machine


@pytest.mark.parametrize(
    ("everything", "waited_for", "behind"),
    [(False, ["prepare"], [["prepare", "--behind"]]), (True, ["prepare", "--all"], [])],
)
def test_only_what_a_run_needs_is_waited_for(
    everything: bool, waited_for: list[str], behind: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    started: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(machine.subprocess, "run", run)
    monkeypatch.setattr(machine.subprocess, "Popen", lambda words, **_: started.append(words))
    machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False, everything=everything)
    spark = [sys.executable, "-m", "checkers.spark"]
    assert ran == [[*spark, *waited_for]]
    assert started == [[*spark, *words] for words in behind]


def test_a_set_up_that_fails_is_said_and_nothing_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1))
    monkeypatch.setattr(machine.subprocess, "Popen", lambda *_, **__: pytest.fail("nothing may be started"))
    with pytest.raises(OSError, match="exit status 1"):
        machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False)
