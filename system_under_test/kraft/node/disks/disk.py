"""The real disk: files of one directory, with real fsync."""

from __future__ import annotations

import os
from pathlib import Path


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
    """`ports.Disk` over the folder `root`, which must exist."""

    def __init__(self, root: Path) -> None:
        self.root = root

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

    @staticmethod
    def _fsync_dir(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
