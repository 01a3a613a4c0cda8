"""Reads the content of a file that a user names, once, and never waits for ever.

A named pipe is read like a file (`zcat history.edn.gz | … check /dev/stdin`).  Its content comes only once, so nothing
opens a path a second time.  A pipe into which nothing is written is refused after a while.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

PATIENCE_S = 60.0
"""A pipe is refused if its first byte does not come within this time."""


def read_once(path: Path) -> bytes:
    """The content of a file or pipe.  Raises OSError, also for a device other than a terminal and for a silent pipe."""
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _of_pipe(path)
    with path.open("rb") as file:
        if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not file.isatty()):
            raise OSError(None, "it is a device, not a file")
        return file.read()


def _of_pipe(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a blocking open would wait for a writer
    with os.fdopen(fd, "rb") as file:
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        if not waiting.poll(PATIENCE_S * 1000):
            raise OSError(None, f"it is a pipe, and nothing was written into it for {PATIENCE_S:.0f} s")
        os.set_blocking(fd, True)
        return file.read()
