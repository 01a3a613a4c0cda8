"""Reader of a node's trace, `<node>.jsonl`: it turns one JSON object per line into a table of schema TRACE
(`checkers.base.columns`).

    {"seq": 7, "inc": 0, "t": monotonic ns, "event": ..., "epoch": ...} and, depending on the event, offset, hash, peer,
    role and detail

A torn last line is left out, because a kill interrupted one write(2).  An invalid line in the middle makes the whole
trace unreadable, because a verdict may depend on that row.  A gap in `seq` also makes the trace unreadable, because
rows are missing, and several checkers draw conclusions from absent rows.  A trace without any row is missing input.

A file is read in blocks, and Arrow parses each block at once.  A block with any irregularity is parsed again line by
line, to find the error and its line.  Cost: 1.5 s per million rows; memory: one block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.columns import TRACE, TRACE_EVENTS, TRACE_ROLES
from checkers.record.files import LINE_SIZE_BYTES_MAX

BLOCK_SIZE_BYTES = 1 << 24

ROW_GROUP = 1 << 17
"""Rows per row group."""

_NAMES = {"incarnation": "inc", "time_ns": "t"}
"""Column -> its name in the file, if the names differ."""

_LINE = pa.schema(
    [
        pa.field(_NAMES.get(f.name, f.name), pa.string() if pa.types.is_dictionary(f.type) else f.type)
        for f in TRACE
        if f.name != "node"
    ]
)
_NEEDED = ("seq", "inc", "t", "event", "epoch")
_KNOWN = {"event": tuple(TRACE_EVENTS), "role": TRACE_ROLES}
_DELTAS = ("seq", "time_ns", "offset")


class UnreadableFile(ValueError):
    """A file violates its layout; the message names the file, the position and the violation."""


def write_trace(source: Path, target: Path, started_monotonic_ns: int) -> tuple[Int64, Int64]:
    """Write a trace as Parquet.

    Returns, for every row, the size of the file up to the end of the row, and the row's seq.  Together with the size of
    the trace in a copy's row, they show which trace rows were written before the copy.  Raises UnreadableFile for an
    invalid line, an unknown event, a seq that is not the next one, or a trace without rows.  The target does not exist
    then.
    """
    ends, seqs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    try:
        with pq.ParquetWriter(
            target,
            TRACE,
            compression="zstd",
            use_dictionary=["node", "event", "peer", "role", "epoch", "incarnation"],
            column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        ) as writer:
            for table, block_ends in read_blocks(source, started_monotonic_ns):
                writer.write_table(table, row_group_size=ROW_GROUP)
                ends.append(block_ends)
                seqs.append(np.asarray(table["seq"].to_numpy(), np.int64))
        if len(seqs) == 1:
            raise UnreadableFile(f"{source.name}: contains no row")
    except UnreadableFile:
        target.unlink()
        raise
    return np.concatenate(ends), np.concatenate(seqs)


def read_trace(path: Path, started_monotonic_ns: int) -> pa.Table:
    """Return the whole trace as one table.  Raises UnreadableFile like `write_trace`."""
    return pa.Table.from_batches(
        [b for table, _ in read_blocks(path, started_monotonic_ns) for b in table.to_batches()], TRACE
    )


def table_of(node: str, lines: bytes, started_monotonic_ns: int) -> pa.Table:
    """Parse successive rows of a trace.  Raises UnreadableFile like `write_trace`.

    lines: complete lines
    """
    if not lines:
        return TRACE.empty_table()
    path = Path(f"{node}.jsonl")
    rows = _at_once(lines, lines.count(b"\n"), None)
    return _as_trace(_line_by_line(path.name, lines, 1, None) if rows is None else rows, path, started_monotonic_ns)


def rows_before_damage(path: Path) -> tuple[Int64, Int64]:
    """Return the result of `write_trace` for the rows before the first invalid line; nothing if there is no trace."""
    ends, seqs, end = [], [], 0
    try:
        for line in _lines(path) if path.exists() else ():
            seqs.append(int(json.loads(line)["seq"]))
            end += len(line)
            ends.append(end)
    except (ValueError, KeyError, TypeError, RecursionError):
        del seqs[len(ends) :]
    return np.array(ends, np.int64), np.array(seqs, np.int64)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, with their line ends.  Raises UnreadableFile for a line that is too long."""
    for block in _blocks(path):
        yield from block.splitlines(keepends=True)


