"""A whole run folder of any size, written in parts: correct by construction, or with two violations near its end.

Clients read and write registers, eleven reads for each write.  A write gets its place in the log when it is invoked.
It is committed, with all writes before it, when the first of them is answered.  Reads see what is committed.  One
operation in two thousand has no known outcome, and one write in two thousand is refused.  Five servers hold equal logs,
copied before the heal of a fault and at the end, and each traced every batch.  The fault cuts one client node from a
follower.

The ledger, the end mark, the manifest and the copies are as the harness writes them.  Logs and traces are written as
tables (`tables/`); or, if they are to be `raw`, as the files of nodes, in a folder that `analyze` judges as it judges a
run of the bundled KRaft.

Violations (`wrong`): a read that returns what was overwritten before it was invoked; and an acknowledged write whose
entry is missing from all logs, though reads saw it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.simulated.big_logs import SERVERS, SimulatedLogs
from bench.simulated.filled_table import filled
from bench.simulated.raw_logs import ENTRIES_PER_CREATE, RawLogs
from bench.simulated.register_clients import (
    PROCESSES_MAX,
    ClientsState,
    HistoryPart,
    drained,
    final_reads,
    new_state,
    simulate,
)
from checkers.base import ledger
from checkers.base.columns import HISTORY
from checkers.base.demands import Demands
from checkers.base.history import NEMESIS, Type
from checkers.record.faults import Proof
from checkers.record.outcome import Phase, Recovery, RunOutcome, SeenLeader
from checkers.record.writing import as_json
from checkers.sealing.manifest import write_manifest
from harness.judge.demands_of_run import demands_of
from harness.spec import LIMITS, Spec

FAULT = "c2 and n5 cannot reach each other"
CARD = {"number": 1, "kind": "partition", "name": "one link", "at_s": 20, "heal_s": 40}
FORMAT = 1
"""The records hold what checkers read, and not every field that runs of today's format hold."""

CLIENTS = ("c1", "c2")
FUNCTIONS = ("read", "write", "create")
"""By the code that a part has for them."""

EVENTS_PER_PROCESS = 1_000
EVENTS_PER_KEY = 5_000
SECONDS = 100
"""How long the run lasts, at every size."""

ROWS_PER_BATCH = 1 << 18


