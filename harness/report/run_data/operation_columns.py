"""Operations from events: every invoke paired with its completion, as arrays.

A history is a list of events; a reader thinks in operations.  Pairing is done once, on whole columns, because a
nightly run brings hundreds of thousands of rows and a page has to appear while its reader is still looking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.columns import events_to_table
from checkers.base.history import Type
from checkers.base.pairing import paired_rows

NEVER = -1
"""`complete_row` of an operation whose completion is not in the history."""


@dataclass(frozen=True, slots=True)
class OperationColumns:
    """One element per client operation, in order of invocation; every array has the same length.

    invoke_row, complete_row: history indices (`NEVER` where no completion was recorded).
    start_ns, end_ns: since the test began; an operation without a completion ends with the history.
    type: `checkers.base.history.Type` of the completion, INFO where there is none.
    f, key, node, error: codes into the tuple of the same name with `s` appended; key and error -1 where null.
    value, value2: int64, meaningful where `has_value`, `has_value2`: a read's answer, what a write wrote, a cas'
        expected and new value.
    """

    invoke_row: np.ndarray
    complete_row: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    process: np.ndarray
    type: np.ndarray
    f: np.ndarray
    key: np.ndarray
    node: np.ndarray
    error: np.ndarray
    value: np.ndarray
    value2: np.ndarray
    has_value: np.ndarray
    has_value2: np.ndarray
    fs: tuple[str, ...]
    keys: tuple[str, ...]
    nodes: tuple[str, ...]
    errors: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.invoke_row)

    @property
    def latency_ns(self) -> np.ndarray:
        return np.asarray(self.end_ns - self.start_ns)

    def is_f(self, *names: str) -> np.ndarray:
        """Mask of the operations that ask one of these."""
        return np.asarray(np.isin(self.f, [i for i, name in enumerate(self.fs) if name in names]))

    def matched(self) -> np.ndarray:
        """Mask of the answers: every ok, and every cas that was answered with `mismatch`."""
        mismatch = [i for i, text in enumerate(self.errors) if text == "mismatch"]
        return np.asarray((self.type == Type.OK) | ((self.type == Type.FAIL) & np.isin(self.error, mismatch)))


def pair(history: pa.Table) -> OperationColumns:
    """The client operations of a table of schema HISTORY.

    An event that breaks the grammar (a completion without an invoke) is left out: the report shows what it can,
    and it is the checkers' business to complain.
    """
    table = history.filter(pc.greater_equal(history["process"], 0))
    index, process, kind = (_ints(table, name) for name in ("index", "process", "type"))
    first, last = paired_rows(index, process, kind)
    answered = last >= 0
    last = np.where(answered, last, first)

    time = _ints(table, "time_ns")
    end_of_history = int(time.max()) if len(time) else 0
    f, fs = _codes(table, "f")
    key, keys = _codes(table, "key")
    node, nodes = _codes(table, "node")
    error, errors = _codes(table, "error")
    read = np.isin(f[first], [i for i, name in enumerate(fs) if name == "read"])
    value, has_value = _nullable(table, "value")
    value2, has_value2 = _nullable(table, "value2")
    says = np.where(read, last, first)
    return OperationColumns(
        invoke_row=index[first],
        complete_row=np.where(answered, index[last], NEVER),
        start_ns=time[first],
        end_ns=np.where(answered, time[last], end_of_history),
        process=process[first],
        type=np.where(answered, kind[last], Type.INFO).astype(np.int8),
        f=f[first],
        key=key[first],
        node=node[last],
        error=np.where(answered, error[last], -1),
        value=value[says],
        value2=value2[says],
        has_value=has_value[says] & ~(read & ~answered),
        has_value2=has_value2[says],
        fs=fs,
        keys=keys,
        nodes=nodes,
        errors=errors,
    )


def none() -> OperationColumns:
    """The operations of a run that left no history."""
    return pair(events_to_table([]))


def _ints(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _nullable(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    column = table[name]
    return pc.fill_null(column, 0).to_numpy().astype(np.int64), pc.is_valid(column).to_numpy()


def _codes(table: pa.Table, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes (−1 for null) and the names they stand for."""
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    array = column.unify_dictionaries().combine_chunks()
    chunk = array if isinstance(array, pa.DictionaryArray) else array.chunk(0)
    codes = pc.fill_null(chunk.indices, -1).to_numpy().astype(np.int64)
    return codes, tuple(str(name) for name in chunk.dictionary.to_pylist())
