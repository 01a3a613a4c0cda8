"""All measurements, one after another: `make bench`, or `make bench FULL=1` for the sizes that goals are set for.

    python -m bench.everything [--full] [--only SCRIPT …] [--into results/bench] [--keep]

Figures go into one file of JSON lines, `figures.jsonl`, and what cost against size shows into `cost.png`.  Without
--full it takes two minutes on two cores and goes up to a million; with it a quarter of an hour and 24 GB of memory.

A figure is a measurement of the machine as it is.  Goals and the figures of the last time, which are kept in the tree
(`bench/last_figures.jsonl`), are scaled to its speed.  A table at the end lists every figure that misses its goal or
takes more than TWICE the last time, and every ratio (`… / …`) that has grown by a tenth; then the exit code is 1.
--keep replaces the kept figures by those of today.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.instruments.figures import BenchFigure, factor, read

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "last_figures.jsonl"
"""The figures of the last time, on the machine that goals were set on."""

TWICE = 2.0
LEAST_S = 0.05
"""Shorter times are noise; only their goals count."""
RATIO, A_TENTH_MORE = " / ", 1.1
"""Mark of a ratio in its name, which is to a peer, a new Python or a small kernel of the same run; factor by which it
may grow."""

QUICK = (
    ("judge", "--rows", "10000,100000,1000000"),
    ("registers", "--operations", "500000"),
    ("transactions", "--sizes", "10000", "100000", "1000000"),
    ("transactions", "--model", "rw-register", "--sizes", "10000", "100000", "1000000"),
    ("isolation",),
    ("strings",),
    ("starts",),
    ("porcupine",),
    ("kafka", "--sizes", "10000", "100000"),
    ("big_run", "--events", "1000000"),
    ("big_run", "--events", "1000000", "--clean-only", "--as-user"),
    ("simulator",),
)
FULL = (
    ("judge", "--rows", "10000,100000,1000000,10000000"),
    ("registers", "--grid"),
    ("transactions", "--sizes", "10000", "100000", "1000000", "10000000"),
    ("transactions", "--model", "rw-register", "--sizes", "10000", "100000", "1000000", "10000000"),
    ("isolation", "--large"),
    ("strings", "--histories", "50"),
    ("starts",),
    ("porcupine",),
    ("kafka", "--sizes", "10000", "100000", "1000000"),
    ("big_run", "--events", "1000000,10000000"),
    ("big_run", "--events", "1000000,10000000", "--clean-only", "--as-user"),
    ("simulator",),
    ("quorum",),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the sizes of the goals")
    parser.add_argument("--only", nargs="+", choices=sorted({s[0] for s in FULL}), help="these scripts alone")
    parser.add_argument("--into", type=Path, default=ROOT / "results" / "bench")
    parser.add_argument("--keep", action="store_true", help="keep the figures of today in the tree, to compare with")
    chosen = parser.parse_args()
    chosen.into = chosen.into.resolve()
    chosen.into.mkdir(parents=True, exist_ok=True)
    file = chosen.into / "figures.jsonl"
    file.unlink(missing_ok=True)
    print(f"this machine takes {factor():.2f} times as long as the one that goals were set on; goals are scaled by it")
    broken = []
    for script, *words in FULL if chosen.full else QUICK:
        if chosen.only and script not in chosen.only:
            continue
        print(f"\n{script} {' '.join(words)}   load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{script}", *words, "--json", str(file)], cwd=ROOT, check=False
        )
        broken += [script] if done.returncode else []
    if broken:
        print(f"{', '.join(broken)} ended with an error; see above", file=sys.stderr)
        return 3
    subprocess.run(
        [sys.executable, "-m", "bench.instruments.plot", str(file), str(chosen.into / "cost.png")], cwd=ROOT, check=True
    )
    measured = read(file)
    words = missed(measured, read(KEPT) if KEPT.exists() else [], factor())
    print(f"\n{len(measured)} figures in {file}, {len(words)} missed" + (":" if words else ""))
    for line in words:
        print(line)
    if chosen.keep:
        keep(measured, factor())
        print(f"kept in {KEPT.relative_to(ROOT)}")
    return 1 if words else 0


def missed(measured: Sequence[BenchFigure], last: Sequence[BenchFigure], slower: float) -> list[str]:
    """Return a line for every figure that misses its goal, takes more than TWICE as long as the last time, or is a
    ratio that has grown by a tenth.

    last: on the machine that goals were set on.  slower: how many times as long this machine takes.
    """
    known = {(one.figure, one.size, one.unit): one.value for one in last}
    lines = []
    for one in measured:
        before = known.get((one.figure, one.size, one.unit))
        before = None if before is None else before * slower if one.unit == "s" else before
        late = ""
        if one.unit == "s" and before is not None and one.value > max(TWICE * before, LEAST_S):
            late = ", twice as long"
        elif RATIO in one.figure and not one.unit and before is not None and one.value > A_TENTH_MORE * before:
            late = ", a tenth more"
        if late or not one.reached:
            then = "not measured before" if before is None else f"last time {before:.3g}"
            lines.append(f"{one.in_words()}   {then}{late}")
    return lines


def keep(measured: Sequence[BenchFigure], slower: float) -> None:
    """Write the figures as they would be on the machine that goals were set on."""
    known = {(one.figure, one.size, one.unit): one for one in (read(KEPT) if KEPT.exists() else [])}
    for one in measured:
        value = one.value / slower if one.unit == "s" else one.value
        known[one.figure, one.size, one.unit] = replace(one, value=round(value, 4), goal=None)
    KEPT.write_text("".join(json.dumps(asdict(one)) + "\n" for one in known.values()))


if __name__ == "__main__":
    sys.exit(main())
