"""Rows and entries that one node adds to its trace and to its log while it runs, brought to the harness without
stopping the node.

Rows of the trace are read by `status` anyway, several times a second, and a follower takes the same bytes.  It takes
of the log only what lies below a high watermark that the trace reported *before* the bytes were read.  A node never
removes that again, so these bytes are whole and stay as they are.  What lies above may be half an append, or a mixture
of before and after a truncation.

A segment is named by its first offset, so the next one is found without listing the folder.

State that a node's trace has reported so far, read row by row while the node runs.

The voters of a bundled KRaft, as members that change while it runs (KIP-853): through its own API, on the nodes.

A server that is removed goes on as an observer, with its disk.  It comes back with that disk: it is started, follows
the log, and is added as a voter once it has caught up.  Or it comes back with an empty disk, which has a directory id
of its own: it is another replica then, and bound to nothing that the old disk held (KIP-853).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.kernels.kafka_files import Batches, scan
from checkers.online import LIVE, NewEntries
from system_under_test.kraft.collected.files import LOG_FOLDER
from system_under_test.kraft.collected.trace_files import table_of
from system_under_test.kraft.log.meta_properties import NAME as META_PROPERTIES
from system_under_test.kraft.log.meta_properties import kafka_uuid, parse_properties
from system_under_test.subject import Collected, Node

READ_SIZE_BYTES_MAX = 1 << 24
"""Of a log at a time; no batch is larger than 8 MiB."""


class LiveNode:
    """Implements `subject.Live`.  hear: reads on in the node's trace, and returns what it has reported so far."""

    def __init__(
        self, node: Node, trace_path: str, hear: Callable[[Node], Awaitable[Hearsay]], started_monotonic_ns: int
    ) -> None:
        self._node = node
        self._trace_path = trace_path
        self._hear = hear
        self._started_monotonic_ns = started_monotonic_ns
        self._rows = b""
        self._missed_bytes = 0  # of the trace: the node wrote them before the first call
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
    """Return entries as `checkers.base.columns.LOG` defines offset, epoch and checksum."""
    count = batches.records.astype(np.int64)
    delta = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return NewEntries(
        node,
        copy,
        np.repeat(batches.base, count) + delta,
        np.repeat(batches.epoch, count),
        np.repeat(batches.crc << 31, count) | delta,
    )


