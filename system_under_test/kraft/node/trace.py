"""A node's trace of itself: one JSON object per line, one write(2) per line, on a disk that no fault affects.

A row reports a fact that is true *and durable*.  It is written before any message that depends on the fact is sent.  If
it were written later, a kill could leave an acknowledgement without a commit; if earlier, a vote that was never cast.
So the node writes each row directly after the effect that the row reports.

    {"seq": 17, "inc": 0, "t": 4711000000, "event": "high-watermark", "epoch": 3, "offset": 12, "hash": -5...}

seq     rises by one from row to row, across restarts;  inc  the incarnation: 0 at the first start, then 1, ...
t       monotonic nanoseconds, for display only;        epoch  the node's epoch when the row became true
event, offset, hash, peer, role, detail: as `checkers.base.columns.TRACE_EVENTS` defines them; absent means null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.small_files import kafka_uuid
from system_under_test.kraft.ports import TraceFile
from system_under_test.kraft.raft.messages import QuorumState

FILE_NAME = "trace.jsonl"

_TAIL_BYTES = 1 << 16
"""Maximum bytes of a row."""


class UnreadableTrace(ValueError):
    """Raised if the trace to be continued ends with an invalid row."""


class Trace:
    """Writes the rows of a trace.  `continue_trace` creates it.  Raises OSError if a row cannot be written; the node
    must then stop.
    """

    def __init__(self, write: Callable[[bytes], None], now_ns: Callable[[], int], seq: int, incarnation: int) -> None:
        self._write = write
        self._now_ns = now_ns
        self._seq = seq
        self.incarnation = incarnation

    def row(
        self,
        event: str,
        epoch: int,
        *,
        offset: int | None = None,
        hash: int | None = None,
        peer: str | None = None,
        role: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Write a row.

        event: one of TRACE_EVENTS, whose names need no escapes in JSON
        """
        # Formatted by hand: a write causes a dozen rows in a quorum of three, and a general encoder takes three times
        # as long.
        line = f'{{"seq":{self._seq},"inc":{self.incarnation},"t":{self._now_ns()},"event":"{event}","epoch":{epoch}'
        if offset is not None:
            line += f',"offset":{offset}'
        if hash is not None:
            line += f',"hash":{hash}'
        if peer is not None:
            line += f',"peer":{_encode(peer)}'
        if role is not None:
            line += f',"role":{_encode(role)}'
        if detail is not None:
            line += f',"detail":{_encode(detail)}'
        self._write(f"{line}}}\n".encode())
        self._seq += 1


def continue_trace(file: TraceFile, now_ns: Callable[[], int]) -> Trace:
    """Return the trace of a file, which continues after the file's last row.

    Raises UnreadableTrace if the last whole line is no row of a trace.
    """
    line = file.last_line()
    if line is None:
        return Trace(file.append, now_ns, 0, 0)
    try:
        row = json.loads(line)
        return Trace(file.append, now_ns, int(row["seq"]) + 1, int(row["inc"]) + 1)
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableTrace(f"the trace ends in {line[:200]!r}, which is no row of a trace") from problem


class TraceOnDisk:
    """`ports.TraceFile` at a path: one write(2) a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def last_line(self) -> bytes | None:
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - _TAIL_BYTES)
        tail = os.pread(self._descriptor, size - start, start)
        whole = tail.rfind(b"\n") + 1
        if whole != len(tail):
            os.ftruncate(self._descriptor, start + whole)
        return tail[tail.rfind(b"\n", 0, whole - 1) + 1 : whole - 1] if whole else None

    def append(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"{self._path}: only {written} of the {len(line)} bytes of a row were written")


_encode = json.JSONEncoder().encode


def start_row(trace: Trace, epoch: int, log: Log, disk: UUID | None = None) -> str:
    """Report the recovered log.  Returns a text about the torn tail that was truncated; "" if there was none.

    disk: directory id of the log's disk, reported if another disk may replace it
    """
    if disk is not None:
        trace.row("disk", epoch, detail=kafka_uuid(disk))
    recovery = log.recovery
    torn = f"cut a torn tail of {recovery.torn_bytes} bytes: {recovery.torn_because}" if recovery.torn_bytes else ""
    trace.row("start", epoch, offset=log.end_offset, hash=log.prefix_hash, detail=torn or None)
    return torn


def vote_row(trace: Trace, event: str, state: QuorumState, names: Mapping[int, str]) -> None:
    """Report the vote of a state.

    event: "vote" if the vote was just cast, "quorum-state" if the file contains it
    """
    voted = state.voted
    trace.row(event, state.epoch, peer=None if voted is None else names.get(voted.id, str(voted.id)))
