"""Measure whether storms that are aimed at what was seldom met find bugs sooner than storms that are drawn at random.

    python -m bench.swarm_guidance [--bug double-vote] [--layer core] [--searches 5] [--cpu 120]

Each search plays the same seeds twice: as they are drawn, and with cards aimed at what the seeds before it met seldom
(`harness/campaign/swarm/coverage.py`).  It ends with a seed that breaks a rule, or when its processor time is used up.
Without a bug it plays for all of its time, and counts how many points of coverage were met.
"""

from __future__ import annotations

import json
import statistics
import time
from random import Random

import click

from harness.campaign.swarm.coverage import AIMS, ALL_AIMS, StormCoverage, aimed
from harness.campaign.swarm.scenario import Layer
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.work import row_of
from harness.campaign.swarm.world import play

APART = 100_000
WAYS = ("random", "guided")


@click.command()
@click.option("--bug", "bugs", multiple=True, help="Search for it; may be repeated.  [default: none, count coverage]")
@click.option("--layer", type=click.Choice(["core", "node"]), default="core", show_default=True)
@click.option("--searches", default=5, show_default=True)
@click.option("--cpu", "cpu_s_max", default=120.0, show_default=True, help="CPU seconds of a search.")
@click.option("--seconds", default=60.0, show_default=True, help="Simulated, of each seed.")
def main(bugs: tuple[str, ...], layer: Layer, searches: int, cpu_s_max: float, seconds: float) -> None:
    """Compare guided storms with random ones at equal processor time."""
    play(draw(0, layer, 5.0))  # what is compiled and imported once is no cost of a search
    for bug in bugs or ("",):
        for way in WAYS:
            runs = [_search(bug, layer, way, (number + 1) * APART, cpu_s_max, seconds) for number in range(searches)]
            medians = [round(statistics.median(column), 1) for column in zip(*runs, strict=True)]
            words = json.dumps([[round(value, 1) for value in run] for run in runs])
            print(f"{bug or 'no bug'} {layer} {way}: seeds, CPU s, points met: medians {medians}; {words}", flush=True)


def _search(
    bug: str, layer: Layer, way: str, first: int, cpu_s_max: float, seconds: float
) -> tuple[float, float, float]:
    """Seeds, CPU seconds, and how many points of coverage were met."""
    began_s, seeds, coverage = time.process_time(), 0, StormCoverage()
    while True:
        scenario = draw(first + seeds, layer, seconds, bug=bug)
        aims = coverage.aims_at(Random(f"{first + seeds}/guide"), AIMS) if way == "guided" else ()
        played = play(aimed(scenario, aims))
        seeds += 1
        coverage.add(row_of(played, "", aims))
        cpu_s = time.process_time() - began_s
        if (bug and played.found) or cpu_s > cpu_s_max:
            return float(seeds), cpu_s, float(len(coverage.faults.keys() & set(ALL_AIMS)))


if __name__ == "__main__":
    main()
