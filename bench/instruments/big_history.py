"""A complete run folder of any size, written in parts: correct by construction, or with two violations near its end.

Clients read and write registers, eleven reads for each write.  A write is appended to the log when it is invoked.  When
the first of the waiting writes is answered, all of them are committed.  Reads return committed values.  One operation
in two thousand has no known outcome, and one write in two thousand is refused.  Five servers have equal logs, copied
before the heal of a fault and at the end, and each server traces every batch.  The fault cuts one client node from a
follower.

The journal, the manifest and the copies are in the harness' format.  Logs (Kafka's segments) and traces (JSON lines)
are written by the node's own encoder, so `analyze` judges the folder like a run of the bundled KRaft.  A log of a
million entries has about 55 MB, and the trace of its node has the same size.

Violations (`wrong`): a read that returns a value that was overwritten before the read was invoked; and an acknowledged
write whose entry is missing in all logs, although reads returned its value.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.base.stored_run import Demands
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.kafka_files import chain
from checkers.record import run_record
from checkers.record.faults import Achieved, Card, Copy, FaultRecord, Measurement, Proof
from checkers.record.files import as_json
from checkers.record.header_and_outcome import Header, Recovery, RunOutcome, SeenLeader
from checkers.record.run_record import RunRecord
from checkers.sealing.manifest import write_manifest
from harness.judge.judge_run import demands_of, tabulate
from harness.registry import load_subject
from harness.spec import LIMITS, Spec
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import encode_values, read_header
from system_under_test.kraft.raft.messages import Batch, LeaderChange
from system_under_test.kraft.records.metadata import (
    TOPIC_RESOURCE,
    ConfigRecord,
    PartitionRecord,
    TopicRecord,
    encode,
)

SERVERS = ("n1", "n2", "n3", "n4", "n5")
LEADER = SERVERS[0]


def elected(node: str) -> list[dict[str, Any]]:
    """Return the rows that a node traces until the first leader is elected."""
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


def filled(schema: pa.Schema, size: int, **columns: Any) -> pa.RecordBatch:
    """Return `size` rows.  A single text or number is repeated in every row; a missing column is null."""
    return pa.record_batch([_column(columns.get(each.name), size, each.type) for each in schema], schema=schema)


def _column(given: Any, size: int, type_: pa.DataType) -> pa.Array:
    if given is None:
        return pa.nulls(size, type_)
    if isinstance(given, str | int):
        return pa.repeat(pa.scalar(given), size).cast(type_)
    return given if isinstance(given, pa.Array) else pa.array(given, type_)


CONFIG_NAME = "retention.ms"
LOG_FOLDER = "__cluster_metadata-0"
ENTRIES_PER_CREATE = 2
_EPOCH = 1
_VOTERS = tuple(range(1, len(SERVERS) + 1))


class NodeLogs:
    """Logs and traces of all servers.  keys: names of the keys; the index is the number of the key."""

    def __init__(self, folder: Path, keys: list[str]) -> None:
        self._folder = folder
        self._keys = keys
        self._before = [_config_up_to_value(key) for key in keys]
        self._waiting: list[tuple[int, int]] = []
        self._end = 0
        self._hash = 0
        self._image = Image()
        self._segment = (folder / "segment").open("wb")
        (folder / "trace").mkdir()
        self._traces = {node: (folder / "trace" / f"{node}.jsonl").open("w") for node in SERVERS}
        self._seq: dict[str, int] = {}
        self._copies: list[Copy] = []

    def __enter__(self) -> NodeLogs:
        for node in SERVERS:
            rows = elected(node)
            for seq, row in enumerate(rows):
                self._traces[node].write(json.dumps({"seq": seq, "inc": 0, "t": seq, **row}) + "\n")
            self._seq[node] = len(rows)
        opening = codec.encode(Batch(0, _EPOCH, 1, LeaderChange(1, _VOTERS, _VOTERS)), 0)
        self._write([opening], [1], np.array([self._seq[LEADER]]), [self._image.state_hash])
        return self

    def create(self, times_ns: Int64) -> None:
        """Create every key, in one batch per key."""
        batches, ends = [], []
        for number, key in enumerate(self._keys):
            topic = UUID(int=number + 1)
            batches.append([encode(TopicRecord(key, topic)), encode(PartitionRecord(0, topic, (1,), (1,)))])
            ends.append(self._end + ENTRIES_PER_CREATE * (number + 1))
        self._batches(batches, ends, times_ns, committed=True)

    def append(self, key: Int32, value: Int64) -> None:
        """Append entries in the order of the log; the entry of key -1 touches no object of clients."""
        self._waiting += zip(key.tolist(), value.tolist(), strict=True)

    def commit(self, ends: Int64, times_ns: Int64) -> None:
        """Note where each batch ends, and when the leader committed it.  The other servers report it a moment later."""
        if len(ends):
            self._batches(self._taken(ends.tolist()), ends.tolist(), times_ns, committed=True)

    def copy(self, when: str, time_ns: int) -> tuple[Copy, ...]:
        """Copy all logs; return the copies for the journal.  The final copy also contains uncommitted entries."""
        number = len(self._copies) // len(SERVERS)
        if when == "final" and self._waiting:
            ends = [self._end + len(self._waiting)]
            self._batches(self._taken(ends), ends, np.array([time_ns]), committed=False)
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

    def _taken(self, ends: list[int]) -> list[list[bytes]]:
        """Remove the waiting entries below the last of these ends; return the values of each batch."""
        batches, first, at = [], self._end, 0
        for end in ends:
            entries = self._waiting[at : at + end - first]
            batches.append([self._value(key, value) for key, value in entries])
            first, at = end, at + len(entries)
        del self._waiting[:at]
        return batches

    def _value(self, key: int, value: int) -> bytes:
        digits = str(value).encode()
        return b"".join((self._before[key], bytes((len(digits) + 1,)), digits, b"\x00"))

    def _batches(self, batches: list[list[bytes]], ends: list[int], times_ns: Int64, *, committed: bool) -> None:
        """Write batches, and apply the committed ones as a node does."""
        raws, states = [], []
        for values, first in zip(batches, [self._end, *ends], strict=False):
            raws.append(encode_values(first, _EPOCH, values, 0))
            for value in values if committed else ():
                self._image.replay(value)
            states.append(self._image.state_hash)
        self._write(raws, ends, times_ns, states if committed else None)

    def _write(self, raws: list[bytes], ends: list[int], times_ns: Int64, states: list[int] | None) -> None:
        """Write batches. states: hash of the state after each batch; None if the batches are not committed."""
        self._segment.write(b"".join(raws))
        headers = [read_header(raw) for raw in raws]
        base = np.array([header.base_offset for header in headers], np.int64)
        crc = np.array([header.crc for header in headers], np.int64)
        hashes = chain(self._hash, base, np.full(len(raws), _EPOCH, np.int32), crc)
        self._hash, self._end = int(hashes[-1]), ends[-1]
        rows_each = 2 if states is None else 4
        texts: dict[tuple[int, int], str] = {}
        for node in SERVERS:
            seq, later_ns = self._seq[node], 0 if node == LEADER else 1_000
            if (seq, later_ns) not in texts:
                rows = zip(times_ns.tolist(), ends, hashes.tolist(), states or [0] * len(raws), strict=True)
                lines = [
                    _traced(seq + rows_each * number, time_ns, None if states is None else later_ns, end, prefix, state)
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
    """Return a record that sets the key's config, without the value, which has one digit here."""
    return encode(ConfigRecord(TOPIC_RESOURCE, key, CONFIG_NAME, "0"))[:-3]


