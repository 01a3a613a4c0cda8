"""Reader that turns the files of nodes, data directories and traces, into the tables that checkers judge.

A reader that used the subject's own codec would repeat the mistakes of the codec, so this reader shares no code with
`system_under_test/kraft/log`.

    <copy>/__cluster_metadata-0/NNN.log      segments of record batches (`log_files.py`)
    <copy>/__cluster_metadata-0/NNN-EEE.checkpoint   snapshots (`log_files.py`)
    <copy>/meta.properties                   key=value lines; node.id names the node whose directory it is
    <copy>/__cluster_metadata-0/quorum-state one line of JSON: epoch, leader, vote
    trace/<node>.jsonl                       one JSON object a line (`trace_files.py`)

*Replay.*  A copied metadata log is replayed into an empty model, which computes the hash of the state after each batch.
Neither the reader of the bytes (`log_files.py`) nor the model (`state_model.py`) shares code with the node.  So a
difference shows an error of the node's state machine, or of something that affected its state earlier: caches, the
slices of a long replay, snapshots, or decisions ahead of the log while the node was the leader.

*Records of brokers.*  The records of brokers and partitions in a copied metadata log become rows of the table CLUSTER.
Records of other types are not tabulated.  At a record that cannot be decoded, the rows of the copy end with a row
"undecodable".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.columns import CLUSTER, COPIES, LOG, REPLAYED
from checkers.kernels.kafka_files import CONTROL
from system_under_test.kraft.collected.log_files import LogFile, batches_in, log_start, read_log, read_snapshots
from system_under_test.kraft.collected.record_layouts import LAYOUTS, decode, type_and_version
from system_under_test.kraft.collected.state_model import StateModel
from system_under_test.kraft.collected.trace_files import UnreadableFile, rows_before_damage, write_trace
from system_under_test.subject import Collected, StartedOn

LOG_FOLDER = "__cluster_metadata-0"
QUORUM_STATE = "quorum-state"
_NUMBERS = 1 << 31
"""Upper bound of epochs and ids of nodes, which are signed 32-bit numbers."""
ROW_GROUP = 1 << 17
"""Rows per row group.  Every copy begins a new row group, so equal offsets are in the same group of every log."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The content of quorum-state.

    epoch: -1 if there is no file
    leader_id: id of the leader; -1 if the file names none; None if there is no file
    """

    epoch: int = -1
    voted_for: str | None = None
    leader_id: int | None = None


def write_tables(
    run_folder: Path,
    copies: Sequence[Collected],
    started_on: StartedOn,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Read every trace in `trace/` and every copy, and write `tables/` (schemas LOG, TRACE and COPIES).

    A trace with an invalid line in its middle is not tabulated; `tables/trace/<node>.error` then contains the reason.
    Raises OSError if the run folder cannot be read or written.
    """
    tables = run_folder / "tables"
    for name in ("log", "trace", "cluster", "replayed"):
        (tables / name).mkdir(parents=True, exist_ok=True)
    written = {}
    for path in sorted((run_folder / "trace").glob("*.jsonl")):
        promised = max((c.trace_size_bytes for c in copies if c.node == path.stem), default=0)
        written[path.stem] = _write_trace(path, tables / "trace", started_on(path.stem), promised)
        say(f"read the trace of {path.stem}")
    rows = []
    beginnings = _beginnings(copies)
    for node in sorted({c.node for c in copies}):
        own = sorted((c for c in copies if c.node == node), key=lambda c: c.copy)
        with (
            log_writer(tables / "log" / f"{node}.parquet") as writer,
            pq.ParquetWriter(tables / "cluster" / f"{node}.parquet", CLUSTER, compression="zstd") as cluster,
        ):
            for copy in own:
                log = read_log(copy.folder / LOG_FOLDER)
                joined, below = beginnings.joined(log)
                write_log(writer, copy.copy, node, joined)
                write_cluster(cluster, copy.copy, node, chain(below, read_cluster(copy.folder / LOG_FOLDER)))
                rows.append(_copy_row(copy, log, written.get(node)))
                say(f"read {len(rows)} of {len(copies)} copies")
        readable = [c for c, row in zip(own, rows[-len(own) :], strict=True) if row["error"] is None]
        if readable:
            whole = [c for c in readable if log_start(c.folder / LOG_FOLDER) == 0] or readable
            states = replayed(whole[-1].folder / LOG_FOLDER)
            write_replayed(tables / "replayed" / f"{node}.parquet", node, whole[-1].copy, states)
    rows.sort(key=lambda r: (r["copy"], r["node"]))
    pq.write_table(pa.Table.from_pylist(rows, COPIES), tables / "copies.parquet", compression="zstd")


