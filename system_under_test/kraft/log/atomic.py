"""Small files that are replaced as a whole and never seen half-written."""

from __future__ import annotations

from contextlib import closing

from system_under_test.kraft.ports import Disk

TEMPORARY = ".tmp"


def replace(disk: Disk, path: str, data: bytes) -> None:
    """Make `data` the content of `path`, durable on return; a crash at any point leaves the old or the new content.

    Content first, then the name, then the folder: renamed before its fsync, a file can be found empty.
    """
    folder = path.rpartition("/")[0]
    temporary = path + TEMPORARY
    with closing(disk.open(temporary)) as file:
        file.truncate(0)
        file.write_at(0, data)
        file.fsync()
    disk.rename(temporary, path)
    disk.fsync_dir(folder)


def read(disk: Disk, path: str) -> bytes | None:
    """The content of a file, None if there is none."""
    if not disk.exists(path):
        return None
    with closing(disk.open(path)) as file:
        return file.read_at(0, file.size())
