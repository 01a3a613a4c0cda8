"""Histories, logs and traces as Arrow tables: schemas, readers and writers.

While the test runs, a history is an Arrow IPC stream (`history.arrows`).  If the harness is killed, at most the last
second of the stream is lost.  A Parquet file would be unreadable then, because its footer would be missing.  Sealing
converts the stream to `history.parquet`, in index order.  A subject converts the files of its nodes to LOG, COPIES and
TRACE.  `columns.sql` defines the columns of all these tables and explains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.history import Event, MalformedHistory
from checkers.record.files import BrokenFile, regular

HISTORY_SIZE_BYTES_MAX = 1 << 40

_STATED = Path(__file__).with_name("columns.sql").read_text(encoding="utf-8")


def tables_in(stated: str, types: Mapping[str, pa.DataType]) -> dict[str, pa.Schema]:
    """Return name -> columns of each table that an SQL text defines.

    types: name of a type in the text -> Arrow type
    """
    return {
        name: pa.schema(
            pa.field(column, types[kind], nullable=not null)
            for column, kind, null in re.findall(
                r'^  "?(\w+)"? (\S+?)( NOT NULL)?,?(?:  --.*)?$', columns, re.MULTILINE
            )
        )
        for name, columns in re.findall(r"^CREATE TABLE (\w+) \(\n(.*?)^\);", stated, re.MULTILINE | re.DOTALL)
    }


_PLAIN: Mapping[str, pa.DataType] = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "NAME": pa.dictionary(pa.int32(), pa.string()),
}
_SNAPSHOTS = pa.list_(pa.struct(tables_in(_STATED, {**_PLAIN, "ARRAY<SNAPSHOT>": pa.null()})["snapshot"]))
_TABLES = tables_in(_STATED, {**_PLAIN, "ARRAY<SNAPSHOT>": _SNAPSHOTS})
HISTORY, LOG, CLUSTER, TOPICS, COMPARISONS, REPLAYED, COPIES, TRACE = (
    _TABLES[name] for name in ("history", "log", "cluster", "topics", "comparisons", "replayed", "copies", "trace")
)
TRACE_ROLES = ("unattached", "prospective", "candidate", "leader", "follower", "resigned")
TRACE_EVENTS: Mapping[str, str] = {
    name: " ".join(meaning.split()).replace("''", "'")
    for name, meaning in re.findall(r"^  \('([\w-]+)',\n    '(.*?)'\)[,;]$", _STATED, re.MULTILINE | re.DOTALL)
}
"""Value of `event` in a trace -> meaning of the other columns of its row."""


def events_to_table(events: Iterable[Event]) -> pa.Table:
    """Return events as a table of schema HISTORY, in the given order."""
    rows = list(events)
    columns = [list(map(attrgetter(name), rows)) for name in HISTORY.names]
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, HISTORY, strict=True)]
    return pa.Table.from_arrays(arrays, schema=HISTORY)


def read_stream(path: Path) -> pa.Table:
    """Return all record batches of an Arrow IPC stream before the first unreadable one.

    A killed writer leaves an incomplete batch at the end.
    Raises MalformedHistory if not even the schema can be read.
    """
    return read_stream_to(path)[0]


def read_stream_to(path: Path) -> tuple[pa.Table, str]:
    """Return (the table of `read_stream`, reason why the stream is incomplete, or "")."""
    stream = StreamReader(path)
    return pa.Table.from_batches(list(stream), schema=HISTORY), stream.torn


class StreamReader:
    """Reads the record batches of an Arrow IPC stream, one after another, up to the first unreadable batch.

    torn: reason why the stream is incomplete, known after the last batch; "" if only the end mark follows the batches
    Each batch is validated, so that no corrupt offset points outside the buffers.  Memory: one batch.  Raises
    MalformedHistory if not even the schema can be read.
    """

    def __init__(self, path: Path) -> None:
        self.torn = ""
        try:
            self._source = pa.OSFile(str(regular(path, HISTORY_SIZE_BYTES_MAX)))
            self._reader = pa.ipc.open_stream(self._source)
        except (pa.ArrowInvalid, OSError, BrokenFile) as problem:
            raise MalformedHistory(f"{path}: not an Arrow stream ({problem})") from problem
        if self._reader.schema != HISTORY:
            raise MalformedHistory(f"{path}: its columns are not those of a history")

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        source = self._source
        while True:
            try:
                batch = self._reader.read_next_batch()
                batch.validate(full=True)
            except StopIteration:
                break
            except (pa.ArrowInvalid, OSError) as problem:
                self.torn = str(problem) or type(problem).__name__
                return
            yield batch
        if source.tell() != source.size():
            self.torn = f"{source.size() - source.tell()} bytes follow its end"


def read_history(run_folder: Path) -> pa.Table:
    """Return the history of a run in index order, from `history.parquet` if the run is sealed, else `history.arrows`.

    Raises MalformedHistory if both files are missing, or if the file cannot be read.
    """
    sealed = run_folder / "history.parquet"
    if sealed.exists():
        try:
            return pq.read_table(regular(sealed, HISTORY_SIZE_BYTES_MAX), schema=HISTORY)
        except (pa.ArrowInvalid, OSError, BrokenFile) as problem:
            raise MalformedHistory(f"{sealed}: not a Parquet history ({str(problem).splitlines()[0]})") from problem
    stream = run_folder / "history.arrows"
    if stream.exists():
        return read_stream(stream)
    raise MalformedHistory(f"{run_folder}: holds neither history.parquet nor history.arrows")
