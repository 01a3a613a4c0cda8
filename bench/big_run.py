"""Judges whole runs of up to a hundred million events, and measures the memory of all processes at work.

    python -m bench.big_run [--events 1000000,10000000] [--folder DIR] [--clean-only] [--json FILE]

A run (`simulated/big_history.py`) holds the logs and traces of five servers as nodes leave them.  `krucible analyze`
seals it, reads logs and traces, judges by every checker of the bundled KRaft on Spark, and writes the report.  Its
memory is that of the process, of the virtual machine and of Spark's workers together (`instruments/figures.py`).  Each
size is measured twice.  A clean run must be valid.  The other run has a stale read and a lost write near its end:
linearizability and answers-from-commits must find the read, history-against-log the write, and no other checker may
find any violation.  A run of a hundred million events needs 16 GB of disk, which are free again afterwards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.instruments.figures import NUMPY, ProcessWatch, Sheet, keep_bytecode, processor_s
from bench.simulated.big_history import write_run
from checkers.base.results import NO_RESULTS, read_results
from checkers.base.verdict import Validity

MEMORY_GOAL_MB = 6_000
VIOLATED = {"linearizability", "history-against-log", "answers-from-commits"}
"""Names of the two planted violations."""

UNDECIDED = {"log-order"}
"""Checkers that the violations make unknown: logs that lack an acknowledged write decide nothing."""

WRITE, ANALYZE = "write", "analyze"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="1000000", help="numbers of events, with commas between them")
    parser.add_argument("--folder", type=Path, help="where there is room for the runs")
    parser.add_argument("--clean-only", action="store_true", help="leave out the runs with violations")
    parser.add_argument("--json", type=Path, help="file to add the figures to, as JSON lines")
    parser.add_argument("--step", choices=(WRITE, ANALYZE), help=argparse.SUPPRESS)
    parser.add_argument("--wrong", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step:
        if chosen.step == ANALYZE:
            os.execv(sys.executable, [sys.executable, "-m", "harness", "analyze", str(chosen.folder)])
        write_run(chosen.folder, int(chosen.events), chosen.wrong)
        return
    sheet = Sheet(chosen.json)
    keep_bytecode()
    for events in map(int, chosen.events.split(",")):
        for wrong in (False,) if chosen.clean_only else (False, True):
            with tempfile.TemporaryDirectory(prefix="krucible-big-", dir=chosen.folder) as name:
                measure(Path(name) / "run", events, wrong, sheet)


def measure(folder: Path, events: int, wrong: bool, sheet: Sheet) -> None:
    """Write and judge one run."""
    what = "two violations" if wrong else "clean"
    run_step(WRITE, folder, events, wrong)
    for name in ("nodes", "trace"):
        held_mb = sum(p.stat().st_size for p in (folder / name).rglob("*") if p.is_file()) / 1e6
        sheet.add(f"size of {name}/, {what}", events, "events", held_mb, "MB")
    seconds, watch = run_step(ANALYZE, folder, events, wrong)
    sheet.add(f"analyze, whole run, {what}", events, "events", seconds)
    sheet.add(f"analyze, whole run, {what}: processor time", events, "events", watch.cpu_s)
    numpy = min(processor_s(NUMPY) for _ in range(3))
    sheet.add(f"analyze, whole run, {what} / Python and NumPy", events, "events", watch.cpu_s / numpy, "")
    sheet.add(f"analyze, whole run, {what}: all processes", events, "events", watch.peak_mb, "MB", MEMORY_GOAL_MB)
    for role, cpu_s in sorted(watch.cpu_by_role_s.items()):
        sheet.add(f"analyze, whole run, {what}: processor time, {role}", events, "events", cpu_s)
    for role, held_mb in sorted(watch.peak_by_role_mb.items()):
        sheet.add(f"analyze, whole run, {what}: {role}", events, "events", held_mb, "MB")
    results = read_results(folder) or NO_RESULTS
    for name, checker in results.checkers.items():
        sheet.add(f"{name}, whole run, {what}", events, "events", checker.seconds)
    found = set(results.invalid)
    other = {name: c.reason for name, c in results.checkers.items() if c.verdict is Validity.UNKNOWN}
    assert found == (VIOLATED if wrong else set()), found
    assert other.keys() == (UNDECIDED if wrong else set()), other
    for name in sorted(found):
        print(f"    {name}: {results.invalid[name].witness[0].summary}", flush=True)


def run_step(step: str, folder: Path, events: int, wrong: bool) -> tuple[float, ProcessWatch]:
    """Run one step in a separate process; return its seconds, and the memory of it and its children."""
    command = [sys.executable, "-m", "bench.big_run", "--step", step, "--folder", str(folder), "--events", str(events)]
    began = time.perf_counter()
    with subprocess.Popen([*command, *(["--wrong"] if wrong else [])]) as process, ProcessWatch(process.pid) as watch:
        status = process.wait()
    assert status == (1 if wrong and step == ANALYZE else 0), f"{step} ended with status {status}"
    return time.perf_counter() - began, watch


if __name__ == "__main__":
    main()
