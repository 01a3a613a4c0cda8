"""Measure how soon the swarm finds each planted bug: seeds, simulated seconds and CPU seconds, five searches each.

    python -m bench.swarm_bugs [--bug lone-vote] [--searches 5] [--cpu 300]

A search plays seeds from its own first seed on, until one breaks a rule with the bug and none without it.  Figures go
into docs/swarm-ledger.json, from which `make docs` renews docs/planted-bugs.md.  A search that uses up its CPU time
counts as not found.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.world import play
from system_under_test.kraft.node.config import BUGS

LEDGER = Path(__file__).parents[1] / "docs" / "swarm-ledger.json"
APART = 100_000


@click.command()
@click.option("--bug", "bugs", multiple=True, type=click.Choice(sorted(BUGS)), help="Only this one; may be repeated.")
@click.option("--searches", default=5, show_default=True)
@click.option("--cpu", "cpu_s_max", default=300.0, show_default=True, help="CPU seconds of a search.")
@click.option("--seconds", default=60.0, show_default=True, help="Simulated, of each seed.")
def main(bugs: tuple[str, ...], searches: int, cpu_s_max: float, seconds: float) -> None:
    """Measure how soon the swarm finds each planted bug."""
    found: dict[str, Any] = json.loads(LEDGER.read_text()) if LEDGER.exists() else {}
    play(draw(1, 5.0))  # one-time compilation and imports do not count as cost of a search
    for bug in bugs or BUGS:
        runs = [_search(bug, number * APART, cpu_s_max, seconds) for number in range(searches)]
        found[bug] = runs
        print(f"{bug:<28} {[(run['seeds'], round(run['cpu_s'], 1), run['rule']) for run in runs]}", flush=True)
        LEDGER.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def _search(bug: str, first: int, cpu_s_max: float, seconds: float) -> dict[str, Any]:
    began_s, simulated_s, seeds = time.process_time(), 0.0, 0
    while time.process_time() - began_s < cpu_s_max:
        scenario = draw(first + seeds, seconds, bug=bug)
        played = play(scenario)
        seeds += 1
        simulated_s += played.found[0].time_s if played.found else played.simulated_s
        cpu_s = time.process_time() - began_s
        if played.found and not play(replace(scenario, bug="")).found:
            return {"seeds": seeds, "simulated_s": simulated_s, "cpu_s": cpu_s, "rule": played.found[0].rule}
    return {"seeds": seeds, "simulated_s": simulated_s, "cpu_s": time.process_time() - began_s, "rule": ""}


if __name__ == "__main__":
    main()
