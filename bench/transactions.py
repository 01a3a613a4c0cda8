"""Measure how long transactional verdicts take: valid histories, and the same with one anomaly of each name.

    python -m bench.transactions [--sizes 1000000 10000000] [--model list-append] [--only G1c ...] [--json FILE]

What is measured: from columns in memory to the verdict with its witnesses, CPU time of one core, and the memory that
takes at most, columns included.  Anomalies lie in the middle (`spliced`), and those that can are also spread over the
whole history (`strewn`), so that nearly all of it is on a cycle; lists also with many stale reads.  Reading is measured
apart: a `history.parquet` of the first size, from file to columns.  Compiled before the first figure; the load is
printed last.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.instruments.figures import BenchFigure, Sheet, forget_peaks, goal_here, peak_mb, reference_s, script
from bench.simulated.big_logs import filled
from bench.simulated.transaction_histories import LISTS, REGISTERS, simulate, spliced, strewn, with_stale_reads
from checkers.base.columns import HISTORY
from checkers.base.verdict import Verdict
from checkers.kernels.transactions.columns import READ, Transactions
from checkers.sealing.history_rows import ROWS_PER_GROUP
from checkers.transactions.checker import read_file
from checkers.transactions.judge import judge_columns
from checkers.transactions.read import Model

WARM = 3000
RUNS = 3
"""Runs of the worst anomaly, of which the least is compared with a small kernel."""

GOALS = {
    "list-append": {1_000_000: 0.5, 10_000_000: 6.0},
    "rw-register": {1_000_000: 2.0, 10_000_000: 20.0},
}

Case = tuple[str, Callable[[], tuple[Transactions, Model, int]]]


def main(given: argparse.Namespace, sheet: Sheet) -> None:
    for _, case in cases(WARM, given.model, given.only):
        judge_columns(*case())
    for size in given.sizes:
        judge(size, given.model, given.only, sheet)
    if not given.no_reading:
        read(given.sizes[0], given.model, sheet)


def cases(size: int, model: Model, only: list[str] | None) -> Iterator[Case]:
    txns, events = simulate(size, model)
    yield "valid", lambda: (txns, model, events)
    for name, (texts, together, _) in (LISTS if model == "list-append" else REGISTERS).items():
        if only is not None and name not in only:
            continue
        yield name, partial(_spliced, txns, events, model, name)
        if together and not any(text.startswith("!") for text in texts):
            yield f"{name}, strewn", lambda name=name: (strewn(txns, model, name)[0], model, events)  # type: ignore[misc]
    if model == "list-append" and only is None:
        for share in (1000, 100):
            stale = lambda count=size // share: (with_stale_reads(txns, count), model, events)  # noqa: E731
            yield f"{1 / share:.1%} stale", stale


def _spliced(txns: Transactions, events: int, model: Model, name: str) -> tuple[Transactions, Model, int]:
    joined, count = spliced(txns, events, model, name)
    return joined, model, count


def judge(size: int, model: Model, only: list[str] | None, sheet: Sheet) -> None:
    worst, peak, slowest = 0.0, 0.0, ""
    for name, case in cases(size, model, only):
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
    history = dict(cases(size, model, [slowest.removesuffix(", strewn")]))[slowest]()
    ours, kernel = (min(each) for each in zip(*((_timed(history)[0], reference_s()) for _ in range(RUNS)), strict=True))
    sheet.add(f"{model}, worst anomaly / a small kernel", size, "transactions", ours / kernel, "")
    sheet.add(f"{model}, peak memory with columns", size, "transactions", peak, "GB")


def _timed(history: tuple[Transactions, Model, int]) -> tuple[float, Verdict]:
    gc.collect()
    began = time.process_time()
    verdict = judge_columns(*history)
    return time.process_time() - began, verdict


def read(size: int, model: Model, sheet: Sheet) -> None:
    """From `history.parquet` to columns."""
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
        path = Path(folder) / "history.parquet"
        for count in (WARM, size):
            text_bytes = write_history(*simulate(count, model), model, path)
            began = time.process_time()
            transcript = read_file(str(path), model)
            seconds = time.process_time() - began
    assert len(transcript.txns.status) == size
    sheet.add(f"{model}, reading {text_bytes / 1e6:.0f} MB of JSON", size, "transactions", seconds)


def write_history(txns: Transactions, events: int, model: Model, path: Path) -> int:
    """A sealed history of these transactions; how many bytes of JSON it holds."""
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


if __name__ == "__main__":
    script(
        __doc__,
        main,
        sizes={"type": int, "nargs": "+", "default": [1_000_000]},
        model={"choices": ["list-append", "rw-register"], "default": "list-append"},
        only={"nargs": "+", "help": "these anomalies, and no others"},
        no_reading={"action": "store_true", "help": "do not measure reading"},
    )
