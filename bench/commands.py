"""Measure what commands and small files cost a user: new processes, files beside Porcupine, and the lake.

    python -m bench.commands starts [--json FILE]
    python -m bench.commands porcupine [--json FILE]
    python -m bench.commands lake [--runs 10000] [--days 70]

CPU time, the minimum of several runs.  Figures that end in "/ …" are ratios to a peer, or to a Python that imports
NumPy.  Both are measured alternately, so these ratios differ little between machines.

*Starts.*  `--help`, and `check` of small files, each in a process of its own.

*Porcupine.*  Single registers, compared with Porcupine 1.3 in the same run and on the same files, which are logs of a
cas-register; from the file to the verdict.  On the 102 logs of etcd in Porcupine's own tests that contain operations,
both must give the same verdict.  Go fetches and builds Porcupine once, into the cache.

*Lake.*  Small listings without a JVM, and every ready question on DuckDB and on Spark, over synthetic runs.  Listings
are timed in separate processes, because users wait for them.  On Spark, questions are timed in one warm session, and
the start of the session is timed separately.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from facts_of_runs import many

from bench.instruments.figures import NUMPY, Sheet, keep_bytecode, least_s, processor_s, script, taken_s
from checkers.base.cache_folder import cache_folder
from checkers.base.verdict import Validity, Verdict
from checkers.spark.session import SparkJudge
from harness.lake.lake import Lake
from harness.lake.sql import QUESTIONS, ask
from harness.lake.tables import DATE, RUNS, SYSTEM, TABLES
from krucible import check

ROOT = Path(__file__).parents[1]
PROCESSES, OPERATIONS = 7, 100
"""Number of starts of each process, and number of operations of a small file."""


def starts(_given: argparse.Namespace, sheet: Sheet) -> None:
    keep_bytecode()
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
        valid, wrong, lists = (Path(folder, name) for name in ("valid.edn", "wrong.edn", "lists.edn"))
        small = register_log(Random(1), OPERATIONS, 5, 0, _event)
        valid.write_text(small)
        wrong.write_text(small + _event(0, "invoke", "read", "nil") + _event(0, "ok", "read", "999"))
        lists.write_text(_lists())
        judging = [sys.executable, "-m", "harness", "check", "--model"]
        commands = {
            "Python and NumPy": NUMPY,
            "--help": [sys.executable, "-m", "harness", "--help"],
            "check of a valid register": [*judging, "cas-register", str(valid)],
            "check of a wrong register": [*judging, "cas-register", str(wrong)],
            "check of list-append": [*judging, "list-append", str(lists)],
        }
        least = dict.fromkeys(commands, float("inf"))
        for _ in range(PROCESSES):
            for name, command in commands.items():
                least[name] = min(least[name], processor_s(command))
    goals = {"--help": 0.1, "check of a valid register": 0.5, "check of list-append": 0.5}
    for name, seconds in least.items():
        sheet.add(f"a new process: {name}", OPERATIONS, "operations", seconds, "s", goals.get(name))
        ratio = seconds / least["Python and NumPy"]
        sheet.add(f"the same / Python and NumPy: {name}", OPERATIONS, "operations", ratio, "")


def _lists() -> str:
    """Return a history in which each transaction appends to a list and reads it."""
    lines = []
    for n in range(OPERATIONS):
        seen = " ".join(map(str, range(n + 1)))
        lines.append(_event(n % 5, "invoke", "txn", f"[[:append 1 {n}] [:r 1 nil]]"))
        lines.append(_event(n % 5, "ok", "txn", f"[[:append 1 {n}] [:r 1 [{seen}]]]"))
    return "".join(lines)


def _event(process: int, type_: str, f: str, value: str) -> str:
    return f"{{:process {process}, :type :{type_}, :f :{f}, :value {value}}}\n"


# Beside Porcupine

VERSION = "v1.3.0"
PEER = Path(__file__).parent / "instruments" / "porcupine" / "main.go"
JUDGED, LIMIT_S = 9, 10
LOGS = 50
CASES = ((1_000, 5, 0, 1.6), (3_000, 10, 0, 11.0), (3_000, 20, 5, None))
"""(operations, clients, clients that crash, maximum milliseconds or None)."""


def porcupine(_given: argparse.Namespace, sheet: Sheet) -> None:
    if shutil.which("go") is None:
        print("porcupine: Go is not installed, so Porcupine cannot be built")
        return
    program, logs = built(cache_folder() / f"porcupine-{VERSION}")
    etcd = [path for path in sorted(logs.glob("etcd_*.log")) if ":invoke" in path.read_text()]
    theirs = judged_by_porcupine(program, etcd)
    for path in etcd:
        ours = judge(path).validity
        assert ours is (Validity.VALID if theirs[str(path)]["verdict"] == "Ok" else Validity.INVALID), path
    some = etcd[:LOGS]
    ms = least_ms(some)
    both = sum(theirs[str(path)]["ms"] for path in some)
    sheet.add("etcd, files to verdicts and witnesses", LOGS, "histories", ms, "ms", 200)
    sheet.add("etcd, files to verdicts, Porcupine", LOGS, "histories", both, "ms")
    sheet.add("etcd, files to verdicts / Porcupine", LOGS, "histories", ms / both, "")
    keep_bytecode()
    check_all = [sys.executable, "-m", "harness", "check", "--model", "cas-register", *map(str, some)]
    whole, numpy = (
        min(each) for each in zip(*((processor_s(check_all), processor_s(NUMPY)) for _ in range(5)), strict=True)
    )
    sheet.add("etcd, one command", LOGS, "histories", whole, "s", 1.0)
    sheet.add("etcd, one command / Python and NumPy", LOGS, "histories", whole / numpy, "")
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
        for operations, clients, crashed, goal in CASES:
            path = Path(folder, f"{operations}-{clients}-{crashed}.log")
            path.write_text(register_log(Random(1), operations, clients, crashed))
            (theirs_here,) = judged_by_porcupine(program, [path]).values()
            ms = least_ms([path])
            assert judge(path).validity is Validity.VALID
            what = f"a register in a file, {clients} clients, {crashed} crashed"
            sheet.add(what, operations, "operations", ms, "ms", goal)
            sheet.add(
                f"{what}, Porcupine ({theirs_here['verdict']})", operations, "operations", theirs_here["ms"], "ms"
            )
            sheet.add(f"{what} / Porcupine", operations, "operations", ms / theirs_here["ms"], "")


def built(folder: Path) -> tuple[Path, Path]:
    """Build Porcupine if its source has changed; return the program and the folder of Porcupine's own logs."""
    folder.mkdir(parents=True, exist_ok=True)

    def go(*words: str) -> str:
        return subprocess.run(["go", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    module = "github.com/anishathalye/porcupine"
    if not (folder / "go.mod").exists():
        go("mod", "init", "peer")
        go("get", f"{module}@{VERSION}")
    shutil.copy(PEER, folder)
    go("build", "-o", "peer", ".")
    return folder / "peer", Path(go("list", "-m", "-f", "{{.Dir}}", module), "test_data", "jepsen")


def judged_by_porcupine(program: Path, paths: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Return, for each path, the verdict and the milliseconds from reading the file to the verdict."""
    words = [str(program), str(JUDGED), str(LIMIT_S), *map(str, paths)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return {one["file"]: one for one in map(json.loads, lines)}


def judge(path: Path) -> Verdict:
    return check(path, "cas-register", failed_cas="observed")


def least_ms(paths: Sequence[Path]) -> float:
    """Return the total milliseconds of all files, with the minimum of JUDGED runs for each file."""
    total = 0.0
    for path in paths:
        least = float("inf")
        for _ in range(JUDGED):
            began = time.process_time()
            judge(path)
            least = min(least, time.process_time() - began)
        total += least
    return 1e3 * total


def _line(process: int, type_: str, f: str, value: str) -> str:
    return f"INFO  jepsen.util - {process}\t:{type_}\t:{f}\t{value}\n"


def register_log(
    rng: Random, operations: int, clients: int, crashed: int, line: Callable[[int, str, str, str], str] = _line
) -> str:
    """Return a log that is linearizable by construction: each operation takes effect between its two lines."""
    crashes = set(rng.sample(range(operations // 10, operations), crashed))
    names, lines = list(range(clients)), list[str]()
    running = dict[int, tuple[str, str]]()
    answers = dict[int, str]()
    holds, begun, done = "nil", 0, 0
    while done < operations:
        client = rng.randrange(clients)
        if client not in running:
            if begun < operations:
                f, a, b = rng.choice(("read", "write", "cas")), rng.randrange(5), rng.randrange(5)
                running[client] = f, {"read": "nil", "write": str(a), "cas": f"[{a} {b}]"}[f]
                lines.append(line(names[client], "invoke", *running[client]))
                begun += 1
        elif client not in answers:
            f, value = running[client]
            expected, _, new = value.strip("[]").partition(" ")
            answers[client] = "fail" if f == "cas" and expected != holds else "ok"
            if f == "read":
                running[client] = f, holds
            elif answers[client] == "ok":
                holds = new or value
        else:
            (f, value), answer = running.pop(client), answers.pop(client)
            done += 1
            if done in crashes:
                lines.append(line(names[client], "info", f, ":timed-out"))
                names[client] = max(names) + 1
            else:
                lines.append(line(names[client], answer, f, value))
    return "".join(lines)


# The lake

TIMES = 5


def fill(lake: Lake, runs: int, days: int) -> None:
    """Fill a lake as after a merge: with one file for each table, day and system."""
    cells: dict[tuple[str, str, str], list[pa.Table]] = defaultdict(list)
    for facts in many(runs, days):
        for name, rows in facts.rows.items():
            cells[name, facts.date, facts.system].append(rows)
    for (name, date, system), tables in cells.items():
        partition = lake.folder / name / f"{DATE}={date}" / f"{SYSTEM}={system}"
        partition.mkdir(parents=True)
        pq.write_table(pa.concat_tables(tables).cast(TABLES[name]), partition / "merged.parquet", compression="zstd")
    (lake.folder / "_lock").touch()


def command_s(folder: Path, *words: str) -> float:
    command = [sys.executable, "-m", "harness", *words, "--lake", str(folder)]
    return least_s(lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True), TIMES)


def lake(given: argparse.Namespace, _sheet: Sheet) -> None:
    with tempfile.TemporaryDirectory(prefix="krucible-bench-lake-") as scratch:
        held = Lake(Path(scratch) / "lake")
        fill(held, given.runs, given.days)
        size = sum(path.stat().st_size for path in held.folder.rglob("*.parquet")) / 1e6
        print(f"{given.runs} runs over {given.days} days: {len(held.files(RUNS))} files a table, {size:.0f} MB")
        names = held.read(RUNS, ["run"])["run"].to_pylist()
        listings = ("runs",), ("runs", "--verdict", "invalid"), ("compare", names[0], names[-1])
        for words in (*listings, *(("query", name) for name in QUESTIONS)):
            print(f"krucible {' '.join(words):<21.21} {command_s(held.folder, *words):6.2f} s")
        spark = SparkJudge()
        try:
            print(f"start of Spark                 {least_s(spark.wait_until_started):6.2f} s")
            for name, question in QUESTIONS.items():
                first, *again = taken_s(partial(ask, held, question.sql, spark), 3)
                print(f"on Spark {name:<21} {first:6.2f} s, again {min(again):.2f} s")
        finally:
            spark.stop()


if __name__ == "__main__":
    script(
        __doc__,
        {"starts": starts, "porcupine": porcupine, "lake": lake},
        runs={"type": int, "default": 10_000, "help": "in the lake"},
        days={"type": int, "default": 70, "help": "of the lake"},
    )
