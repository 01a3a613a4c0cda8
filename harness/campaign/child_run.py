"""Runs one test as a process of its own, as a user would, and finds the folder that it left.

The child writes the path of its folder into a file of the campaign.  `results/latest` may be of another campaign.

The child leads a session of its own.  Ctrl-C in a terminal therefore reaches only the campaign, which passes it on
once and waits: the child removes its nodes, keeps what was recorded, and ends.  SIGTERM (a cancelled CI job) does the
same as Ctrl-C.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from checkers.base.results import RESULTS
from harness.run.interruption import sigterm_as_ctrl_c


@dataclass(frozen=True, slots=True)
class ChildRun:
    """Record of how a child ended.  folder: of its run, None if it made none.  seconds: from its start to its end."""

    exit_code: int
    folder: Path | None
    seconds: float

    @property
    def judged(self) -> Path | None:
        """The folder, if the run in it was judged."""
        return self.folder if self.folder is not None and (self.folder / RESULTS).exists() else None


def run_child(words: Sequence[str], results: Path, output: Path) -> ChildRun:
    """Run `python -m harness WORDS --results RESULTS` and wait for it.  output: the file to which its words are added.

    Raises KeyboardInterrupt after the child has cleaned up.
    """
    began_s, note = time.monotonic(), output.with_name(f".folder-for-{os.getpid()}")
    note.unlink(missing_ok=True)
    try:
        with output.open("ab") as log:
            options = ["--results", str(results), "--note-folder", str(note)]
            code = _run([sys.executable, "-m", "harness", *words, *options], log)
        folder = Path(note.read_text()) if note.exists() else None
    finally:
        note.unlink(missing_ok=True)
    return ChildRun(code, folder, time.monotonic() - began_s)


def _run(command: Sequence[str], log: IO[bytes]) -> int:
    with sigterm_as_ctrl_c():
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
        finally:
            if child.poll() is None:  # a second Ctrl-C while the child cleaned up
                child.kill()
                child.wait()