def _traced(seq: int, time_ns: int, later_ns: int | None, end: int, prefix: int, state: int) -> str:
    """Return the rows that a node traces for one batch.

    later_ns: ns between the commit at the leader and at this node; None if this node does not learn of the commit
    """

    def row(place: int, event: str, more: str = "") -> str:
        head = f'{{"seq":{seq + place},"inc":0,"t":{time_ns},"event":"{event}","epoch":{_EPOCH},"offset":{end}'
        return f"{head}{more}}}\n"

    held = row(0, "append") + row(1, "flush")
    if later_ns is None:
        return held
    time_ns += later_ns
    return held + row(2, "high-watermark", f',"hash":{prefix}') + row(3, "applied", f',"hash":{state}')


PROCESSES_MAX = 1_000
WRITES_OF = 12
"""Number of operations per write: one in this many operations is a write."""
UNKNOWN_OF = 2_000

_IDLE, _READ, _WRITE, _REFUSED = 0, 1, 2, 3


class ClientsState(NamedTuple):
    """State of the system and its clients between two parts.

    doing, key, value, offset, called: the open operation of each client
    number: number of each client's process
    now, before, changed: for each key the committed value, the previous value, and the row of the last change; -1: none
    fresh: next value of each key
    pending: offset, key and value of uncommitted entries
    counts: numbers of entries in the log, committed entries, pending entries, processes so far, stale reads, lost
        writes
    """

    doing: Int8
    key: Int32
    value: Int64
    offset: Int64
    called: Int64
    number: Int32
    now: Int64
    before: Int64
    changed: Int64
    fresh: Int64
    pending: Int64
    counts: Int64


