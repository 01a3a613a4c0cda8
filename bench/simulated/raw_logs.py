"""Writes what five servers of the bundled KRaft leave behind, in parts: Kafka's log segments, and traces as JSON lines.

The servers agree, as in `big_logs.py`.  Here their files are those of real nodes, written by the node's own encoder, so
that `analyze` has to read them as it reads those of a real run.  A log of a million entries has about 55 MB, and its
node's trace as much again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import UUID

import numpy as np

from bench.simulated.big_logs import LEADER, SERVERS, chain_each, elected
from checkers.base.arrays import Int32, Int64
from checkers.kernels.kafka_files import chain
from checkers.record.faults import Copy
from system_under_test.kraft.log.batch import encode_leader_change, encode_values, read_header
from system_under_test.kraft.raft.messages import LeaderChange
from system_under_test.kraft.records.metadata import (
    TOPIC_RESOURCE,
    ConfigRecord,
    PartitionRecord,
    TopicRecord,
    encode,
)

CONFIG_NAME = "retention.ms"
LOG_FOLDER = "__cluster_metadata-0"
ENTRIES_PER_CREATE = 2
_EPOCH = 1
_VOTERS = tuple(range(1, len(SERVERS) + 1))


class RawLogs:
    """Implements what `big_history.py` needs of logs.  keys: names, by number; each was created by one batch."""

    def __init__(self, folder: Path, keys: list[str]) -> None:
        self._folder = folder
        self._keys = keys
        self._before = [_config_up_to_value(key) for key in keys]
        self._waiting: list[tuple[int, int]] = []
        self._end = 0
        self._hash = 0
        self._segment = (folder / "segment").open("wb")
        (folder / "trace").mkdir()
        self._traces = {node: (folder / "trace" / f"{node}.jsonl").open("w") for node in SERVERS}
        self._seq: dict[str, int] = {}
        self._copies: list[Copy] = []

    def __enter__(self) -> RawLogs:
        for node in SERVERS:
            rows = elected(node)
            for seq, row in enumerate(rows):
                self._traces[node].write(json.dumps({"seq": seq, "inc": 0, "t": seq, **row}) + "\n")
            self._seq[node] = len(rows)
        opening = encode_leader_change(0, _EPOCH, LeaderChange(1, _VOTERS, _VOTERS), 0)
        self._batches([opening], [1], np.array([self._seq[LEADER]]), committed=True)
        return self

    def create(self, times_ns: Int64) -> None:
        """Make every key, in one batch each."""
        raws, ends = [], []
        for number, key in enumerate(self._keys):
            topic = UUID(int=number + 1)
            values = [encode(TopicRecord(key, topic)), encode(PartitionRecord(0, topic, (1,), (1,)))]
            first = self._end + ENTRIES_PER_CREATE * number
            raws.append(encode_values(first, _EPOCH, values, 0))
            ends.append(first + ENTRIES_PER_CREATE)
        self._batches(raws, ends, times_ns, committed=True)

    def append(self, key: Int32, value: Int64) -> None:
        """Append entries in log order; key -1: the entry touches no object of clients."""
        self._waiting += zip(key.tolist(), value.tolist(), strict=True)

    def commit(self, ends: Int64, times_ns: Int64) -> None:
        """Note where each batch ends, and when the leader called it committed.  The others report it a moment later."""
        if len(ends):
            self._batches(self._encoded(ends.tolist()), ends.tolist(), times_ns, committed=True)

    def copy(self, when: str, time_ns: int) -> tuple[Copy, ...]:
        """Copy all logs.  Returns what the journal says of it.  The final copy also holds what is not committed."""
        number = len(self._copies) // len(SERVERS)
        if when == "final" and self._waiting:
            ends = [self._end + len(self._waiting)]
            self._batches(self._encoded(ends), ends, np.array([time_ns]), committed=False)
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

    def _encoded(self, ends: list[int]) -> list[bytes]:
        """The waiting entries up to the last of these ends, as batches."""
        raws, first, at = [], self._end, 0
        for end in ends:
            entries = self._waiting[at : at + end - first]
            raws.append(encode_values(first, _EPOCH, [self._value(key, value) for key, value in entries], 0))
            first, at = end, at + len(entries)
        del self._waiting[:at]
        return raws

    def _value(self, key: int, value: int) -> bytes:
        digits = str(value).encode()
        return b"".join((self._before[key], bytes((len(digits) + 1,)), digits, b"\x00"))

    def _batches(self, raws: list[bytes], ends: list[int], times_ns: Int64, *, committed: bool) -> None:
        self._segment.write(b"".join(raws))
        headers = [read_header(raw) for raw in raws]
        base = np.array([header.base_offset for header in headers], np.int64)
        crc = np.array([header.crc for header in headers], np.int64)
        hashes = chain(self._hash, base, np.full(len(raws), _EPOCH, np.int32), crc)
        self._hash, self._end = int(hashes[-1]), ends[-1]
        states = chain_each(hashes).tolist()
        rows_each = 4 if committed else 2
        texts: dict[tuple[int, int], str] = {}
        for node in SERVERS:
            seq, later_ns = self._seq[node], 0 if node == LEADER else 1_000
            if (seq, later_ns) not in texts:
                rows = zip(times_ns.tolist(), ends, hashes.tolist(), states, strict=True)
                lines = [
                    _traced(seq + rows_each * number, time_ns, later_ns if committed else None, end, prefix, state)
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
