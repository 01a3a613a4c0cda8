"""A set-up prepares what a run needs, or everything where that is wanted, and leaves nothing running."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from harness.cli import machine


@pytest.mark.parametrize(("everything", "words"), [(False, ["prepare"]), (True, ["prepare", "--all"])])
def test_only_what_is_wanted_is_prepared(everything: bool, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(argv)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(machine.subprocess, "run", run)
    monkeypatch.setattr(machine.subprocess, "Popen", lambda *_, **__: pytest.fail("nothing may go on beside a run"))
    machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False, everything=everything)
    assert ran == [[sys.executable, "-m", "checkers.spark", *words]]


def test_a_set_up_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1))
    with pytest.raises(OSError, match="exit status 1"):
        machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False)