class HistoryPart(NamedTuple):
    """Rows of clients (process to value); entries of the log; ends and rows: end offset and row of each commit."""

    process: Int32
    type: Int8
    f: Int8
    key: Int32
    value: Int64
    entry_key: Int32
    entry_value: Int64
    ends: Int64
    rows: Int64


def new_state(keys: int, processes: int) -> ClientsState:
    """Return the state before the first operation, in which no key has a value."""
    counts = np.array([1, 1, 0, processes, 0, 0])  # the leader's own entry is the first
    number, doing = np.arange(processes, dtype=np.int32), np.zeros(processes, np.int8)
    value, offset, called = np.zeros((3, processes), np.int64)
    now, before, changed = np.full((3, keys), -1, np.int64)
    key, fresh, pending = (
        np.zeros(processes, np.int32),
        np.zeros(keys, np.int64),
        np.zeros((4 * PROCESSES_MAX, 3), np.int64),
    )
    return ClientsState(doing, key, value, offset, called, number, now, before, changed, fresh, pending, counts)


@inner_kernel
def _invoke(state: ClientsState, client: int, row: int) -> None:
    """Begin a read or a write of the client; append the write to the log unless it will be refused."""
    state.key[client], state.value[client], state.called[client] = np.random.randint(state.now.shape[0]), -1, row
    state.doing[client] = _READ
    if np.random.randint(WRITES_OF) != 0:
        return
    key = state.key[client]
    state.value[client] = state.fresh[key]
    state.fresh[key] += 1
    state.doing[client] = _REFUSED if np.random.randint(UNKNOWN_OF) == 0 else _WRITE
    if state.doing[client] == _WRITE:
        state.offset[client] = state.counts[0]
        waiting = state.counts[2]
        state.pending[waiting, 0], state.pending[waiting, 1] = state.counts[0], key
        state.pending[waiting, 2] = state.value[client]
        state.counts[0] += 1
        state.counts[2] += 1


@inner_kernel
def _commit(state: ClientsState, row: int) -> None:
    for i in range(state.counts[2]):
        key = state.pending[i, 1]
        state.before[key], state.changed[key] = state.now[key], row
        state.now[key] = state.pending[i, 2]
    state.counts[1], state.counts[2] = state.counts[0], 0


