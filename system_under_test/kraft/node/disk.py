"""The real disk: files of one directory, with real fsync.

`PlantedDisk` wraps the disk of a node with a planted bug.  It skips fsyncs, or hides an error at which the node would
have to stop.  No other node runs this code.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from system_under_test.kraft.ports import Disk, File
from system_under_test.kraft.raft.decisions import (
    must_fsync,
    must_fsync_snapshot,
    must_stop_on,
)


class RealFile:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        chunks = []
        while size_bytes > 0:
            chunk = os.pread(self._descriptor, size_bytes, offset)
            if not chunk:
                break
            chunks.append(chunk)
            offset += len(chunk)
            size_bytes -= len(chunk)
        return b"".join(chunks)

    def write_at(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            offset += written
            view = view[written:]

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def fsync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class RealDisk:
    """`ports.Disk` over the folder `root`, which must exist.  One thread runs the fsyncs that are concurrent with the
    loop.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._syncs: _Syncs | None = None

    def open(self, path: str) -> RealFile:
        return RealFile(self.root / path)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - names are wanted, not paths
        except FileNotFoundError:
            return []

    def make_dir(self, folder: str) -> None:
        path = self.root / folder
        if not path.is_dir():
            path.mkdir(parents=True)
            self._fsync_dir(path.parent)

    def rename(self, source: str, target: str) -> None:
        (self.root / source).replace(self.root / target)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def fsync_dir(self, folder: str) -> None:
        self._fsync_dir(self.root / folder)

    def beside(self, sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._syncs is None or self._syncs.loop is not loop:
            self._syncs = _Syncs(loop)
        self._syncs.begin(sync, done)

    @staticmethod
    def _fsync_dir(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Syncs:
    """A thread that runs fsyncs for one loop.  It is a daemon, so that the process can end while the disk does not
    answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._asked: SimpleQueue[tuple[Callable[[], None], Callable[[Exception | None], None]]] = SimpleQueue()
        self._ended: deque[tuple[Callable[[Exception | None], None], Exception | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        loop.add_reader(self._wake, self._report)
        threading.Thread(target=self._sync_all, name="fsync", daemon=True).start()

    def begin(self, sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        # Loop and thread share the interpreter's lock. If the thread started while the loop still carries out other
        # effects, each system call of the loop would pass the lock to the thread. In the next turn the loop
        # waits.
        self.loop.call_soon(self._asked.put, (sync, done))

    def _sync_all(self) -> None:
        while True:
            sync, done = self._asked.get()
            problem: Exception | None = None
            try:
                sync()
            except Exception as raised:  # noqa: BLE001 - the caller of `beside` gets it
                problem = raised
            self._ended.append((done, problem))
            os.eventfd_write(self._wake, 1)

    def _report(self) -> None:
        os.eventfd_read(self._wake)  # the counter may stand for several completed calls
        done, problem = self._ended.popleft()
        done(problem)


_LOG = ".log"
_SNAPSHOT = ".checkpoint.part"


def with_bugs(disk: Disk, bugs: Collection[str]) -> Disk:
    """Return the disk, wrapped in a PlantedDisk if one of these bugs affects fsyncs or disk errors."""
    honest = must_fsync(bugs) and must_fsync_snapshot(bugs) and must_stop_on(errno.ENOSPC, bugs)
    return disk if honest else cast(Disk, PlantedDisk(disk, bugs))


class PlantedDisk:
    """`ports.Disk` whose fsyncs and errors follow the planted bugs (`raft.decisions`)."""

    def __init__(self, disk: Disk, bugs: Collection[str]) -> None:
        self._disk = disk
        self._bugs = bugs

    def open(self, path: str) -> File:
        file = self._disk.open(path)
        if path.endswith(_LOG):
            return cast(File, PlantedFile(file, self._bugs, syncs=must_fsync(self._bugs)))
        if path.endswith(_SNAPSHOT):
            return cast(File, PlantedFile(file, self._bugs, syncs=must_fsync_snapshot(self._bugs)))
        return file

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._disk, verb)


class PlantedFile:
    """The file of a segment, or of an unfinished snapshot.

    syncs: False if `fsync` has no effect
    """

    def __init__(self, file: File, bugs: Collection[str], *, syncs: bool) -> None:
        self._syncs = syncs
        self._file = file
        self._bugs = bugs

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._file, verb)

    def write_at(self, offset: int, data: bytes) -> None:
        try:
            self._file.write_at(offset, data)
        except OSError as problem:
            if must_stop_on(problem.errno, self._bugs):
                raise

    def fsync(self) -> None:
        if self._syncs:
            self._file.fsync()
