"""Writes what five servers of the bundled KRaft leave behind, in parts: Kafka's log segments, and traces as JSON lines.

The servers agree.  Their files are those of real nodes, written by the node's own encoder, so that `analyze` has to
read them as it reads those of a real run.  A log of a million entries has about 55 MB, and its node's trace as much
again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int32, Int64
from checkers.kernels.kafka_files import chain
from checkers.record.faults import Copy
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import encode_values, read_header
from system_under_test.kraft.raft.messages import Batch, LeaderChange
from system_under_test.kraft.records.metadata import (
    TOPIC_RESOURCE,
    ConfigRecord,
    PartitionRecord,
    TopicRecord,
    encode,
)

SERVERS = ("n1", "n2", "n3", "n4", "n5")
LEADER = SERVERS[0]


def elected(node: str) -> list[dict[str, Any]]:
    """Return what a node traces until the first leader leads."""
    begin = [
        {"event": "start", "epoch": 0, "offset": 0, "hash": 0},
        {"event": "role", "epoch": 0, "role": "unattached"},
    ]
    vote = {"event": "vote", "epoch": 1, "peer": LEADER}
    if node == LEADER:
        stands = {"event": "role", "epoch": 1, "role": "candidate"}
        leads = {"event": "role", "epoch": 1, "peer": LEADER, "role": "leader", "offset": 0}
        return [*begin, {"event": "role", "epoch": 0, "role": "prospective"}, vote, stands, leads]
    hears = {"event": "role", "epoch": 1, "role": "unattached"}
    follows = {"event": "role", "epoch": 1, "peer": LEADER, "role": "follower"}
    return [*begin, hears, vote, follows]


def filled(schema: pa.Schema, size: int, **columns: Any) -> pa.RecordBatch:
    """`size` rows.  A text or a number stands in every row; a column that is not given is null."""
    return pa.record_batch([_column(columns.get(each.name), size, each.type) for each in schema], schema=schema)


def _column(given: Any, size: int, type_: pa.DataType) -> pa.Array:
    if given is None:
        return pa.nulls(size, type_)
    if isinstance(given, str | int):
        return pa.repeat(pa.scalar(given), size).cast(type_)
    return given if isinstance(given, pa.Array) else pa.array(given, type_)


CONFIG_NAME = "retention.ms"
LOG_FOLDER = "__cluster_metadata-0"
ENTRIES_PER_CREATE = 2
_EPOCH = 1
_VOTERS = tuple(range(1, len(SERVERS) + 1))


class NodeLogs:
    """Logs and traces of all servers.  keys: names, by number; each was created by one batch."""

    def __init__(self, folder: Path, keys: list[str]) -> None:
        self._folder = folder
        self._keys = keys
        self._before = [_config_up_to_value(key) for key in keys]
        self._waiting: list[tuple[int, int]] = []
        self._end = 0
        self._hash = 0
        self._image = Image()
        self._segment = (folder / "segment").open("wb")
        (folder / "trace").mkdir()
        self._traces = {node: (folder / "trace" / f"{node}.jsonl").open("w") for node in SERVERS}
        self._seq: dict[str, int] = {}
        self._copies: list[Copy] = []

    def __enter__(self) -> NodeLogs:
        for node in SERVERS:
            rows = elected(node)
            for seq, row in enumerate(rows):
                self._traces[node].write(json.dumps({"seq": seq, "inc": 0, "t": seq, **row}) + "\n")
            self._seq[node] = len(rows)
        opening = codec.encode(Batch(0, _EPOCH, 1, LeaderChange(1, _VOTERS, _VOTERS)), 0)
        self._write([opening], [1], np.array([self._seq[LEADER]]), [self._image.state_hash])
        return self

    def create(self, times_ns: Int64) -> None:
        """Make every key, in one batch each."""
        batches, ends = [], []
        for number, key in enumerate(self._keys):
            topic = UUID(int=number + 1)
            batches.append([encode(TopicRecord(key, topic)), encode(PartitionRecord(0, topic, (1,), (1,)))])
            ends.append(self._end + ENTRIES_PER_CREATE * (number + 1))
        self._batches(batches, ends, times_ns, committed=True)

    def append(self, key: Int32, value: Int64) -> None:
        """Append entries in log order; key -1: the entry touches no object of clients."""
        self._waiting += zip(key.tolist(), value.tolist(), strict=True)

    def commit(self, ends: Int64, times_ns: Int64) -> None:
        """Note where each batch ends, and when the leader called it committed.  The others report it a moment later."""
        if len(ends):
            self._batches(self._taken(ends.tolist()), ends.tolist(), times_ns, committed=True)

    def copy(self, when: str, time_ns: int) -> tuple[Copy, ...]:
        """Copy all logs.  Returns what the journal says of it.  The final copy also holds what is not committed."""
        number = len(self._copies) // len(SERVERS)
        if when == "final" and self._waiting:
            ends = [self._end + len(self._waiting)]
            self._batches(self._taken(ends), ends, np.array([time_ns]), committed=False)
        self._segment.flush()
        for node in SERVERS:
            folder = self._folder / "nodes" / node / "copies" / str(number)
            (folder / LOG_FOLDER).mkdir(parents=True)
            shutil.copyfile(self._folder / "segment", folder / LOG_FOLDER / f"{0:020}.log")
            state = {"leaderId": 1, "leaderEpoch": _EPOCH, "votedId": 1}
            (folder / LOG_FOLDER / "quorum-state").write_text(json.dumps(state))
            (folder / "meta.properties").write_text(f"version=1\nnode.id={node[1:]}\n")
            self._traces[node].flush()
            where = str(folder.relative_to(self._folder))
            self._copies.append(Copy(number, when, node, "running", where, self._traces[node].tell()))
        return tuple(self._copies[-len(SERVERS) :])

    def _taken(self, ends: list[int]) -> list[list[bytes]]:
        """Take the waiting entries up to the last of these ends, as the values of each batch."""
        batches, first, at = [], self._end, 0
        for end in ends:
            entries = self._waiting[at : at + end - first]
            batches.append([self._value(key, value) for key, value in entries])
            first, at = end, at + len(entries)
        del self._waiting[:at]
        return batches

    def _value(self, key: int, value: int) -> bytes:
        digits = str(value).encode()
        return b"".join((self._before[key], bytes((len(digits) + 1,)), digits, b"\x00"))

    def _batches(self, batches: list[list[bytes]], ends: list[int], times_ns: Int64, *, committed: bool) -> None:
        """Write batches, and apply the committed ones as a node does."""
        raws, states = [], []
        for values, first in zip(batches, [self._end, *ends], strict=False):
            raws.append(encode_values(first, _EPOCH, values, 0))
            for value in values if committed else ():
                self._image.replay(value)
            states.append(self._image.state_hash)
        self._write(raws, ends, times_ns, states if committed else None)

    def _write(self, raws: list[bytes], ends: list[int], times_ns: Int64, states: list[int] | None) -> None:
        """states: the hash of the state behind each batch; None: the batches are not committed."""
        self._segment.write(b"".join(raws))
        headers = [read_header(raw) for raw in raws]
        base = np.array([header.base_offset for header in headers], np.int64)
        crc = np.array([header.crc for header in headers], np.int64)
        hashes = chain(self._hash, base, np.full(len(raws), _EPOCH, np.int32), crc)
        self._hash, self._end = int(hashes[-1]), ends[-1]
        rows_each = 2 if states is None else 4
        texts: dict[tuple[int, int], str] = {}
        for node in SERVERS:
            seq, later_ns = self._seq[node], 0 if node == LEADER else 1_000
            if (seq, later_ns) not in texts:
                rows = zip(times_ns.tolist(), ends, hashes.tolist(), states or [0] * len(raws), strict=True)
                lines = [
                    _traced(seq + rows_each * number, time_ns, None if states is None else later_ns, end, prefix, state)
                    for number, (time_ns, end, prefix, state) in enumerate(rows)
                ]
                texts[seq, later_ns] = "".join(lines)
            self._traces[node].write(texts[seq, later_ns])
            self._seq[node] += rows_each * len(raws)

    def __exit__(self, *_: object) -> None:
        for trace in self._traces.values():
            trace.close()
        self._segment.close()
        (self._folder / "segment").unlink(missing_ok=True)


def _config_up_to_value(key: str) -> bytes:
    """A record that sets the key's config, without its value: that is one digit long here."""
    return encode(ConfigRecord(TOPIC_RESOURCE, key, CONFIG_NAME, "0"))[:-3]


def _traced(seq: int, time_ns: int, later_ns: int | None, end: int, prefix: int, state: int) -> str:
    """The rows that a node traces of one batch.

    later_ns: how long after the leader it hears of the commit; None: it does not."""

    def row(place: int, event: str, more: str = "") -> str:
        head = f'{{"seq":{seq + place},"inc":0,"t":{time_ns},"event":"{event}","epoch":{_EPOCH},"offset":{end}'
        return f"{head}{more}}}\n"

    held = row(0, "append") + row(1, "flush")
    if later_ns is None:
        return held
    time_ns += later_ns
    return held + row(2, "high-watermark", f',"hash":{prefix}') + row(3, "applied", f',"hash":{state}')
