"""The real disk: files of one directory, with real fsync."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue


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


_Sync = tuple[asyncio.AbstractEventLoop, Callable[[], None], Callable[[Exception | None], None]]


class RealDisk:
    """`ports.Disk` over the folder `root`, which must exist.  Its fsyncs beside the loop are those of one thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._syncs: SimpleQueue[_Sync] | None = None

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
        if self._syncs is None:
            self._syncs = SimpleQueue()
            # It ends with the process, which must be able to end while the disk does not answer.
            threading.Thread(target=_sync_all, args=(self._syncs,), name="fsync", daemon=True).start()
        self._syncs.put((asyncio.get_running_loop(), sync, done))

    @staticmethod
    def _fsync_dir(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_all(syncs: SimpleQueue[_Sync]) -> None:
    while True:
        loop, sync, done = syncs.get()
        problem: Exception | None = None
        try:
            sync()
        except Exception as raised:  # noqa: BLE001 - the caller of `beside` gets it
            problem = raised
        with suppress(RuntimeError):  # the loop is closed, so the node has ended
            loop.call_soon_threadsafe(done, problem)
