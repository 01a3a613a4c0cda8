"""Measure single registers beside Porcupine 1.3, in the same run and from the same files: logs of a cas-register.

    python -m bench.porcupine [--json FILE]

CPU time from the file to the verdict, the least of RUNS.  Of the 102 logs of etcd in Porcupine's own tests that hold
operations both must give the same verdict.  Figures that end in "/ Porcupine" are ratios, which differ little between
machines.  Go fetches and builds Porcupine once, into the cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.instruments.figures import NUMPY, Sheet, keep_bytecode, processor_s, script
from checkers.base.cache_folder import cache_folder
from checkers.base.verdict import Validity, Verdict
from krucible import check

VERSION = "v1.3.0"
MAIN = Path(__file__).parent / "instruments" / "porcupine" / "main.go"
RUNS, LIMIT_S = 9, 10
LOGS = 50
CASES = ((1_000, 5, 0, 1.6), (3_000, 10, 0, 11.0), (3_000, 20, 5, None))
"""Operations, clients, clients that crash, milliseconds that are allowed."""


def main(_given: argparse.Namespace, sheet: Sheet) -> None:
    if shutil.which("go") is None:
        print("porcupine: there is no Go to build it with")
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
    """Return the program and the folder of Porcupine's own logs; builds it if the source has changed."""
    folder.mkdir(parents=True, exist_ok=True)

    def go(*words: str) -> str:
        return subprocess.run(["go", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    module = "github.com/anishathalye/porcupine"
    if not (folder / "go.mod").exists():
        go("mod", "init", "peer")
        go("get", f"{module}@{VERSION}")
    shutil.copy(MAIN, folder)
    go("build", "-o", "peer", ".")
    return folder / "peer", Path(go("list", "-m", "-f", "{{.Dir}}", module), "test_data", "jepsen")


def judged_by_porcupine(program: Path, paths: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Return, for each path, its verdict and the milliseconds from the file on."""
    words = [str(program), str(RUNS), str(LIMIT_S), *map(str, paths)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return {one["file"]: one for one in map(json.loads, lines)}


def judge(path: Path) -> Verdict:
    return check(path, "cas-register", failed_cas="observed")


def least_ms(paths: Sequence[Path]) -> float:
    """Return the milliseconds of all files together, each the least of RUNS."""
    total = 0.0
    for path in paths:
        least = float("inf")
        for _ in range(RUNS):
            began = time.process_time()
            judge(path)
            least = min(least, time.process_time() - began)
        total += least
    return 1e3 * total


def register_log(rng: Random, operations: int, clients: int, crashed: int) -> str:
    """Return a log that is linearizable by construction: each operation takes effect between its lines."""
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
                lines.append(_line(names[client], "invoke", *running[client]))
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
                lines.append(_line(names[client], "info", f, ":timed-out"))
                names[client] = max(names) + 1
            else:
                lines.append(_line(names[client], answer, f, value))
    return "".join(lines)


def _line(process: int, type_: str, f: str, value: str) -> str:
    return f"INFO  jepsen.util - {process}\t:{type_}\t:{f}\t{value}\n"


if __name__ == "__main__":
    script(__doc__, main)
