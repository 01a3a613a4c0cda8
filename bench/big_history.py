"""A whole run folder of any size, written in parts: correct by construction, or with two violations near its end.

Clients read and write registers, eleven reads for each write.  A write gets its place in the log when it is invoked.
It is committed, with all writes before it, when the first of them is answered.  Reads see what is committed.  One
operation in two thousand has no known outcome, and one write in two thousand is refused.  Five servers hold equal logs,
copied before the heal of a fault and at the end, and each traced every batch.  The fault cuts one client node from a
follower.

The ledger, the end mark, the manifest and the copies are as the harness writes them, but logs and traces are written as
tables (`tables/`), not as a node's own files.

Violations (`wrong`): a read that returns what was overwritten before it was invoked; and an acknowledged write whose
entry is missing from all logs, though reads saw it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.big_logs import SERVERS, SimulatedLogs
from checkers.base import ledger
from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.columns import HISTORY
from checkers.base.demands import Demands
from checkers.base.history import NEMESIS, Type
from checkers.kernels.jit import kernel
from checkers.sealing.manifest import STREAM, entries_of, write_manifest
from checkers.sealing.row_digest import row_digest, together

FAULT = "c2 and n5 cannot reach each other"
CLIENTS = ("c1", "c2")
PROCESSES_MAX = 1_000
EVENTS_PER_PROCESS = 1_000
EVENTS_PER_KEY = 5_000
WRITES_OF = 12
"""One operation in this many is a write."""
UNKNOWN_OF = 2_000
SECONDS = 100
"""How long the run lasts, at every size."""

ROWS_PER_BATCH = 1 << 18

_IDLE, _READ, _WRITE, _REFUSED = 0, 1, 2, 3


class State(NamedTuple):
    """What the system and its clients hold between two parts.

    doing, key, value, offset, called: of every client's open operation; number: of its process.
    now, before, changed: of every key what is committed, what was before, and the row in which that changed; -1: none.
    fresh: the next value of every key.  pending: offset, key and value of what is not committed.
    counts: [entries of the log, entries committed, pending ones, processes ever, stale reads, lost writes].
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
    """Rows of clients; entries of the log; and the end offset and the row of each commit."""

    process: Int32
    type: Int8
    f: Int8
    key: Int32
    value: Int64
    entry_key: Int32
    entry_value: Int64
    ends: Int64
    rows: Int64