@inner_kernel
def _read(state: ClientsState, client: int, row: int, wrong_from: int) -> None:
    """Read the committed value; once, from row `wrong_from` on, read a value that was overwritten long before."""
    key = state.key[client]
    state.value[client] = state.now[key]
    late = 0 <= wrong_from <= row and state.counts[4] == 0
    since = state.called[client] - 10 * state.doing.shape[0]  # each write of an overwritten value has returned by then
    if late and state.before[key] >= 0 and state.changed[key] < since:
        state.value[client] = state.before[key]
        state.counts[4] = 1


@kernel
def simulate(state: ClientsState, rows: int, first_row: int, seed: int, wrong_from: int, drain: bool) -> HistoryPart:
    """Return the next `rows` events; with `drain`, only end open operations, which may give fewer events.

    wrong_from: row from which the violations are planted as soon as possible; -1 for none
    """
    np.random.seed(seed)
    longs = np.full((4, rows), -1, np.int64)
    ints, bytes_ = np.empty((3, rows), np.int32), np.empty((2, rows), np.int8)
    part = HistoryPart(ints[0], bytes_[0], bytes_[1], ints[1], longs[0], ints[2], longs[1], longs[2], longs[3])
    entries, commits, at, client = 0, 0, 0, -1
    while at < rows:
        client = client + 1 if drain else np.random.randint(state.doing.shape[0])
        if client >= state.doing.shape[0]:
            break
        row, doing = first_row + at, state.doing[client]
        if doing == _IDLE:
            if drain:
                continue
            _invoke(state, client, row)
            if state.doing[client] == _WRITE:
                part.entry_key[entries], part.entry_value[entries] = state.key[client], state.value[client]
                entries += 1
            type_ = 0
        else:
            type_ = 2 if doing == _REFUSED else 3 if np.random.randint(UNKNOWN_OF) == 0 else 1
            if type_ == 1 and doing == _WRITE and state.offset[client] >= state.counts[1]:
                _commit(state, row)
                part.ends[commits], part.rows[commits] = state.counts[1], row
                commits += 1
            if type_ == 1 and doing == _READ:
                _read(state, client, row, wrong_from)
            state.doing[client] = _IDLE
        part.process[at], part.type[at] = state.number[client], type_
        part.f[at] = 0 if (state.doing[client] if type_ == 0 else doing) == _READ else 1
        part.key[at], part.value[at] = state.key[client], state.value[client]
        if type_ == 3:
            state.number[client] = state.counts[3]
            state.counts[3] += 1
        at += 1
    clients = (part.process[:at], part.type[:at], part.f[:at], part.key[:at], part.value[:at])
    return HistoryPart(
        *clients, part.entry_key[:entries], part.entry_value[:entries], part.ends[:commits], part.rows[:commits]
    )


def drained(state: ClientsState, first_row: int) -> HistoryPart:
    """Return the completions of all open operations."""
    return simulate(state, len(state.doing), first_row, 1, -1, True)


def final_reads(state: ClientsState) -> HistoryPart:
    """Return the events of one process that reads every key."""
    return one_by_one(state.counts[3], FUNCTIONS.index("read"), state.now)


def one_by_one(process: int, function: int, answers: Int64) -> HistoryPart:
    """Return the events of one process that invokes a function on every key and gets an answer."""
    keys, none = len(answers), np.empty(0, np.int64)
    process_, f = np.full(2 * keys, process, np.int32), np.full(2 * keys, function, np.int8)
    type_, key = np.tile(np.array([0, 1], np.int8), keys), np.repeat(np.arange(keys, dtype=np.int32), 2)
    value = np.stack([np.full(keys, -1), answers], axis=1).ravel()
    return HistoryPart(process_, type_, f, key, value, none.astype(np.int32), none, none, none)


FAULT = "c2 and n5 cannot reach each other"
CARD = Card(1, "partition", "one link", 20.0, 40.0)

CLIENTS = ("c1", "c2")
FUNCTIONS = ("read", "write", "create")
"""Functions of operations; the index is the code of the function in a part."""

EVENTS_PER_PROCESS = 1_000
EVENTS_PER_KEY = 5_000
SECONDS = 100
"""Duration of the run in seconds, at every size."""

