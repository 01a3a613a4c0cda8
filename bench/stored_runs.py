"""Figures over stored runs: latency with and without faults, time to a new leader, reads a deposed leader answered.

    python -m bench.stored_runs results/test-partition/*

Reads only what runs left behind.  Times of several nodes are compared, which is sound here because the nodes of one
machine share a clock, and harmless because no verdict depends on it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from checkers.base.history import Type
from checkers.base.results import NO_RESULTS, read_results
from checkers.record.reading import RunRecord


@dataclass
class Figures:
    """Seconds, milliseconds and counts gathered over all runs."""

    calm_ms: dict[str, list[float]] = field(default_factory=dict)
    faulty_ms: dict[str, list[float]] = field(default_factory=dict)
    succession_s: list[float] = field(default_factory=list)
    deposed_reads: list[int] = field(default_factory=list)
    judging_s: list[float] = field(default_factory=list)


def main(folders: Sequence[str]) -> None:
    figures, runs = Figures(), 0
    for folder in map(Path, folders):
        if (folder / "results.json").exists() and (folder / "history.parquet").exists():
            gather(folder, figures)
            runs += 1
    print(f"{runs} runs")
    for name, by_f in (("without faults", figures.calm_ms), ("under faults", figures.faulty_ms)):
        for f, values in sorted(by_f.items()):
            print(f"ok {f} {name}, ms: {_quantiles(values)}")
    print(f"from isolating a leader to the next one leading, s: {_quantiles(figures.succession_s)}")
    print(f"ok reads a deposed leader answered, per isolation: {_quantiles(figures.deposed_reads)}")
    print(f"sealing and judging, s: {_quantiles(figures.judging_s)}")


def gather(folder: Path, figures: Figures) -> None:
    faults = RunRecord(folder).faults
    figures.judging_s.append((read_results(folder) or NO_RESULTS).judging_s or math.nan)
    operations = list(_operations(folder))
    in_force = [(fault.injected_ns, fault.healed_ns) for fault in faults if fault.carried_out]
    for operation in operations:
        if operation["type"] == Type.OK:
            faulty = any(begin <= operation["began_ns"] < end for begin, end in in_force)
            by_f = figures.faulty_ms if faulty else figures.calm_ms
            by_f.setdefault(operation["f"], []).append((operation["time_ns"] - operation["began_ns"]) / 1e6)
    elections = sorted(_elections(folder))
    for fault in faults:
        if fault.leader is None or not fault.carried_out:
            continue
        later = [t for t, epoch, _ in elections if epoch > fault.epoch and fault.injected_ns < t]
        if not later or later[0] > fault.heal_ordered_ns:
            continue
        figures.succession_s.append((later[0] - fault.injected_ns) / 1e9)
        figures.deposed_reads.append(
            sum(
                operation["f"] == "read"
                and operation["type"] == Type.OK
                and operation["node"] == fault.leader
                and later[0] < operation["time_ns"] < fault.heal_ordered_ns
                for operation in operations
            )
        )


def _operations(folder: Path) -> Iterator[dict[str, Any]]:
    """Completions of client operations, each with `began_ns`, the time of its invoke."""
    columns = ["time_ns", "process", "type", "f", "node"]
    begun: dict[int, int] = {}
    for row in pq.read_table(folder / "history.parquet", columns=columns).to_pylist():
        if row["process"] < 0:
            continue
        if row["type"] == Type.INVOKE:
            begun[row["process"]] = row["time_ns"]
        else:
            yield row | {"began_ns": begun[row["process"]]}


def _elections(folder: Path) -> Iterator[tuple[int, int, str]]:
    """(time_ns, epoch, node) of every time a node became leader."""
    for path in (folder / "tables" / "trace").glob("*.parquet"):
        for row in pq.read_table(path, columns=["time_ns", "event", "epoch", "role", "node"]).to_pylist():
            if row["event"] == "role" and row["role"] == "leader":
                yield row["time_ns"], row["epoch"], row["node"]


def _quantiles(values: Sequence[float]) -> str:
    if not values:
        return "none"
    low, median, high, most = np.quantile(values, [0.0, 0.5, 0.95, 1.0])
    return f"n={len(values)} min {low:.3g} median {median:.3g} p95 {high:.3g} max {most:.3g}"


if __name__ == "__main__":
    main(sys.argv[1:])
