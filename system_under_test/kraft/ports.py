"""What a node needs of the world: clock, disk, transport.

The node carries the core's effects out through these three and nothing else.  So the same code runs on asyncio with a
real disk (`node/disks/disk.py`), and under virtual time with a simulated network and disks that lose what was not
fsynced (`tests/support/volatile_disk.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from system_under_test.kraft.raft.messages import RaftRequest, RaftResponse


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, monotonic, from an arbitrary beginning: what timeouts are measured in."""
        ...

    def now_ns(self) -> int:
        """The same clock in nanoseconds: what traces show."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: what record batches carry.  Nothing decides by it."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at `now() == when` or later, at once if that is past."""
        ...


class File(Protocol):
    """An open file.  What `write_at` and `truncate` did is visible at once and durable after the next `fsync`.

    All verbs raise OSError; after a failed fsync it is unknown what is durable, and the node must stop.
    """

    def size(self) -> int: ...

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Fewer bytes only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None: ...

    def truncate(self, size_bytes: int) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One node's data directory.  Paths are relative to it, parts separated by "/".

    The content of a file is durable by `File.fsync`; that a name exists, is gone or names another file is durable
    by `fsync_dir` of its folder.  Folders are durable when `make_dir` returns.
    """

    def open(self, path: str) -> File:
        """Open for reading and writing; made empty if there is no such file."""
        ...

    def exists(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        ...

    def make_dir(self, folder: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces the target."""
        ...

    def remove(self, path: str) -> None: ...

    def fsync_dir(self, folder: str) -> None: ...


class Transport(Protocol):
    """The way to the other voters: one request at a time on one connection per peer, as Kafka does it."""

    async def request(self, peer: int, request: RaftRequest) -> RaftResponse | None:
        """The peer's answer; None if there was none in time or the connection broke; what the peer did is
        unknown then.  Never raises for what the network does."""
        ...

    async def close(self) -> None: ...
