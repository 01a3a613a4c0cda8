"""Measure how long registers take where values repeat: the recorded etcd histories, big single keys, and a grid of hard
ones.

    python -m bench.registers [--operations 5000000] [--grid] [--operations-max 10000] [--limit-s 5] [--json FILE]

Kernels are compiled before anything is measured.  CPU time of this process; for short measurements the smallest and the
median of some runs.  Figures are kept as `instruments/figures.py` describes; state how busy the machine was: the
load is printed last.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from bench.instruments.figures import BenchFigure, Sheet, goal_here, load, taken_s
from bench.simulated.hard_histories import VIOLATIONS, another_answer, correct_key
from checkers.base.arrays import Int8
from checkers.base.history import Event
from checkers.formats.recognise import read_any
from checkers.kernels.operations import KINDS, NIL, OTHER, Events, Operations, pair_events
from checkers.kernels.registers import antichain
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key

SHARED = Path(__file__).parents[2] / "shared" / "data" / "histories"
START = np.array([NIL], np.int64)
STEPS, SIZE_BYTES = 10**11, 2 * 10**9
STEPS_OF_A_CELL = 40_000_000
ETCD, LINEARIZABLE_OF_ETCD = 50, 10
NAMES = {antichain.LINEARIZABLE: "valid", antichain.NO_ORDER: "invalid"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--operations", type=int, default=5_000_000)
    options.add_argument("--grid", action="store_true", help="the grid of hard histories (minutes)")
    options.add_argument("--operations-max", type=int, default=10_000, help="of a cell of the grid")
    options.add_argument("--limit-s", type=float, default=5.0, help="what a cell of the grid may take")
    options.add_argument("--json", type=Path, help="file to add the figures to, as JSON lines")
    given = options.parse_args()
    sheet = Sheet(given.json)
    etcd(sheet)
    big_keys(given.operations, sheet)
    if given.grid:
        for observed in (False, True):
            grid(given.operations_max, given.limit_s, observed, sheet)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    sheet.add("registers, peak memory", given.operations, "operations", peak_mb, "MB", 2000)
    print(f"load {load():.1f}")


def etcd(sheet: Sheet) -> None:
    """The recorded histories, from operations to verdicts in one call."""
    files = sorted((SHARED / "etcd").glob("*.log"))
    if not files:
        print("etcd: the recorded histories are not here (../shared/data)")
        return
    operations = as_one([read_any(path) for path in files])
    chosen = np.arange(len(files), dtype=np.int32)
    shares = np.full(len(files), STEPS, np.int64)

    def judge() -> Int8:
        return antichain.judge_keys(operations, chosen, START, shares, SIZE_BYTES)[0]

    assert (judge() == antichain.LINEARIZABLE).sum() == LINEARIZABLE_OF_ETCD or len(files) != ETCD
    smallest, median = timed_often(judge, 500)
    sheet.add("etcd, all in one call, smallest of 500 runs", len(files), "histories", smallest * 1e3, "ms", 0.5)
    sheet.add("etcd, all in one call, median of 500 runs", len(files), "histories", median * 1e3, "ms", 0.5)


def big_keys(operations: int, sheet: Sheet) -> None:
    """One key: unique values by zones and by search, then a small domain, valid and with one late violation."""
    for clients in (5, 10):
        size = operations // 10
        key, positions = correct_key(size, clients, 0, 0, 1)
        scratch = register.new_scratch(size, positions)
        zones, _ = timed_often(partial(register.judge_key, key, positions, scratch), 3)
        search, _ = timed_often(partial(judged, key, positions), 3)
        what = f"one key, unique values, {clients} clients"
        sheet.add(f"{what}, by zones", size, "operations", zones)
        sheet.add(f"{what}, by search", size, "operations", search)
        sheet.add(f"{what}, search / zones", size, "operations", search / zones, "times")
    for clients, open_ in ((5, 0), (5, 10), (10, 0), (30, 0)):
        size = operations if clients == 5 and not open_ else operations // 10
        correct = correct_key(size, clients, 5, open_, 2)
        wrong = VIOLATIONS["taken twice"](*correct, np.random.default_rng(2))
        for verdict, (key, positions) in (("valid", correct), ("invalid", wrong)):
            cell = judged(key, positions)
            assert cell.verdict == verdict
            what = f"one key, values 0-4, {clients} clients, {open_} open, {verdict}"
            sheet.add(what, size, "operations", cell.seconds, goal=3.0 if size == 5_000_000 else None)
            sheet.add(what, size, "operations", cell.size_bytes / 1e6, "MB", 2000)


def grid(operations_max: int, limit_s: float, observed: bool, sheet: Sheet) -> None:
    """Operations x clients x open x what is wrong; five seeds a cell, the worst counts.

    observed: a cas that failed saw another value; else it did not happen.
    """
    reading = "observed" if observed else "did not happen"
    print(f"\nA cas that failed: {reading}")
    print(f"{'ops':>6} {'clients':>7} {'open':>4}  {'history':<18} {'seconds':>9} {'steps':>11} {'MB':>7}")
    undecided = 0
    sizes = [size for size in (100, 1000, 10_000) if size <= operations_max]
    for operations, clients, open_ in product(sizes, (5, 10, 30, 100), (0, 5, 10, 30)):
        for name, spoil in {"valid": None, **VIOLATIONS, "another answer": another_answer}.items():
            cells = []
            for seed in range(5):
                key, positions = correct_key(operations, clients, 5, min(open_, operations // 10), seed, observed)
                if spoil is not None:
                    key, positions = spoil(key, positions, np.random.default_rng(seed))
                cells.append(judged(key, positions, STEPS_OF_A_CELL))
            worst = max(cell.seconds for cell in cells)
            steps, size = max(cell.steps for cell in cells), max(cell.size_bytes for cell in cells)
            verdicts = {cell.verdict for cell in cells}
            late = worst > limit_s or "no verdict" in verdicts
            undecided += late
            if name != "another answer":
                assert verdicts <= {"valid" if name == "valid" else "invalid", "no verdict"}, (operations, clients)
            line = f"{operations:>6} {clients:>7} {open_:>4}  {name:<18} {worst:9.4f} {steps:>11} {size / 1e6:7.1f}"
            line += "  <- not decided in time: " + ", ".join(sorted(verdicts)) if late else ""
            figure = f"grid, failed cas {reading}, {clients} clients, {open_} open, {name}"
            sheet.keep(BenchFigure(figure, operations, "operations", worst, "s", goal_here(limit_s, "s")), line)
    sheet.add(f"grid, failed cas {reading}, cells not decided", operations_max, "operations", undecided, "", 0)


@dataclass(frozen=True)
class GridCell:
    """Outcome of one history."""

    verdict: str
    seconds: float
    steps: int
    size_bytes: int


def judged(key: Key, positions: int, steps_max: int = STEPS) -> GridCell:
    began = time.process_time()
    code, _, steps, size = antichain.measure_key(key, positions, START, steps_max, SIZE_BYTES)
    return GridCell(NAMES.get(int(code), "no verdict"), time.process_time() - began, int(steps), int(size))


def timed_often(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Seconds: the smallest and the median of so many runs, after one that warms up."""
    _, *seconds = taken_s(work, times + 1)
    return min(seconds), statistics.median(seconds)


def as_one(histories: list[list[Event]]) -> Operations:
    """Histories of one object each, as the keys of one."""
    rows = [(k, e) for k, events in enumerate(histories) for e in events if e.process >= 0]
    highest = max(e.process for _, e in rows) + 1

    events = Events(
        np.array([k for k, _ in rows], np.int32),
        np.array([k * highest + e.process for k, e in rows], np.int32),
        np.array([e.type for _, e in rows], np.int8),
        np.array([KINDS.get(e.f, OTHER) for _, e in rows], np.int8),
        np.array([NIL if e.value is None else e.value for _, e in rows], np.int64),
        np.array([NIL if e.value2 is None else e.value2 for _, e in rows], np.int64),
        np.zeros(len(rows), np.int8),
    )
    return pair_events(events, len(histories), highest * len(histories))


if __name__ == "__main__":
    main()
