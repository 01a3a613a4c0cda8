"""How long registers take where values repeat: the recorded etcd histories, big single keys, and a grid of hard ones.

    python -m bench.registers [--operations 5000000] [--grid] [--operations-max 10000] [--limit-s 5] [--json FILE]

Kernels are compiled before anything is measured.  CPU time of this process; of what takes little the smallest and the
median of some runs.  `--json` appends one line per figure: {"figure", "value", "unit"}.  Say how busy the machine was:
the load is printed first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.hard_histories import VIOLATIONS, another_answer, correct_key
from checkers.formats import read_any
from checkers.history import Event
from checkers.kernels import antichain, register
from checkers.kernels.operations import KINDS, NIL, OTHER, Events, Int8, Operations, pair_events
from checkers.kernels.register import Key

SHARED = Path(__file__).parents[2] / "shared" / "data" / "histories"
START = np.array([NIL], np.int64)
STEPS, SIZE_BYTES = 10**11, 2 * 10**9
STEPS_OF_A_CELL = 40_000_000
NAMES = {antichain.LINEARIZABLE: "valid", antichain.NO_ORDER: "invalid"}


@dataclass
class Figures:
    """What was measured, on its way to a file."""

    file: Path | None

    def add(self, figure: str, value: float, unit: str) -> None:
        if self.file is not None:
            with self.file.open("a") as out:
                out.write(json.dumps({"figure": figure, "value": value, "unit": unit}) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--operations", type=int, default=5_000_000)
    options.add_argument("--grid", action="store_true", help="the grid of hard histories (minutes)")
    options.add_argument("--operations-max", type=int, default=10_000, help="of a cell of the grid")
    options.add_argument("--limit-s", type=float, default=5.0, help="what a cell of the grid may take")
    options.add_argument("--json", type=Path, help="a file to append one line per figure to")
    given = options.parse_args()
    figures = Figures(given.json)
    print("load " + " ".join(f"{load:.1f}" for load in os.getloadavg()))
    etcd(figures)
    big_keys(given.operations, figures)
    if given.grid:
        for observed in (False, True):
            grid(given.operations_max, given.limit_s, observed, figures)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    figures.add("registers: peak memory", peak, "GB")
    print(f"peak memory {peak:.2f} GB")


def etcd(figures: Figures) -> None:
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

    right = int((judge() == antichain.LINEARIZABLE).sum())
    smallest, median = timed_often(judge, 500)
    figures.add(f"etcd: {len(files)} histories in one call, smallest of 500 runs", smallest * 1e3, "ms")
    figures.add(f"etcd: {len(files)} histories in one call, median of 500 runs", median * 1e3, "ms")
    print(
        f"etcd: {len(files)} histories, {right} linearizable, "
        f"{smallest * 1e3:.3f} ms in all, median {median * 1e3:.3f} ms (goal 0.5 ms)"
    )


def big_keys(operations: int, figures: Figures) -> None:
    """One key: unique values by zones and by search, then a small domain, valid and with one late violation."""
    for clients in (5, 10):
        size = operations // 10
        key, positions = correct_key(size, clients, 0, 0, 1)
        scratch = register.new_scratch(size, positions)
        zones, _ = timed_often(lambda k=key, p=positions, s=scratch: register.judge_key(k, p, s), 3)  # type: ignore[misc]
        search, _ = timed_often(lambda k=key, p=positions: judged(k, p), 3)  # type: ignore[misc]
        print(
            f"one key, {size} operations, {clients} clients, unique values: "
            f"zones {zones:.3f} s, search {search:.3f} s, "
            f"{search / zones:.1f} times as long"
        )
    for clients, open_ in ((5, 0), (5, 10), (10, 0), (30, 0)):
        size = operations if clients == 5 and not open_ else operations // 10
        correct = correct_key(size, clients, 5, open_, 2)
        wrong = VIOLATIONS["taken twice"](*correct, np.random.default_rng(2))
        for kind, (key, positions) in (("valid", correct), ("one late violation", wrong)):
            cell = judged(key, positions)
            what = f"one key, {size} operations, {clients} clients, values 0-4, {open_} open, {kind}"
            figures.add(what, cell.seconds, "s")
            goal = " (goal 3 s, from Parquet to verdict)" if size == 5_000_000 else ""
            print(f"{what}: {cell.verdict} {cell.seconds:.2f} s, {cell.size_bytes / 1e6:.1f} MB{goal}")


def grid(operations_max: int, limit_s: float, observed: bool, figures: Figures) -> None:
    """Operations x clients x open x what is wrong; five seeds a cell, the worst counts.

    observed: a cas that failed saw another value; else it did not happen.
    """
    reading = "observed" if observed else "did not happen"
    print(f"\nA cas that failed: {reading}")
    print(f"{'ops':>6} {'clients':>7} {'open':>4}  {'history':<18} {'seconds':>9} {'steps':>11} {'MB':>7}")
    ways = {"valid": None, **VIOLATIONS, "another answer": another_answer}
    undecided = 0
    for operations in (size for size in (100, 1000, 10_000) if size <= operations_max):
        for clients in (5, 10, 30, 100):
            for open_ in (0, 5, 10, 30):
                for name, spoil in ways.items():
                    cells = []
                    for seed in range(5):
                        key, positions = correct_key(operations, clients, 5, min(open_, operations // 10), seed, observed)
                        if spoil is not None:
                            key, positions = spoil(key, positions, np.random.default_rng(seed))
                        cells.append(judged(key, positions, STEPS_OF_A_CELL))
                    worst = max(cell.seconds for cell in cells)
                    steps, size = max(cell.steps for cell in cells), max(cell.size_bytes for cell in cells)
                    verdicts = {cell.verdict for cell in cells}
                    late = worst > limit_s or not verdicts <= {"valid", "invalid"}
                    undecided += late
                    if name in VIOLATIONS:
                        assert "valid" not in verdicts, (operations, clients, open_, name)
                    elif name == "valid":
                        assert "invalid" not in verdicts, (operations, clients, open_)
                    what = f"{operations:>6} {clients:>7} {open_:>4}  {name:<18}"
                    figures.add(f"grid, failed cas {reading}: {' '.join(what.split())}", worst, "s")
                    mark = "  <- not decided in time: " + ", ".join(sorted(verdicts)) if late else ""
                    print(f"{what} {worst:9.4f} {steps:>11} {size / 1e6:7.1f}{mark}", flush=True)
    figures.add(f"grid, failed cas {reading}: cells not decided within {limit_s:g} s", undecided, "cells")
    print(f"{undecided} cells not decided within {limit_s:g} s and {SIZE_BYTES / 1e9:g} GB")


@dataclass(frozen=True)
class Cell:
    """What became of one history."""

    verdict: str
    seconds: float
    steps: int
    size_bytes: int


def judged(key: Key, positions: int, steps_max: int = STEPS) -> Cell:
    began = time.process_time()
    code, _, steps, size = antichain.measure_key(key, positions, START, steps_max, SIZE_BYTES)
    return Cell(NAMES.get(int(code), "no verdict"), time.process_time() - began, int(steps), int(size))


def timed_often(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Seconds: the smallest and the median."""
    work()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds), statistics.median(seconds)


def as_one(histories: list[list[Event]]) -> Operations:
    """Histories of one object each, as the keys of one."""
    rows = [(k, e) for k, events in enumerate(histories) for e in events if e.process >= 0]
    highest = max(e.process for _, e in rows) + 1

    def column(values: list[int], dtype: type) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(values, dtype)

    events = Events(
        column([k for k, _ in rows], np.int32),
        column([k * highest + e.process for k, e in rows], np.int32),
        column([e.type for _, e in rows], np.int8),
        column([KINDS.get(e.f, OTHER) for _, e in rows], np.int8),
        column([NIL if e.value is None else e.value for _, e in rows], np.int64),
        column([NIL if e.value2 is None else e.value2 for _, e in rows], np.int64),
        np.zeros(len(rows), np.int8),
    )
    return pair_events(events, len(histories), highest * len(histories))


if __name__ == "__main__":
    main()
