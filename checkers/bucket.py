"""Reading a bucket: the columns kernels need as arrays, and single events again where a person has to see them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.columns import HISTORY
from checkers.history import Type
from checkers.kernels.operations import CAS, KINDS, MISMATCH, NIL, OTHER, Events
from checkers.seal import dense_processes, dictionary_codes

SIZE_BYTES_PER_ROW = 120
"""What judging a bucket takes at its peak, Arrow columns and arrays together."""

MISMATCH_ERRORS = (None, "mismatch")
"""`error` of a failed cas that may be read as an answer: the register did not hold what it expected."""

_NEEDED = ["process", "type", "f", "key", "value", "value2"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """events: see `Events`; keys: name of each key number; process_count: length of arrays indexed by process."""

    path: Path
    events: Events
    keys: list[str]
    process_count: int


def size_bytes(path: Path) -> int:
    """What `read_bucket` and a linear kernel will take, known from the footer alone."""
    return int(pq.read_metadata(path).num_rows) * SIZE_BYTES_PER_ROW


def read_bucket(path: Path, mismatch_observed: bool = False) -> Bucket:
    """The events of one bucket as arrays, in index order.  Raises FileNotFoundError or pyarrow.ArrowInvalid.

    mismatch_observed: a cas that failed as a mismatch is an operation of kind MISMATCH (see `kernels/operations.py`).
    """
    table = pq.read_table(path, columns=[*_NEEDED, *(["error"] if mismatch_observed else [])])
    key, keys = dictionary_codes(table.column("key"))
    function, functions = dictionary_codes(table.column("f"))
    kind_of = np.array([KINDS.get(name, OTHER) for name in functions], np.int8)
    process, process_count = dense_processes(np.asarray(table.column("process").combine_chunks()))
    kind = kind_of[function]
    if mismatch_observed:
        _mark_mismatches(table, process, kind)
    value, wrong = _values(table, "value")
    value2, wrong2 = _values(table, "value2")
    events = Events(
        key,
        process,
        np.asarray(table.column("type").combine_chunks()),
        kind,
        value,
        value2,
        (wrong | wrong2).astype(np.int8),
    )
    return Bucket(path, events, keys, process_count)


def read_rows(path: Path, rows: list[int]) -> list[dict[str, Any]]:
    """Events of a bucket as dicts with the columns of HISTORY; `type` as its number, payload None."""
    table = pq.read_table(path).take(pa.array(rows, pa.int64()))
    return [{name: event.get(name) for name in HISTORY.names} for event in table.to_pylist()]


def function_names(path: Path, key: str) -> list[str]:
    """What was asked of one key, each f once, sorted."""
    table = pq.read_table(path, columns=["f", "key", "type"])
    asked = pc.and_(pc.equal(table.column("key").cast(pa.string()), key), pc.equal(table.column("type"), Type.INVOKE))
    return sorted(set(table.column("f").filter(asked).cast(pa.string()).to_pylist()))


def _mark_mismatches(table: pa.Table, process: npt.NDArray[np.int32], kind: npt.NDArray[np.int8]) -> None:
    """Give every cas that failed as a mismatch the kind MISMATCH, in both its rows."""
    error, errors = dictionary_codes(table.column("error"))
    answers = [-1] + [code for code, text in enumerate(errors) if text in MISMATCH_ERRORS]
    type_ = np.asarray(table.column("type").combine_chunks())
    failed = (type_ == Type.FAIL) & (kind == CAS) & np.isin(error, answers)
    by_process = np.argsort(process, kind="stable")
    completions = np.flatnonzero(failed[by_process])
    kind[by_process[completions]] = MISMATCH
    kind[by_process[completions - 1]] = MISMATCH


def _values(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    column = table.column(name).combine_chunks()
    missing = np.asarray(column.is_null())
    values = np.asarray(column.fill_null(NIL))
    return values, ~missing & (values == NIL)
