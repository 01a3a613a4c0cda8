"""Verbs of the agent for the wall clock of its server.

The harness compiles `wall_clock.c` on its own machine and sends the library with `install`.  A server that is started
with `environment` then reads its wall clock through this library.  `order` changes the clock at run time.  `read`
proves the change: it starts a program with the same environment, and compares the program's time with the real time.

*Proof.*  The agent verifies that the processes of a server read their wall clock through the library that shifts it.

Theory.  The library replaces functions of the C library.  A process follows the library if the dynamic linker has
loaded it, and if the process reads the clock through these functions.  /proc/<pid>/maps shows the first condition.
Nothing shows the second.  A program in Go may load the C library for other purposes (cgo), but its runtime reads the
clock from the kernel's vDSO.  So programs that Go's compiler built count as not following; they are recognized by a
magic string that the compiler writes.

So the proof is valid for programs that read the clock through the C library.  A program in another language that reads
the clock directly from the kernel would pass it wrongly.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.agent.frames import limit

_ORDER = struct.Struct("<qqq")
_NS = 1_000_000_000
_READ_S = 30.0
_ASK = "import time; print(time.time_ns(), time.monotonic_ns())"
OFFSET_S_MAX = 10 * 365 * 86_400.0
RATE_MAX = 100.0


@dataclass(frozen=True, slots=True)
class ClockRead:
    """One reading of a node's wall clock.

    ahead_s: seconds by which the wall clock is ahead of the real time
    age_s: seconds since the clock was last set
    unheeded: reason why the last checked server does not read this clock, or ""
    """

    ahead_s: float
    age_s: float
    unheeded: str = ""


class ClockVerbs:
    """Verbs for the wall clock of one node.  They block.  Before `install` all others raise OSError (ENODEV)."""

    def __init__(self) -> None:
        self._library: Path | None = None
        self._order: Path | None = None
        self._ordered_ns = time.monotonic_ns()
        self._unheeded = ""

    @limit(60.0)
    def install(self, folder: str, library: bytes) -> dict[str, str]:
        """Store the library in a folder, and return the environment for the server.

        folder: folder outside of the disk under test
        library: content of the compiled library
        Raises OSError if a program that is started with the library does not run or does not follow the clock."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self._library, self._order = place / "shim.so", place / "clock"
        self._library.write_bytes(library)
        self._order.write_bytes(_ORDER.pack(0, 0, 0))
        self.order(3600.0, 1.0)
        try:
            if abs(self.read().ahead_s - 3600.0) > 60.0:
                raise OSError(errno.ENOTSUP, "a program that was started with the library does not follow the clock")
        finally:
            self.order(0.0, 1.0)
        return self.environment()

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a server must be started."""
        library, order = self._installed()
        return {"LD_PRELOAD": str(library), "KRUCIBLE_CLOCK": str(order)}

    def order(self, offset_s: float, rate: float) -> None:
        """Set the wall clock `offset_s` ahead of the real time, and let it run `rate` times as fast.

        Raises OSError (EINVAL) for values beyond OFFSET_S_MAX and RATE_MAX.
        """
        _, place = self._installed()
        if not abs(offset_s) <= OFFSET_S_MAX or not 0.0 <= rate <= RATE_MAX:
            raise OSError(errno.EINVAL, f"a clock cannot be {offset_s:g} s ahead at rate {rate:g}")
        descriptor = os.open(place, os.O_WRONLY)
        try:
            wall_ns, self._ordered_ns = time.time_ns(), time.monotonic_ns()  # the same time by both clocks
            content = _ORDER.pack(round(offset_s * _NS), round((rate - 1.0) * _NS), wall_ns)
            os.pwrite(descriptor, content, 0)  # one write: a reader sees the old order or the new one
        finally:
            os.close(descriptor)

    def read(self) -> ClockRead:
        """Start a program with the library, and compare its wall clock with its monotonic clock, which is not
        shifted."""
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-P", "-c", _ASK],
            env={**os.environ, **self.environment()},
            capture_output=True,
            timeout=_READ_S,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(errno.ENOEXEC, f"no program runs with the library: {done.stderr.decode(errors='replace')}")
        wall_ns, monotonic_ns = map(int, done.stdout.split())
        right_ns = time.time_ns() - (time.monotonic_ns() - monotonic_ns)
        return ClockRead((wall_ns - right_ns) / _NS, (monotonic_ns - self._ordered_ns) / _NS, self._unheeded)

    def is_heeded_by(self, pids: Collection[int]) -> bool:
        """Return True if each process of a server reads this clock.  If not, the next `read` returns the reason, except
        for a server that has ended.

        pids: processes of the server; empty if it has ended
        """
        mapped = self._installed()
        self._unheeded = why_unheeded(pids, mapped)
        return bool(pids) and not self._unheeded

    def _installed(self) -> tuple[Path, Path]:
        if self._library is None or self._order is None:
            raise OSError(errno.ENODEV, "the wall clock of this node is not under the harness' control")
        return self._library, self._order


GO_MAGIC = (b"\xff Go buildinf:", b'\xff Go build ID: "')
"""Strings of which Go's linker writes one into each program: the first since Go 1.13, the second before."""
_PIECE_BYTES = 1 << 20
_SETTLE_S = 1.0
"""Seconds that a process must be without the library to count as not following.  A new process may be between fork and
the dynamic linker, or may end at once."""
_LOOK_S = 0.02


def why_unheeded(pids: Collection[int], mapped: Sequence[Path]) -> str:
    """Return why one of these processes does not follow the library, as words after "the server"; "" if all follow it.

    mapped: files that a following process has mapped
    Blocks for at most _SETTLE_S, and only if a process does not follow the library.
    """
    problems = {pid: why for pid in pids if (why := _why_unheeded(pid, mapped))}
    until = time.monotonic() + _SETTLE_S
    while problems and time.monotonic() < until:
        time.sleep(_LOOK_S)
        problems = {pid: why for pid in problems if (why := _why_unheeded(pid, mapped))}
    return next(iter(problems.values()), "")


def is_go(program: Path) -> bool:
    """Return True if Go's compiler built this program.  Raises OSError if the program cannot be read.

    Each file is searched once, which takes some ms per MB."""
    with program.open("rb") as file:
        status = os.fstat(file.fileno())
        identity = status.st_dev, status.st_ino, status.st_mtime_ns
        if identity not in _searched:
            _searched[identity] = _has_magic(file)
    return _searched[identity]


_searched: dict[tuple[int, int, int], bool] = {}
"""(device, inode, time of the last change) of a program -> True if Go's compiler built it."""


def _why_unheeded(pid: int, mapped: Sequence[Path]) -> str:
    process = Path(f"/proc/{pid}")
    try:
        name = (process / "exe").readlink()
        places = {line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()}
        go = is_go(process / "exe")
    except (FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
        return ""
    except OSError as problem:
        return f"has a process {pid} whose files in /proc cannot be read ({problem.strerror})"
    if go:
        return f"runs {name}, which is written in Go and reads the clock without the C library"
    if not {str(path) for path in mapped} <= places:
        return f"runs {name}, which has not loaded the library that shifts clocks: it may be linked statically"
    return ""


def _has_magic(file: IO[bytes]) -> bool:
    """Search the file piece by piece.  Mapping the file into memory would let a failing disk kill the agent."""
    overlap = max(map(len, GO_MAGIC)) - 1
    kept = b""
    while piece := file.read(_PIECE_BYTES):
        window = kept + piece
        if any(magic in window for magic in GO_MAGIC):
            return True
        kept = window[-overlap:]
    return False
