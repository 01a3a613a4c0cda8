"""Status of a running test, for readers in other processes: a small file beside the runs, removed at the end of the
run.

It is in `results/.live/`, outside the run's folder, because it is no evidence.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".live"
LEAST_S = 0.25
"""Minimum seconds between writes of the file; on virtual time a second passes in a moment."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run at one moment. title: name of the test. folder: of the run. elapsed_s: on the clock of the run.

    rate_hz: recent completions per second. ok, fail, unknown: completions so far. faults: in force, in words;
    kinds: theirs. leader: its name, "" if it is not known; epoch: -1 then. violations: number found by online checks.
    first: the first of them, as a sentence.
    """

    title: str
    folder: str
    phase: str
    elapsed_s: float = 0.0
    rate_hz: float = 0.0
    ok: int = 0
    fail: int = 0
    unknown: int = 0
    faults: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    leader: str = ""
    epoch: int = -1
    violations: int = 0
    first: str = ""
    pid: int = 0


class Watcher(Protocol):
    """An observer of a running test, called on its loop, so it must be quick."""

    def show(self, status: RunStatus) -> None:
        """Receive the status of the run: at the beginning of every phase, and once a second."""

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Receive rows of the history that were just written; they never change again."""


class LiveFile:
    """Keeps the status of one run in a file. results: the folder that keeps the runs. name: of the file."""

    def __init__(self, results: Path, name: str) -> None:
        self._path = results / FOLDER / f"{name}.json"
        self._written_s = -LEAST_S
        self._phase = ""

    def show(self, status: RunStatus) -> None:
        now = time.monotonic()
        if status.phase == self._phase and now - self._written_s < LEAST_S:
            return
        self._phase, self._written_s = status.phase, now
        part = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):  # the run itself reports a full disk, because it writes more than this
            self._path.parent.mkdir(exist_ok=True)
            part.write_text(json.dumps(asdict(status)))
            part.replace(self._path)

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Ignore rows: a status already counts operations."""

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def read_live(results: Path) -> list[RunStatus]:
    """Return the running tests under this results folder, and those of its campaigns, by title.

    A file whose process has ended is left out: that harness was killed.
    """
    found = []
    for folder in (results / FOLDER, *results.glob(f"*/runs/{FOLDER}"), *results.glob(f"*/*/runs/{FOLDER}")):
        for path in folder.glob("*.json"):
            try:
                status = RunStatus(**json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue  # it was removed just now, or written by another version
            if status.pid > 0 and Path(f"/proc/{status.pid}").exists():
                found.append(status)
    return sorted(found, key=lambda status: status.title)