class _Beginnings:
    """The entries before the current start of a log, as far as any copy of any node still contains these entries.

    A prefix hash identifies one prefix of the log.  So the entries before a snapshot may come from any copy whose log
    has the prefix hash of the snapshot at the snapshot's end.
    """

    def __init__(self) -> None:
        self._known: list[tuple[LogFile, tuple[Row, ...]]] = []

    def add(self, log: LogFile, of_cluster: Iterable[Row]) -> None:
        """Add a log with all entries from 0 on, and its rows of the table CLUSTER."""
        self._known.append((log, tuple(of_cluster)))

    def joined(self, log: LogFile) -> tuple[LogFile, tuple[Row, ...]]:
        """Return the log with all entries from 0 on, and the rows of the table CLUSTER from before its start.

        If no copy contains the entries before its start, return the log unchanged, and no rows.
        """
        if log.start == 0 or log.error is not None:
            return log, ()
        for known, of_cluster in self._known:
            place = int(np.searchsorted(known.offset, log.start))
            starts = place < len(known) and known.batch_offset[place] == log.start
            ends = starts or known.log_end == log.start
            if place and ends and int(known.batch_hash[place - 1]) == log.start_hash:
                return log.behind(known, place), tuple(row for row in of_cluster if row[0] < log.start)
        return log, ()


def _beginnings(copies: Sequence[Collected]) -> _Beginnings:
    """Return the beginnings of those logs of these copies that begin above 0.

    Memory: the longest log that begins at 0, and one log for each further beginning that is needed to reach the others.
    """
    found = _Beginnings()
    cut = [c for c in copies if log_start(c.folder / LOG_FOLDER) > 0]
    if not cut:
        return found
    whole = sorted((c for c in copies if c not in cut), key=lambda c: -c.copy)
    longest = LogFile()
    for copy in whole:
        log = read_log(copy.folder / LOG_FOLDER)
        if log.error is None and log.log_end > longest.log_end:
            longest = log
            found.add(log, read_cluster(copy.folder / LOG_FOLDER))
    for copy in sorted(cut, key=lambda c: c.copy):
        log, below = found.joined(read_log(copy.folder / LOG_FOLDER))
        if len(log) and log.offset[0] == 0 and log.log_end > longest.log_end:
            longest = log
            found.add(log, chain(below, read_cluster(copy.folder / LOG_FOLDER)))
    return found


def log_writer(path: Path) -> pq.ParquetWriter:
    """Return a writer of schema LOG that makes the compared columns cheap to read: offsets as deltas, epochs as runs,
    checksums uncompressed; all other columns are compressed.
    """
    plain = ("offset", "epoch", "checksum")
    return pq.ParquetWriter(
        path,
        LOG,
        compression={name: "none" if name in plain else "zstd" for name in LOG.names},
        use_dictionary=["copy", "node", "epoch", "key"],
        column_encoding={
            "offset": "DELTA_BINARY_PACKED",
            "checksum": "PLAIN",
            "batch_offset": "DELTA_BINARY_PACKED",
            "batch_hash": "PLAIN",
            "value": "DELTA_BINARY_PACKED",
        },
    )


def write_log(writer: pq.ParquetWriter, copy: int, node: str, log: LogFile) -> None:
    """Write one copy of a node's log in separate row groups, so that equal offsets are in the same row group of every
    log.
    """
    for start in range(0, len(log), ROW_GROUP):
        part = slice(start, start + ROW_GROUP)
        size = len(log.offset[part])
        columns = [
            pa.repeat(pa.scalar(copy, pa.int16()), size),
            pa.repeat(pa.scalar(node), size),
            *(pa.array(getattr(log, name)[part]) for name in LOG.names[2:7]),
            log.key[part].cast(pa.string()),
            log.value[part],
        ]
        writer.write_table(pa.Table.from_arrays(columns, schema=LOG), row_group_size=ROW_GROUP)


