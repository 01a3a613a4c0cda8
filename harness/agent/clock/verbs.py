"""What the agent does with the wall clock of its server.

The harness compiles `shim.c` on its own machine and sends the library with `install`.  A server that is started with
`environment` then reads its wall clock through it.  `order` changes the clock at run time; `read` proves it: a program
that is started in the same way reports its time, and the agent compares it with its own.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from harness.agent.clock.readers import why_unheeded

_ORDER = struct.Struct("<qqq")
_NS = 1_000_000_000
_READ_S = 30.0
_ASK = "import time; print(time.time_ns(), time.monotonic_ns())"
OFFSET_S_MAX = 10 * 365 * 86_400.0
RATE_MAX = 100.0


@dataclass(frozen=True, slots=True)
class ClockRead:
    """ahead_s: by how much the wall clock is ahead of the real one.  age_s: since its last order.
    unheeded: why the server that was looked at last does not read this clock; "" if it does."""

    ahead_s: float
    age_s: float
    unheeded: str = ""


class ClockVerbs:
    """The clock of one node.  Blocking.  Every verb but `install` raises OSError (ENODEV) before `install`."""

    def __init__(self) -> None:
        self._library: Path | None = None
        self._order: Path | None = None
        self._ordered_ns = time.monotonic_ns()
        self._unheeded = ""

    def install(self, folder: str, library: bytes) -> dict[str, str]:
        """Keep the library in a folder outside of the disk under test.  Returns the environment for the server.
        Raises OSError if a program that is started with it does not run or does not follow the clock."""
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
        """What a server must be started with."""
        library, order = self._installed()
        return {"LD_PRELOAD": str(library), "KRUCIBLE_CLOCK": str(order)}

    def order(self, offset_s: float, rate: float) -> None:
        """From now on the wall clock is `offset_s` ahead and runs `rate` times as fast as the real one.

        Raises OSError (EINVAL) for values beyond OFFSET_S_MAX and RATE_MAX.
        """
        _, place = self._installed()
        if not abs(offset_s) <= OFFSET_S_MAX or not 0.0 <= rate <= RATE_MAX:
            raise OSError(errno.EINVAL, f"a clock cannot be {offset_s:g} s off at rate {rate:g}")
        descriptor = os.open(place, os.O_WRONLY)
        try:
            wall_ns, self._ordered_ns = time.time_ns(), time.monotonic_ns()  # the same moment by both clocks
            content = _ORDER.pack(round(offset_s * _NS), round((rate - 1.0) * _NS), wall_ns)
            os.pwrite(descriptor, content, 0)  # one write: a reader sees the old order or the new one
        finally:
            os.close(descriptor)

    def read(self) -> ClockRead:
        """Ask a program under the library for its wall clock, and for its monotonic clock, which is right."""
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-c", _ASK],
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
        """Whether each of these processes reads this clock (`readers`).  pids: those of a server; () if it has ended.

        The next `read` says why not.  It says nothing of a server that has ended."""
        mapped = self._installed()
        self._unheeded = why_unheeded(pids, mapped)
        return bool(pids) and not self._unheeded

    def _installed(self) -> tuple[Path, Path]:
        if self._library is None or self._order is None:
            raise OSError(errno.ENODEV, "the wall clock of this node is not under the harness' control")
        return self._library, self._order
