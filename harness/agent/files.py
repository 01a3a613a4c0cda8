"""Files of a node: written atomically, read from an offset, copied as a tar stream, watched for writes.

*Lines.*  The agent waits for a line that a server prints, so that a fault can be injected at an event that the system
logs.

The kernel reports each write in the folder of logs (inotify), so a line is seen at once, without polling.  Without a
pattern the agent waits for an *unusual* line.  The first such wait on a node learns the usual forms: those of lines
that have been printed USUAL_FROM times or more.  The form of a line is the line without numbers and ids.  So a line
that appears only at the start or near elections is unusual.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import io
import os
import re
import stat
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.agent.frames import PIECE_BYTES, limit

_LOOK_S = 0.0002
"""Seconds between the polls of `await_write`."""


class Files:
    """Verbs for the files of a node."""

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically, with its parent folders.

        The file is durable on return, because a power loss must not remove a server's configuration.  The file and new
        parents get the owner of the deepest folder that existed before, because a server may run as another user.
        """
        target = Path(path)
        missing = [folder for folder in target.parents if not folder.exists()]
        owner = (missing[-1].parent if missing else target.parent).stat()
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + ".unfinished")
        with unfinished.open("wb") as file:
            if os.geteuid() == 0:
                for made in (*missing, unfinished):
                    os.chown(made, owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
        sync_folder(target.parent)

    def read(self, path: str, offset: int, size_bytes: int, piece: Callable[[bytes], object]) -> None:
        """Read a file and pass its bytes to `piece`.  Pass nothing if the file does not exist.

        offset: first byte to read
        size_bytes: maximum number of bytes, -1 for all"""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            left = size_bytes if size_bytes >= 0 else max(0, os.fstat(descriptor).st_size - offset)
            while left > 0 and (data := os.pread(descriptor, min(left, PIECE_BYTES), offset)):
                piece(data)
                offset += len(data)
                left -= len(data)
        finally:
            os.close(descriptor)

    @limit(120.0)
    def pack(self, path: str, piece: Callable[[bytes], object]) -> str:
        """Pass a tar of one file (named "file") or of a folder's contents to `piece`, and return "file" or "folder".

        The tar contains only files and folders, and no file that vanishes meanwhile.  A file that grows meanwhile does
        no harm.  Raises FileNotFoundError if the path does not exist.
        """
        root = Path(path)
        if not root.exists():
            raise FileNotFoundError(errno.ENOENT, "no such file or folder on the node", path)
        out = _Pieces(piece)
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=PIECE_BYTES) as tar:  # type: ignore[call-overload]
            if root.is_file():
                _add(tar, root, "file")
            else:
                for found in sorted(root.rglob("*")):
                    _add(tar, found, str(found.relative_to(root)))
        return "file" if root.is_file() else "folder"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Pieces:
    """A writable file that passes everything that tarfile writes to `piece`."""

    def __init__(self, piece: Callable[[bytes], object]) -> None:
        self._piece = piece

    def write(self, data: bytes) -> int:
        for at in range(0, len(data), PIECE_BYTES):
            self._piece(data[at : at + PIECE_BYTES])
        return len(data)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    try:
        status = path.lstat()
        entry = tarfile.TarInfo(name)
        entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        elif stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    except FileNotFoundError:
        return


def await_write(folder: Path, within_s: float) -> bool:
    """Return True as soon as a file below `folder` is written, created or removed; False after `within_s`.  Blocks.

    A write is missed if it keeps the file's size and comes within one tick of the kernel's file clock (4 ms) after the
    write before it.
    """
    before, deadline = _states(folder), time.monotonic() + within_s
    while time.monotonic() < deadline:
        if _states(folder) != before:
            return True
        time.sleep(_LOOK_S)
    return False


def _states(folder: Path) -> dict[str, tuple[int, int]]:
    """Return path -> (time of the last change in ns, size in bytes), without files that vanish meanwhile."""
    found: dict[str, tuple[int, int]] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = f"{where}/{name}"
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


USUAL_FROM = 3
FORM_BYTES = 500
"""Maximum number of bytes of a line that its form contains."""
LEARNED_BYTES = 2 << 20
"""Maximum number of bytes at the start of a log from which usual lines are learned.  A log may have hundreds of
megabytes, and while the agent reads it, it answers no other request.
"""
LOGS = "*.log"
_MODIFIED, _CREATED = 0x2, 0x100  # inotify(7)
_VARYING = re.compile(rb"[^\W\d_]*\d\w*|0x\w+")


class Lines:
    """Verbs for the logs of a node."""

    def __init__(self, arm: Callable[[], Callable[[], None]] = lambda: lambda: None) -> None:
        self._arm = arm
        self._usual: dict[str, frozenset[bytes]] = {}

    @limit(15.0, beyond="within_s")
    async def await_line(
        self, folder: str, pattern: str, nth: int, within_s: float, freeze: bool = False
    ) -> tuple[str, int]:
        """Return the n-th matching line that is printed from now on, and the time when it was read (monotonic, in ns).

        folder: folder of the logs
        pattern: regular expression; "" matches unusual lines
        within_s: seconds after which it returns "" and 0
        freeze: True to stop the server at the line (`ServerProcess.arm`), until the fault is in force
        Raises OSError if the kernel cannot watch the folder.
        """
        if not pattern and folder not in self._usual:
            self._usual[folder] = usual_forms(b"".join(map(_beginning, Path(folder).glob(LOGS))))
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
                with contextlib.suppress(BlockingIOError):  # the loop may report one write twice
                    os.read(watch, 1 << 16)
                written.clear()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return "", 0


def form(line: bytes) -> bytes:
    """Return the line without numbers and ids, which lines with the same message share."""
    return _VARYING.sub(b"#", line[:FORM_BYTES])  # the pattern takes quadratic time in the length of a word


def _beginning(log: Path) -> bytes:
    with log.open("rb") as file:
        return file.read(LEARNED_BYTES)


def usual_forms(log: bytes) -> frozenset[bytes]:
    counted = Counter(map(form, log.splitlines()))
    return frozenset(each for each, times in counted.items() if times >= USUAL_FROM)


class _Tails:
    """Reader of the lines that are added to the logs of a folder after its construction."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in folder.glob(LOGS)}
        self._begun: dict[Path, bytes] = {}

    def lines(self) -> Iterator[bytes]:
        """Yield the complete lines that were written since the last call."""
        for path in self._folder.glob(LOGS):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            self._read[path] = self._read.get(path, 0) + len(data)
            *whole, self._begun[path] = (self._begun.get(path, b"") + data).split(b"\n")
            yield from whole


def _watched(folder: str) -> int:
    """Return an inotify descriptor, which becomes readable once a file in the folder is written or created."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0 or library.inotify_add_watch(descriptor, os.fsencode(folder), _MODIFIED | _CREATED) < 0:
        number = ctypes.get_errno()
        if descriptor >= 0:
            os.close(descriptor)
        raise OSError(number, f"{os.strerror(number)}: {folder} cannot be watched")
    return descriptor
