"""Histories, logs and traces as Arrow tables: the schemas, and how they are read and written.

While the test runs, a history is an Arrow IPC stream (`history.arrows`).  If the harness is killed, the stream loses at
most its last second.  A Parquet file could not be read at all, because its footer would be missing.  Sealing turns the
stream into `history.parquet`, in index order.  A subject turns the files of its nodes into LOG, COPIES and TRACE (see
each schema's comment).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.history import Event, MalformedHistory
from checkers.record.files import BrokenFile, regular

HISTORY_SIZE_BYTES_MAX = 1 << 40

_NAME = pa.dictionary(pa.int32(), pa.string())

HISTORY = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("type", pa.int8(), nullable=False),
        pa.field("f", _NAME, nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.int64()),
        pa.field("value2", pa.int64()),
        pa.field("payload", pa.string()),
        pa.field("error", _NAME),
        pa.field("node", _NAME, nullable=False),
    ]
)

LOG = pa.schema(
    [
        # One row per record of one node's log in one copy, in offset order.
        pa.field("copy", pa.int16(), nullable=False),  # number of the copy; the last one is the final copy
        pa.field("node", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),  # leader epoch of the batch
        # Identifies the bytes of the record: the CRC of its batch, mixed with its position in the batch.
        pa.field("checksum", pa.int64(), nullable=False),
        pa.field("batch_offset", pa.int64(), nullable=False),  # base offset of its batch
        pa.field("batch_hash", pa.int64(), nullable=False),  # prefix hash at the END of its batch
        pa.field("key", pa.string()),  # the object that a workload's write changed, else null
        pa.field("value", pa.int64()),  # the value that was written; null also if the record removes the value
    ]
)

CLUSTER = pa.schema(
    [
        # One row per record about brokers, topics and partitions in one node's metadata log, in offset order.
        pa.field("copy", pa.int16(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),  # leader epoch of the batch
        pa.field("batch_offset", pa.int64(), nullable=False),  # base offset of its batch
        pa.field("kind", pa.string(), nullable=False),  # "register broker", "change partition", ...
        pa.field("about", pa.string(), nullable=False),  # "broker 3", a topic id, or a topic id and "/0"
        pa.field("fields", pa.string(), nullable=False),  # JSON; a field that a change leaves as it was is absent
    ]
)

TOPICS = pa.schema(
    [
        # What one copy of a node holds of the replicas of topics: a row per batch, and rows of its checkpoint files.
        pa.field("copy", pa.int16(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),  # name of the topic, number, topic id
        # "batch"; "epoch": an entry of leader-epoch-checkpoint; "high-watermark", "cleaned": from files beside the
        # partition; "unreadable": the log cannot be read from this offset on
        pa.field("kind", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),  # of a batch: its base offset; of an epoch: where it starts
        pa.field("end", pa.int64(), nullable=False),  # of a batch: the offset behind it; else -1
        pa.field("epoch", pa.int32(), nullable=False),  # of a batch or entry; else -1
        pa.field("crc", pa.int64(), nullable=False),  # of a batch; else -1
    ]
)

COMPARISONS = pa.schema(
    [
        # One row per comparison of what two implementations wrote, or of how they read one file.
        pa.field("nodes", pa.string(), nullable=False),
        pa.field("what", pa.string(), nullable=False),
        pa.field("compared", pa.int64(), nullable=False),  # number of records or batches
        pa.field("differs", pa.string()),  # the first difference, null if there is none
        pa.field("missing", pa.string()),  # why nothing could be compared, null if it could
    ]
)

SNAPSHOT = pa.struct(
    [
        pa.field("end_offset", pa.int64()),  # exclusive
        pa.field("epoch", pa.int32()),
        pa.field("records", pa.int64()),
        pa.field("state_hash", pa.int64()),  # of what the file holds, computed from its bytes
        pa.field("error", pa.string()),  # why it is no snapshot, null if it is one
    ]
)

REPLAYED = pa.schema(
    [
        # One row per batch of the last copy of a node whose log begins at 0: what a fresh replay of it leads to.
        pa.field("node", pa.string(), nullable=False),
        pa.field("copy", pa.int16(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),  # end of the batch (exclusive)
        pa.field("hash", pa.int64(), nullable=False),  # state hash there, as in the "applied" rows of TRACE
    ]
)

COPIES = pa.schema(
    [
        # One row per node and copy: facts about the data directory as a whole.
        pa.field("copy", pa.int16(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("when", pa.string(), nullable=False),  # "before heal 3", "between heals", "final"
        pa.field("state", pa.string(), nullable=False),  # of the process when copied: running|stopped|dead
        pa.field("log_end", pa.int64(), nullable=False),  # log end offset: offset after the last whole batch
        pa.field("torn_bytes", pa.int64(), nullable=False),  # size of an incomplete last batch
        pa.field("quorum_epoch", pa.int32(), nullable=False),  # epoch in the quorum-state file, -1 if there is none
        pa.field("voted_for", pa.string()),  # the node that got this node's vote in that epoch
        pa.field("trace_seq", pa.int64(), nullable=False),  # last seq of the node's trace when copied, -1 if none
        pa.field("error", pa.string()),  # why the copy is unreadable, null if it is readable
        # Where the log begins: above 0 behind a snapshot; null in runs of older versions.  LOG may hold entries below
        # it, if other copies hold them and the prefix hash at the start proves that they stood here.
        pa.field("log_start", pa.int64()),
        pa.field("snapshots", pa.list_(SNAPSHOT)),  # its complete snapshots by name; null in runs of older versions
        pa.field("disk", pa.string()),  # the directory id of the disk (KIP-853), null if it is not known
        pa.field("leader_id", pa.int32()),  # whom quorum-state names as leader, -1: no one; null if it is not known
    ]
)

TRACE = pa.schema(
    [
        # One row per event that a node recorded; (node, seq) orders them, never the clock.
        pa.field("node", pa.string(), nullable=False),
        pa.field("incarnation", pa.int32(), nullable=False),  # 0 for the first start of the process, then 1, ...
        pa.field("seq", pa.int64(), nullable=False),  # rises within a node, also from one incarnation to the next
        pa.field("time_ns", pa.int64(), nullable=False),  # since the test began (display only)
        pa.field("event", _NAME, nullable=False),  # see TRACE_EVENTS
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("offset", pa.int64()),  # see TRACE_EVENTS
        pa.field("hash", pa.int64()),  # see TRACE_EVENTS
        pa.field("peer", pa.string()),  # candidate of a vote; leader of a role, null if unknown
        pa.field("role", pa.string()),  # unattached|prospective|candidate|leader|follower|resigned
        pa.field("detail", pa.string()),  # text for readers
    ]
)

TRACE_EVENTS = {
    "disk": "comes before a start, where disks can be replaced: detail = the directory id of the disk (KIP-853), "
    "epoch = as recovered; after another id the node is another replica, which has no votes and no log yet",
    "start": "offset = log end as recovered, hash = prefix hash there, epoch = as recovered",
    "append": "offset = log end after the append, epoch = of the last appended batch",
    "flush": "offset = log end known durable",
    "truncate": "offset = log end after the truncation",
    "vote": "the node's vote is durable: epoch, peer = the candidate (its own name if it votes for itself)",
    "quorum-state": "what that file holds when the process starts, and when it is written without a new vote: "
    "epoch, peer = the candidate voted for in this epoch, null if none",
    "role": "epoch, role, peer = leader if known; offset = epoch start offset when role is leader",
    "high-watermark": "offset = new mark, hash = prefix hash there (null if the mark is inside a batch)",
    "applied": "offset = end of the applied batch (exclusive), hash = state hash there",
    "snapshot": "a snapshot is durable under its final name: offset = its end (exclusive), hash = state hash there, "
    "peer = the node it was fetched from, its own name if a start found it, null if the node has just made it",
    "voters": "the log names other voters than before, or named some when the process started: offset = of the record "
    "that names them, null for those of the configuration; detail = their names, with spaces between",
    "refused": "the node refused a fetched batch because it was damaged: offset = the batch's base offset, "
    "peer = who sent the batch; detail holds the reason",
    "sessions": "the node is the active controller, and each broker that is not fenced has a whole session from now "
    "on: offset = end of what it has applied, detail = how long a session lasts, in ms",
    "broker": "what controllers hear of the node's broker: offset = its epoch; detail = a word and ms: "
    "'heard B': from now on, the last heartbeat that was answered was sent less than B ago; 'unheard N': that is over, "
    "N is how long ago it was sent; 'leaving N': it begins a controlled shutdown, N as before, -1 without a heartbeat; "
    "'left': the controller has let it stop; 'registered P I': incarnation I is registered, and P is the epoch that "
    "the one before left on the disk when it left, -1 if it left none; 'refused N I': the request to register I was "
    "refused because of another incarnation, N is how long ago it was sent",
    "fatal": "the node stops because of an error; detail holds the reason",
    "stop": "the process ends in order",
}


def events_to_table(events: Iterable[Event]) -> pa.Table:
    """Events as a table of schema HISTORY, in the order given."""
    rows = list(events)
    columns = [[getattr(e, name) for e in rows] for name in HISTORY.names]
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, HISTORY, strict=True)]
    return pa.Table.from_arrays(arrays, schema=HISTORY)


def read_stream(path: Path) -> pa.Table:
    """All record batches of an Arrow IPC stream before the first that cannot be read.

    A killed writer leaves an incomplete batch at the end.
    Raises MalformedHistory if not even the schema can be read.
    """
    return read_stream_to(path)[0]


def read_stream_to(path: Path) -> tuple[pa.Table, str]:
    """Like `read_stream`.  Returns also why the stream is not complete, "" if it is (`StreamReader.torn`)."""
    stream = StreamReader(path)
    return pa.Table.from_batches(list(stream), schema=HISTORY), stream.torn


class StreamReader:
    """Reads the record batches of an Arrow IPC stream, one after another, up to the first that cannot be read.

    torn: why the stream is not complete, known after the last batch.  It is "" if nothing follows the batches but the
    mark that closes a stream.
    Each batch is validated, so that no damaged offset points outside its buffers.  Memory: one batch.
    Raises MalformedHistory if not even the schema can be read.
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
    """The history of a run, sealed (`history.parquet`) or not (`history.arrows`), in index order.

    Raises MalformedHistory if there is neither, or if it cannot be read.
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
