"""The recorder: every event of a run, in the order the harness saw it, on disk within a second.

Beside what clients invoke it records what the harness does itself: the ledger (`checkers/base/ledger.py`).

Rows are kept as tuples, in the order of the schema, and turned into Arrow once a second: a recorder that converted
each event would be the slowest part of the harness.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from checkers.base import ledger
from checkers.base.columns import HISTORY
from checkers.base.history import NEMESIS, Type
from harness.run.clock import RunClock
from system_under_test.client import Outcome, Request


class Recorder:
    """Appends to `history.arrows`.  Not thread-safe: one event loop records.

    started_monotonic_ns: the zero of `time_ns`, when the test began.  on_flush: handed every batch once it is on disk;
    it never changes again, so it may go to another thread.
    """

    def __init__(
        self, path: Path, clock: RunClock, on_flush: Callable[[pa.RecordBatch], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self.started_monotonic_ns = clock.monotonic_ns()
        self.count = 0
        self._on_flush = on_flush
        self._rows: list[tuple[object, ...]] = []
        self._counts: Counter[tuple[str, int]] = Counter()
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, HISTORY)

    def begin(self) -> int:
        """The test begins now, not when its folder was made: the new zero of `time_ns`, as a monotonic time.

        Raises ValueError if something was recorded already.
        """
        if self.count:
            raise ValueError("the clock of a test cannot be set back to zero once something was recorded")
        self.started_monotonic_ns = self._clock.monotonic_ns()
        return self.started_monotonic_ns

    def now_ns(self) -> int:
        return self._clock.monotonic_ns() - self.started_monotonic_ns

    def invoke(self, process: int, request: Request) -> None:
        """Call before the operation leaves."""
        self._add(
            process, Type.INVOKE, request.f, request.key, request.value, request.value2, request.payload, None, ""
        )

    def complete(self, process: int, request: Request, outcome: Outcome) -> None:
        """Call after the answer has arrived.  Unless it was OK, the request's own values stand in the row."""
        answered = outcome if outcome.type is Type.OK else request
        self._add(
            process,
            outcome.type,
            request.f,
            request.key,
            answered.value,
            answered.value2,
            answered.payload,
            outcome.error,
            outcome.node,
        )

    def note(self, type_: Type, f: str, detail: str) -> None:
        """What the nemesis did: an INVOKE before the order, a completion once it is known what became of it."""
        self._add(NEMESIS, type_, f, None, None, None, detail, None, "")

    def enter(self, type_: Type, f: str, content: object) -> int:
        """Record a row of the ledger whose payload is JSON; its time in ns."""
        return self._add(NEMESIS, type_, f, None, None, None, json.dumps(content), None, "")

    def end(self, counts: Mapping[str, int]) -> None:
        """The last row: how many rows came before it, by function and type, and counts of the run."""
        rows = {"rows": self.count, "by_function": ledger.counted(self._counts)}
        self.enter(Type.OK, ledger.END, {**counts, **rows})

    def flush(self) -> int:
        """Write what has gathered; the number of events written."""
        rows, self._rows = self._rows, []
        if rows:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, type=field.type) for column, field in zip(columns, HISTORY, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=HISTORY)
            self._writer.write_batch(batch)
            self._sink.flush()
            self._on_flush(batch)
        return len(rows)

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._sink.close()

    def _add(self, process: int, type_: Type, f: str, *rest: object) -> int:
        time_ns = self.now_ns()
        self._rows.append((self.count, time_ns, process, int(type_), f, *rest))
        self._counts[f, int(type_)] += 1
        self.count += 1
        return time_ns
