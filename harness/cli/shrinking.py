"""`shrink`: a failing run again and again with fewer faults, until the smallest schedule that still fails is left."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.spec import WrongSpec


@click.command()
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--repeats", default=3, show_default=True, help="Runs before a smaller schedule counts as passing.")
def shrink(run_folder: Path, repeats: int) -> None:
    """Find the smallest schedule of faults with which the run in RUN_FOLDER still fails.

    Cards are left out, holds are shortened and servers are left out.  What was tried is kept in RUN_FOLDER/shrink, so
    the command may be broken off and given again.  Exit 0 if a smallest schedule was found.
    """
    from rich.console import Console

    from harness.campaign import shrink as shrinking
    from harness.campaign.reruns import Reruns, violated_in
    from harness.judge.judge_run import spec_of
    from harness.run.schedule_to_play import read_schedule

    if repeats < 1:
        raise WrongSpec(f"--repeats must be at least 1, not {repeats}")
    root = run_folder.resolve()
    for name in ("results.json", "schedule.json"):
        if not (root / name).exists():
            raise WrongSpec(f"{run_folder} cannot be shrunk: it holds no {name}")
    wanted = violated_in(json.loads((root / "results.json").read_text()))
    if not wanted:
        raise WrongSpec(f"{run_folder} cannot be shrunk: nothing in it was found to be invalid")
    spec, folder = spec_of(root), root / "shrink"
    folder.mkdir(exist_ok=True)
    console = Console(soft_wrap=True, highlight=False)
    original = shrinking.ShrinkCandidate(read_schedule(root / "schedule.json"), spec.nodes)
    log = shrinking.TrialLog.read(folder / "tried.json")
    reruns = Reruns(spec, wanted, folder, runs=sum(tried.runs for tried in log.tried.values()))
    try:
        found = shrinking.shrink(original, reruns, repeats, log, console.print)
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem
    schedule = folder / f"{found.smallest.identity}.json"
    console.print(f"\nsmallest: {found.smallest.words()}; it failed {found.tried.failed} of {found.tried.runs} times")
    if found.chance:
        console.print(f"anything smaller passed {repeats} times; by luck alone with {100 * found.chance:.1f} % at most")
    console.print(f"schedule: {schedule}")
    for what, of in (("the original", root), ("the smallest", Path(found.tried.folders[0]))):
        console.print(f"report of {what}: {of / 'report.html'}")
