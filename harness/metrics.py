"""Metrics of a running test for Prometheus: rates, latencies by function and outcome, faults in force, leader, epoch.

`--metrics ADDRESS:PORT` serves them while the run goes on (docs/metrics.md).  Operations are counted once a second from
the rows that the recorder has written, so that counting costs the clients nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from checkers.base.history import Type
from harness.live import RunStatus

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOOPBACK = "127.0.0.1"


class BadAddress(ValueError):
    """The text is no ADDRESS:PORT."""


def address_of(text: str) -> tuple[str, int]:
    """ ":9100" is loopback, "0.0.0.0:9100" every address.  Raises BadAddress with a sentence."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise BadAddress(f"{text!r} is not an address; give one such as :9100 or 0.0.0.0:9100")
    return host.strip("[]") or LOOPBACK, int(port)


class Metrics:
    """The metrics of one run, in a registry of its own."""

    def __init__(self, system: str, workload: str) -> None:
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
        """Serve the metrics at this address; return the port, and a function that stops it.  Raises OSError."""
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
        for kind in self._kinds:  # a kind whose faults are all healed must drop to 0, not vanish
            self._faults.labels(kind).set(status.kinds.count(kind))

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a history that were just written, in their order."""
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
