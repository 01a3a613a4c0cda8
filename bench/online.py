"""Measure what online checks cost the run they watch: pairs of runs of one seed, with and without, in turn.

    python -m bench.online runs --pairs 3 --time-limit 30 --backend docker       # runs of the bundled KRaft, in pairs
    python -m bench.online keys --seconds 3600 --rate 400                        # the core alone, an hour's history
    python -m bench.online traces results/latest                                 # the rules of traces, on a stored run

`runs`: achieved rate outside faults, latency of ok operations, the longest and the 99th percentile of how late the
harness' own loop was, CPU seconds of online checks and of the whole harness per second of the run.  Which of a pair
comes first alternates, so that a machine that gets slower favours neither.

`keys`: a correct history of registers is fed second by second; CPU and memory of its first and last minutes show
whether the cost grows with the run.

`traces`: the traces of a judged run are fed again, second by second: once to the rules of one node or one offset, once
to `majority-before-mark`.  Both take their CPU in one process, so their ratio holds on a busy machine.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.columns import events_to_table
from checkers.base.history import Event, Type
from checkers.online import OnlineKeys, OnlineMarks, OnlineTraces
from checkers.record.outcome import RunOutcome
from checkers.record.reading import RunRecord


@click.group()
def cli() -> None:
    """Return what online checks cost."""


@cli.command()
@click.option("--pairs", default=3, show_default=True)
@click.option("--time-limit", default=30, show_default=True, help="Seconds of each main phase.")
@click.option("--backend", default="docker", show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first pair.")
@click.option("--rate", default=200, show_default=True)
@click.option("--nemesis", default="partition", show_default=True)
def runs(pairs: int, time_limit: int, backend: str, seed: int, rate: int, nemesis: str) -> None:
    """Pairs of runs of one seed."""
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as name:
        for pair in range(pairs):
            for online in (True, False) if pair % 2 == 0 else (False, True):
                words = ["--nemesis", nemesis, "--backend", backend, "--rate", str(rate), "--seed", str(seed + pair)]
                words += ["--time-limit", str(time_limit), "--results", name, "--online" if online else "--no-online"]
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run(
                    [sys.executable, "-m", "harness", "run", *words], capture_output=True, check=False
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                figures = {"pair": pair, "online": online, "exit": done.returncode, "harness_cpu_s": round(cpu_s, 2)}
                print(json.dumps(figures | _figures((Path(name) / "latest").resolve())), flush=True)


def _figures(folder: Path) -> dict[str, Any]:
    outcome = RunRecord(folder).outcome or RunOutcome()
    main, online, late_ms = outcome.phase("main"), outcome.online, outcome.loop_late_ms
    assert main is not None, folder
    return {
        "achieved_rate_hz": round(outcome.achieved_rate_hz or 0, 1),
        "loop_late_p99_ms": late_ms["p99"],
        "loop_late_most_ms": late_ms["most"],
        **_latency_ms(folder, main.start_ns, main.end_ns),
        "online_cpu_s_per_s": round(online.cpu_s / max(1, online.looks), 4) if online is not None else 0.0,
        "longest_look_s": online.behind_s if online is not None else 0.0,
        "main_s": round((main.end_ns - main.start_ns) / 1e9, 1),
    }


def _latency_ms(folder: Path, begin_ns: int, end_ns: int) -> dict[str, float]:
    """Return the latency of ok operations begun in the main phase."""
    begun: dict[int, int] = {}
    took = []
    for row in pq.read_table(folder / "history.parquet", columns=["time_ns", "process", "type"]).to_pylist():
        if row["type"] == Type.INVOKE:
            begun[row["process"]] = row["time_ns"]
        elif row["type"] == Type.OK and row["process"] >= 0 and begin_ns <= begun[row["process"]] < end_ns:
            took.append((row["time_ns"] - begun[row["process"]]) / 1e6)
    p50, p99 = np.quantile(took, [0.5, 0.99])
    return {"ok": len(took), "ok_p50_ms": round(float(p50), 2), "ok_p99_ms": round(float(p99), 1)}


@cli.command()
@click.option("--seconds", default=3600, show_default=True, help="Of the run that is played.")
@click.option("--rate", default=400, show_default=True, help="Operations per second.")
@click.option("--keys", "key_count", default=10, show_default=True)
@click.option("--crash", default=0.002, show_default=True, help="Share of writes that stay without an answer.")
def keys(seconds: int, rate: int, key_count: int, crash: float) -> None:
    """The core alone."""
    online = OnlineKeys()
    events = _history(Random(1), key_count, crash)
    next(events)
    minute_s = 0.0
    for second in range(1, seconds + 1):
        table = events_to_table(islice(events, 2 * rate))
        began = time.process_time()
        alarms = online.take(table)
        minute_s += time.process_time() - began
        if alarms:
            raise SystemExit(f"a correct history raised an alarm: {alarms}")
        if second % max(60, seconds // 10) == 0 or second == 60:
            per_s = minute_s / (60 if second == 60 else max(60, seconds // 10))
            print(f"second {second}: {1e3 * per_s:.2f} ms of CPU per second of the run, {online.kept} events kept")
            minute_s = 0.0


@cli.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--times", default=20, show_default=True, help="How often the run is fed; the median is shown.")
def traces(run: Path, times: int) -> None:
    """The rules of traces, on a stored run."""
    tables = {path.stem: pq.read_table(path) for path in sorted((run / "tables" / "trace").glob("*.parquet"))}
    ends_s = [int(table["time_ns"].to_numpy()[-1]) // 1_000_000_000 for table in tables.values()]
    looks = [
        {
            node: table.filter(pc.equal(pc.divide(table["time_ns"], 1_000_000_000), second))
            for node, table in tables.items()
        }
        for second in range(max(ends_s) + 1)
    ]
    rules_s, marks_s = [], []
    for _ in range(times):
        rules, marks = OnlineTraces(), OnlineMarks(tuple(tables))
        began = time.process_time()
        for look in looks:
            rules.take([rows for rows in look.values() if len(rows)])
        between = time.process_time()
        for look in looks:
            marks.take(look)
        rules_s.append(between - began)
        marks_s.append(time.process_time() - between)
    per_look_ms = [1e3 * float(np.median(taken)) / len(looks) for taken in (rules_s, marks_s)]
    rows = sum(map(len, tables.values()))
    print(f"{rows} rows of {len(tables)} nodes in {len(looks)} s; {marks.judged} marks judged")
    print(
        f"ms of CPU a second: {per_look_ms[0]:.2f} for the other rules, {per_look_ms[1]:.2f} for majority-before-mark"
    )


def _history(rng: Random, key_count: int, crash: float) -> Iterator[Event]:
    """Ten processes, half of their requests reads; each takes effect at one moment between its two events."""
    state: dict[str, int | None] = {f"k{i}": None for i in range(key_count)}
    fresh = dict.fromkeys(state, 0)
    names = list(state)
    pending: list[list[Any]] = []
    idle, next_process, index = list(range(10)), 10, 0
    while True:
        if idle and (rng.random() < 0.4 or not pending):
            key = rng.choice(names)
            f, value = "read", None
            if rng.random() < 0.5:
                fresh[key] += 1
                f, value = "write", fresh[key]
            process = idle.pop()
            pending.append([process, f, key, value, False])
            yield Event(index, index, process, Type.INVOKE, f, key, value)
            index += 1
            continue
        entry = rng.choice(pending)
        process, f, key, value, effective = entry
        if not effective:
            entry[4] = True
            if f == "write":
                state[key] = value
            else:
                entry[3] = state[key]
            continue
        pending.remove(entry)
        lost = f == "write" and rng.random() < crash
        yield Event(index, index, process, Type.INFO if lost else Type.OK, f, key, value)
        index += 1
        idle.append(next_process if lost else process)
        next_process += lost


if __name__ == "__main__":
    cli()