def _copy_row(copy: Collected, log: LogFile, trace: tuple[Int64, Int64] | None) -> dict[str, Any]:
    """Return the row of a copy in the table COPIES.

    trace: number of bytes up to the end of each row of the trace, and the row's seq; None if there is no trace
    """
    error = log.error
    try:
        state = read_quorum_state(copy.folder / LOG_FOLDER / QUORUM_STATE)
    except UnreadableFile as problem:
        state, error = RecordedState(), error or str(problem)
    error = error or _of_another_node(copy)
    rows = 0 if trace is None else int(np.searchsorted(trace[0], copy.trace_size_bytes, side="right"))
    return {
        "copy": copy.copy,
        "node": copy.node,
        "when": copy.when,
        "state": copy.state,
        "log_end": log.log_end,
        "torn_bytes": log.torn_bytes,
        "quorum_epoch": state.epoch,
        "voted_for": state.voted_for,
        "leader_id": state.leader_id,
        "trace_seq": int(trace[1][rows - 1]) if trace is not None and rows else -1,
        "error": error,
        "log_start": log.start,
        "disk": _property(copy, "directory.id"),
        "snapshots": [
            {name: getattr(snapshot, name) for name in ("end_offset", "epoch", "records", "state_hash", "error")}
            for snapshot in read_snapshots(copy.folder / LOG_FOLDER)
        ],
    }


def _of_another_node(copy: Collected) -> str | None:
    """Return an error if the data directory names another node; None if it names this node or none."""
    found = _property(copy, "node.id")
    if found is None or f"n{found}" == copy.node:
        return None
    return f"meta.properties: this is a data directory of n{found}, not of {copy.node}"


def _property(copy: Collected, name: str) -> str | None:
    """Return a property in meta.properties; None if it is missing."""
    try:
        text = (copy.folder / "meta.properties").read_text(errors="replace")
    except FileNotFoundError:
        return None
    found = re.search(rf"^{re.escape(name)}=([\w-]+)$", text, re.MULTILINE)
    return None if found is None else found[1]


def read_quorum_state(path: Path) -> RecordedState:
    """Read quorum-state; raise UnreadableFile if the file exists and is invalid."""
    if not path.exists():
        return RecordedState()
    try:
        state = json.loads(path.read_bytes())
        epoch, voted, leader = (int(state[name]) for name in ("leaderEpoch", "votedId", "leaderId"))
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableFile(f"{path.name}: not a quorum-state file ({problem!r})") from problem
    if wrong := [number for number in (epoch, voted, leader) if not -_NUMBERS <= number < _NUMBERS]:
        raise UnreadableFile(f"{path.name}: {wrong[0]} is beyond 32 bits")
    return RecordedState(epoch, f"n{voted}" if voted >= 0 else None, max(leader, -1))


def _write_trace(path: Path, folder: Path, started_monotonic_ns: int, promised_size_bytes: int) -> tuple[Int64, Int64]:
    """Tabulate one trace, or record the reason why it cannot be tabulated.  Returns the number of bytes up to the end
    of each readable row, and the row's seq.

    promised_size_bytes: length of the trace when its node's disk was last copied; a shorter file has lost its end
    """
    broken = folder / f"{path.stem}.error"
    broken.unlink(missing_ok=True)
    try:
        if (size_bytes := path.stat().st_size) < promised_size_bytes:
            raise UnreadableFile(f"{path.name}: it was {promised_size_bytes} bytes long and is {size_bytes} now")
        return write_trace(path, folder / f"{path.stem}.parquet", started_monotonic_ns)
    except UnreadableFile as problem:
        broken.write_text(f"{problem}\n")
        return rows_before_damage(path)


