"""Progress of a check of files or logs, on stderr.  It is shown only if the check takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from checkers.kernels.jit import BEFORE_COMPILING

QUIET_S = 2.0
"""Seconds before any progress is shown."""

LINE_EVERY_S = 10.0
"""Seconds between printed lines without a terminal."""

CHANGED_EVERY_S = 0.2

CLEAR_LINE = "\r\x1b[K"

COMPILING = "preparing kernels, once per machine (`krucible setup --all` prepares them ahead)"

T = TypeVar("T")


class ReadingProgress:
    """One line on stderr: it changes on a terminal; elsewhere a line every LINE_EVERY_S."""

    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET_S
        self._shown = False

    def __call__(self, words: str) -> None:
        """Show progress, if the check has taken a while."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (CHANGED_EVERY_S if sys.stderr.isatty() else LINE_EVERY_S)
            self.show(words)

    def show(self, words: str) -> None:
        """Show the words at once."""
        self._shown = sys.stderr.isatty()
        sys.stderr.write(f"{CLEAR_LINE}{words}" if self._shown else f"{words}\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Remove the line."""
        if self._shown:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
            self._shown = False


class FilesProgress:
    """The number of judged files.  The line is removed before anything else is printed."""

    def __init__(self, total: int) -> None:
        self._line = ReadingProgress()
        self._total = total
        self._done = 0
        self._compiles = False

    def reading(self, first: Path) -> None:
        """Show the first sentence on a terminal, before anything slow is imported."""
        if sys.stderr.isatty():
            self._line.show("reading " + (str(first) if self._total == 1 else f"{self._total} files"))

    def tick(self, done: int) -> None:
        """Show the number of judged files on a terminal."""
        self._done = max(done, self._done)
        if self._total > 1 and sys.stderr.isatty():
            self._line(f"judged {self._done} of {self._total} files")

    def passing(self, judged: Iterator[T]) -> Iterator[T]:
        """Pass the files on as they are judged; between them the line is shown."""
        BEFORE_COMPILING.append(self._compiling)
        try:
            for done, each in enumerate(judged, 1):
                self._line.done()
                yield each
                self.tick(done)
            self._line.done()
        finally:
            BEFORE_COMPILING.remove(self._compiling)

    def _compiling(self) -> None:
        """Give the reason of a wait: on a terminal until the next file is judged, elsewhere as one line."""
        if sys.stderr.isatty() or not self._compiles:
            self._line.show(COMPILING)
        self._compiles = True
