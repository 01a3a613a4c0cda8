"""Seals and judges complete runs of up to a hundred million events, and measures the memory of all processes involved.

    python -m bench.big_run [--events 1000000,10000000] [--folder DIR] [--clean-only] [--as-user] [--json FILE]

A run (`instruments/big_history.py`) is sealed and then judged by every checker that applies to a quorum of five with
registers, on Spark.  Each step is a separate process.  Its memory is the sum of the process, the virtual machine and
Spark's workers (`instruments/figures.py`).  Each size is measured twice, without and with violations.  The run without
violations must be valid.  The other run has a stale read and a lost write near its end: linearizability and
history-against-log must find one violation each, answers-from-commits must also find the stale read if it has the
traces of nodes, and no other checker may find a violation.  A run of a hundred million events needs 16 GB of disk,
which are free again afterwards.

--as-user: the nodes' logs and traces are files as nodes leave them, and one step does everything: `krucible analyze`,
which seals, reads logs and traces, judges by every checker, and writes the report.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.instruments.figures import NUMPY, ProcessWatch, Sheet, keep_bytecode, processor_s, script
from checkers.base.checker import Need
from checkers.base.results import NO_RESULTS, read_results, write_results
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity
from checkers.sealing.seal import seal

MEMORY_GOAL_MB = 6_000
VIOLATED = {"linearizability", "history-against-log"}
"""Names of the checkers that must find the two planted violations."""

VIOLATED_IN_TRACES = {"answers-from-commits"}
"""Names of the checkers that must also find the stale read, if traces of nodes show what was committed when it was
answered.
"""

UNDECIDED = {"log-order"}
"""Checkers that the violations make unknown, because logs that lack an acknowledged write prove nothing to them."""

_DEMANDS = "demands.pickle"


def main(chosen: argparse.Namespace, sheet: Sheet) -> None:
    if chosen.step:
        STEPS[chosen.step](chosen.folder, int(chosen.events), chosen.wrong)
        return
    keep_bytecode()
    for events in map(int, chosen.events.split(",")):
        for wrong in (False,) if chosen.clean_only else (False, True):
            with tempfile.TemporaryDirectory(prefix="krucible-big-", dir=chosen.folder) as name:
                measure(Path(name) / "run", events, wrong, sheet, chosen.as_user)


def measure(folder: Path, events: int, wrong: bool, sheet: Sheet, as_user: bool = False) -> None:
    """Write, seal and judge one run."""
    what = "two violations" if wrong else "clean"
    run_step("write", folder, events, wrong)
    if as_user:
        for name in ("nodes", "trace"):
            held_mb = sum(p.stat().st_size for p in (folder / name).rglob("*") if p.is_file()) / 1e6
            sheet.add(f"size of {name}/, {what}", events, "events", held_mb, "MB")
    for step in ("analyze",) if as_user else ("seal", "judge"):
        seconds, watch = run_step(step, folder, events, wrong)
        sheet.add(f"{step}, whole run, {what}", events, "events", seconds)
        sheet.add(f"{step}, whole run, {what}: processor time", events, "events", watch.cpu_s)
        numpy = min(processor_s(NUMPY) for _ in range(3))
        sheet.add(f"{step}, whole run, {what} / Python and NumPy", events, "events", watch.cpu_s / numpy, "")
        sheet.add(f"{step}, whole run, {what}: all processes", events, "events", watch.peak_mb, "MB", MEMORY_GOAL_MB)
        for role, cpu_s in sorted(watch.cpu_by_role_s.items()):
            sheet.add(f"{step}, whole run, {what}: processor time, {role}", events, "events", cpu_s)
        for role, held_mb in sorted(watch.peak_by_role_mb.items()):
            sheet.add(f"{step}, whole run, {what}: {role}", events, "events", held_mb, "MB")
    results = read_results(folder) or NO_RESULTS
    for name, checker in results.checkers.items():
        sheet.add(f"{name}, whole run, {what}{', as a user' if as_user else ''}", events, "events", checker.seconds)
    found = set(results.invalid)
    other = {name: c.reason for name, c in results.checkers.items() if c.verdict is Validity.UNKNOWN}
    violated = VIOLATED | (VIOLATED_IN_TRACES if as_user else set())
    assert found == (violated if wrong else set()), found
    assert other.keys() == (UNDECIDED if wrong else set()), other
    for name in sorted(found):
        print(f"    {name}: {results.invalid[name].witness[0].summary}", flush=True)


def run_step(step: str, folder: Path, events: int, wrong: bool) -> tuple[float, ProcessWatch]:
    """Run one step in a separate process; return its seconds, and the memory of the process and its descendants."""
    command = [sys.executable, "-m", "bench.big_run", "--step", step, "--folder", str(folder), "--events", str(events)]
    began = time.perf_counter()
    with subprocess.Popen([*command, *(["--wrong"] if wrong else [])]) as process, ProcessWatch(process.pid) as watch:
        status = process.wait()
    assert status == (1 if wrong and step == "analyze" else 0), f"{step} ended with status {status}"
    return time.perf_counter() - began, watch


# Each step imports only what it needs: writing imports the harness and Kafka's schemas, which sealing never loads.


def _write(folder: Path, events: int, wrong: bool) -> None:
    from bench.instruments.big_history import write_run, write_tables

    (folder.parent / _DEMANDS).write_bytes(pickle.dumps(write_run(folder, events, wrong)))
    write_tables(folder)


def _seal(folder: Path, events: int, wrong: bool) -> None:
    seal(folder)


def _judge(folder: Path, events: int, wrong: bool) -> None:
    from checkers.catalog import select
    from checkers.judging import judge_run, results_of
    from checkers.spark.session import SparkJudge

    demands: Demands = pickle.loads((folder.parent / _DEMANDS).read_bytes())
    has: set[Need] = {"history", "logs", "traces", "nodes", "unique-values", "client-records"}
    spark = SparkJudge()
    verdicts = judge_run(StoredRun(folder, demands), select(has, ("linearizability",)), spark)
    assert verdicts.judged_by.startswith("Spark"), verdicts.judged_by
    write_results(folder, results_of(verdicts))
    spark.stop()


def _analyze(folder: Path, events: int, wrong: bool) -> None:
    os.execv(sys.executable, [sys.executable, "-m", "harness", "analyze", str(folder)])


STEPS = {"write": _write, "seal": _seal, "judge": _judge, "analyze": _analyze}


if __name__ == "__main__":
    script(
        __doc__,
        main,
        events={"default": "1000000", "help": "numbers of events, separated by commas"},
        folder={"type": Path, "help": "folder for the runs, on a disk with enough space"},
        clean_only={"action": "store_true", "help": "leave out the runs with violations"},
        as_user={"action": "store_true", "help": "raw logs and traces, judged by `analyze`"},
        step={"choices": STEPS, "help": argparse.SUPPRESS},
        wrong={"action": "store_true", "help": argparse.SUPPRESS},
    )
