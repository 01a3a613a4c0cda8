"""Buckets: files with the paired operations of some keys, in the form that is fastest to read.

A bucket is a Parquet file with one row per operation.  The operations of a key are consecutive, in order of call.
`kernels/operations.py` explains their columns.  Every checker of a bucket reads the columns of BARE.  These are narrow,
and contain small numbers instead of values.  Only a witness needs the columns of VALUES: the values themselves, and the
rows of the operations in `history.parquet`.  The metadata of the file lists the keys and the size of each.

Buckets are derived data: sealing can write them again from the history.  Every page has a checksum, and so has the list
of keys.  Without checksums, a flipped bit in a column of numbers leaves the file readable and makes the verdict wrong.

Cost of five million operations: 10 to 100 MB of disk and 0.03 s to read.  Judging an operation takes
SIZE_BYTES_PER_OPERATION of memory.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.history import MalformedHistory
from checkers.kernels.operations import (
    HAS_MISMATCH,
    MISMATCH,
    NIL,
    SIZE_BYTES_PER_OPERATION,
    Operations,
    StoredColumns,
    check_and_widen,
    drop_failed_cas,
    number_keys,
)
from checkers.sealing.sealed_history import History, numpy_of

BARE = pa.schema(
    [
        pa.field("kind", pa.int8(), nullable=False),  # READ, WRITE, CAS or MISMATCH
        pa.field("a", pa.int32(), nullable=False),  # number of the value read, written or expected; -1 for nil
        pa.field("b", pa.int32(), nullable=False),  # number of the new value of a cas, else -1
        pa.field("call", pa.int32(), nullable=False),  # position within the key
        pa.field("ret", pa.int32(), nullable=False),  # position within the key, OPEN if it never returned
    ]
)

VALUES = pa.schema(
    [
        pa.field("value", pa.int64()),  # the value that the number `a` stands for
        pa.field("value2", pa.int64()),  # the value that the number `b` stands for
        pa.field("invoked", pa.int32(), nullable=False),  # row of history.parquet
        pa.field("completed", pa.int32(), nullable=False),  # row of history.parquet, or -1
    ]
)

KEYS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("operations", pa.int64(), nullable=False),
        pa.field("positions", pa.int32(), nullable=False),
        pa.field("unfit", pa.int8(), nullable=False),  # as in `Operations`, with each failed cas counted as a read
    ]
)

KEYS_IN_METADATA = b"krucible.keys"
"""Name of the list of keys in the metadata of a bucket.

The list is base64 of a CRC-32 in four bytes and an Arrow stream of KEYS.
"""

_SCHEMA = pa.schema([*BARE, *VALUES])
_ROWS_PER_GROUP = 1 << 18
_RISING = dict.fromkeys(("a", "call", "ret", "value", "value2", "invoked", "completed"), "DELTA_BINARY_PACKED")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket whose operations have not been read yet.

    source: the file, or its rows
    history: the history of the same run
    keys: names, in the order of the file
    operations, positions, unfit: columns of KEYS, one entry per key
    mismatch_observed: True if a cas that failed as a mismatch is an observation
    """

    source: Path | pa.Table
    history: History
    keys: Sequence[str]
    operations: Int64
    positions: Int32
    unfit: Int8
    mismatch_observed: bool

    def alone(self, k: int) -> Bucket:
        """Return this bucket with key number k only, for the witness of k.

        The operations cannot be read from the result, because their position in the file is counted from the first key.
        """
        only = slice(k, k + 1)
        return replace(
            self,
            keys=[self.keys[k]],
            operations=self.operations[only],
            positions=self.positions[only],
            unfit=self.unfit[only],
        )


