"""Writes logs and traces of any length, in parts: five servers that agree, as the tables that checkers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.simulated.filled_table import filled
from checkers.base.arrays import Int32, Int64
from checkers.base.columns import COPIES, LOG, TRACE
from checkers.kernels.jit import inner_kernel, kernel
from checkers.record.faults import Copy

SERVERS = ("n1", "n2", "n3", "n4", "n5")
LEADER = SERVERS[0]

ENTRIES_PER_PIECE = 1 << 20
ROWS_PER_GROUP = 1 << 17

_ENTRY = np.dtype([("key", np.int32), ("value", np.int64)])
_BY_BATCH = ("append", "flush", "high-watermark", "applied")
"""What a node traces of each batch, in this order."""


class SimulatedLogs:
    """Entries wait in one file for all servers; a copy turns them into rows of each.  keys: names, by number."""

    def __init__(self, folder: Path, keys: list[str]) -> None:
        self._folder, self._keys = folder, pa.array(keys)
        self._waiting = (folder / "tables" / "entries").open("wb+")
        self._ends: list[Int64] = []
        self._hashes: list[Int64] = []
        self._seq: dict[str, int] = {}
        self._copies: list[dict[str, Any]] = []
        for name in ("log", "trace"):
            (folder / "tables" / name).mkdir()
        self._log = {node: self._writer("log", node, LOG) for node in SERVERS}
        self._trace = {node: self._writer("trace", node, TRACE) for node in SERVERS}

    def _writer(self, name: str, node: str, schema: pa.Schema) -> pq.ParquetWriter:
        return pq.ParquetWriter(self._folder / "tables" / name / f"{node}.parquet", schema, compression="zstd")

    def __enter__(self) -> SimulatedLogs:
        for node in SERVERS:
            rows = [{"seq": seq, "time_ns": seq, **row} for seq, row in enumerate(elected(node))]
            named = [{"node": node, "incarnation": 0, **row} for row in rows]
            self._trace[node].write_table(pa.Table.from_pylist(named, TRACE))
            self._seq[node] = len(rows)
        np.array([(-1, 0)], _ENTRY).tofile(self._waiting)  # the leader's own
        self.commit(np.array([1]), np.array([self._seq[LEADER]]))
        return self

    def append(self, key: Int32, value: Int64) -> None:
        """Append entries in log order; key -1: the entry touches no object of clients."""
        entries = np.empty(len(key), _ENTRY)
        entries["key"], entries["value"] = key, value
        entries.tofile(self._waiting)

    def commit(self, ends: Int64, times_ns: Int64) -> None:
        """Note where each batch ends, and when the leader called it committed.  The others report it a moment later."""
        if len(ends) == 0:
            return
        before = int(self._hashes[-1][-1]) if self._hashes else 0
        hashes = chain(before, ends)
        self._ends.append(ends.copy())
        self._hashes.append(hashes)
        self._say(ends, hashes, times_ns, _BY_BATCH)

    def _say(self, ends: Int64, hashes: Int64, times_ns: Int64, events: tuple[str, ...]) -> None:
        count, each = len(ends), len(events)
        event = pa.DictionaryArray.from_arrays(np.tile(np.arange(each, dtype=np.int32), count), pa.array(events))
        hashed = np.tile(np.array([name in ("high-watermark", "applied") for name in events]), count)
        is_state = np.tile(np.array([name == "applied" for name in events]), count)
        shown = np.where(is_state, chain_each(np.repeat(hashes, each)), np.repeat(hashes, each))
        for node in SERVERS:
            later = np.array([1_000 * (place > 1 and node != LEADER) for place in range(each)])
            rows = filled(
                TRACE,
                count * each,
                node=node,
                incarnation=0,
                seq=np.arange(self._seq[node], self._seq[node] + count * each),
                time_ns=np.repeat(times_ns, each) + np.tile(later, count),
                event=event,
                epoch=1,
                offset=np.repeat(ends, each),
                hash=pa.array(shown, mask=~hashed),
            )
            self._trace[node].write_batch(rows, ROWS_PER_GROUP)
            self._seq[node] += count * each

    def copy(self, when: str, time_ns: int) -> tuple[Copy, ...]:
        """Copy all logs.  Returns what the journal says of it.  The final copy also holds what is not committed."""
        number = len(self._copies) // len(SERVERS)
        self._waiting.flush()
        entries = self._waiting.tell() // _ENTRY.itemsize
        if when == "final" and entries > self._ends[-1][-1]:
            ends = np.array([entries])
            self._ends.append(ends)
            self._hashes.append(chain(int(self._hashes[-1][-1]), ends))
            self._say(ends, self._hashes[-1], np.array([time_ns]), _BY_BATCH[:2])
        ends, hashes = np.concatenate(self._ends), np.concatenate(self._hashes)
        log_end = int(ends[-1])
        with (self._folder / "tables" / "entries").open("rb") as file:
            for first in range(0, log_end, ENTRIES_PER_PIECE):
                piece = np.fromfile(file, _ENTRY, min(ENTRIES_PER_PIECE, log_end - first))
                self._write_piece(number, first, piece, ends, hashes)
        index = []
        for node in SERVERS:
            row = {"copy": number, "node": node, "when": when, "state": "running"}
            end = {"log_end": log_end, "torn_bytes": 0, "quorum_epoch": 1, "voted_for": LEADER}
            self._copies.append({**row, **end, "trace_seq": self._seq[node] - 1, "error": None})
            folder = self._folder / "nodes" / node / f"copy-{number}"
            folder.mkdir(parents=True)
            (folder / "log-end").write_text(f"{log_end}\n")
            index.append(Copy(number, when, node, "running", str(folder.relative_to(self._folder)), 0))
        return tuple(index)

    def _write_piece(self, copy: int, first: int, entries: np.ndarray, ends: Int64, hashes: Int64) -> None:
        offset = np.arange(first, first + len(entries))
        batch = np.searchsorted(ends, offset, side="right")
        begins = np.concatenate(([0], ends[:-1]))
        touches = pa.array(entries["key"], mask=entries["key"] < 0)
        columns = {
            "copy": copy,
            "offset": offset,
            "epoch": 1,
            "checksum": chain_each(offset) >> 32,
            "batch_offset": begins[batch],
            "batch_hash": hashes[batch],
            "key": self._keys.take(touches),
            "value": pa.array(np.ascontiguousarray(entries["value"]), mask=entries["key"] < 0),
        }
        for node in SERVERS:
            self._log[node].write_batch(filled(LOG, len(entries), node=node, **columns), ROWS_PER_GROUP)

    def __exit__(self, *_: object) -> None:
        for writer in (*self._log.values(), *self._trace.values()):
            writer.close()
        self._waiting.close()
        (self._folder / "tables" / "entries").unlink()
        pq.write_table(pa.Table.from_pylist(self._copies, COPIES), self._folder / "tables" / "copies.parquet")


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


@kernel
def chain(before: int, ends: Int64) -> Int64:
    """The prefix hash behind each batch, from the one before it."""
    hashes = np.empty(ends.shape[0], np.int64)
    last = np.uint64(before)
    for i in range(ends.shape[0]):
        last = _mixed(last ^ np.uint64(ends[i]))
        hashes[i] = np.int64(last)
    return hashes


@kernel
def chain_each(values: Int64) -> Int64:
    """A hash of each value."""
    hashes = np.empty(values.shape[0], np.int64)
    for i in range(values.shape[0]):
        hashes[i] = np.int64(_mixed(np.uint64(values[i])))
    return hashes


@inner_kernel
def _mixed(value: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64 (Steele et al., 2014)."""
    value = (value + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(31))
