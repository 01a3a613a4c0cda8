"""How far a check of files is: shown on a terminal after a while, and never left standing."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator

import pytest

from checkers.kernels.jit import BEFORE_COMPILING
from harness.terminal.check_progress import COMPILING, FilesProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def waited(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, seconds_a_file: float) -> list[str]:
    """What stands on stderr after three files, as it was written."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr("harness.terminal.check_progress.time.monotonic", lambda: now[0])

    def judged() -> Iterator[str]:
        for name in ("a", "b", "c"):
            now[0] += seconds_a_file
            yield name

    assert list(FilesProgress(3).passing(judged())) == ["a", "b", "c"]
    return re.findall(r"judged \d of 3 files|\x1b\[K$", stderr.getvalue())


def test_a_terminal_shows_how_far_a_check_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = waited(monkeypatch, Terminal(), seconds_a_file=1.5)
    assert shown == ["judged 2 of 3 files", "judged 3 of 3 files", "\x1b[K"], "and nothing is left standing"
    assert waited(monkeypatch, Terminal(), seconds_a_file=0.1) == []
    assert waited(monkeypatch, io.StringIO(), seconds_a_file=9.0) == []


@pytest.mark.parametrize(
    ("stderr", "shown"), [(Terminal(), f"\r\x1b[K{COMPILING}" * 2 + "\r\x1b[K"), (io.StringIO(), f"{COMPILING}\n")]
)
def test_a_wait_for_the_compiler_is_explained(stderr: io.StringIO, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)

    def judged() -> Iterator[str]:
        for _ in range(2):  # two kernels
            for call in BEFORE_COMPILING:
                call()
        yield "a"

    assert list(FilesProgress(1).passing(judged())) == ["a"]
    assert stderr.getvalue() == shown
    assert BEFORE_COMPILING == []
