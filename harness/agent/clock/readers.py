"""Whether the processes of a server read their wall clock through the library that shifts it.

Theory.  The library replaces functions of the C library.  A process follows it if the dynamic linker has loaded it, and
if the process reads the clock through these functions.  The first shows in /proc/<pid>/maps.  The second does not.  A
program in Go may load the C library for other purposes (cgo), but its runtime reads the clock from the kernel's vDSO.
So a program that was built by Go's compiler never follows.  The compiler leaves a magic word in each program.

The proof covers programs that use the C library.  Another program that enters the kernel by itself passes as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

GO_MAGIC = (b"\xff Go buildinf:", b'\xff Go build ID: "')
"""Go's linker writes one of these into each program: the first since Go 1.13, the second before."""
_PIECE_BYTES = 1 << 20
_SETTLE_S = 1.0
"""A process may be between fork and the dynamic linker, or may end at once.  It counts if it stays as it is so long."""
_LOOK_S = 0.02


def why_unheeded(pids: Collection[int], mapped: Sequence[Path]) -> str:
    """Why one of these processes does not follow the library, as what follows "the server"; "" if all do.

    mapped: the files that a process which follows has in its memory.  Blocks for at most a second, and only if a
    process does not follow."""
    problems = {pid: why for pid in pids if (why := _why_unheeded(pid, mapped))}
    until = time.monotonic() + _SETTLE_S
    while problems and time.monotonic() < until:
        time.sleep(_LOOK_S)
        problems = {pid: why for pid in problems if (why := _why_unheeded(pid, mapped))}
    return next(iter(problems.values()), "")


def is_go(program: Path) -> bool:
    """Whether Go's compiler built this program.  Raises OSError if it cannot be read.

    Searches a file once, which takes some ms per MB."""
    with program.open("rb") as file:
        status = os.fstat(file.fileno())
        identity = status.st_dev, status.st_ino, status.st_mtime_ns
        if identity not in _searched:
            _searched[identity] = _has_magic(file)
    return _searched[identity]


_searched: dict[tuple[int, int, int], bool] = {}
"""Device, inode and time of the last change -> whether the program is in Go.  A node runs a few programs."""


def _why_unheeded(pid: int, mapped: Sequence[Path]) -> str:
    process = Path(f"/proc/{pid}")
    try:
        name = (process / "exe").readlink()
        places = {line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()}
        go = is_go(process / "exe")
    except (FileNotFoundError, ProcessLookupError):  # it has ended since
        return ""
    except OSError as problem:
        return f"has a process {pid} that cannot be looked at ({problem.strerror})"
    if go:
        return f"runs {name}, which is written in Go and reads the clock without the C library"
    if not {str(path) for path in mapped} <= places:
        return f"runs {name}, which has not loaded the library that shifts clocks: it may be linked statically"
    return ""


def _has_magic(file: IO[bytes]) -> bool:
    """Reads the file in pieces.  It is not mapped, because a disk that fails on order would then kill the agent."""
    overlap = max(map(len, GO_MAGIC)) - 1
    kept = b""
    while piece := file.read(_PIECE_BYTES):
        window = kept + piece
        if any(magic in window for magic in GO_MAGIC):
            return True
        kept = window[-overlap:]
    return False