def read_blocks(path: Path, started_monotonic_ns: int) -> Iterator[tuple[pa.Table, Int64]]:
    """Yield, block by block, some rows and, for each row, the size of the file up to its end."""
    begun, line, last_seq = 0, 1, -1
    for block in _blocks(path):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
        if len(long := np.flatnonzero(np.diff(ends, prepend=0) > LINE_SIZE_BYTES_MAX)):
            raise _too_long(path, line + int(long[0]))
        rows = _at_once(block, len(ends), last_seq)
        if rows is None:
            rows = _line_by_line(path.name, block, line, last_seq)
        yield _as_trace(rows, path, started_monotonic_ns), ends + begun
        last_seq = rows["seq"][-1].as_py()
        begun, line = begun + len(block), line + len(ends)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces of complete lines, without a torn last line.

    Raises UnreadableFile at a line of more than LINE_SIZE_BYTES_MAX, which is more than a thousand times the size of a
    row.
    """
    rest, at = b"", 1
    with path.open("rb") as file:
        while read := file.read(BLOCK_SIZE_BYTES):
            whole, newline, rest = (rest + read).rpartition(b"\n")
            if newline:
                yield whole + newline
                at += whole.count(b"\n") + 1
            if len(rest) > LINE_SIZE_BYTES_MAX:
                raise _too_long(path, at)


def _too_long(path: Path, line: int) -> UnreadableFile:
    return UnreadableFile(f"{path.name}, line {line}: longer than {LINE_SIZE_BYTES_MAX} bytes")


def _at_once(block: bytes, lines: int, last_seq: int | None) -> pa.Table | None:
    """Parse a block at once; return None if it has any irregularity.

    last_seq: seq of the row before the block; None if unknown
    """
    try:
        rows = pj.read_json(
            pa.BufferReader(block),
            pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pj.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    if len(rows) != lines or any(rows[name].null_count for name in _NEEDED):
        return None
    seqs = np.asarray(rows["seq"].to_numpy(), np.int64)
    if (last_seq is not None and seqs[0] != last_seq + 1) or np.any(np.diff(seqs) != 1):
        return None
    known = [pc.is_in(rows[name].drop_null(), value_set=pa.array(values)) for name, values in _KNOWN.items()]
    return rows if all(pc.all(each, min_count=0).as_py() for each in known) else None


def _field(field: pa.Field) -> tuple[str, Any] | tuple[str, Any, None]:
    """Return a column as a field of a row: its name, the type of its values, and the default None if it may be
    absent.
    """
    kind: Any = Literal[_KNOWN[field.name]] if field.name in _KNOWN else str
    if pa.types.is_integer(field.type):
        most = (1 << field.type.bit_width - 1) - 1
        kind = Annotated[int, msgspec.Meta(ge=-most - 1, le=most)]
    return (field.name, kind) if field.name in _NEEDED else (field.name, kind | None, None)


_ROW = msgspec.json.Decoder(msgspec.defstruct("_Row", map(_field, _LINE)))


def _line_by_line(name: str, block: bytes, first_line: int, last_seq: int | None) -> pa.Table:
    rows = []
    for number, line in enumerate(block.split(b"\n")[:-1], start=first_line):
        where = f"{name}, line {number}"
        try:
            row: Any = _ROW.decode(line)
        except (msgspec.MsgspecError, RecursionError) as problem:
            raise UnreadableFile(f"{where}: {problem}") from problem
        if last_seq is not None and row.seq != last_seq + 1:
            before = f"after {last_seq}" if last_seq >= 0 else "in the first row"
            raise UnreadableFile(f"{where}: seq {row.seq} {before}")
        last_seq = row.seq
        rows.append(row)
    return pa.table([pa.array([getattr(row, f.name) for row in rows], f.type) for f in _LINE], schema=_LINE)


def _as_trace(rows: pa.Table, path: Path, started_monotonic_ns: int) -> pa.Table:
    columns = {name: rows[_NAMES.get(name, name)] for name in TRACE.names if name != "node"}
    columns["node"] = pa.repeat(pa.scalar(path.stem), len(rows))
    columns["time_ns"] = pc.subtract(columns["time_ns"], pa.scalar(started_monotonic_ns, pa.int64()))
    columns["event"] = pc.dictionary_encode(columns["event"]).cast(TRACE.field("event").type)
    return pa.table([columns[name] for name in TRACE.names], schema=TRACE)
