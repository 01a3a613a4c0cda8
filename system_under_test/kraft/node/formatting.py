"""Makes a data directory fit for a first start; apart from `process`, so that it loads nothing it does not need."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

from system_under_test.kraft.log import meta_properties
from system_under_test.kraft.log.log import FOLDER
from system_under_test.kraft.log.meta_properties import MetaProperties
from system_under_test.kraft.log.segment import Segment
from system_under_test.kraft.node.config import Config
from system_under_test.kraft.node.disks.disk import RealDisk
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.decisions import id_of_new_disk


class AlreadyFormatted(FileExistsError):
    """The data directory may hold a log that is still needed."""


def format_directory(
    config: Config, *, force: bool = False, keeps_trace: bool = False, new_uuid: Callable[[], UUID] = uuid4
) -> UUID:
    """Make the data directory that of a node with an empty log, and forget an earlier trace unless it is to go on.

    Returns the directory id.  It is drawn anew each time: a disk that was wiped has forgotten its votes and its log,
    so that it must not pass for the disk it was (KIP-853).
    Raises AlreadyFormatted, unless `force` is on, for a directory with meta.properties or a log; and OSError.
    """
    replaced = _directory_id(config.data_dir)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    if not force and (found := _first_of_a_node(config.data_dir)):
        raise AlreadyFormatted(
            f"{config.data_dir} is formatted already, it holds {found}; --force erases it and its log for good"
        )
    for path in config.data_dir.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not keeps_trace:
        (config.trace_dir / FILE_NAME).unlink(missing_ok=True)
    directory_id = id_of_new_disk(new_uuid(), replaced, {config.bug or ""})
    format_disk(RealDisk(config.data_dir), MetaProperties(config.cluster_id, config.node_id, directory_id))
    return directory_id


def format_disk(disk: Disk, properties: MetaProperties) -> None:
    """Return what an empty disk gets: an empty log, and meta.properties last, so that a format that broke off is none.

    The log is there before the first start, because a copy of the disk may be made before it: to a reader, a folder
    without a log is a copy that lost it.
    """
    disk.make_dir(FOLDER)
    Segment.create(disk, FOLDER, 0).close()
    meta_properties.write(disk, properties)


def _directory_id(folder: Path) -> UUID | None:
    """Return the id of a directory that is formatted."""
    try:
        return meta_properties.parse_properties((folder / meta_properties.NAME).read_bytes()).directory_id
    except (FileNotFoundError, meta_properties.WrongDirectory):
        return None


def _first_of_a_node(folder: Path) -> str | None:
    """The name of a file or folder that a node made here; None if there is none."""
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if name.startswith((meta_properties.NAME, "__cluster_metadata"))), None)
