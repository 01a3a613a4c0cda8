"""All measurements, one after another: `make bench`, or `make bench FULL=1` for the sizes that goals are set for.

    python -m bench.everything [--full] [--into results/bench]

Figures go into one file of JSON lines, `figures.jsonl`, and what cost against size shows into `cost.png`.  Without
--full it takes two minutes on two cores and goes up to a million; with it a quarter of an hour and 24 GB of memory.
A figure is a measurement of the machine as it is; goals that were missed are listed at the end, and fail nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.instruments.calibration import factor
from bench.instruments.figures import read

ROOT = Path(__file__).parents[1]

QUICK = (
    ("judge", "--rows", "10000,100000,1000000"),
    ("registers", "--operations", "500000"),
    ("transactions", "--sizes", "10000", "100000", "1000000"),
    ("transactions", "--model", "rw-register", "--sizes", "10000", "100000", "1000000"),
    ("kafka", "--sizes", "10000", "100000"),
    ("raft", "--sizes", "100000,1000000"),
    ("big_run", "--events", "1000000"),
    ("simulator",),
)
FULL = (
    ("judge", "--rows", "10000,100000,1000000,10000000"),
    ("registers", "--grid"),
    ("transactions", "--sizes", "10000", "100000", "1000000", "10000000"),
    ("transactions", "--model", "rw-register", "--sizes", "10000", "100000", "1000000", "10000000"),
    ("kafka", "--sizes", "10000", "100000", "1000000"),
    ("raft", "--sizes", "100000,1000000,10000000"),
    ("big_run", "--events", "1000000,10000000"),
    ("simulator",),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the sizes of the goals")
    parser.add_argument("--into", type=Path, default=ROOT / "results" / "bench")
    chosen = parser.parse_args()
    chosen.into = chosen.into.resolve()
    chosen.into.mkdir(parents=True, exist_ok=True)
    file = chosen.into / "figures.jsonl"
    file.unlink(missing_ok=True)
    print(f"this machine takes {factor():.2f} times as long as the one that goals were set on; goals are scaled by it")
    broken = []
    for script, *words in FULL if chosen.full else QUICK:
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
    missed = [figure for figure in read(file) if not figure.reached]
    print(f"\n{len(read(file))} figures in {file}, {len(missed)} goals missed" + (":" if missed else ""))
    for figure in missed:
        print(figure.in_words())
    return 0


if __name__ == "__main__":
    sys.exit(main())
