"""Status of a running test, for readers in other processes.

LiveFile    a small file in `results/.live/`, which is removed at the end of the run.  It is outside the run's folder,
            because it is no evidence
Metrics     `--metrics ADDRESS:PORT`, for Prometheus: rates, latencies by function and outcome, faults in force,
            leader, epoch
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from checkers.base.history import Type

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".live"
LEAST_S = 0.25
"""Minimum real seconds between two writes of the file.  On virtual time, the conductor reports much more often."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run at one time.

    title: description of the test
    folder: folder of the run
    elapsed_s: seconds since the test began, by the run's clock
    rate_hz: recent completions per second
    ok, fail, unknown: numbers of completions so far
    faults: faults in force, in words
    kinds: kinds of these faults
    leader: name of the leader, or "" if unknown
    epoch: epoch of the leader, or -1 if unknown
    violations: number of violations that online checks found
    first: the first of these violations, as a sentence
    """

    title: str
    folder: str
    phase: str
    elapsed_s: float = 0.0
    rate_hz: float = 0.0
    ok: int = 0
    fail: int = 0
    unknown: int = 0
    faults: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    leader: str = ""
    epoch: int = -1
    violations: int = 0
    first: str = ""
    pid: int = 0


class Watcher(Protocol):
    """An observer of a running test.  Its methods are called on the test's event loop, so they must be quick."""

    def show(self, status: RunStatus) -> None:
        """Process the status of the run, at the beginning of every phase and once a second."""

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Process rows of the history that have just been written and do not change any more."""


class LiveFile:
    """Writer of the status of one run to a file.

    results: results folder
    name: name of the file, without its suffix"""

    def __init__(self, results: Path, name: str) -> None:
        self._path = results / FOLDER / f"{name}.json"
        self._written_s = -LEAST_S
        self._phase = ""

    def show(self, status: RunStatus) -> None:
        now = time.monotonic()
        if status.phase == self._phase and now - self._written_s < LEAST_S:
            return
        self._phase, self._written_s = status.phase, now
        part = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):  # a full disk is reported by the recorder, which writes more
            self._path.parent.mkdir(exist_ok=True)
            part.write_text(json.dumps(asdict(status)))
            part.replace(self._path)

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Ignore rows, because the status already contains counts of operations."""

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def read_live(results: Path) -> list[RunStatus]:
    """Return the status of each running test below a results folder, including tests of campaigns, sorted by title.

    Files whose process has ended are ignored, because their harness was killed.
    """
    found = []
    for folder in (results / FOLDER, *results.glob(f"*/runs/{FOLDER}"), *results.glob(f"*/*/runs/{FOLDER}")):
        for path in folder.glob("*.json"):
            try:
                status = RunStatus(**json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue  # the file has just been removed, or another version wrote it
            if status.pid > 0 and Path(f"/proc/{status.pid}").exists():
                found.append(status)
    return sorted(found, key=lambda status: status.title)


BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOOPBACK = "127.0.0.1"


class BadAddress(ValueError):
    """The text is no ADDRESS:PORT."""


def address_of(text: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT.  ":9100" means loopback, "0.0.0.0:9100" all addresses.  Raises BadAddress."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise BadAddress(f"{text!r} is not an address; give one such as :9100 or 0.0.0.0:9100")
    return host.strip("[]") or LOOPBACK, int(port)


class Metrics:
    """The metrics of one run, in a registry of its own (docs/metrics.md).

    Operations are counted once a second, from rows that the recorder has written, so that counting does not slow down
    clients.
    """

    def __init__(self, system: str, workload: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # most runs serve no metrics

        self.registry = CollectorRegistry()
        into = {"registry": self.registry}
        labels = ("f", "outcome")
        self._took = Histogram(
            "krucible_operation_seconds", "From invocation to completion.", labels, buckets=BUCKETS_S, **into
        )
        self._rate = Gauge("krucible_operations_per_second", "Completions per second, of late.", **into)
        self._elapsed = Gauge("krucible_run_elapsed_seconds", "Since the run began, on its own clock.", **into)
        self._phase = Gauge("krucible_phase", "1 for the phase that the run is in.", ("phase",), **into)
        self._faults = Gauge("krucible_faults_in_force", "Faults in force, by kind.", ("kind",), **into)
        self._leader = Gauge("krucible_leader", "1 for the node that leads, if that is known.", ("node",), **into)
        self._epoch = Gauge("krucible_epoch", "The highest epoch in which a node leads; -1: not known.", **into)
        self._violations = Gauge("krucible_online_violations", "Violations that online checks found.", **into)
        self._invoked = Counter("krucible_operations_invoked", "Operations that were invoked.", ("f",), **into)
        about = Gauge("krucible_run_info", "What is run.", ("system", "workload"), **into)
        about.labels(system, workload).set(1)
        self._open: dict[int, tuple[str, int]] = {}
        self._kinds: set[str] = set()

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve the metrics at this address, and return the port and a function that stops the server.  Raises
        OSError."""
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, f"--metrics {host}:{port}") from problem

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, end

    def show(self, status: RunStatus) -> None:
        self._rate.set(status.rate_hz)
        self._elapsed.set(status.elapsed_s)
        self._violations.set(status.violations)
        self._epoch.set(status.epoch)
        self._phase.clear()
        self._phase.labels(status.phase).set(1)
        self._leader.clear()
        if status.leader:
            self._leader.labels(status.leader).set(1)
        self._kinds |= set(status.kinds)
        for kind in self._kinds:  # if all faults of a kind are healed, its metric must become 0 and not disappear
            self._faults.labels(kind).set(status.kinds.count(kind))

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Count rows of the history that have just been written, in order."""
        columns = [batch.column(name) for name in ("process", "type", "f", "time_ns")]
        for process, type_, f, time_ns in zip(*(column.to_pylist() for column in columns), strict=True):
            if process < 0:
                continue
            if type_ == Type.INVOKE:
                self._open[process] = f, time_ns
                self._invoked.labels(f).inc()
            elif process in self._open:
                _, invoked_ns = self._open.pop(process)
                self._took.labels(f, Type(type_).name.lower()).observe((time_ns - invoked_ns) / 1e9)