RECORDS_MAX = 50_000
"""Maximum number of replayed records of one log, which take about a second.  Later states are not computed."""


def replayed(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield (end offset of a batch, hash of the state there), up to the first record that cannot be replayed.

    Yield nothing for a log that begins after a snapshot, because `snapshot-equals-prefix` judges the entries before
    that snapshot.
    """
    if log_start(folder) > 0:
        return
    model, records = StateModel(), 0
    for base, _, attributes, values in batches_in(folder):
        try:
            held = list(values)
            for value in held if not attributes & CONTROL else ():
                model.replay(value)
        except (ValueError, IndexError, KeyError):
            return
        records += len(held)
        yield base + len(held), model.state_hash
        if records >= RECORDS_MAX:
            return


def write_replayed(path: Path, node: str, copy: int, states: Iterator[tuple[int, int]]) -> None:
    """Write a file of schema REPLAYED."""
    rows = [{"node": node, "copy": copy, "offset": offset, "hash": value} for offset, value in states]
    pq.write_table(pa.Table.from_pylist(rows, REPLAYED), path, compression="zstd")


UNDECODABLE = "undecodable"

Row = tuple[int, int, int, str, str, str]
"""Offset, epoch, base offset of the batch, kind, subject, fields as JSON."""

_ABOUT: Mapping[int, str] = {
    **dict.fromkeys((0, 1, 7, 8, 15, 17), "broker {broker}"),
    **dict.fromkeys((2, 9), "{topic}"),
    **dict.fromkeys((3, 5), "{topic}/{number}"),
    4: "{kind} {resource}",
    12: "{feature}",
    20: "",
    **dict.fromkeys((27, 29), "controller {controller}"),
    28: "{name}",
}
"""Type of a tabulated record -> template of its subject, filled in from its fields."""
_NOT_SHOWN = frozenset({"migrates", "endpoints", "features", "cordoned"})
_CONFIG = 4
_CONFIGS = ("min.insync.replicas", "unclean.leader.election.enable")
"""Configs of topics that affect partitions; records of other configs are left out."""


def read_cluster(folder: Path) -> Iterator[Row]:
    """Return the rows of one copied log directory, in offset order."""
    for base, epoch, attributes, values in batches_in(folder):
        if attributes & CONTROL:
            continue
        offset = base
        try:
            for offset, value in enumerate(values, base):
                if (found := row_of(value, offset, epoch, base)) is not None:
                    yield found
        except (ValueError, IndexError) as problem:
            yield offset, epoch, base, UNDECODABLE, "", json.dumps({"why": str(problem)})
            return


def row_of(value: bytes, offset: int, epoch: int, base: int) -> Row | None:
    """Return the row of one record; None if its type is not tabulated.  Raises ValueError or IndexError if it cannot be
    decoded.
    """
    found = _content(value)
    return None if found is None else (offset, epoch, base, *found)


@lru_cache(maxsize=1 << 14)
def _content(value: bytes) -> tuple[str, str, str] | None:
    """Return (kind, subject, fields as JSON) of one record; None if its type is not tabulated.  Raises the same errors
    as `row_of`.
    """
    kind, _ = type_and_version(value)
    if kind not in _ABOUT:
        return None
    fields, about = decode(value), _ABOUT[kind]
    if kind == _CONFIG and fields["name"] not in _CONFIGS:
        return None
    shown = {name: held for name, held in fields.items() if name not in _NOT_SHOWN and f"{{{name}}}" not in about}
    return LAYOUTS[kind].kind, about.format(**fields), json.dumps(shown)


def write_cluster(writer: pq.ParquetWriter, copy: int, node: str, rows: Iterator[Row]) -> None:
    """Write the rows of one copy of a node's log."""
    columns = list(zip(*rows, strict=True)) or [()] * 6
    size = len(columns[0])
    arrays = [
        pa.repeat(pa.scalar(copy, pa.int16()), size),
        pa.repeat(pa.scalar(node), size),
        *(pa.array(column, CLUSTER.field(number + 2).type) for number, column in enumerate(columns)),
    ]
    writer.write_table(pa.Table.from_arrays(arrays, schema=CLUSTER))
