"""Measure how fast the simulator and the explorer are, and how soon the swarm finds each planted bug.

    python -m bench.simulator speed [--nodes 5] [--rate 50] [--time-limit 60] [--nemesis partition]
    python -m bench.simulator bugs [--bug lone-vote] [--searches 5] [--cpu 300]

*Speed.*  Simulated seconds per CPU second, in two ways.

Nodes over direct calls and without faults, as the swarm runs them with its watch and its judge; and a complete run with
all bytes of the protocol, which is not judged: nodes, clients, nemesis, recorder and collection, as
`--backend simulator` does it.
The CPU time is that of the process, so other work on the machine disturbs little.  Cost grows linearly with the
simulated time and the rate, and with the square of the number of nodes, because every follower polls its leader and
every client node polls all servers.

In addition, states that the explorer reaches per CPU second, with three voters, a write and a read.

*Bugs.*  Seeds, simulated seconds and CPU seconds until the swarm finds a bug, in five searches each.

A search plays consecutive seeds, from its own first seed on, until a seed violates a rule with the bug but none without
the bug.  Figures go into docs/swarm-ledger.json, from which `make docs` renews docs/planted-bugs.md.  A search that
uses up its CPU time counts as not found.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.instruments.figures import Sheet, script
from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.world import play
from harness.exploring.explore import Explorer
from harness.exploring.steps import Budgets
from harness.run.clock import clock_of
from harness.run.conductor import Conductor
from harness.run.context import prepare
from harness.run.recorder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress
from simulation.loop import SimulatedLoop
from system_under_test.kraft.node.config import BUGS

FLOOR = 30.0
"""Minimum simulated seconds per CPU second for complete nodes."""
STATES_FLOOR = 20_000.0
"""Minimum states per CPU second for the explorer."""
WARM_UP_S = 2.0
EXPLORED_CPU_S_MAX = 60.0


def speed(given: argparse.Namespace, sheet: Sheet) -> None:
    nodes, rate, time_limit, nemesis, seed = given.nodes, given.rate, given.time_limit, given.nemesis, given.seed
    scenario = Scenario(seed, nodes, rate_hz=rate)
    play(replace(scenario, seconds=WARM_UP_S))
    played = play(replace(scenario, seconds=time_limit))
    what = f"simulator, {nodes} nodes, {rate:g} operations/s, direct calls"
    found = played.simulated_s / played.cpu_s
    sheet.add(f"{what}: simulated s a CPU s", round(played.simulated_s), "seconds", found, "1/s", FLOOR)
    spec = Spec(nemesis=nemesis, backend="simulator", nodes=nodes, rate_hz=rate, seed=seed, online=False)
    _measured(spec, WARM_UP_S)
    simulated_s, cpu_s, handled = _measured(spec, time_limit)
    what = f"simulator, {nodes} nodes, {rate:g} operations/s, {nemesis}"
    sheet.add(f"{what}: simulated s a CPU s", round(simulated_s), "seconds", simulated_s / cpu_s, "1/s")
    sheet.add(f"{what}: callbacks a CPU s", handled, "callbacks", handled / cpu_s, "1/s")
    explored = Explorer(3, Budgets(epochs=1, timeouts=2, writes=1, reads=1)).search(EXPLORED_CPU_S_MAX)
    sheet.add(
        "explorer: states a CPU s", explored.states, "states", explored.states / explored.cpu_s, "1/s", STATES_FLOOR
    )


def _measured(spec: Spec, time_limit_s: float) -> tuple[float, float, int]:
    """Return simulated seconds, CPU seconds, and the number of callbacks of one run."""
    whole = Spec.from_json({**spec.to_json(), "time_limit_s": time_limit_s})
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as results:
        loop = SimulatedLoop()
        clock = clock_of(loop, datetime.now(UTC))
        folder = RunFolder.create(Path(results), whole)
        progress = Progress(Console(file=io.StringIO()), clock.monotonic_s)
        conductor = Conductor(prepare(whole, "simulator", folder, progress, clock))
        began_s = time.process_time()
        loop.run(conductor.run())
        return loop.time(), time.process_time() - began_s, loop.handled


LEDGER = Path(__file__).parents[1] / "docs" / "swarm-ledger.json"
APART = 100_000


def bugs(given: argparse.Namespace, _sheet: Sheet) -> None:
    found: dict[str, Any] = json.loads(LEDGER.read_text()) if LEDGER.exists() else {}
    play(draw(1, 5.0))  # so that compilation and imports are not part of the first search
    for bug in given.bug or BUGS:
        found[bug] = [_search(bug, number * APART, given.cpu, given.time_limit) for number in range(given.searches)]
        print(f"{bug:<28} {[(run['seeds'], round(run['cpu_s'], 1), run['rule']) for run in found[bug]]}", flush=True)
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
    script(
        __doc__,
        {"speed": speed, "bugs": bugs},
        nodes={"type": int, "default": 5},
        rate={"type": float, "default": 50.0, "help": "operations per second"},
        time_limit={"type": float, "default": 60.0, "help": "simulated seconds of the main phase, or of each seed"},
        nemesis={"default": "partition"},
        seed={"type": int, "default": 1},
        bug={"action": "append", "choices": sorted(BUGS), "help": "only this bug; may be repeated"},
        searches={"type": int, "default": 5, "help": "for each bug"},
        cpu={"type": float, "default": 300.0, "help": "maximum CPU seconds of a search"},
    )
