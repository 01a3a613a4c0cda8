"""The snapshots of a log on the disk (KIP-630).

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint         complete and durable
    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint.part    being written or fetched; removed at the next start

A snapshot gets its final name only when its bytes are durable: fsync, rename, fsync of the folder.  Renamed before its
fsync, it can be found empty after a power loss, when the log behind it may be gone already.
"""

from __future__ import annotations

import re

from system_under_test.kraft.log import snapshot_file
from system_under_test.kraft.log.snapshot_file import Content, CorruptSnapshot, SnapshotHeader
from system_under_test.kraft.ports import Disk, File
from system_under_test.kraft.raft.messages import SnapshotId
from system_under_test.kraft.raft.voters import VoterSet

PART = ".part"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def file_name(snapshot: SnapshotId) -> str:
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"


def snapshots_in(disk: Disk, folder: str) -> list[SnapshotId]:
    """The complete snapshots in a folder, oldest first."""
    found = [_NAME.fullmatch(name) for name in disk.names(folder)]
    return sorted(SnapshotId(int(match[1]), int(match[2])) for match in found if match)


class Snapshots:
    """ids: the complete ones, oldest first.  All verbs raise OSError."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._headers: dict[SnapshotId, SnapshotHeader] = {}
        for name in disk.names(folder):
            if name.endswith(f".checkpoint{PART}"):
                disk.remove(f"{folder}/{name}")
        self.ids = snapshots_in(disk, folder)

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def size_bytes(self, snapshot: SnapshotId) -> int:
        file = self._open(snapshot)
        try:
            return file.size()
        finally:
            file.close()

    def read_at(self, snapshot: SnapshotId, position: int, size_bytes: int) -> tuple[bytes, int] | None:
        """(bytes from a position on, size of the whole); None if there is no such snapshot."""
        if snapshot not in self.ids:
            return None
        file = self._open(snapshot)
        try:
            return file.read_at(position, size_bytes), file.size()
        finally:
            file.close()

    def load(self, snapshot: SnapshotId) -> Content:
        """Raises CorruptSnapshot."""
        return self._read(snapshot, "")

    def header(self, snapshot: SnapshotId) -> SnapshotHeader:
        """Raises CorruptSnapshot."""
        if snapshot not in self._headers:
            found = self.read_at(snapshot, 0, snapshot_file.HEADER_MAX_BYTES)
            try:
                self._headers[snapshot] = snapshot_file.read_snapshot_header(found[0] if found else b"")
            except CorruptSnapshot as problem:
                raise CorruptSnapshot(f"{file_name(snapshot)}: {problem}") from None
        return self._headers[snapshot]

    def voters(self, snapshot: SnapshotId) -> VoterSet | None:
        """In force at the end of a snapshot; None if it names none.  Raises CorruptSnapshot."""
        found = self.read_at(snapshot, 0, snapshot_file.VOTERS_MAX_BYTES)
        try:
            return snapshot_file.read_voters(found[0] if found else b"")
        except CorruptSnapshot as problem:
            raise CorruptSnapshot(f"{file_name(snapshot)}: {problem}") from None

    # Making one

    def write_part(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Write the bytes of an unfinished snapshot; from position 0 on it begins anew."""
        file = self._open(snapshot, PART)
        try:
            if position == 0:
                file.truncate(0)
            file.write_at(position, data)
        finally:
            file.close()

    def sync_part(self, snapshot: SnapshotId) -> None:
        """Make what was written so far durable, so that `freeze` has little left to do."""
        file = self._open(snapshot, PART)
        try:
            file.fsync()
        finally:
            file.close()

    def load_part(self, snapshot: SnapshotId) -> Content:
        """The content of an unfinished snapshot whose last bytes are written.  Raises CorruptSnapshot."""
        return self._read(snapshot, PART)

    def check_part(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Raises CorruptSnapshot unless what is written below `position`, and `data` behind it, are a whole one."""
        file = self._open(snapshot, PART)
        try:
            snapshot_file.read(file.read_at(0, position) + data, snapshot)
        finally:
            file.close()

    def freeze(self, snapshot: SnapshotId) -> None:
        """The unfinished snapshot is complete: give it its final name, durable on return."""
        self.sync_part(snapshot)
        path = self._path(snapshot)
        self._disk.rename(path + PART, path)
        self._disk.fsync_dir(self._folder)
        self.ids = sorted({*self.ids, snapshot})

    def drop_part(self, snapshot: SnapshotId) -> None:
        if self._disk.exists(self._path(snapshot) + PART):
            self._disk.remove(self._path(snapshot) + PART)

    def remove(self, snapshot: SnapshotId) -> None:
        """Delete a snapshot, durable on return."""
        self.ids.remove(snapshot)
        self._headers.pop(snapshot, None)
        self._disk.remove(self._path(snapshot))
        self._disk.fsync_dir(self._folder)

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._folder}/{file_name(snapshot)}"

    def _open(self, snapshot: SnapshotId, suffix: str = "") -> File:
        return self._disk.open(self._path(snapshot) + suffix)

    def _read(self, snapshot: SnapshotId, suffix: str) -> Content:
        file = self._open(snapshot, suffix)
        try:
            return snapshot_file.read(file.read_at(0, file.size()), snapshot)
        except CorruptSnapshot as problem:
            raise CorruptSnapshot(f"{file_name(snapshot)}{suffix}: {problem}") from None
        finally:
            file.close()
