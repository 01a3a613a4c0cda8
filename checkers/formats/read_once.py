"""Reads the content of a file that a user names, once, and never waits for ever.

A named pipe is read like a file (`xzcat history.edn.xz | … check /dev/stdin`).  Its content comes only once, so nothing
opens a path a second time.  A pipe into which nothing is written is refused after a while.

What gzip compressed is unpacked (RFC 1952).  The format ends with a checksum and a size, so a file that was cut off or
damaged is refused.  A folder in which Jepsen left a test stands for the history of that test.
"""

from __future__ import annotations

import gzip
import io
import os
import select
import stat
import zlib
from pathlib import Path

from checkers.base.history import MalformedHistory

PATIENCE_S = 60.0
"""A pipe is refused if its first byte does not come within this time."""


GZIP_MAGIC = b"\x1f\x8b"

UNPACKED_SIZE_BYTES_MAX = 2_000_000_000
"""A few bytes may unpack to more than any memory holds."""

_OF_JEPSEN = ("history.edn", "history.edn.gz", "jepsen.log", "test.jepsen")
"""What holds the history of a test of Jepsen, best first; the last one is refused with what to do."""
_BESIDE_IT = ("history.txt", "results.edn", "test.fressian")
"""What else Jepsen leaves there.  Two files of these names make a folder one of Jepsen's store."""


def jepsen_history(folder: Path) -> Path | None:
    """The file that holds the history of a test, if Jepsen's store has it in this folder."""
    there = [name for name in (*_OF_JEPSEN, *_BESIDE_IT) if (folder / name).is_file()]
    return folder / there[0] if len(there) > 1 and there[0] in _OF_JEPSEN else None


def read_once(path: Path) -> bytes:
    """The content of a file or pipe, unpacked.

    Raises OSError, also for a device other than a terminal and for a silent pipe, and MalformedHistory ("byte N ...")
    for what gzip cannot have written.
    """
    content = _read(path)
    return _unpacked(content) if content.startswith(GZIP_MAGIC) else content


def _unpacked(content: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            unpacked = packed.read(UNPACKED_SIZE_BYTES_MAX + 1)
    except EOFError:
        raise MalformedHistory(f"byte {len(content)}: the file is compressed by gzip, and it is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as problem:
        raise MalformedHistory(f"byte 0: the file is compressed by gzip, and it is damaged ({problem})") from problem
    if len(unpacked) > UNPACKED_SIZE_BYTES_MAX:
        raise MalformedHistory(f"byte 0: the file unpacks to more than {UNPACKED_SIZE_BYTES_MAX} bytes")
    return unpacked


def _read(path: Path) -> bytes:
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
