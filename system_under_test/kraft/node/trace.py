"""What a node reports of itself: one JSON object a line, one write(2) a line, on a disk that no fault touches.

A row reports what has become true *and durable*.  It is written before any message that depends on it leaves.  Later,
a kill would leave acknowledgements without the commits behind them; earlier, votes that were never cast.  The node
keeps that order by writing each row directly after the effect that it reports.

    {"seq": 17, "inc": 0, "t": 4711000000, "event": "high-watermark", "epoch": 3, "offset": 12, "hash": -5...}

seq     rises by one from row to row, across restarts;  inc  the incarnation: 0 at the first start, then 1, ...
t       monotonic nanoseconds, for display only;        epoch  the node's epoch when the row became true
event, offset, hash, peer, role, detail: as `checkers.base.columns.TRACE_EVENTS` defines them; absent means null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE_NAME = "trace.jsonl"

_TAIL_BYTES = 1 << 16
"""No row is longer."""


class UnreadableTrace(ValueError):
    """The trace that is to be continued ends in something that is no row."""


class Trace:
    """Made by `open_trace`.  Raises OSError if a row cannot be written; the node must then stop."""

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
        fields: dict[str, Any] = {
            "seq": self._seq,
            "inc": self.incarnation,
            "t": self._now_ns(),
            "event": event,
            "epoch": epoch,
        }
        optional = (("offset", offset), ("hash", hash), ("peer", peer), ("role", role), ("detail", detail))
        fields.update({name: value for name, value in optional if value is not None})
        self._write(_encode(fields).encode() + b"\n")
        self._seq += 1


def open_trace(path: Path, now_ns: Callable[[], int]) -> Trace:
    """Begin the trace at `path`, or continue it after its last whole row; a torn one is removed.

    Raises UnreadableTrace if the last whole line is no row of a trace.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    last = _last_row(descriptor, path)
    seq, incarnation = (0, 0) if last is None else (last["seq"] + 1, last["inc"] + 1)

    def write(line: bytes) -> None:
        written = os.write(descriptor, line)
        if written != len(line):
            raise OSError(f"{path}: only {written} of the {len(line)} bytes of a row were written")

    return Trace(write, now_ns, seq, incarnation)


def _last_row(descriptor: int, path: Path) -> dict[str, Any] | None:
    size = os.fstat(descriptor).st_size
    start = max(0, size - _TAIL_BYTES)
    tail = os.pread(descriptor, size - start, start)
    whole = tail.rfind(b"\n") + 1
    if whole != len(tail):
        os.ftruncate(descriptor, start + whole)
    if not whole:
        return None
    line = tail[tail.rfind(b"\n", 0, whole - 1) + 1 : whole]
    try:
        row = json.loads(line)
        int(row["seq"]), int(row["inc"])
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableTrace(f"{path} ends in {line[:200]!r}, which is no row of a trace") from problem
    return row  # type: ignore[no-any-return]


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