@dataclass(slots=True)
class Hearsay:
    """State that a node's trace has reported so far.  largest_mark: over all its incarnations.  unread: rows that a
    follower of this node has not taken yet; None while it has no follower.  campaigned: it has sought votes since
    `take_campaigned` was called last.  voted_epoch: of its last vote, -1 before the first.  voters: the names that its
    log names last, empty if it names none.  disk: its id, "" if no row names it.
    lost: the trace no longer goes on where it was read last, so what it reported before may not hold any more."""

    read_bytes: int = 0
    rows: int = 0
    epoch: int = 0
    role: str = "unattached"
    leader: str | None = None
    high_watermark: int | None = None
    log_end: int = 0
    largest_mark: int = -1
    campaigned: bool = False
    voted_epoch: int = -1
    voters: tuple[str, ...] = ()
    disk: str = ""
    unread: bytearray | None = None
    lost: bool = False

    @property
    def wanted_from(self) -> int:
        """From this byte on, `take_from` wants the trace: the end of the last row that it has read comes first."""
        return max(0, self.read_bytes - 1)

    def take_from(self, start: int, data: bytes) -> None:
        """Take the bytes of the trace from `start` on.  They are ignored if another call took them first.

        A node only adds to its trace.  If it lacks what was read before, another hand has cut or removed it."""
        if start != self.wanted_from:
            return
        seen = self.read_bytes - start
        if data[:seen] != b"\n"[:seen]:
            self.lost = True
        if not self.lost:
            try:
                self.take(data[seen:])
            except (ValueError, KeyError, TypeError):  # not a row of a trace
                self.lost = True

    def take(self, data: bytes) -> None:
        """More of the trace, from `read_bytes` on; an unfinished row is left for the next time."""
        whole = data.rfind(b"\n") + 1
        self.read_bytes += whole
        if self.unread is not None:
            self.unread += data[:whole]
        for line in data[:whole].splitlines():
            self._row(json.loads(line))

    def take_campaigned(self) -> bool:
        campaigned, self.campaigned = self.campaigned, False
        return campaigned

    def _row(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        event = row["event"]
        self.epoch = max(self.epoch, row["epoch"])
        if event == "disk":
            if self.disk not in ("", row["detail"]):  # another replica, which knows nothing yet
                self.epoch, self.voted_epoch, self.voters = row["epoch"], -1, ()
            self.disk = row["detail"]
        if event == "start":
            self.role, self.leader, self.high_watermark = "unattached", None, None
        if event == "role":
            self.role, self.leader = row["role"], row.get("peer")
            self.campaigned |= self.role in ("prospective", "candidate")
        if event == "voters":
            self.voters = tuple(str(row.get("detail", "")).split())
        if event == "vote":
            self.voted_epoch = row["epoch"]
        if event == "high-watermark":
            self.high_watermark = row["offset"]
            self.largest_mark = max(self.largest_mark, row["offset"])
        if event in ("start", "append", "truncate"):
            self.log_end = row["offset"]


CHANGE_S_MAX = 12.0
"""How long the quorum may take to agree, once everything that takes part runs."""
_PROGRAM_S_MAX = 8.0
"""Further seconds for an interpreter to start and end on a loaded machine: the tool's, or a joining server's."""


class KraftMembers:
    """Implements `subject.Members`.

    hear: node -> what its trace has reported.  Raises OSError.
    argv: node -> the command of its server, whose last word is its configuration.  output: file of its `log_dir`.
    """

    def __init__(
        self,
        hear: Callable[[Node], Awaitable[Hearsay]],
        port: int,
        argv: Callable[[Node], list[str]],
        output: str,
    ) -> None:
        self._hear = hear
        self._port = port
        self._argv = argv
        self._output = output

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Return what the log of the leader names last, by its trace.  Raises OSError while no server leads."""
        heard = await asyncio.gather(*(self._heard(node) for node in nodes))
        leading = [each for each in heard if each is not None and each.role == "leader"]
        if not leading:
            raise OSError("no server leads")
        return frozenset(max(leading, key=lambda each: each.epoch).voters)

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        await self._change(nodes, ["remove", "--id", await self._id(leaving)])

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        if wiped:
            await self._replace_disk(joining)
        within_s = CHANGE_S_MAX
        if await joining.state() == "dead":
            await joining.start(self._argv(joining), output=f"{joining.log_dir}/{self._output}")
            within_s += _PROGRAM_S_MAX
        properties = parse_properties(await joining.read(f"{joining.data_dir}/{META_PROPERTIES}"))
        where = f"{joining.address}:{self._port}"
        directory = kafka_uuid(properties.directory_id)
        verb = ["add", "--id", str(properties.node_id), "--directory", directory, "--at", where]
        await self._change(nodes, verb, within_s)

    async def _replace_disk(self, node: Node) -> None:
        done = await node.run([*self._argv(node), "--format", "--force", "--replace-disk"], timeout_s=_PROGRAM_S_MAX)
        done.succeeded(f"{node.name}: no new disk")

    async def _id(self, node: Node) -> str:
        config = json.loads(await node.read(self._argv(node)[-1]))
        return str(config["node_id"])

    async def _change(self, nodes: Sequence[Node], verb: Sequence[str], within_s: float = CHANGE_S_MAX) -> None:
        """Raises OSError with the tool's own words."""
        states = await asyncio.gather(*(node.state() for node in nodes))
        live = [node for node, state in zip(nodes, states, strict=True) if state == "running"]
        if not live:
            raise OSError("no server runs")
        servers = ",".join(f"{node.address}:{self._port}" for node in live)
        tool = [*self._argv(live[0])[:-2], "voters", *verb, "--servers", servers, "--within", str(within_s)]
        done = await live[0].run(tool, timeout_s=within_s + _PROGRAM_S_MAX)
        if done.status != 0:
            raise OSError(done.stderr.decode(errors="replace").strip()[-300:])

    async def _heard(self, node: Node) -> Hearsay | None:
        try:
            return await self._hear(node) if await node.state() == "running" else None
        except OSError:
            return None
