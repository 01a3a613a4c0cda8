"""Ports that a node needs of the world: clock, disk, network, trace, chance.

`node/assembly.py` puts a node together over these ports, and nothing of the node reads time, sockets or randomness
beside them.  So the same code runs in a container with a real disk and sockets (`node/process.py`), and on a loop of
virtual time with a simulated network and disks that lose what was not fsynced.  Tasks, futures and time-outs are those
of the running asyncio loop, which a simulator brings itself.
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
        """Seconds, monotonic, from an arbitrary beginning: what timeouts are measured in."""
        ...

    def now_ns(self) -> int:
        """Return the same clock in nanoseconds: what traces show."""
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

    def beside(self, sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Do `sync`, the fsync of an open file, while the running loop goes on.  Afterwards `done` is called on the
        loop, in a turn of its own, with what `sync` raised.  Those of one disk are done one after another."""
        ...


class Transport(Protocol):
    """The way to the other voters: one request at a time on one connection per peer, as Kafka does it."""

    async def request(self, peer: int, request: RaftRequest) -> RaftResponse | None:
        """The peer's answer; None if there was none in time or the connection broke; what the peer did is
        unknown then.  Never raises for what the network does."""
        ...

    def send_at_once(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> bool:
        """Send a Fetch without a task, if the connection for it is open and free; `answered` is called as `Calls.call`
        does it.  False if nothing was sent: then `request` is the way."""
        ...

    def reach(self, peer: int, host: str, port: int) -> None:
        """From now on a peer is reached there."""
        ...

    async def close(self) -> None: ...


class Calls(Protocol):
    """Transport for a simulator, where a task for each request would cost more than the request."""

    def call(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> None:
        """`answered` is called exactly once, later: with the peer's answer, or with None if there was none."""
        ...


P = TypeVar("P", bound=asyncio.Protocol)


class Listener(Protocol):
    """port: the real one, where 0 was asked for."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Accept no further connection; those that are open stay."""
        ...


class Network(Protocol):
    """Streams of bytes, in order, to and from addresses.  A connection is an `asyncio.Protocol` with its transport,
    of which a node uses write, abort, is_closing, pause_reading, resume_reading and get_extra_info("peername")."""

    async def dial(self, host: str, port: int, protocol: Callable[[], P]) -> P:
        """A connection.  Raises OSError; may take for ever where packets are lost."""
        ...

    async def listen(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> Listener:
        """`protocol` makes one for each connection.  Raises OSError where the address cannot be bound."""
        ...


class TraceFile(Protocol):
    """File in which a node reports of itself: lines that no fault touches, kept over restarts."""

    def last_line(self) -> bytes | None:
        """The last whole line, without its end; a torn one is removed.  None if there is none."""
        ...

    def append(self, line: bytes) -> None:
        """Written when it returns.  Raises OSError; the node must then stop."""
        ...


def no_time(records: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Ports:
    """random: a new stream of numbers for each purpose; the same purpose gives the same stream.
    say: takes lines for people (stderr of a process).
    apply_s: seconds until this number of committed records is applied, on virtual time; 0 elsewhere."""

    clock: Clock
    disk: Disk
    network: Network
    trace: TraceFile
    random: Callable[[str], Random]
    say: Callable[[str], None]
    apply_s: Callable[[int], float] = no_time
