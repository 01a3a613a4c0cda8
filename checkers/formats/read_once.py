"""Reads the content of a file that a user names, once and with a time limit, and recognizes its format.

A named pipe is read like a file (`xzcat history.edn.xz | … check /dev/stdin`).  Its content can be read only once, so
no function opens a path a second time.  A pipe without data is refused after PATIENCE_S.

Content that is compressed with gzip (RFC 1952) or zstd (RFC 8878) is unpacked.  A file that is cut off or corrupt is
refused.  A long text is read in pieces, so it is never in memory completely.  A run folder of Krucible, or a test's
folder in Jepsen's store, may be named instead of its history.

*Formats.*  Recognizes the formats of `session_files.py` by the first bytes of a file, without importing their readers.
"""

from __future__ import annotations

import gzip
import os
import re
import select
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from checkers.base.history import MalformedHistory

PATIENCE_S = 60.0
"""Seconds within which the first byte of a pipe must arrive."""


GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

UNPACKED_SIZE_BYTES_MAX = 2_000_000_000
"""Maximum size of unpacked content.  A few bytes may unpack to more than fits into memory."""

PIECE_BYTES = 1 << 24
"""Size of the pieces of a text.  A shorter text is one piece."""

_HISTORIES = ("history.parquet", "history.edn", "history.edn.gz", "jepsen.log", "test.jepsen")
"""Files with the history of a run of Krucible or a test of Jepsen, best first.  The last is refused, with advice."""
_BESIDE_IT = ("journal.jsonl", "history.txt", "results.edn", "test.fressian")
"""Other files in such a folder.  A folder that contains two of these files belongs to a single run or test."""


def history_in(folder: Path) -> Path | None:
    """Return the file with the history if this folder is a run of Krucible, or a test in Jepsen's store."""
    there = [name for name in (*_HISTORIES, *_BESIDE_IT) if (folder / name).is_file()]
    return folder / there[0] if len(there) > 1 and there[0] in _HISTORIES else None


