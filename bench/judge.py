"""Measure the time to a verdict: Spark's cold start, sealing, and histories of every size and shape on a warm Spark.

    python -m bench.judge [--rows 10000,100000,1000000,10000000] [--shape "one key"] [--json FILE] [--warm-only]

A shape is the distribution of a history's events over keys: a key per 100 events (100,000 keys for ten million), ten
keys, one key with unique values, one key whose values are 0 to 4.  Each history is sealed once, judged twice on warm
Spark, and judged twice in process; the better of two counts.  A history with one stale read near its end is also judged
on Spark, including its witness.  Memory is the peak of a process while it judged.  Figures are stored as described in
`instruments/figures.py`; report how busy the machine was.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.instruments.big_history import filled
from bench.instruments.figures import Sheet, descendants, forget_peaks, keep_bytecode, least_s, peak_mb, role_of, script
from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.checker import Budget
from checkers.base.columns import HISTORY
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity
from checkers.judging import judge_run
from checkers.kernels.jit import kernel
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import seal
from checkers.spark.session import SparkJudge
from checkers.warm_up import load_kernels

TEN_MILLION = 10_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of histories.

    keys: function from the number of events to the number of keys
    processes: total number of processes
    domain: values are 0 to domain - 1; 0 for unique values
    goal_s: seconds for ten million events on Spark
    """

    name: str
    keys: Callable[[int], int]
    processes: int
    domain: int
    goal_s: float