def write_run(folder: Path, events: int, wrong: bool = False) -> Demands:
    """Write an unsealed run of about this many events into a new folder.  Returns what is demanded of it."""
    (folder / "tables").mkdir(parents=True)
    keys = [f"k{k}" for k in range(max(1, events // EVENTS_PER_KEY))]
    demands = _demands(keys)
    spec = {"nodes": len(SERVERS), "backend": "namespaces", "nemesis": "partition"}
    test = {"format": ledger.FORMAT, "run_id": "big", "spec": spec, "started_monotonic_ns": 0}
    with _Stream(folder, events, keys) as stream, SimulatedLogs(folder, keys) as logs:
        stream.enter(Type.OK, ledger.BEGIN, {"format": ledger.FORMAT, "run_id": "big", "spec": spec})
        with stream.phase("set-up"):
            pass
        state = new_state(len(keys), max(20, min(PROCESSES_MAX, events // EVENTS_PER_PROCESS)))
        with stream.phase("main"):
            _main(stream, logs, state, events // 5, -1, wrong=False)
            injected = stream.note(Type.INVOKE, "inject-partition", FAULT), stream.note(Type.OK, "inject-partition")
            _main(stream, logs, state, events // 5, -1, wrong=False)
            _copy(stream, logs, "before heal 1")
            healed = stream.note(Type.INVOKE, "heal-partition", FAULT), stream.note(Type.OK, "heal-partition")
            late = stream.rows + int(0.55 * events)
            _main(stream, logs, state, events - events // 5 * 2, late if wrong else -1, wrong)
            stream.write(_drained(state, stream.rows), logs)
        with stream.phase("recovery"):
            pass
        with stream.phase(ledger.FINAL_READS):
            stream.write(_final_reads(state), logs)
        with stream.phase("collection"):
            _copy(stream, logs, "final")
        fault = _fault(injected[1], healed[0], healed[1])
        outcome = _outcome(stream.phases, keys)
        files = {"test.json": test, "outcome.json": outcome, "faults.json": [fault], "copies.json": logs.copies_index}
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
            stream.enter(Type.OK, ledger.FILE, {"name": name, "content": content})
        bound = {name: entry for name, entry in entries_of(folder).items() if name != STREAM}
        stream.enter(Type.OK, ledger.BOUND, bound)
        stream.end({"phases": 5, "files": len(files), "faults": 1, "copies": len(logs.copies_index)}, len(keys))
        assert not wrong or state.counts[4:].tolist() == [1, 1], "the violations were not planted"
    write_manifest(folder)
    return demands


def new_state(keys: int, processes: int) -> State:
    """Nothing was invoked, and no key holds anything."""
    none = np.full(keys, -1, np.int64)
    idle = np.zeros(processes, np.int64)
    counts = np.array([1, 1, 0, processes, 0, 0])  # the leader's own entry is the first
    number = np.arange(processes, dtype=np.int32)
    doing, key = np.zeros(processes, np.int8), np.zeros(processes, np.int32)
    pending = np.zeros(3 * 4 * PROCESSES_MAX, np.int64).reshape(-1, 3)
    return State(
        doing, key, idle, idle.copy(), idle.copy(), number, none, none.copy(), none.copy(), none + 1, pending, counts
    )


@kernel
def simulate(state: State, rows: int, first_row: int, seed: int, wrong_from: int, drain: bool) -> HistoryPart:
    """The next `rows` events, or fewer if `drain` lets open operations end and none begin.

    wrong_from: the row from which the violations are planted as soon as they can be; -1 for none.
    """
    np.random.seed(seed)
    part = HistoryPart(
        np.empty(rows, np.int32),
        np.empty(rows, np.int8),
        np.empty(rows, np.int8),
        np.empty(rows, np.int32),
        np.full(rows, -1, np.int64),
        np.empty(rows, np.int32),
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
    )
    entries, commits, at, client = 0, 0, 0, -1
    keys = state.now.shape[0]
    while at < rows:
        client = client + 1 if drain else np.random.randint(state.doing.shape[0])
        if client >= state.doing.shape[0]:
            break
        row, doing = first_row + at, state.doing[client]
        if doing == _IDLE:
            if drain:
                continue
            state.key[client], state.value[client], state.called[client] = np.random.randint(keys), -1, row
            state.doing[client] = _READ
            if np.random.randint(WRITES_OF) == 0:
                key = state.key[client]
                state.value[client] = state.fresh[key]
                state.fresh[key] += 1
                state.doing[client] = _REFUSED if np.random.randint(UNKNOWN_OF) == 0 else _WRITE
            if state.doing[client] == _WRITE:
                state.offset[client] = state.counts[0]
                waiting = state.pending[state.counts[2]]
                waiting[0], waiting[1], waiting[2] = state.counts[0], state.key[client], state.value[client]
                part.entry_key[entries], part.entry_value[entries] = state.key[client], state.value[client]
                state.counts[0] += 1
                state.counts[2] += 1
                entries += 1
            type_ = 0
        else:
            type_ = 2 if doing == _REFUSED else 3 if np.random.randint(UNKNOWN_OF) == 0 else 1
            if type_ == 1 and doing == _WRITE and state.offset[client] >= state.counts[1]:
                for i in range(state.counts[2]):
                    key = state.pending[i, 1]
                    state.before[key], state.changed[key] = state.now[key], row
                    state.now[key] = state.pending[i, 2]
                state.counts[1], state.counts[2] = state.counts[0], 0
                part.ends[commits], part.rows[commits] = state.counts[1], row
                commits += 1
            if type_ == 1 and doing == _READ:
                key = state.key[client]
                state.value[client] = state.now[key]
                late = 0 <= wrong_from <= row and state.counts[4] == 0
                asked = state.called[client] - 10 * state.doing.shape[0]  # by then what was overwritten was answered
                if late and state.before[key] >= 0 and state.changed[key] < asked:
                    state.value[client] = state.before[key]
                    state.counts[4] = 1
            state.doing[client] = _IDLE
        part.process[at], part.type[at], part.f[at] = state.number[client], type_, 0
        part.f[at] = 0 if (state.doing[client] if type_ == 0 else doing) == _READ else 1
        part.key[at], part.value[at] = state.key[client], state.value[client]
        if type_ == 3:
            state.number[client] = state.counts[3]
            state.counts[3] += 1
        at += 1
    return HistoryPart(
        part.process[:at],
        part.type[:at],
        part.f[:at],
        part.key[:at],
        part.value[:at],
        part.entry_key[:entries],
        part.entry_value[:entries],
        part.ends[:commits],
        part.rows[:commits],
    )


def _main(stream: _Stream, logs: SimulatedLogs, state: State, events: int, wrong_from: int, wrong: bool) -> None:
    """So many events of clients.  wrong: lose the last entry of the part with `wrong_from`."""
    for first in range(0, events, ROWS_PER_BATCH):
        rows = min(ROWS_PER_BATCH, events - first)
        part = simulate(state, rows, stream.rows, 7 * stream.rows + 1, wrong_from, False)
        if wrong and stream.rows + rows > wrong_from and state.counts[5] == 0:
            part.entry_key[-1] = -1
            state.counts[5] = 1
        stream.write(part, logs)


def _drained(state: State, first_row: int) -> HistoryPart:
    """The ends of all open operations."""
    return simulate(state, len(state.doing), first_row, 1, -1, True)


def _final_reads(state: State) -> HistoryPart:
    """One process reads every key."""
    keys = len(state.now)
    none = np.empty(0, np.int64)
    value = np.full(2 * keys, -1, np.int64)
    value[1::2] = state.now
    return HistoryPart(
        np.full(2 * keys, state.counts[3], np.int32),
        np.tile(np.array([0, 1], np.int8), keys),
        np.zeros(2 * keys, np.int8),
        np.repeat(np.arange(keys, dtype=np.int32), 2),
        value,
        none.astype(np.int32),
        none,
        none,
        none,
    )


def _copy(stream: _Stream, logs: SimulatedLogs, when: str) -> None:
    stream.enter(Type.INVOKE, ledger.COPY, {"when": when})
    stream.enter(Type.OK, ledger.COPY, logs.copy(when, stream.time_ns))


class _Stream:
    """`history.arrows`, with the ledger's rows between those of clients.  phases: as in outcome.json."""

    def __init__(self, folder: Path, events: int, keys: list[str]) -> None:
        self.rows = 0
        self.phases: list[dict[str, Any]] = []
        self._step_ns = max(2_000, SECONDS * 10**9 // events)
        self._keys, self._functions, self._nodes = pa.array(keys), pa.array(["read", "write"]), pa.array(["", "n1"])
        self._errors = pa.array(["refused", "timed out"])
        self._counts: Counter[tuple[str, int]] = Counter()
        self._digest = 0
        self._writer = pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY)

    @property
    def time_ns(self) -> int:
        return self.rows * self._step_ns

    def write(self, part: HistoryPart, logs: SimulatedLogs) -> None:
        """Rows of clients, and what their servers did."""
        logs.append(part.entry_key, part.entry_value)
        logs.commit(part.ends, part.rows * self._step_ns)
        count = len(part.type)
        index = np.arange(self.rows, self.rows + count)
        answered = (part.type == Type.OK).astype(np.int32)
        columns = {
            "index": index,
            "time_ns": index * self._step_ns,
            "process": part.process,
            "type": part.type,
            "f": pa.DictionaryArray.from_arrays(part.f.astype(np.int32), self._functions),
            "key": self._keys.take(pa.array(part.key)),
            "value": pa.array(part.value, mask=part.value < 0),
            "value2": pa.nulls(count, pa.int64()),
            "payload": pa.nulls(count, pa.string()),
            "error": pa.DictionaryArray.from_arrays(
                pa.array(part.type - 2, pa.int32(), mask=part.type < Type.FAIL), self._errors
            ),
            "node": pa.DictionaryArray.from_arrays(answered, self._nodes),
        }
        for code, times in enumerate(np.bincount(part.f.astype(np.int64) * 4 + part.type, minlength=8).tolist()):
            self._counts["read" if code < 4 else "write", code % 4] += times
        self._add(pa.record_batch([columns[name] for name in HISTORY.names], schema=HISTORY))

    def enter(self, type_: Type, f: str, content: object) -> int:
        """A row of the ledger; its time in ns."""
        return self.note(type_, f, json.dumps(content))

    def note(self, type_: Type, f: str, words: str = "as ordered") -> int:
        time_ns = self.time_ns
        row = {"index": self.rows, "time_ns": time_ns, "process": NEMESIS, "type": int(type_), "f": f, "node": ""}
        self._counts[f, int(type_)] += 1
        self._add(pa.RecordBatch.from_pylist([{**row, "payload": words}], HISTORY))
        return time_ns

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        entry = {"name": name, "start_ns": self.enter(Type.INVOKE, ledger.PHASE, name), "end_ns": -1}
        self.phases.append(entry)
        yield
        entry["end_ns"] = self.enter(Type.OK, ledger.PHASE, name)

    def end(self, counts: Mapping[str, int], final_reads: int) -> None:
        by_function = ledger.counted(Counter({name: times for name, times in self._counts.items() if times}))
        rows = {"rows": self.rows, "by_function": by_function, "digest": f"{self._digest:016x}"}
        self.enter(Type.OK, ledger.END, {**counts, "final_reads": final_reads, **rows})

    def _add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._digest = together([self._digest, row_digest(pa.Table.from_batches([batch]))])
        self.rows += len(batch)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()


def _demands(keys: list[str]) -> Demands:
    has = dict.fromkeys(("nodes", "logs", "traces", "elections", "faults", "ledger"), True)
    reads = tuple(("read", key) for key in keys)
    return Demands(SERVERS, CLIENTS, tuple(keys), reads, nemesis="partition", recovery_limit_s=60, **has)


def _outcome(phases: list[dict[str, Any]], keys: list[str]) -> dict[str, Any]:
    proof = {"verdict": "as ordered", "links": {}, "states": {}, "wrong": []}
    recovery = {"needed": True, "recovered": True, "seconds": 0.1, "limit_s": 60.0, "waiting_for": "", "proof": proof}
    return {
        "phases": phases,
        "declares": dict.fromkeys(("nodes", "logs", "traces", "elections", "faults"), True),
        "recovery": recovery,
        "deaths": [],
        "final_reads": dict.fromkeys(keys, "ok"),
        "leaders": [{"node": SERVERS[0], "epoch": 1, "time_ns": 2}],
        "interrupted": False,
        "loop_stalls": [],
        "steal_s": dict.fromkeys(SERVERS, 0.0),
    }


def _fault(injected_ns: int, heal_ordered_ns: int, healed_ns: int) -> dict[str, Any]:
    """Links between c2 and n5 that were cut, with measurements that show it twice a second."""
    cut = [["c2", "n5"], ["n5", "c2"]]
    links = {f"{a}>{b}": [60, 0 if [a, b] in cut else 60] for a, b in permutations((*SERVERS, *CLIENTS), 2)}
    healed = {pair: [60, 60] for pair in links}
    hold = range(injected_ns, heal_ordered_ns, 500_000_000)
    measured = [{"phase": "inject", "from_ns": injected_ns, "to_ns": injected_ns, "links": links}]
    measured += [{"phase": "hold", "from_ns": at, "to_ns": at, "links": links} for at in hold]
    measured += [{"phase": "before heal", "from_ns": heal_ordered_ns, "to_ns": heal_ordered_ns, "links": links}]
    measured += [{"phase": "heal", "from_ns": healed_ns, "to_ns": healed_ns, "links": healed}]
    return {
        "card": {"number": 1, "kind": "partition", "name": "one link", "at_s": 20, "heal_s": 40},
        "words": FAULT,
        "achieved": "installed",
        "reason": "",
        "leader": None,
        "epoch": 1,
        "cut": cut,
        "nodes": [],
        "ordered": {"held": {}, "healed": {}},
        "injected_ns": injected_ns,
        "heal_ordered_ns": heal_ordered_ns,
        "healed_ns": healed_ns,
        "apply_ms": 0.0,
        "measured": measured,
        "inject_proof": {"verdict": "as ordered"},
        "heal_proof": {"verdict": "as ordered"},
    }
