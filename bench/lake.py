"""Measure the cost of the lake: small listings without a JVM, every ready question on DuckDB and on Spark, over
synthetic runs.

    python -m bench.lake [--runs 10000] [--days 70]

Listings are timed as users wait for them, in separate processes; the minimum of five.  On Spark, questions are timed in
one warm session; what its start costs stands apart.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from facts_of_runs import many

from bench.instruments.figures import least_s, taken_s
from checkers.spark.session import SparkJudge
from harness.lake.lake import Lake
from harness.lake.sql import QUESTIONS, ask
from harness.lake.tables import DATE, RUNS, SYSTEM, TABLES

ROOT = Path(__file__).parents[1]

TIMES = 5


def fill(lake: Lake, runs: int, days: int) -> None:
    """A lake that has been merged: one file for each table, day and system."""
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--days", type=int, default=70)
    wanted = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="krucible-bench-lake-") as scratch:
        lake = Lake(Path(scratch) / "lake")
        fill(lake, wanted.runs, wanted.days)
        size = sum(path.stat().st_size for path in lake.folder.rglob("*.parquet")) / 1e6
        print(f"{wanted.runs} runs over {wanted.days} days: {len(lake.files(RUNS))} files a table, {size:.0f} MB")
        names = lake.read(RUNS, ["run"])["run"].to_pylist()
        listings = ("runs",), ("runs", "--verdict", "invalid"), ("compare", names[0], names[-1])
        for words in (*listings, *(("query", name) for name in QUESTIONS)):
            print(f"krucible {' '.join(words):<21.21} {command_s(lake.folder, *words):6.2f} s")
        spark = SparkJudge()
        try:
            print(f"start of Spark                 {least_s(spark.wait_until_started):6.2f} s")
            for name, question in QUESTIONS.items():
                first, *again = taken_s(partial(ask, lake, question.sql, spark), 3)
                print(f"on Spark {name:<21} {first:6.2f} s, again {min(again):.2f} s")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
