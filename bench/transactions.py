"""Measure the time to judge transactions, their isolation, and sends and polls of Kafka's logs.

    python -m bench.transactions anomalies [--sizes 1000000 10000000] [--model list-append] [--only G1c ...]
    python -m bench.transactions isolation [--large] [--only TEXT]
    python -m bench.transactions kafka [--sizes 1000000] [--json FILE]

CPU time of one core, from columns in memory to the verdict.  Kernels are compiled before the first measurement; the
load is printed last.

*Anomalies.*  Valid histories, and the same histories with one anomaly of each name.  The anomaly lies in the middle
(`spliced`); if possible, it is also spread over the entire history (`strewn`), so nearly all of the history is on a
cycle.  Histories of lists are also measured with many stale reads.  Time includes the witnesses, and memory is the
maximum including columns.  Reading is measured separately: a `history.parquet` of the first size, from file to columns.

*Isolation.*  Histories of a serial database and of one with snapshots, judged at the level that they keep, and at its
session form where only sessions are known, up to a replayed order.  With --large also a million transactions.
`docs/isolation.md` contains the table.

*Kafka.*  Logs of a correct broker, and the same logs with one lost message.  Half of the operations send a message to a
partition, half poll up to four messages.  Reading from file to columns is measured separately.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.instruments import transaction_histories as histories
from bench.instruments.big_history import filled
from bench.instruments.figures import BenchFigure, Sheet, forget_peaks, goal_here, peak_mb, reference_s, script
from checkers.base.checker import Budget
from checkers.base.columns import HISTORY, events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict
from checkers.kafka_log.columns import from_file
from checkers.kafka_log.judge import judge_history
from checkers.kernels.transactions.columns import READ, Transactions
from checkers.sealing.sealed_history import ROWS_PER_GROUP
from checkers.transactions.checker import read_file
from checkers.transactions.judge import judge_columns, judge_transcript
from checkers.transactions.read import Model, Transcript

WARM = 3000
RUNS = 3
"""Number of runs of the worst anomaly; the fastest run is compared with a small kernel."""

GOALS = {
    "list-append": {1_000_000: 0.5, 10_000_000: 6.0},
    "rw-register": {1_000_000: 2.0, 10_000_000: 20.0},
}

AnomalyCase = tuple[str, Callable[[], tuple[Transactions, Model, int]]]


def anomalies(given: argparse.Namespace, sheet: Sheet) -> None:
    for _, case in with_anomalies(WARM, given.model, given.only):
        judge_columns(*case())
    for size in given.sizes:
        judge_anomalies(size, given.model, given.only, sheet)
    if not given.no_reading:
        read(given.sizes[0], given.model, sheet)


def with_anomalies(size: int, model: Model, only: list[str] | None) -> Iterator[AnomalyCase]:
    txns, events = histories.simulate(size, model)
    yield "valid", lambda: (txns, model, events)
    for name, (texts, together, _) in (histories.LISTS if model == "list-append" else histories.REGISTERS).items():
        if only is not None and name not in only:
            continue
        yield name, partial(_spliced, txns, events, model, name)
        if together and not any(text.startswith("!") for text in texts):
            yield f"{name}, strewn", lambda name=name: (histories.strewn(txns, model, name)[0], model, events)  # type: ignore[misc]
    if model == "list-append" and only is None:
        for share in (1000, 100):
            stale = lambda count=size // share: (histories.with_stale_reads(txns, count), model, events)  # noqa: E731
            yield f"{1 / share:.1%} stale", stale


def _spliced(txns: Transactions, events: int, model: Model, name: str) -> tuple[Transactions, Model, int]:
    joined, count = histories.spliced(txns, events, model, name)
    return joined, model, count


def judge_anomalies(size: int, model: Model, only: list[str] | None, sheet: Sheet) -> None:
    worst, peak, slowest = 0.0, 0.0, ""
    for name, case in with_anomalies(size, model, only):
        history = case()
        forget_peaks([os.getpid()])
        seconds, verdict = _timed(history)
        memory = peak_mb([os.getpid()]) / 1e3
        one = "stale" not in name
        peak = max(peak, memory)
        if one and seconds > worst:
            worst, slowest = seconds, name
        became = ", ".join(f"{n} {c}" for n, c in verdict.details.get("anomalies", {}).items()) or verdict.reason
        words = f"{model} {size:>10,} {name:<34} {verdict.validity:<8} {seconds:6.2f} s {memory:5.2f} GB   {became}"
        goal = goal_here(GOALS[model].get(size) if one else None, "s")
        sheet.keep(BenchFigure(f"{model}, {name}", size, "transactions", seconds, "s", goal), words)
    sheet.add(f"{model}, worst anomaly", size, "transactions", worst, "s", GOALS[model].get(size))
    history = dict(with_anomalies(size, model, [slowest.removesuffix(", strewn")]))[slowest]()
    ours, kernel = (min(each) for each in zip(*((_timed(history)[0], reference_s()) for _ in range(RUNS)), strict=True))
    sheet.add(f"{model}, worst anomaly / a small kernel", size, "transactions", ours / kernel, "")
    sheet.add(f"{model}, peak memory with columns", size, "transactions", peak, "GB")


def _timed(history: tuple[Transactions, Model, int]) -> tuple[float, Verdict]:
    gc.collect()
    began = time.process_time()
    verdict = judge_columns(*history)
    return time.process_time() - began, verdict


def read(size: int, model: Model, sheet: Sheet) -> None:
    """Measure reading from `history.parquet` to columns."""
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
        path = Path(folder) / "history.parquet"
        for count in (WARM, size):
            text_bytes = write_history(*histories.simulate(count, model), model, path)
            began = time.process_time()
            transcript = read_file(str(path), model)
            seconds = time.process_time() - began
    assert len(transcript.txns.status) == size
    sheet.add(f"{model}, reading {text_bytes / 1e6:.0f} MB of JSON", size, "transactions", seconds)


def write_history(txns: Transactions, events: int, model: Model, path: Path) -> int:
    """Write a sealed history of these transactions; return its bytes of JSON."""
    payload: list[str] = [""] * events
    write = "append" if model == "list-append" else "w"
    kind, key, value, first = (c.tolist() for c in (txns.kind, txns.key, txns.value, txns.first))
    lists, list_first = txns.lists.tolist(), txns.list_first.tolist()
    for t, (invoked, completed) in enumerate(zip(txns.invoked.tolist(), txns.completed.tolist(), strict=True)):
        rows = range(first[t], first[t + 1])
        called = [["r", key[r], None] if kind[r] == READ else [write, key[r], value[r]] for r in rows]
        seen = [lists[list_first[r] : list_first[r + 1]] if model == "list-append" else value[r] for r in rows]
        done = [["r", a[1], None if s == -1 else s] if a[0] == "r" else a for a, s in zip(called, seen, strict=True)]
        payload[invoked], payload[completed] = json.dumps(called), json.dumps(done)
    process, type_ = np.empty(events, np.int32), np.ones(events, np.int8)
    process[txns.invoked] = process[txns.completed] = txns.process
    type_[txns.invoked] = 0
    index = np.arange(events)
    columns = {"process": process, "type": type_, "payload": payload, "f": "txn", "node": "n1"}
    rows = filled(HISTORY, events, index=index, time_ns=index, **columns)
    pq.write_table(pa.table(rows), path, compression="zstd", row_group_size=ROWS_PER_GROUP)
    return sum(map(len, payload))


# Isolation

ISOLATION_BUDGET = Budget(steps=200_000_000, size_bytes=16_000_000_000)
TIMED, SESSIONS, STAMPED, NOTHING = "real time", "sessions only", "time stamps", "no time, no sessions"


@dataclass(frozen=True, slots=True)
class IsolationCase:
    """A history, its properties, and the level at which it is judged. goal_s: on the machine for which goals were
    set.
    """

    count: int
    size: int
    keys: int
    snapshots: bool
    known: str
    level: str
    read_share: float = 0.5
    goal_s: float | None = None

    @property
    def name(self) -> str:
        database = "snapshots" if self.snapshots else "serial"
        share = "" if self.read_share == 0.5 else f", {self.read_share:.0%} reads"
        return f"{database}, {self.size} operations, {self.keys} keys{share}, {self.known}: {self.level}"

    def transcript(self) -> Transcript:
        history, begin, end = histories.simulate_sessions(
            self.count, self.size, self.keys, read_share=self.read_share, snapshots=self.snapshots
        )
        if self.known == TIMED:
            return history
        if self.known == NOTHING:
            return histories.shuffled(history)
        return histories.by_session(history, (begin, end) if self.known == STAMPED else None)


def isolation_cases(large: bool) -> Iterator[IsolationCase]:
    for keys in (10_000, 1_000, 100):
        yield IsolationCase(10_000, 8, keys, False, TIMED, "strict-serializable", goal_s=0.05)
        yield IsolationCase(10_000, 8, keys, False, SESSIONS, "strong-session-serializable", goal_s=0.25)
        yield IsolationCase(10_000, 8, keys, False, SESSIONS, "serializable", goal_s=0.5)
    for keys in (10_000, 1_000):
        yield IsolationCase(10_000, 8, keys, True, TIMED, "strong-snapshot-isolation", goal_s=0.05)
        yield IsolationCase(10_000, 8, keys, True, STAMPED, "strong-session-snapshot-isolation", goal_s=0.05)
        yield IsolationCase(10_000, 8, keys, True, TIMED, "snapshot-isolation", goal_s=0.05)
        yield IsolationCase(10_000, 8, keys, True, TIMED, "snapshot-isolation", 0.1, goal_s=0.05)
    yield IsolationCase(10_000, 8, 10_000, True, SESSIONS, "strong-session-snapshot-isolation", goal_s=0.5)
    yield IsolationCase(10_000, 8, 10_000, True, SESSIONS, "snapshot-isolation", goal_s=0.5)
    yield IsolationCase(10_000, 8, 1_000, True, SESSIONS, "strong-session-snapshot-isolation")
    yield IsolationCase(10_000, 8, 10_000, True, SESSIONS, "strong-session-snapshot-isolation", 0.1)
    for keys in (10_000, 1_000):
        yield IsolationCase(100_000, 20, keys, False, TIMED, "strict-serializable", goal_s=1.0)
        yield IsolationCase(100_000, 20, keys, False, SESSIONS, "strong-session-serializable", goal_s=5.0)
        yield IsolationCase(100_000, 20, keys, True, TIMED, "strong-snapshot-isolation", goal_s=1.0)
    yield IsolationCase(3_000, 8, 3_000, False, NOTHING, "serializable")
    for level in ("read-committed", "read-atomic", "causal"):
        yield IsolationCase(100_000, 20, 10_000, False, SESSIONS, f"strong-session-{level}", goal_s=1.0)
    if large:
        yield IsolationCase(10_000, 8, 10_000, False, NOTHING, "serializable")
        yield IsolationCase(1_000_000, 8, 100_000, False, TIMED, "strict-serializable", goal_s=8.0)
        yield IsolationCase(1_000_000, 8, 100_000, False, SESSIONS, "strong-session-serializable", goal_s=40.0)
        yield IsolationCase(1_000_000, 8, 100_000, True, TIMED, "strong-snapshot-isolation", goal_s=8.0)
        for level in ("read-committed", "read-atomic", "causal"):
            yield IsolationCase(1_000_000, 20, 100_000, False, SESSIONS, f"strong-session-{level}", goal_s=10.0)


def isolation(given: argparse.Namespace, sheet: Sheet) -> None:
    for known in (TIMED, SESSIONS, STAMPED, NOTHING):
        for level in ("serializable", "snapshot-isolation", "causal", "read-atomic", "read-committed"):
            judge_transcript(IsolationCase(300, 4, 50, False, known, level).transcript(), consistency=level)
    for case in isolation_cases(given.large):
        if given.only and not any(text in case.name for text in given.only):
            continue
        transcript = case.transcript()
        gc.collect()
        began = time.process_time()
        verdict = judge_transcript(transcript, ISOLATION_BUDGET, consistency=case.level)
        seconds = time.process_time() - began
        figures = verdict.details.get("search", {})
        shown = f"{case.count:>9,} x {case.name:<86} {verdict.validity:<8} {seconds:7.2f} s  {figures}"
        goal = goal_here(case.goal_s, "s")
        sheet.keep(BenchFigure(f"isolation, {case.name}", case.count, "transactions", seconds, "s", goal), shown)


# Logs of Kafka

KAFKA_WARM = 2000
CLIENTS, PARTITIONS, POLLED_MAX = 20, 10, 4
KAFKA_BUDGET = Budget(steps=2 * 10**9, size_bytes=10**11)


def kafka(given: argparse.Namespace, sheet: Sheet) -> None:
    measure_kafka(KAFKA_WARM, Sheet(None))
    for size in given.sizes:
        measure_kafka(size, sheet)


def measure_kafka(size: int, sheet: Sheet) -> None:
    for name, lost in (("valid", -1), ("lost-write", size // 2)):
        with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
            path = Path(folder) / "history.parquet"
            table = events_to_table(sends_and_polls(size, lost))
            pq.write_table(table, path, compression="zstd", row_group_size=ROWS_PER_GROUP)
            del table
            began = time.process_time()
            history = from_file(str(path))
            read = time.process_time()
            verdict = judge_history(history, KAFKA_BUDGET)
            judged = time.process_time()
        assert verdict.validity is (Validity.VALID if lost < 0 else Validity.INVALID), verdict
        assert lost < 0 or name in verdict.details["anomalies"]
        sheet.add(f"Kafka's logs, {name}, reading", size, "operations", read - began)
        sheet.add(f"Kafka's logs, {name}, judging", size, "operations", judged - read)


def sends_and_polls(size: int, lost: int) -> list[Event]:
    """Return sends and polls, one operation after another.  No client ever polls the first message that is sent from
    operation `lost` on.
    """
    rng = Random(1)
    logs: list[list[int]] = [[] for _ in range(PARTITIONS)]
    position = [[0] * PARTITIONS for _ in range(CLIENTS)]
    hidden: set[int] = set()
    events: list[Event] = []

    def record(process: int, f: str, invoked: object, answered: object) -> None:
        for type_, payload in ((Type.INVOKE, invoked), (Type.OK, answered)):
            events.append(Event(len(events), 0, process, type_, f, payload=json.dumps(payload)))

    for o in range(size - 1):
        process, partition = rng.randrange(CLIENTS), rng.randrange(PARTITIONS)
        log = logs[partition]
        if rng.random() < 0.5:
            if o >= lost >= 0 and not hidden:
                hidden.add(o)
            record(process, "send", [["send", partition, o]], [["send", partition, [len(log), o]]])
            log.append(o)
        else:
            at = position[process][partition]
            end = min(len(log), at + rng.randint(1, POLLED_MAX))
            position[process][partition] = end
            messages = [[i, log[i]] for i in range(at, end) if log[i] not in hidden]
            record(process, "poll", [["poll"]], [["poll", {str(partition): messages} if messages else {}]])
    everything = {str(k): [[i, v] for i, v in enumerate(log) if v not in hidden] for k, log in enumerate(logs)}
    record(CLIENTS, "poll", [["poll"]], [["poll", everything]])
    return events


if __name__ == "__main__":
    script(
        __doc__,
        {"anomalies": anomalies, "isolation": isolation, "kafka": kafka},
        sizes={"type": int, "nargs": "+", "default": [1_000_000]},
        model={"choices": ["list-append", "rw-register"], "default": "list-append"},
        only={"nargs": "+", "help": "these anomalies, or cases of isolation with one of these texts in their name"},
        no_reading={"action": "store_true", "help": "do not measure reading"},
        large={"action": "store_true", "help": "also the isolation of a million transactions"},
    )
