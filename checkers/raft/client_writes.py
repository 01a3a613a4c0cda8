"""What clients wrote, and which entries of a log are those writes.

A workload writes every value at most once per key (soundness: a stale answer can then be told from a repeated one), so
(key, value) names a write, in the history and in a log alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Bools, Int64
from checkers.base.history import NEMESIS, Type
from checkers.base.ledger import END
from checkers.base.run_evidence import numbers, read_table
from checkers.kernels.jit import kernel

OPEN = np.iinfo(np.int64).max
"""`completed` of a write that never returned, or of which nobody knows: it comes after everything."""


@dataclass(frozen=True, slots=True)
class Writes:
    """Every write invoked, in index order.

    key: strings.  value: int64[n].  invoked, completed: int64[n] history indexes (OPEN for info and for no answer).
    outcome: int64[n] of `Type`, INFO where there was no answer.
    whole: the history ends as the harness ends it and its indexes have no gap, so no operation is missing from it.
    """

    key: pa.Array
    value: Int64
    invoked: Int64
    completed: Int64
    outcome: Int64
    whole: bool = False

    def __len__(self) -> int:
        return len(self.value)


def read_writes(history: str) -> Writes:
    """The writes (f = "write") with an integer value in a sealed history.

    Parts of one run ask for the same writes one after another, so the last answer is kept.
    """
    stat = Path(history).stat()
    return _read_writes(history, (stat.st_ino, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1)
def _read_writes(history: str, stamp: tuple[int, int, int]) -> Writes:
    """stamp: what tells a file from another one of the same name."""
    table = read_table(history, ["index", "process", "type", "f", "key", "value"])
    whole = _is_whole(table)
    table = table.filter(pc.not_equal(table["process"], NEMESIS))
    indexes, types = numbers(table, "index"), numbers(table, "type")
    answer = _answers(numbers(table, "process"), types)
    is_write = pc.equal(pc.cast(table["f"], pa.string()), "write")
    complete = pc.and_(is_write, pc.and_(pc.is_valid(table["key"]), pc.is_valid(table["value"])))
    rows = np.flatnonzero(np.asarray(complete.to_numpy(), np.bool_) & (types == Type.INVOKE))
    answers = answer[rows]
    outcomes = np.where(answers >= 0, types[answers], int(Type.INFO))
    known = outcomes != Type.INFO
    return Writes(
        key=table["key"].take(pa.array(rows)).combine_chunks(),
        value=numbers(table, "value")[rows],
        invoked=indexes[rows],
        completed=np.where(known, indexes[answers], OPEN),
        outcome=outcomes.astype(np.int64),
        whole=whole,
    )


def _is_whole(table: pa.Table) -> bool:
    """Whether the last row is the harness' end mark (`checkers.base.ledger`) and no index is missing before it."""
    if len(table) == 0:
        return False
    ends = table["process"][-1].as_py() == NEMESIS and str(table["f"][-1].as_py()) == END
    return bool(ends and np.array_equal(numbers(table, "index"), np.arange(len(table))))


def _answers(processes: Int64, types: Int64) -> Int64:
    """Row of the completion of each invoke, -1 where there is none.  A process has one operation open at most."""
    _, dense = np.unique(processes, return_inverse=True)
    return _pair(dense.astype(np.int64), types, int(Type.INVOKE))


@kernel
def _pair(processes: Int64, types: Int64, invoke: int) -> Int64:
    answer = np.full(processes.shape[0], -1, np.int64)
    open_row = np.full(processes.shape[0], -1, np.int64)
    for i in range(processes.shape[0]):
        if types[i] == invoke:
            open_row[processes[i]] = i
        elif open_row[processes[i]] >= 0:
            answer[open_row[processes[i]]] = i
            open_row[processes[i]] = -1
    return answer


def join(writes: Writes, key: pa.ChunkedArray, value: pa.ChunkedArray) -> tuple[Int64, Int64]:
    """Which write each entry of a log is.

    Returns (write of each entry, -1 where the entry is no client's write; writes that share their (key, value) with
    another: these break the workload's promise, and no entry is joined to them).
    """
    keys = pa.chunked_array([pc.cast(writes.key, pa.string()), *pc.cast(key, pa.string()).chunks], pa.string())
    codes = np.asarray(pc.fill_null(keys.combine_chunks().dictionary_encode().indices, -1).to_numpy(False), np.int64)
    entries = np.asarray(pc.fill_null(value, 0).to_numpy(), np.int64)
    is_write = np.asarray(pc.and_(pc.is_valid(key), pc.is_valid(value)).to_numpy(), np.bool_)
    _, ranks = np.unique(np.concatenate([writes.value, entries]), return_inverse=True)
    names = codes * (int(ranks.max(initial=0)) + 1) + ranks
    written, first, same = np.unique(names[: len(writes)], return_index=True, return_inverse=True)[:3]
    once = np.bincount(same, minlength=len(written)) == 1
    repeated = np.flatnonzero(~once[same])
    written, first = written[once], first[once]
    entry_names = names[len(writes) :]
    if len(written) == 0:
        return np.full(len(entry_names), -1, np.int64), repeated.astype(np.int64)
    place = np.minimum(np.searchsorted(written, entry_names), len(written) - 1)
    found = is_write & (written[place] == entry_names)
    return np.where(found, first[place], -1).astype(np.int64), repeated.astype(np.int64)


def without_cause(writes: Writes, key: pa.ChunkedArray, value: pa.ChunkedArray) -> Bools:
    """Entries that set or remove a client's object, and that no invoked write explains."""
    asked = pa.table({"key": pc.cast(writes.key, pa.string()), "value": pa.array(writes.value, pa.int64())})
    found = pa.table({"key": pc.cast(key, pa.string()), "value": value, "row": pa.array(np.arange(len(key)))})
    orphans = found.join(asked, keys=["key", "value"], join_type="left anti", use_threads=False)
    orphans = orphans.filter(pc.is_valid(orphans["key"]))
    alone = np.zeros(len(key), np.bool_)
    alone[np.asarray(orphans["row"].to_numpy(), np.int64)] = True
    return alone


def invoke_of(history: str, key: str, value: int) -> int | None:
    """History index of the invoke of a write; None if no client wrote that."""
    table = read_table(history, ["index", "type", "f", "key", "value"])
    wanted = pc.and_(pc.equal(table["key"], key), pc.equal(table["value"], value))
    wanted = pc.and_(wanted, pc.equal(pc.cast(table["f"], pa.string()), "write"))
    found = table.filter(pc.and_(wanted, pc.equal(table["type"], int(Type.INVOKE))))
    return int(found["index"][0].as_py()) if len(found) else None


def operations(history: str, invoked: Sequence[int]) -> list[dict[str, Any]]:
    """The events of some operations, as a witness carries them: invoke and completion of each, in index order."""
    table = read_table(history)
    processes, types, indexes = (numbers(table, name) for name in ("process", "type", "index"))
    answer = _answers(processes, types)
    calls = np.flatnonzero(np.isin(indexes, np.array(invoked, np.int64)) & (types == Type.INVOKE))
    rows = np.unique(np.concatenate([calls, answer[calls]]))
    events: list[dict[str, Any]] = table.take(pa.array(rows[rows >= 0])).to_pylist()
    return events