class Pieces:
    """The content of a file, which can be read only once, as pieces of complete lines.

    first: the first piece; of a short file, the complete content
    rest: the later pieces
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.rest = _whole_lines(chunks)
        self.first = next(self.rest)

    def whole(self) -> bytes:
        """Return the complete content.  For a long file this works only once."""
        return b"".join([self.first, *self.rest])


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts = list[bytes]()
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1 if len(chunk) == PIECE_BYTES else 0
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts = []
        parts.append(chunk[cut:])
    yield b"".join(parts)


def read_pieces(path: Path) -> Pieces:
    """Read a file or pipe, and unpack it.  Everything after the first piece is read later.

    Raises OSError, also for a device other than a terminal and for a pipe without data.  Raises MalformedHistory
    ("byte N ...") for invalid gzip or zstd data.  Reading the later pieces may raise the same errors.
    """
    return Pieces(_chunks(path))


def _chunks(path: Path) -> Iterator[bytes]:
    with _opened(path) as file:
        begins = file.peek(4)  # type: ignore[attr-defined]
        if begins.startswith(GZIP_MAGIC):
            yield from _unpacked(_Counted(file), "gzip")
        elif begins.startswith(ZSTD_MAGIC):
            yield from _unpacked(_Counted(file), "zstd")
        else:
            while chunk := file.read(PIECE_BYTES):
                yield chunk


class _Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size_bytes, self.closed = file, 0, False

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self.size_bytes += len(found)
        return found

    def close(self) -> None:
        self.closed = True


def _unpacked(packed: _Counted, program: str) -> Iterator[bytes]:
    unpacked_bytes = 0
    try:
        if program == "gzip":
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb"))
        else:
            import pyarrow as pa  # most texts do not need it

            stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
        while chunk := stream.read(PIECE_BYTES):
            unpacked_bytes += len(chunk)
            if unpacked_bytes > UNPACKED_SIZE_BYTES_MAX:
                raise MalformedHistory(f"byte 0: the file unpacks to more than {UNPACKED_SIZE_BYTES_MAX} bytes")
            yield chunk
    except (EOFError, OSError, zlib.error) as problem:
        words = f"the file is compressed by {program}, and it is"
        if isinstance(problem, EOFError) or "Truncated" in str(problem):
            raise MalformedHistory(f"byte {packed.size_bytes}: {words} cut off") from None
        raise MalformedHistory(f"byte 0: {words} damaged ({problem})") from problem


def _opened(path: Path) -> BinaryIO:
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _opened_pipe(path)
    file = path.open("rb")
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not file.isatty()):
        file.close()
        raise OSError(None, "it is a device, not a file")
    return file


def _opened_pipe(path: Path) -> BinaryIO:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a blocking open would wait for a writer
    file = os.fdopen(fd, "rb")
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(PATIENCE_S * 1000):
        file.close()
        raise OSError(None, f"it is a pipe, and nothing was written into it for {PATIENCE_S:.0f} s")
    os.set_blocking(fd, True)
    return file


PLUME, AWDIT, CHRONOS, DBCOP, COBRA_LOG = "Plume text", "AWDIT text", "Chronos", "DBCop", "Cobra"

PARAMETERS = struct.Struct("<5Q")
"""Header of a DBCop history."""
LENGTH = struct.Struct("<Q")

COBRA_RECORDS = {b"S"[0]: 8, b"C"[0]: 8, b"A"[0]: 8, b"W"[0]: 24, b"R"[0]: 32}
"""Tag of a Cobra record -> number of bytes after the tag: start, commit and abort of a transaction, write, read."""
COBRA_RECORDS_STAMPED = {tag: size + (8 if chr(tag) in "SC" else 0) for tag, size in COBRA_RECORDS.items()}

_PLUME_HINT = re.compile(rb"[rw]\(\d")
_AWDIT_HINT = re.compile(rb"[rw][ \t]+\d+[ \t]+\d+[ \t]*(\r?\n|$)")
_CHRONOS_HINT = re.compile(rb'\[\s*\{(\s*"(tid|sid|sts|cts)"\s*:|[^\[\]]*"ops"\s*:)')
_A_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d")
_TEXT_MAX = 1 << 16
_LOOK_AHEAD = 64


def session_format(content: bytes) -> str | None:
    """Return the name of the format of a file that begins with these bytes; None if it is none of these formats."""
    head = content[:65536].lstrip(b"\xef\xbb\xbf \t\r\n")
    if _PLUME_HINT.match(head):
        return PLUME
    if _AWDIT_HINT.match(head):
        return AWDIT
    if _CHRONOS_HINT.match(head):
        return CHRONOS
    if _is_dbcop(content):
        return DBCOP
    return COBRA_LOG if is_cobra_log(content) else None


def _is_dbcop(content: bytes) -> bool:
    """Return True if the content begins with parameters, a text and a time."""
    if len(content) < PARAMETERS.size + 3 * LENGTH.size:
        return False
    (info,) = LENGTH.unpack_from(content, PARAMETERS.size)
    at = PARAMETERS.size + LENGTH.size + info
    if info > _TEXT_MAX or at + LENGTH.size > len(content):
        return False
    (length,) = LENGTH.unpack_from(content, at)
    return 10 <= length <= 64 and _A_TIME.match(content, at + LENGTH.size) is not None


def is_cobra_log(content: bytes) -> bool:
    """Return True if this is the beginning of a log of Cobra: complete records, the first of which starts a
    transaction."""
    return cobra_records(content, _LOOK_AHEAD) is not None


def cobra_records(content: bytes, records_max: int) -> dict[int, int] | None:
    """Return the sizes of records with which the first records can be read: with or without time stamps, or None."""
    if content[:1] != b"S" or len(content) < 18 or b"\x00" not in content[:64]:
        return None
    for sizes in (COBRA_RECORDS, COBRA_RECORDS_STAMPED):
        at = count = 0
        while at < len(content) and count < records_max and content[at] in sizes:
            at += 1 + sizes[content[at]]
            count += 1
        if count == records_max or at == len(content) or (at > len(content) and count > 1):
            return sizes
    return None


def cobra_logs(folder: Path) -> list[Path]:
    """Return the logs of a folder, one per session, in order of their names; [] if none of them is a log of Cobra.

    Corrupt logs are not skipped, because missing transactions look like violations.
    """
    logs = [path for path in sorted(folder.glob("*.log")) if path.is_file()]
    return logs if any(is_cobra_log(_head(path)) for path in logs) else []


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LOOK_AHEAD * (1 + max(COBRA_RECORDS_STAMPED.values())))
