"""Rows and entries that one node adds to its trace and its log at run time, fetched without stopping the node.

`status` reads the rows of the trace several times a second anyway, and `LiveNode` reuses these bytes.  It reads the log
only below a high watermark that the trace reported *before* the bytes were read.  A node never removes entries below a
high watermark, so their bytes are complete and do not change.  Bytes above the high watermark may be half an append, or
a mixture of bytes from before and after a truncation.

A segment is named after its first offset, so the next segment is found without listing the folder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pyarrow as pa

from checkers.kernels.kafka_files import Batches, scan
from checkers.online import LIVE, NewEntries
from system_under_test.kraft.collected.files import LOG_FOLDER
from system_under_test.kraft.collected.members import Hearsay
from system_under_test.kraft.collected.trace_files import table_of
from system_under_test.subject import Collected, Node

READ_SIZE_BYTES_MAX = 1 << 24
"""Maximum bytes of one read of a log; no batch is larger than 8 MiB."""


class LiveNode:
    """A `subject.Live` of one node.

    hear: reads on in the node's trace, and returns the reports so far
    """

    def __init__(
        self, node: Node, trace_path: str, hear: Callable[[Node], Awaitable[Hearsay]], started_monotonic_ns: int
    ) -> None:
        self._node = node
        self._trace_path = trace_path
        self._hear = hear
        self._started_monotonic_ns = started_monotonic_ns
        self._rows = b""
        self._missed_bytes = 0  # number of bytes of the trace from before the first call
        self._mark = -1
        self._batches = b""
        self._segment = 0
        self._position = 0  # in the segment
        self._log_end = 0

    async def fetch(self) -> None:
        heard = await self._hear(self._node)
        if heard.unread is None:
            heard.unread, self._missed_bytes = bytearray(), heard.read_bytes
        if self._missed_bytes:
            self._rows += await self._node.read(self._trace_path, 0, self._missed_bytes)
            self._missed_bytes = 0
        self._rows, heard.unread = self._rows + heard.unread, bytearray()
        self._mark, self._batches = heard.largest_mark, b""
        if self._mark > self._log_end:
            self._batches = await self._read_on()
            if not self._batches and self._position:
                self._segment, self._position = self._log_end, 0
                self._batches = await self._read_on()

    def trace(self) -> pa.Table:
        rows, self._rows = self._rows, b""
        return table_of(self._node.name, rows, self._started_monotonic_ns)

    def entries(self) -> NewEntries:
        batches, _, _, _ = scan(np.frombuffer(self._batches, np.uint8), 0, self._log_end)
        self._batches = b""
        batches = batches.first(int(np.searchsorted(batches.base + batches.records, self._mark, side="right")))
        if len(batches.base):
            self._position += int(batches.stop[-1])
            self._log_end = int(batches.base[-1] + batches.records[-1])
        return _entries(self._node.name, LIVE, batches)

    def tail(self, copy: Collected) -> NewEntries:
        path = copy.folder / LOG_FOLDER / _segment_name(self._segment)
        data = np.fromfile(path, np.uint8) if path.exists() else np.empty(0, np.uint8)
        batches, _, _, _ = scan(data, min(self._position, len(data)), self._log_end)
        return _entries(copy.node, copy.copy, batches)

    async def _read_on(self) -> bytes:
        path = f"{self._node.data_dir}/{LOG_FOLDER}/{_segment_name(self._segment)}"
        return await self._node.read(path, self._position, READ_SIZE_BYTES_MAX)


def _segment_name(first_offset: int) -> str:
    return f"{first_offset:020d}.log"


def _entries(node: str, copy: int, batches: Batches) -> NewEntries:
    """Return the entries of batches, with offset, epoch and checksum as in `checkers.base.columns.LOG`."""
    count = batches.records.astype(np.int64)
    delta = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return NewEntries(
        node,
        copy,
        np.repeat(batches.base, count) + delta,
        np.repeat(batches.epoch, count),
        np.repeat(batches.crc << 31, count) | delta,
    )