ROWS_PER_BATCH = 1 << 18


def write_run(folder: Path, events: int, wrong: bool = False) -> Demands:
    """Write an unsealed run of about this many events into a new folder.  Return the demands on the run."""
    folder.mkdir(parents=True)
    keys = [f"k{k}" for k in range(min(max(1, events // EVENTS_PER_KEY), int(LIMITS["keys"][1])))]
    spec = _spec(events, len(keys))
    test = Header(spec.to_json(), "big", format=run_record.FORMAT, nodes_clock="same kernel", schedule=(CARD,))
    with _Stream(folder, events, keys) as stream, NodeLogs(folder, keys) as logs:
        stream.enter(run_record.Begun(run_record.FORMAT, "big"))
        state = new_state(len(keys), _processes(events))
        with stream.phase("set-up"):
            stream.create(logs)
            state.counts[:2] += ENTRIES_PER_CREATE * len(keys)
        with stream.phase("main"):
            _main(stream, logs, state, events // 5, -1, wrong=False)
            injected_ns = stream.time_ns
            _main(stream, logs, state, events // 5, -1, wrong=False)
            _copy(stream, logs, "before heal 1")
            stream.enter(run_record.FaultChange(_fault(injected_ns, stream.time_ns)))
            late = stream.rows + int(0.55 * events)
            _main(stream, logs, state, events - events // 5 * 2, late if wrong else -1, wrong)
            stream.write(drained(state, stream.rows), logs)
        with stream.phase("recovery"):
            pass
        with stream.phase(run_record.FINAL_READS):
            stream.write(final_reads(state), logs)
        with stream.phase("collection"):
            _copy(stream, logs, "final")
        (folder / "test.json").write_text(json.dumps(as_json(test)))
        stream.enter(run_record.Concluded(_outcome(keys)))
        stream.enter(run_record.JournalEnd(stream.rows))
        assert not wrong or state.counts[4:].tolist() == [1, 1], "the violations were not planted"
    write_manifest(folder)
    return demands_of(spec)


def write_tables(folder: Path) -> None:
    """Write the tables of logs and traces that checkers read, as judging does."""
    tabulate(RunRecord(folder), lambda copies: load_subject("kraft").tables(folder, copies, lambda _: 0))


def _main(stream: _Stream, logs: NodeLogs, state: ClientsState, events: int, wrong_from: int, wrong: bool) -> None:
    """Write this number of events of clients.  wrong: lose the last entry of the part that contains `wrong_from`."""
    for first in range(0, events, ROWS_PER_BATCH):
        rows = min(ROWS_PER_BATCH, events - first)
        part = simulate(state, rows, stream.rows, 7 * stream.rows + 1, wrong_from, False)
        if wrong and stream.rows + rows > wrong_from and state.counts[5] == 0:
            part.entry_key[-1] = -1
            state.counts[5] = 1
        stream.write(part, logs)


def _copy(stream: _Stream, logs: NodeLogs, when: str) -> None:
    stream.enter(run_record.Copying(when))
    stream.enter(run_record.Copied(when, logs.copy(when, stream.time_ns)))


def _processes(events: int) -> int:
    return max(20, min(PROCESSES_MAX, events // EVENTS_PER_PROCESS))


def _spec(events: int, keys: int) -> Spec:
    """Return the spec of the test that such a run would be."""
    seconds = events * _step_ns(events) / 1e9
    return Spec(
        nodes=len(SERVERS),
        backend="namespaces",
        concurrency=_processes(events),
        rate_hz=events / 2 / seconds,
        keys=keys,
        time_limit_s=seconds,
        online=False,
    )


def _step_ns(events: int) -> int:
    """Return the nanoseconds between two rows."""
    return max(2_000, SECONDS * 10**9 // events)


class _Stream:
    """`history.arrows` and the journal beside it."""

    def __init__(self, folder: Path, events: int, keys: list[str]) -> None:
        self.rows = 0
        self._step_ns = _step_ns(events)
        self._keys, self._functions, self._nodes = pa.array(keys), pa.array(FUNCTIONS), pa.array(["", "n1"])
        self._errors = pa.array(["refused", "timed out"])
        self._writer = pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY)
        self._journal = (folder / run_record.JOURNAL).open("w")

    @property
    def time_ns(self) -> int:
        return self.rows * self._step_ns

    def write(self, part: HistoryPart, logs: NodeLogs) -> None:
        """Write rows of clients, and the actions of their servers."""
        logs.append(part.entry_key, part.entry_value)
        logs.commit(part.ends, part.rows * self._step_ns)
        self._write_clients(part)

    def create(self, logs: NodeLogs) -> None:
        """Write the events of one process that creates every key."""
        keys = len(self._keys)
        between = 2 * (self.rows + 2 * np.arange(keys)) + 1  # half of a step after the request
        logs.create(between * self._step_ns // 2)
        self._write_clients(one_by_one(0, FUNCTIONS.index("create"), np.full(keys, -1)))

    def _write_clients(self, part: HistoryPart) -> None:
        count = len(part.type)
        index = np.arange(self.rows, self.rows + count)
        answered = (part.type == Type.OK).astype(np.int32)
        error = pa.array(part.type - 2, pa.int32(), mask=part.type < Type.FAIL)
        rows = filled(
            HISTORY,
            count,
            index=index,
            time_ns=index * self._step_ns,
            process=part.process,
            type=part.type,
            f=pa.DictionaryArray.from_arrays(part.f.astype(np.int32), self._functions),
            key=self._keys.take(pa.array(part.key)),
            value=pa.array(part.value, mask=part.value < 0),
            error=pa.DictionaryArray.from_arrays(error, self._errors),
            node=pa.DictionaryArray.from_arrays(answered, self._nodes),
        )
        self._writer.write_batch(rows)
        self.rows += count

    def enter(self, happened: run_record.Happened) -> None:
        self._journal.write(run_record.line_of(run_record.JournalEntry(self.time_ns, self.rows, happened)) + "\n")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.enter(run_record.PhaseChange(name, run_record.BEGAN))
        yield
        self.enter(run_record.PhaseChange(name, run_record.ENDED))

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._journal.close()


def _outcome(keys: Sequence[str]) -> RunOutcome:
    return RunOutcome(
        declares=dict.fromkeys(("nodes", "logs", "traces", "elections", "faults"), True),
        steal_s=dict.fromkeys(SERVERS, 0.0),
        recovery=Recovery(limit_s=60.0, proof=Proof("as ordered"), recovered=True, seconds=0.1),
        deaths=(),
        final_reads=dict.fromkeys(keys, "ok"),
        leaders=(SeenLeader(2, SERVERS[0], 1),),
    )


def _fault(injected_ns: int, healed_ns: int) -> FaultRecord:
    """Return the fault that cuts the links between c2 and n5, with measurements that prove it twice a second."""
    cut = (("c2", "n5"), ("n5", "c2"))
    links = {f"{a}>{b}": (60, 0 if (a, b) in cut else 60) for a, b in permutations((*SERVERS, *CLIENTS), 2)}
    moments = [("inject", injected_ns), *(("hold", at) for at in range(injected_ns, healed_ns, 500_000_000))]
    measured = [Measurement(phase, at, at, links) for phase, at in (*moments, ("before heal", healed_ns))]
    measured.append(Measurement("heal", healed_ns, healed_ns, dict.fromkeys(links, (60, 60))))
    proof = Proof("as ordered")
    record = FaultRecord(CARD, Achieved.INSTALLED, FAULT, epoch=1, kind=CARD.kind, cut=cut, measured=tuple(measured))
    record = replace(record, injected_ns=injected_ns, heal_ordered_ns=healed_ns, healed_ns=healed_ns)
    return replace(record, apply_ms=0.0, inject_proof=proof, heal_proof=proof)
