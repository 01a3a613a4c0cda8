"""The disk of a node with a planted bug: it hides a failure that the node would have to die of.

It wraps the real disk.  With the bugs off nothing is wrapped, so that a clean node never runs this code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from system_under_test.kraft.ports import Disk, File
from system_under_test.kraft.raft.decisions import (
    FORGETS_ON_FULL_DISK,
    NO_FSYNC,
    RENAME_BEFORE_FSYNC,
    must_fsync,
    must_fsync_snapshot,
    must_stop_on,
)

_LOG = ".log"
_SNAPSHOT = ".checkpoint.part"


def with_bugs(disk: Disk, bugs: Collection[str]) -> Disk:
    """The disk itself, unless one of these bugs is a disk's."""
    return PlantedDisk(disk, bugs) if {NO_FSYNC, FORGETS_ON_FULL_DISK, RENAME_BEFORE_FSYNC} & set(bugs) else disk


class PlantedDisk:
    """`ports.Disk` that decides as `raft.decisions` says what becomes of an fsync and of an error."""

    def __init__(self, disk: Disk, bugs: Collection[str]) -> None:
        self._disk = disk
        self._bugs = bugs

    def open(self, path: str) -> File:
        file = self._disk.open(path)
        if path.endswith(_LOG):
            return PlantedFile(file, self._bugs, syncs=must_fsync(self._bugs))
        if path.endswith(_SNAPSHOT):
            return PlantedFile(file, self._bugs, syncs=must_fsync_snapshot(self._bugs))
        return file

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def names(self, folder: str) -> list[str]:
        return self._disk.names(folder)

    def make_dir(self, folder: str) -> None:
        self._disk.make_dir(folder)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def fsync_dir(self, folder: str) -> None:
        self._disk.fsync_dir(folder)

    def beside(self, sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._disk.beside(sync, done)


class PlantedFile:
    """One segment's batches, or an unfinished snapshot.  syncs: whether its fsync does anything."""

    def __init__(self, file: File, bugs: Collection[str], *, syncs: bool) -> None:
        self._syncs = syncs
        self._file = file
        self._bugs = bugs

    def size(self) -> int:
        return self._file.size()

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        return self._file.read_at(offset, size_bytes)

    def write_at(self, offset: int, data: bytes) -> None:
        try:
            self._file.write_at(offset, data)
        except OSError as problem:
            if must_stop_on(problem.errno, self._bugs):
                raise

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def fsync(self) -> None:
        if self._syncs:
            self._file.fsync()

    def close(self) -> None:
        self._file.close()
