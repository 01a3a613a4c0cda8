"""Ports of a node to its environment: clock, disk, network, trace, randomness.

`node/assembly.py` assembles a node over these ports, and no part of the node accesses time, sockets or randomness in
another way.  So the same code runs in a container with a real disk and sockets (`node/process.py`), and on a loop of
virtual time with a simulated network and disks that lose data that was not fsynced.  Tasks, futures and timeouts belong
to the running asyncio loop, which a simulator provides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from system_under_test.kraft.raft.messages import RaftRequest, RaftResponse


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Return monotonic seconds from an arbitrary beginning.  All timeouts use this clock."""
        ...

    def now_ns(self) -> int:
        """Return the same clock in nanoseconds, for traces."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for record batches.  No decision depends on it."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` at `now() == when` or later; at once if `when` has passed."""
        ...


class File(Protocol):
    """An open file.  `write_at` and `truncate` take effect at once and are durable after the next `fsync`.

    All methods raise OSError; after a failed fsync it is unknown what is durable, and the node must stop.
    """

    def size(self) -> int: ...

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes; return fewer only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None: ...

    def truncate(self, size_bytes: int) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One node's data directory.  Paths are relative to it, parts separated by "/".

    `File.fsync` makes the content of a file durable; `fsync_dir` of its folder makes creation, removal and renaming
    durable.  Folders are durable when `make_dir` returns.
    """

    def open(self, path: str) -> File:
        """Open for reading and writing; create an empty file if there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        ...

    def make_dir(self, folder: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing the target."""
        ...

    def remove(self, path: str) -> None: ...

    def fsync_dir(self, folder: str) -> None: ...

    def beside(self, sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Run `sync`, the fsync of an open file, concurrently with the running loop.  Afterwards call `done` on the
        loop, in a separate turn, with the error of `sync`.  The fsyncs of one disk run one after another.
        """
        ...


class Transport(Protocol):
    """Connection to the other voters: one request at a time on one connection per peer, as in Kafka."""

    async def request(self, peer: int, request: RaftRequest) -> RaftResponse | None:
        """Return the peer's answer; None if there was none in time or the connection broke.  After None it is unknown
        whether the peer processed the request.  Never raises because of the network.
        """
        ...

    def send_at_once(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> bool:
        """Send a Fetch without a task, if the connection for it is open and free; `answered` is called as by
        `Calls.call`.  Returns False if nothing was sent; the caller must then use `request`.
        """
        ...

    def reach(self, peer: int, host: str, port: int) -> None:
        """Set the address at which a peer is reached."""
        ...

    async def close(self) -> None: ...


class Calls(Protocol):
    """A transport for a simulator, in which a task for each request would cost more than the request itself."""

    def call(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> None:
        """Send a request.  `answered` is called later, exactly once, with the peer's answer, or with None if there was
        none.
        """
        ...


P = TypeVar("P", bound=asyncio.Protocol)


class Listener(Protocol):
    """An open port of a server.

    port: actual port, also if port 0 was requested
    """

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Accept no further connections; open connections stay open."""
        ...


class Network(Protocol):
    """Ordered streams of bytes to and from addresses.  A connection is an `asyncio.Protocol` with its transport.  Of
    the transport, a node uses write, abort, is_closing, pause_reading, resume_reading and get_extra_info("peername").
    """

    async def dial(self, host: str, port: int, protocol: Callable[[], P]) -> P:
        """Open a connection.  Raises OSError; may never return if packets are lost."""
        ...

    async def listen(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> Listener:
        """Listen on an address; `protocol` creates a protocol for each connection.  Raises OSError if the address
        cannot be bound.
        """
        ...


class TraceFile(Protocol):
    """The file to which a node appends reports about itself.  No fault affects the file, and it survives restarts."""

    def last_line(self) -> bytes | None:
        """Return the last complete line, without its line end; None if there is none.  Removes a torn last line."""
        ...

    def append(self, line: bytes) -> None:
        """Append a line, and return once it is written.  Raises OSError; the node must then stop."""
        ...


def no_time(records: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of one node.

    random: returns a random generator for a purpose; the same purpose gives the same numbers
    say: accepts lines for the operator (stderr of a process)
    apply_s: returns the seconds that applying this number of committed records takes on virtual time; 0 on real time
    """

    clock: Clock
    disk: Disk
    network: Network
    trace: TraceFile
    random: Callable[[str], Random]
    say: Callable[[str], None]
    apply_s: Callable[[int], float] = no_time