def write_run(folder: Path, events: int, wrong: bool = False, raw: bool = False) -> Demands:
    """Write an unsealed run of about this many events into a new folder.  Returns what is demanded of it."""
    (folder / ("." if raw else "tables")).mkdir(parents=True)
    count = max(1, events // EVENTS_PER_KEY)
    keys = [f"k{k}" for k in range(min(count, int(LIMITS["keys"][1])) if raw else count)]
    of_user = _spec(events, len(keys))
    demands = demands_of(of_user) if raw else _demands(keys)
    spec = of_user.to_json() if raw else {"nodes": len(SERVERS), "backend": "namespaces", "nemesis": "partition"}
    logs: RawLogs | SimulatedLogs
    test = {"format": FORMAT, "run_id": "big", "spec": spec, "started_monotonic_ns": 0, "schedule": [CARD]}
    with _Stream(folder, events, keys) as stream, (RawLogs if raw else SimulatedLogs)(folder, keys) as logs:
        stream.enter(Type.OK, ledger.BEGIN, {"format": FORMAT, "run_id": "big", "spec": spec})
        state = new_state(len(keys), _processes(events))
        with stream.phase("set-up"):
            if isinstance(logs, RawLogs):
                stream.create(logs)
                state.counts[:2] += ENTRIES_PER_CREATE * len(keys)
        with stream.phase("main"):
            _main(stream, logs, state, events // 5, -1, wrong=False)
            injected = stream.note(Type.INVOKE, "inject-partition", FAULT), stream.note(Type.OK, "inject-partition")
            _main(stream, logs, state, events // 5, -1, wrong=False)
            _copy(stream, logs, "before heal 1")
            healed = stream.note(Type.INVOKE, "heal-partition", FAULT), stream.note(Type.OK, "heal-partition")
            late = stream.rows + int(0.55 * events)
            _main(stream, logs, state, events - events // 5 * 2, late if wrong else -1, wrong)
            stream.write(drained(state, stream.rows), logs)
        with stream.phase("recovery"):
            pass
        with stream.phase(ledger.FINAL_READS):
            stream.write(final_reads(state), logs)
        with stream.phase("collection"):
            _copy(stream, logs, "final")
        fault = _fault(injected[1], healed[0], healed[1])
        outcome = as_json(_outcome(stream.phases, keys))
        files = {"test.json": test, "outcome.json": outcome, "faults.json": [fault], "copies.json": logs.copies_index}
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
        stream.end({"phases": 5, "faults": 1, "copies": len(logs.copies_index)}, len(keys))
        assert not wrong or state.counts[4:].tolist() == [1, 1], "the violations were not planted"
    write_manifest(folder)
    return demands


def _main(
    stream: _Stream, logs: RawLogs | SimulatedLogs, state: ClientsState, events: int, wrong_from: int, wrong: bool
) -> None:
    """So many events of clients.  wrong: lose the last entry of the part with `wrong_from`."""
    for first in range(0, events, ROWS_PER_BATCH):
        rows = min(ROWS_PER_BATCH, events - first)
        part = simulate(state, rows, stream.rows, 7 * stream.rows + 1, wrong_from, False)
        if wrong and stream.rows + rows > wrong_from and state.counts[5] == 0:
            part.entry_key[-1] = -1
            state.counts[5] = 1
        stream.write(part, logs)


def _copy(stream: _Stream, logs: RawLogs | SimulatedLogs, when: str) -> None:
    stream.enter(Type.INVOKE, ledger.COPY, {"when": when})
    stream.enter(Type.OK, ledger.COPY, logs.copy(when, stream.time_ns))


def _processes(events: int) -> int:
    return max(20, min(PROCESSES_MAX, events // EVENTS_PER_PROCESS))


def _spec(events: int, keys: int) -> Spec:
    """The test that such a run would be."""
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
    """The time between two rows."""
    return max(2_000, SECONDS * 10**9 // events)


class _Stream:
    """`history.arrows`, with the ledger's rows between those of clients.  phases: those that have ended."""

    def __init__(self, folder: Path, events: int, keys: list[str]) -> None:
        self.rows = 0
        self.phases: list[Phase] = []
        self._step_ns = _step_ns(events)
        self._keys, self._functions, self._nodes = pa.array(keys), pa.array(FUNCTIONS), pa.array(["", "n1"])
        self._errors = pa.array(["refused", "timed out"])
        self._counts: Counter[tuple[str, int]] = Counter()
        self._writer = pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY)

    @property
    def time_ns(self) -> int:
        return self.rows * self._step_ns

    def write(self, part: HistoryPart, logs: RawLogs | SimulatedLogs) -> None:
        """Rows of clients, and what their servers did."""
        logs.append(part.entry_key, part.entry_value)
        logs.commit(part.ends, part.rows * self._step_ns)
        self._write_clients(part)

    def create(self, logs: RawLogs) -> None:
        """One process creates every key."""
        keys = len(self._keys)
        logs.create((self.rows + 2 * np.arange(keys)) * self._step_ns)
        number, type_ = np.repeat(np.arange(keys, dtype=np.int32), 2), np.tile(np.array([0, 1], np.int8), keys)
        function, value = np.full(2 * keys, FUNCTIONS.index("create"), np.int8), np.full(2 * keys, -1)
        none = np.empty(0, np.int64)
        process = np.zeros(2 * keys, np.int32)
        part = HistoryPart(process, type_, function, number, value, none.astype(np.int32), none, none, none)
        self._write_clients(part)

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
        for code, times in enumerate(np.bincount(part.f.astype(np.int64) * 4 + part.type).tolist()):
            self._counts[FUNCTIONS[code // 4], code % 4] += times
        self._add(rows)

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
        start_ns = self.enter(Type.INVOKE, ledger.PHASE, name)
        yield
        self.phases.append(Phase(name, start_ns, self.enter(Type.OK, ledger.PHASE, name)))

    def end(self, counts: Mapping[str, int], final_reads: int) -> None:
        by_function = ledger.counted(Counter({name: times for name, times in self._counts.items() if times}))
        rows = {"rows": self.rows, "by_function": by_function}
        self.enter(Type.OK, ledger.END, {**counts, "final_reads": final_reads, **rows})

    def _add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self.rows += len(batch)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _demands(keys: list[str]) -> Demands:
    reads = tuple(("read", key) for key in keys)
    made = Demands(SERVERS, CLIENTS, tuple(keys), reads, nemesis="partition", recovery_limit_s=60)
    return replace(made, nodes=True, logs=True, traces=True, elections=True, faults=True, ledger=True)


def _outcome(phases: Sequence[Phase], keys: Sequence[str]) -> RunOutcome:
    return RunOutcome(
        declares=dict.fromkeys(("nodes", "logs", "traces", "elections", "faults"), True),
        phases=tuple(phases),
        steal_s=dict.fromkeys(SERVERS, 0.0),
        recovery=Recovery(limit_s=60.0, proof=Proof("as ordered"), recovered=True, seconds=0.1),
        deaths=(),
        final_reads=dict.fromkeys(keys, "ok"),
        leaders=(SeenLeader(2, SERVERS[0], 1),),
    )


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
        "card": CARD,
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
