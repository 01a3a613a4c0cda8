"""The recorder of all events of a run, in the order in which the harness saw them, and the run's folder.

Requests and answers of clients are recorded in the history, and written within a second.  The harness' own actions are
recorded in the journal (`checkers/record/run_record.py`), and written at once.

Rows are kept as tuples, in the order of the schema, and converted to Arrow once a second, because converting each event
by itself would be the slowest part of the harness.

*Run folder.*  Each run has one, and all data of the run is in it before judging begins (results/README.md).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import Header, Revision
from checkers.record.run_record import FORMAT, JOURNAL, FaultChange, Happened, JournalEnd, JournalEntry, line_of
from harness.run.clock import RunClock
from harness.spec import Spec
from system_under_test.client import Outcome, Request


class Recorder:
    """Writer of `history.arrows` and of the journal beside it.  Not thread-safe: use it from one event loop.

    started_monotonic_ns: monotonic time at which the test began, the zero of `time_ns`
    on_flush: called with every batch once it is written.  The batch does not change afterwards, so another thread may
        read it.
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
        self._journal = path.with_name(JOURNAL).open("w", encoding="utf-8", errors="replace")
        self._measured: Counter[int] = Counter()
        """Number of a card -> number of measurements of its fault in the journal."""

    def begin(self) -> int:
        """Set the zero of `time_ns` to the present time, and return it as a monotonic time.

        Raises ValueError if an event was recorded before.
        """
        if self.count:
            raise ValueError("the clock of a test cannot be set back to zero once something was recorded")
        self.started_monotonic_ns = self._clock.monotonic_ns()
        return self.started_monotonic_ns

    def now_ns(self) -> int:
        return self._clock.monotonic_ns() - self.started_monotonic_ns

    def invoke(self, process: int, request: Request) -> None:
        """Record an invoke.  Call this before the request is sent."""
        self._add(
            process, Type.INVOKE, request.f, request.key, request.value, request.value2, request.payload, None, ""
        )

    def complete(self, process: int, request: Request, outcome: Outcome) -> None:
        """Record a completion.  Call this after the answer has arrived.  Unless the outcome is OK, the row contains the
        values of the request."""
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

    def enter(self, happened: Happened) -> int:
        """Write an event to the journal, and return its time in ns."""
        entry = JournalEntry(self.now_ns(), self.count, happened)
        self._journal.write(line_of(entry) + "\n")
        self._journal.flush()
        return entry.time_ns

    def fault_changed(self, record: FaultRecord) -> None:
        """Write the changes of a fault to the journal."""
        number = record.card.number
        fresh = record.measured[self._measured[number] :]
        self._measured[number] = len(record.measured)
        self.enter(FaultChange(replace(record, measured=fresh)))

    def end(self) -> None:
        """Write the last event of the journal: the number of rows in the history."""
        self.enter(JournalEnd(self.count))

    def flush(self) -> int:
        """Write the buffered events, and return their number."""
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
        self._journal.close()

    def acknowledged(self, functions: Collection[str]) -> int:
        """Return the number of acknowledged operations of these functions so far."""
        return sum(self._counts[f, int(Type.OK)] for f in functions)

    def _add(self, process: int, type_: Type, f: str, *rest: object) -> None:
        self._rows.append((self.count, self.now_ns(), process, int(type_), f, *rest))
        self._counts[f, int(type_)] += 1
        self.count += 1


_PACKAGES = ("pyspark", "pyarrow", "numpy", "numba", "docker", "kio", "networkx")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run.

    beside: options outside of the spec that the rerun command must contain"""

    root: Path
    beside: tuple[str, ...] = ()

    @staticmethod
    def create(results: Path, spec: Spec, beside: tuple[str, ...] = ()) -> RunFolder:
        """Create a new folder `results/<test>/<UTC time>-<seed>`, and make `results/latest` point to it."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{stamp}-{spec.seed}" + (f"-{spec.bug}" if spec.bug else "")
        folder = results / spec.test / name
        for attempt in range(2, 100):
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                folder = results / spec.test / f"{name}.{attempt}"
        _point(results / "latest", folder)
        return RunFolder(folder, beside)

    @property
    def run_id(self) -> str:
        """Return a name that is unique among runs of this machine; it is part of labels and table names."""
        return f"{os.getpid():x}{datetime.now(UTC).strftime('%H%M%S%f')[:9]}"

    def node(self, name: str) -> Path:
        folder = self.root / "nodes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_json(self, name: str, data: object) -> None:
        """Write a JSON file atomically, so that no reader sees half a file, even after a kill."""
        part = self.root / f".{name}.part"
        # msgspec indents, because json with `indent` encodes in Python, which takes fifteen times as long.
        part.write_bytes(msgspec.json.format(json.dumps(data).encode(), indent=1) + b"\n")
        part.replace(self.root / name)


def header_of(spec: Spec, folder: RunFolder, backend: str, started: datetime, started_monotonic_ns: int) -> Header:
    """Return the content of test.json before a run begins.  The schedule is added when it is generated."""
    return Header(
        run_id=folder.run_id,
        started_monotonic_ns=started_monotonic_ns,
        spec={**spec.to_json(), "backend": backend},
        format=FORMAT,
        test=spec.test,
        started_utc=started.isoformat(timespec="milliseconds"),
        seed=spec.seed,
        rerun=spec.rerun(folder.beside),
        versions={
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        git=revision(),
    )


def revision() -> Revision:
    """Return the revision of this repository.

    An installed package has no revision, even if its environment is inside the repository of another project.
    """
    if not (_ROOT / ".git").exists():
        return Revision()

    def ask(*words: str) -> str:
        answer = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=False)
        return answer.stdout.strip()

    return Revision(ask("rev-parse", "HEAD"), bool(ask("status", "--porcelain")))


def _point(link: Path, folder: Path) -> None:
    fresh = link.with_name(f".latest-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, link.parent))
    fresh.replace(link)
