"""`attribute`: try out which faults of a run its violation needs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from harness.cli.parameters import trust
from harness.spec import WrongSpec


@click.command(short_help="Try out which faults a violation needs.")
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--times", default=12, show_default=True, help="Runs of each schedule.")
@click.option("--shift", default=0.5, show_default=True, help="Seconds by which each fault is moved; 0: by none.")
@click.option(
    "--minutes", type=click.FloatRange(0), default=None, help="No run begins after so many.  [default: no end]"
)
@trust
def attribute(run_folder: Path, times: int, shift: float, minutes: float | None, trust: bool) -> None:
    """Run the test in RUN_FOLDER again without each of its faults, and with each one earlier and later.

    Says how often its violation was seen each time, with bounds, and writes that on the page of the run.  A run with
    many faults takes long: shrink it first.  What was tried is kept in RUN_FOLDER/attribution, so the command may be
    broken off and given again.  Exit 0 if every schedule was run often enough, else 2.
    """
    from rich.console import Console

    from harness.campaign import attribute as attribution
    from harness.campaign.shrink import Limits, Reruns, ShrinkCandidate, TrialLog
    from harness.cli.campaigns import violated_run
    from harness.judge.judge_run import spec_of
    from harness.report.render import render
    from harness.run.schedule_to_play import read_schedule

    if times < 1 or shift < 0:
        raise WrongSpec(f"--times must be at least 1 and --shift at least 0, not {times} and {shift:g}")
    root, wanted = violated_run(run_folder)
    spec, folder = spec_of(root, trust), root / "attribution"
    folder.mkdir(exist_ok=True)
    written = Path(spec.schedule) if spec.schedule is not None else None
    schedule = written if written is not None and written.exists() else root / "schedule.json"
    original = ShrinkCandidate(read_schedule(schedule), spec.nodes)
    log = TrialLog.read(folder / "tried.json")
    end_s = time.monotonic() + minutes * 60 if minutes is not None else float("inf")
    limits = Limits(1, times, lambda: time.monotonic() < end_s, wanted)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    found = attribution.attribute(original, shift, Reruns(spec, folder, log.runs), limits, log, console.print)
    attribution.keep(root, found)
    console.print("\n".join(["", *(one.line() for one in found)]))
    console.print(f"report: {render(root)}")
    raise click.exceptions.Exit(0 if all(one.runs >= times for one in found) else 2)
