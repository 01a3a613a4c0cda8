"""The id of a snapshot, and the name of its file (KIP-630).

A snapshot stands for everything below `end_offset`, whose last batch is of `epoch`.  Its file is

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint

and only a snapshot that is complete and durable has that name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from system_under_test.kraft.ports import Disk

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotId(NamedTuple):
    end_offset: int
    epoch: int


def file_name(snapshot: SnapshotId) -> str:
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"


def snapshots_in(disk: Disk, folder: str) -> list[SnapshotId]:
    """The complete snapshots in a folder, oldest first."""
    found = [_NAME.fullmatch(name) for name in disk.names(folder)]
    return sorted(SnapshotId(int(match[1]), int(match[2])) for match in found if match)
