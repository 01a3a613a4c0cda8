"""Waits for a line that a server prints, so that a fault can strike at a moment of the system's own.

The kernel reports each write below the folder of logs (inotify), so nothing is polled and a line is seen at once.
Without a pattern the wait is for an *unusual* line.  The first such wait on a node learns what is usual there: the
forms of lines that were printed USUAL_FROM times or more until then.  A form is a line without its numbers and
identities.  So a line that is printed at the start or near elections alone is unusual, whatever it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.agent.frames import limit

USUAL_FROM = 3
LOGS = "*.log"
_MODIFIED, _CREATED = 0x2, 0x100  # inotify(7)
_VARYING = re.compile(rb"[^\W\d_]*\d\w*|0x\w+")


class Lines:
    """Verbs of the logs of a node."""

    def __init__(self, arm: Callable[[], Callable[[], None]] = lambda: lambda: None) -> None:
        self._arm = arm
        self._usual: dict[str, frozenset[bytes]] = {}

    @limit(15.0, beyond="within_s")
    async def await_line(
        self, folder: str, pattern: str, nth: int, within_s: float, freeze: bool = False
    ) -> tuple[str, int]:
        """Return the n-th line printed from now on that `pattern` is found in, and when it was seen (monotonic, in ns).

        pattern: a regular expression, "" for an unusual line.  Returns "" and 0 if there is none in time.
        freeze: stop the server at once (`ServerProcess.arm`), so that it does nothing until the fault is in force.
        Raises OSError where the kernel watches no folder."""
        if not pattern and folder not in self._usual:
            self._usual[folder] = usual_forms(b"".join(path.read_bytes() for path in Path(folder).glob(LOGS)))
        usual, wanted = self._usual.get(folder, frozenset()), re.compile(pattern.encode())
        tails, loop = _Tails(Path(folder)), asyncio.get_running_loop()
        written, until_s = asyncio.Event(), loop.time() + within_s
        strike = self._arm()
        watch = _watched(folder)
        loop.add_reader(watch, written.set)
        try:
            while (left_s := until_s - loop.time()) > 0:
                for line in tails.lines():
                    nth -= bool(wanted.search(line)) if pattern else form(line) not in usual
                    if nth <= 0:
                        if freeze:
                            strike()
                        return line.decode(errors="replace"), time.monotonic_ns()
                try:
                    async with asyncio.timeout(left_s):
                        await written.wait()
                except TimeoutError:
                    break
                with contextlib.suppress(BlockingIOError):  # the loop may tell of one write twice
                    os.read(watch, 1 << 16)
                written.clear()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return "", 0


def form(line: bytes) -> bytes:
    """Return what lines of one kind have in common."""
    return _VARYING.sub(b"#", line)


def usual_forms(log: bytes) -> frozenset[bytes]:
    counted = Counter(map(form, log.splitlines()))
    return frozenset(each for each, times in counted.items() if times >= USUAL_FROM)


class _Tails:
    """The logs of a folder, read on from where each ended when this was made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in folder.glob(LOGS)}
        self._begun: dict[Path, bytes] = {}

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were written since the last call."""
        for path in self._folder.glob(LOGS):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            self._read[path] = self._read.get(path, 0) + len(data)
            *whole, self._begun[path] = (self._begun.get(path, b"") + data).split(b"\n")
            yield from whole


def _watched(folder: str) -> int:
    """Return a descriptor that is readable once a file of the folder was written."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0 or library.inotify_add_watch(descriptor, os.fsencode(folder), _MODIFIED | _CREATED) < 0:
        number = ctypes.get_errno()
        if descriptor >= 0:
            os.close(descriptor)
        raise OSError(number, f"{os.strerror(number)}: {folder} cannot be watched")
    return descriptor
