"""leader-epoch-checkpoint: where each epoch begins in the log.

Kafka's text format: a line with the version (0), a line with the number of entries, and one line "epoch offset" per
entry.  It follows from the batch headers, so one that is missing, torn or behind is made anew at start.
"""

from __future__ import annotations

from collections.abc import Sequence

from system_under_test.kraft.log import atomic
from system_under_test.kraft.ports import Disk

NAME = "leader-epoch-checkpoint"

Entry = tuple[int, int]  # epoch, start offset


def store(disk: Disk, folder: str, entries: Sequence[Entry]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {offset}" for epoch, offset in entries)]
    atomic.replace(disk, f"{folder}/{NAME}", ("\n".join(lines) + "\n").encode())


def load(disk: Disk, folder: str) -> list[Entry] | None:
    """The entries; None if there is no such file, or none that makes sense."""
    data = atomic.read(disk, f"{folder}/{NAME}")
    if data is None:
        return None
    try:
        version, count, *lines = data.decode().splitlines()
        entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
    except ValueError:
        return None
    return entries if version == "0" and count == str(len(entries)) else None
