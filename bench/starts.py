"""Measure what a command costs in a process of its own: `--help`, and `check` of small files.

    python -m bench.starts [--json FILE]

CPU time of the process, the least of RUNS.  Ratios are to a Python that imports NumPy, measured in turn with them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random

from bench.instruments.figures import NUMPY, Sheet, keep_bytecode, processor_s, script

RUNS = 7
OPERATIONS = 100


def main(_given: argparse.Namespace, sheet: Sheet) -> None:
    keep_bytecode()
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
        valid, wrong, lists = (Path(folder, name) for name in ("valid.edn", "wrong.edn", "lists.edn"))
        valid.write_text(_registers(Random(1), wrong=False))
        wrong.write_text(_registers(Random(1), wrong=True))
        lists.write_text(_lists())
        check = [sys.executable, "-m", "harness", "check", "--model"]
        commands = {
            "Python and NumPy": NUMPY,
            "--help": [sys.executable, "-m", "harness", "--help"],
            "check of a valid register": [*check, "cas-register", str(valid)],
            "check of a wrong register": [*check, "cas-register", str(wrong)],
            "check of list-append": [*check, "list-append", str(lists)],
        }
        least = dict.fromkeys(commands, float("inf"))
        for _ in range(RUNS):
            for name, command in commands.items():
                least[name] = min(least[name], processor_s(command))
    goals = {"--help": 0.1, "check of a valid register": 0.5, "check of list-append": 0.5}
    for name, seconds in least.items():
        sheet.add(f"a new process: {name}", OPERATIONS, "operations", seconds, "s", goals.get(name))
        ratio = seconds / least["Python and NumPy"]
        sheet.add(f"the same / Python and NumPy: {name}", OPERATIONS, "operations", ratio, "")


def _registers(rng: Random, wrong: bool) -> str:
    """One operation after another by turns of five processes; a wrong history ends with an old value."""
    value, lines = 0, []
    for n in range(OPERATIONS):
        f = "read" if rng.random() < 0.5 and n else "write"
        value = value if f == "read" else n
        lines.append(_event(n % 5, "invoke", f, "nil" if f == "read" else str(value)))
        lines.append(_event(n % 5, "ok", f, str(value)))
    if wrong:
        lines += [_event(0, "invoke", "read", "nil"), _event(0, "ok", "read", "0")]
    return "".join(lines)


def _lists() -> str:
    """Each transaction appends to a list and reads it."""
    lines = []
    for n in range(OPERATIONS):
        seen = " ".join(map(str, range(n + 1)))
        lines.append(_event(n % 5, "invoke", "txn", f"[[:append 1 {n}] [:r 1 nil]]"))
        lines.append(_event(n % 5, "ok", "txn", f"[[:append 1 {n}] [:r 1 [{seen}]]]"))
    return "".join(lines)


def _event(process: int, type_: str, f: str, value: str) -> str:
    return f"{{:process {process}, :type :{type_}, :f :{f}, :value {value}}}\n"


if __name__ == "__main__":
    script(__doc__, main)
