"""Progress of a check of files or logs, on stderr.  It is shown only if the check takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, TypeVar

from checkers.kernels.jit import BEFORE_COMPILING

QUIET_S = 2.0
"""Seconds before any progress is shown."""

LINE_EVERY_S = 10.0
"""Seconds between printed lines without a terminal."""

CLEAR_LINE = "\r\x1b[K"

COMPILING = "preparing kernels, once per machine (`krucible setup --all` prepares them ahead)"

T = TypeVar("T")


class FilesProgress:
    """The number of judged files, on a terminal.  The line is removed before anything else is printed."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._shown = False
        self._compiles = False

    def reading(self, first: Path) -> None:
        """Show the first sentence, before anything slow is imported."""
        if sys.stderr.isatty():
            self._show("reading " + (str(first) if self._total == 1 else f"{self._total} files"))

    def tick(self, done: int) -> None:
        """Show the number of judged files."""
        self._done = done
        if sys.stderr.isatty() and self._total > 1 and time.monotonic() - self._began > QUIET_S:
            self._show(f"{CLEAR_LINE}judged {done} of {self._total} files")

    def passing(self, judged: Iterator[T]) -> Iterator[T]:
        """Pass the files on as they are judged; between them the line is shown."""
        BEFORE_COMPILING.append(self._compiling)
        try:
            for done, each in enumerate(judged, 1):
                self._clear()
                yield each
                self.tick(max(done, self._done))
            self._clear()
        finally:
            BEFORE_COMPILING.remove(self._compiling)

    def _compiling(self) -> None:
        """Give the reason of a wait: on a terminal until the next file is judged, elsewhere as one line."""
        if sys.stderr.isatty():
            self._show(f"{CLEAR_LINE}{COMPILING}")
        elif not self._compiles:
            print(COMPILING, file=sys.stderr, flush=True)
        self._compiles = True

    def _show(self, words: str) -> None:
        print(words, end="", file=sys.stderr, flush=True)
        self._shown = True

    def _clear(self) -> None:
        if self._shown:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
            self._shown = False


class ReadingProgress:
    """Progress of reading: one line that changes on a terminal, else a line every LINE_EVERY_S."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = time.monotonic() + QUIET_S
        self._shown = False

    def __call__(self, words: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        if self._stream.isatty():
            self._next = now + 0.2
            self._stream.write(f"{CLEAR_LINE}{words}")
            self._shown = True
        else:
            self._next = now + LINE_EVERY_S
            self._stream.write(f"{words}\n")
        self._stream.flush()

    def done(self) -> None:
        """Remove the line."""
        if self._shown:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
            self._shown = False
