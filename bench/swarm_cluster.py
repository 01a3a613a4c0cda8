"""Measure how a swarm scales on Spark's own cluster: seeds per minute with one worker of one core, and with two.

    python -m bench.swarm_cluster [--seeds 60] [--each 5]

Master and workers are processes on loopback.  The first wave of each cluster starts its workers and is not counted.
A worker plays each task in a fresh process, which takes a core for itself.  So the machine needs two cores that are
free; where others work on it, compare the processor seconds that the seeds got in a minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import click
from spark_cluster import ROOT, Cluster

from bench.instruments.figures import Sheet, load
from checkers.spark.session import START_VARIABLE, SparkJudge
from harness.campaign.swarm.work import VALID, SeedTask, run_task, tasks_of

FIRST_SEED = 7_000_000
WORKERS = (1, 2)


@click.command()
@click.option("--workers", type=click.IntRange(1), multiple=True, default=WORKERS, show_default=True)
@click.option("--seeds", default=60, show_default=True)
@click.option("--each", default=5, show_default=True, help="Seeds of one task.")
@click.option("--seconds", default=30.0, show_default=True, help="Simulated, of each seed.")
@click.option("--json", "into", type=click.Path(path_type=Path), default=None, help="Append the figures to this file.")
def main(workers: tuple[int, ...], seeds: int, each: int, seconds: float, into: Path | None) -> None:
    """Seeds per minute of clusters of so many workers."""
    os.environ.setdefault(START_VARIABLE, "600")  # a busy machine takes its time
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # One process runs one Spark, so each cluster gets a child of its own.
    for count in workers:
        child = os.fork()
        if child == 0:
            _measure(count, seeds, each, seconds, Sheet(into))
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise click.ClickException(f"the cluster of {count} could not be measured; see above")


def _measure(workers: int, seeds: int, each: int, seconds: float, sheet: Sheet) -> None:
    plain = SeedTask((), "core", seconds)
    tasks = tasks_of(range(FIRST_SEED, FIRST_SEED + seeds), each, plain)
    with (
        tempfile.TemporaryDirectory(prefix="krucible-bench-") as name,
        Cluster(Path(name) / "cluster", workers, PYTHONPATH=str(ROOT)) as cluster,
    ):
        spark = SparkJudge(cluster.master)
        spark.run(run_task, tasks_of(range(2 * workers), 1, plain))
        began_s = time.monotonic()
        rows = [row for rows in spark.run(run_task, tasks) for row in rows]
        minutes = (time.monotonic() - began_s) / 60
        spark.stop()
    if wrong := [row for row in rows if row["verdict"] != VALID]:
        raise click.ClickException(f"a seed was not valid: {wrong[0]['symptom']}")
    cpu_s = sum(row["cpu_s"] for row in rows)
    print(f"load {load():.0f}")
    what = f"swarm on a cluster of {workers} worker{'s' if workers > 1 else ''} of one core"
    sheet.add(f"{what}: seeds a minute", seeds, "seeds", seeds / minutes, "1/min")
    sheet.add(f"{what}: processor s of the seeds a minute", seeds, "seeds", cpu_s / minutes, "s/min")


if __name__ == "__main__":
    main()