SHAPES = [
    Shape("a key per 100 events", lambda rows: max(1, rows // 100), 50, 0, 0.6),
    Shape("ten keys", lambda rows: 10, 50, 0, 0.6),
    Shape("one key", lambda rows: 1, 5, 0, 1.0),
    Shape("one key, values 0 to 4", lambda rows: 1, 5, 5, 3.0),
]
NAMES = [shape.name for shape in SHAPES]

BUDGET = Budget(steps=10**10)

COLD = """
import time
began = time.perf_counter()
from pathlib import Path
from checkers.base.stored_run import StoredRun
from checkers.registers.checker import LINEARIZABILITY
from checkers.judging import judge_run
from checkers.spark.session import SparkJudge
spark = SparkJudge()
assert judge_run(StoredRun(Path({folder!r})), [LINEARIZABILITY], spark).judged_by.startswith("Spark")
print(time.perf_counter() - began)
spark.stop()
"""


def main(chosen: argparse.Namespace, sheet: Sheet) -> None:
    keep_bytecode()
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as name:
        if not chosen.warm_only:
            folder = Path(name) / "small"
            write_history(folder, 24_000, 10, 10, 0)
            seal(folder)
            sheet.add("cold start to the first verdict", 24_000, "events", cold(folder))
            sheet.add("the same without the class-data archive", 24_000, "events", cold(folder, archive=False))
        spark = SparkJudge()
        spark.start_in_background()
        load_kernels()
        spark.wait_until_started()
        for shape in SHAPES:
            for rows in map(int, chosen.rows.split(",")):
                if shape.name in (chosen.shape or NAMES):
                    measure(Path(name) / f"{shape.name}-{rows}", shape, rows, spark, sheet)
        spark.stop()


def measure(folder: Path, shape: Shape, rows: int, spark: SparkJudge, sheet: Sheet) -> None:
    """Write, seal and judge one history, then remove it."""
    write_history(folder, rows, shape.keys(rows), shape.processes, shape.domain)
    goal = shape.goal_s if rows == TEN_MILLION else None
    sealing_goal = 4.0 if rows == TEN_MILLION else None
    sheet.add(f"seal, {shape.name}", rows, "events", least_s(lambda: seal(folder)), goal=sealing_goal)
    disk_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    sheet.add(f"on disk, {shape.name}", rows, "events", disk_bytes / 1e6, "MB")
    judged(folder, spark)
    on_spark = least_s(lambda: judged(folder, spark), 2)
    sheet.add(f"linearizability on Spark, {shape.name}", rows, "events", on_spark, goal=goal)
    judged(folder, None)
    in_process = least_s(lambda: judged(folder, None), 2)
    sheet.add(f"linearizability in process, {shape.name}", rows, "events", in_process)
    sheet.add(f"in process / on Spark, {shape.name}", rows, "events", in_process / on_spark, "times")
    forget_peaks(descendants(os.getpid()))
    judged(folder, spark)
    for who, role in (("a worker", "workers"), ("the driver", "driver"), ("the virtual machine", "jvm")):
        pids = [pid for pid in descendants(os.getpid()) if role_of(pid) == role]
        sheet.add(f"peak memory of {who}, {shape.name}", rows, "events", peak_mb(pids), "MB")
    for path in folder.rglob("*.parquet"):
        path.unlink()
    wrong = folder.with_name(f"{folder.name}-wrong")
    write_history(wrong, rows, shape.keys(rows), shape.processes, shape.domain, wrong=True)
    seal(wrong)
    late = least_s(lambda: judged(wrong, spark, Validity.INVALID), 2)
    sheet.add(f"one late stale read on Spark, {shape.name}", rows, "events", late)
    for path in wrong.rglob("*.parquet"):
        path.unlink()


def judged(folder: Path, spark: SparkJudge | None, expected: Validity = Validity.VALID) -> None:
    verdict = judge_run(StoredRun(folder), [LINEARIZABILITY], spark, budget=BUDGET)["linearizability"]
    assert verdict.validity is expected, verdict.reason
    assert len(verdict.witnesses) == (expected is Validity.INVALID)


def cold(folder: Path, archive: bool = True) -> float:
    """Return the seconds from the start of the imports to the first verdict, in a separate process."""
    code = COLD.format(folder=str(folder))
    if not archive:
        code = (
            "from checkers.spark.java import Java\nJava.archive = lambda *_: __import__('pathlib').Path('/none')\n"
            + code
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout)


def write_history(folder: Path, rows: int, keys: int, processes: int, domain: int, wrong: bool = False) -> None:
    """Write an unsealed history of correct registers: half reads, half writes, with several concurrent operations per
    key.

    wrong: True for one stale read in the last twentieth
    """
    folder.mkdir()
    process, type_, f, key, value = _simulate(rows, keys, processes, domain, rows - rows // 20 if wrong else rows, 1)
    names = pa.array([f"k{k}" for k in range(keys)])
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        for start in range(0, rows, 100_000):
            part = slice(start, min(rows, start + 100_000))
            rows_of_part = filled(
                HISTORY,
                part.stop - part.start,
                index=np.arange(part.start, part.stop),
                time_ns=np.arange(part.start, part.stop) * 1000,
                process=process[part],
                type=type_[part],
                f=pa.DictionaryArray.from_arrays(f[part], pa.array(["read", "write"])),
                key=names.take(pa.array(key[part])),
                value=pa.array(value[part], mask=value[part] < 0),
                node="n1",
            )
            stream.write_batch(rows_of_part)


@kernel
def _simulate(
    rows: int, keys: int, processes: int, domain: int, wrong_from: int, seed: int
) -> tuple[Int32, Int8, Int32, Int32, Int64]:
    """Simulate operations that take effect when they complete.  Return process, type, f, key and value (-1 is null) of
    every event.  The first read from row `wrong_from` on that can be stale is stale.

    A stale read returns a value that was certainly overwritten: the last write of this value returned before another
    write was called, which returned before the read was called; and no other write of the value is open.
    """
    np.random.seed(seed)
    process, type_, f = np.empty(rows, np.int32), np.empty(rows, np.int8), np.empty(rows, np.int32)
    key, value = np.empty(rows, np.int32), np.full(rows, -1, np.int64)
    state, fresh = np.full(keys, -1, np.int64), np.zeros(keys, np.int64)
    before, held = np.full(keys, -1, np.int64), np.full(keys, -1, np.int64)
    written, gone = np.full(keys, -1, np.int64), np.full(keys, -1, np.int64)
    last, waiting = np.zeros((keys, domain), np.int64), np.zeros((keys, domain), np.int64)  # row, and open writes
    open_row = np.full(processes, -1, np.int64)
    for row in range(rows):
        p = np.random.randint(processes)
        process[row] = p
        invoked = open_row[p]
        if invoked < 0:
            type_[row], f[row], key[row] = 0, np.random.randint(2), np.random.randint(keys)
            if f[row] == 1:
                value[row] = np.random.randint(domain) if domain else fresh[key[row]]
                fresh[key[row]] += 1
                if domain:
                    waiting[key[row], value[row]] += 1
                    last[key[row], value[row]] = row
            open_row[p] = row
            continue
        k = key[invoked]
        type_[row], f[row], key[row] = 1, f[invoked], k
        if f[row] == 1:
            sure = invoked > written[k] and value[invoked] != state[k]
            before[k], held[k], gone[k] = state[k] if sure else -1, written[k], row
            state[k], written[k] = value[invoked], row
            if domain:
                waiting[k, state[k]] -= 1
                last[k, state[k]] = row
        value[row] = state[k]
        old = before[k]
        again = domain > 0 and old >= 0 and (waiting[k, old] > 0 or last[k, old] > held[k])
        if row >= wrong_from and f[row] == 0 and old >= 0 and gone[k] < invoked and not again:
            value[row], wrong_from = old, rows
        open_row[p] = -1
    return process, type_, f, key, value


if __name__ == "__main__":
    script(
        __doc__,
        main,
        rows={"default": str(TEN_MILLION), "help": "numbers of events, separated by commas"},
        shape={"action": "append", "choices": NAMES, "help": "one shape only; may be repeated"},
        warm_only={"action": "store_true", "help": "leave out the cold start"},
    )