def write_bucket(path: Path, keys: Sequence[str], ops: Operations) -> None:
    """Write the operations of some keys.  Takes about 0.1 s per million operations.

    ops: operations with their values; mismatches count as observations
    """
    table = _rows_of(ops)
    names = _keys_of(keys, ops)
    with pq.ParquetWriter(
        path,
        _SCHEMA,
        compression="none",
        use_dictionary=["kind", "b"],
        column_encoding=_RISING,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        writer.add_key_value_metadata({KEYS_IN_METADATA: _packed(names)})


def _rows_of(ops: Operations) -> pa.Table:
    a, b = number_keys(ops)
    columns = [ops.kind, a, b, ops.call, ops.ret]
    columns += [pa.array(values, mask=values == NIL) for values in (ops.a, ops.b)]
    return pa.table([*columns, ops.invoked, ops.completed], schema=_SCHEMA)


def _keys_of(keys: Sequence[str], ops: Operations) -> pa.Table:
    return pa.table([keys, np.diff(ops.offsets), ops.positions, ops.unfit], schema=KEYS)


def bucket_in_memory(keys: Sequence[str], ops: Operations, history: pa.Table, mismatch_observed: bool) -> Bucket:
    """Return the bucket that `write_bucket` would write.  history: the rows to which `ops` refer."""
    return _bucket(_rows_of(ops), history, _keys_of(keys, ops), mismatch_observed)


def _bucket(source: Path | pa.Table, history: History, keys: pa.Table, mismatch_observed: bool) -> Bucket:
    operations, positions, unfit = (numpy_of(keys, n) for n in KEYS.names[1:])
    return Bucket(source, history, keys.column("key").to_pylist(), operations, positions, unfit, mismatch_observed)


def open_bucket(path: Path, history: Path, mismatch_observed: bool = False) -> Bucket:
    """Read the list of keys of a bucket.  history, mismatch_observed: as in `Bucket`.

    Raises FileNotFoundError, pyarrow.ArrowInvalid or MalformedHistory.
    """
    metadata = pq.read_metadata(path)
    keys = _unpacked(path, (metadata.metadata or {}).get(KEYS_IN_METADATA))
    bucket = _bucket(path, history, keys, mismatch_observed)
    operations, positions = bucket.operations, bucket.positions
    if metadata.num_rows != operations.sum() or (operations < 0).any() or (positions < 0).any():
        raise MalformedHistory(f"{path.name}: the number of its operations differs from its list of keys")
    return bucket


def pieces(bucket: Bucket, size_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Split a bucket into pieces of consecutive keys that can be judged within a limit of memory.

    Yields (first key, end key, needed bytes).  A key that needs more than the limit is a separate piece.
    """
    first, taken = 0, 0
    for k, needed in enumerate((bucket.operations * SIZE_BYTES_PER_OPERATION).tolist()):
        if k > first and taken + needed > size_bytes:
            yield first, k, taken
            first, taken = k, 0
        taken += needed
    if len(bucket.keys):
        yield first, len(bucket.keys), taken


def read_operations(bucket: Bucket, first: int, end: int) -> Operations:
    """Return the operations of keys number `first` to `end` - 1, with numbers instead of values, and without rows.

    Raises pyarrow.ArrowInvalid or OSError if the file is corrupt, MalformedHistory for an impossible operation.
    """
    return _ready(bucket, first, end, _read(bucket, first, end, BARE.names))


def read_key(bucket: Bucket, k: int) -> Operations:
    """Return the operations of key number k, with values and rows of the history.  Raises like `read_operations`."""
    table = _read(bucket, k, k + 1, _SCHEMA.names)
    ops = _ready(bucket, k, k + 1, table)
    kept = np.ones(len(table), bool)
    if bucket.unfit[k] == HAS_MISMATCH and not bucket.mismatch_observed:
        kept = numpy_of(table, "kind") != MISMATCH
    a, b = (np.asarray(table.column(n).combine_chunks().fill_null(NIL))[kept] for n in ("value", "value2"))
    invoked, completed = (numpy_of(table, name)[kept] for name in ("invoked", "completed"))
    return ops._replace(a=a, b=b, invoked=invoked, completed=completed)


def _ready(bucket: Bucket, first: int, end: int, table: pa.Table) -> Operations:
    offsets = np.concatenate(([0], np.cumsum(bucket.operations[first:end])))
    wrong, ops = check_and_widen(
        offsets,
        bucket.positions[first:end],
        bucket.unfit[first:end],
        StoredColumns(*(numpy_of(table, name) for name in StoredColumns._fields)),
    )
    if wrong >= 0:
        name = bucket.source.name if isinstance(bucket.source, Path) else "the bucket"
        raise MalformedHistory(f"{name}: row {wrong} describes an impossible operation")
    return ops if bucket.mismatch_observed else drop_failed_cas(ops)


def _read(bucket: Bucket, first: int, end: int, columns: list[str]) -> pa.Table:
    """Read some columns for keys number `first` to `end` - 1.  Reads only the row groups that contain their rows."""
    before, here = int(bucket.operations[:first].sum()), int(bucket.operations[first:end].sum())
    if isinstance(bucket.source, pa.Table):
        return bucket.source.slice(before, here).select(columns)
    with pq.ParquetFile(bucket.source, memory_map=True, page_checksum_verification=True) as file:
        groups = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        starts = np.concatenate(([0], np.cumsum(groups)))
        needed = [g for g in range(len(groups)) if starts[g] < before + here and starts[g + 1] > before]
        if not needed:
            return _SCHEMA.empty_table().select(columns)
        table = file.read_row_groups(needed, columns)
    return table.slice(before - int(starts[needed[0]]), here)


def _packed(keys: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, KEYS) as stream:
        stream.write_table(keys)
    content = bytes(sink.getvalue())
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big") + content)


def _unpacked(path: Path, packed: bytes | None) -> pa.Table:
    if packed is None:
        raise MalformedHistory(f"{path.name}: it has no list of keys; seal the run again")
    try:
        content = base64.b64decode(packed, validate=True)
    except binascii.Error:
        content = b""
    if zlib.crc32(content[4:]) != int.from_bytes(content[:4], "big") or len(content) < 8:
        raise MalformedHistory(f"{path.name}: its list of keys is corrupt")
    return pa.ipc.open_stream(content[4:]).read_all()
