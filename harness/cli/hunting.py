"""`hunt`: random tests over one system until something is found or the time is up."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import click

from harness.cli.parameters import Name, backend_of_nodes, nemeses, results_in, subjects, workloads
from harness.spec import Spec, WrongSpec

_DEFAULT = Spec()


@click.command(name="hunt", short_help="Run random tests over one system until something is found.")
@click.option(
    "--subject", type=Name(subjects), default=_DEFAULT.subject, show_default=True, help="The system under test."
)
@click.option(
    "--minutes", type=click.FloatRange(0), default=60.0, show_default=True, help="No test begins after so many minutes."
)
@click.option("--times", type=click.IntRange(0), default=5, show_default=True, help="Replays of each finding.")
@click.option("--keep-on", is_flag=True, help="Go on for the whole time, even if something was found.")
@click.option("--seed", type=int, default=None, help="Decides every test.  [default: a fresh one, printed]")
@click.option(
    "--workload", "chosen", type=Name(workloads), multiple=True, help="Only these workloads.  [default: all that fit]"
)
@click.option(
    "--nemesis", "kinds", type=Name(nemeses), multiple=True, help="Only these kinds of fault.  [default: all that fit]"
)
@click.option("--nodes", type=int, multiple=True, default=(3, 5), show_default=True, help="Servers.  May be repeated.")
@click.option(
    "--rate",
    "rates",
    type=float,
    multiple=True,
    default=(0.0, 60.0, 200.0),
    show_default=True,
    help="Operations per second in all; 0: as fast as answers come.  May be repeated.",
)
@click.option("--time-limit", default=30.0, show_default=True, help="Seconds of each main phase.")
@backend_of_nodes
@click.option("--bug", default=None, help="Plant this bug of the subject, to see whether the hunt finds it.")
@results_in("results/hunts")
def hunt_at_random(
    subject: str,
    minutes: float,
    times: int,
    keep_on: bool,
    seed: int | None,
    chosen: tuple[str, ...],
    kinds: tuple[str, ...],
    nodes: tuple[int, ...],
    rates: tuple[float, ...],
    time_limit: float,
    backend: str,
    bug: str | None,
    results: Path,
) -> None:
    """Run random tests over one system until something is found or the time is up, and replay what was found.

    The seed of the hunt draws workloads, kinds of fault, sizes and the seeds of the runs.  The same command with the
    same --seed goes on where a hunt was broken off.

    \b
    Exit codes:
      0  nothing was found, and at least one run was valid
      1  something was found
      2  nothing was found, and no run was a real test
      3  three runs in a row could not be made, or the hunt was called wrongly
    """
    from rich.console import Console

    from harness.campaign.hunt import Limits, hunt, summary
    from harness.campaign.hunt_log import HuntLog
    from harness.campaign.hunt_page import render_hunt
    from harness.campaign.random_tests import choices
    from harness.run.session import choose_backend
    from harness.terminal.progress import Progress

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    console = Console(soft_wrap=True, highlight=False)
    base = Spec(subject=subject, backend=backend, nodes=nodes[0], time_limit_s=time_limit, nemesis="none", bug=bug)
    progress = Progress(console)
    try:
        base = replace(base, backend=choose_backend(base, progress))
    finally:
        progress.stop()
    drawn = choices(base, chosen, kinds, nodes, rates)
    folder = results / f"{Path(subject).stem}-{seed}"
    try:
        log = HuntLog.open(folder, subject, seed)
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem
    console.print(f"hunt with seed {seed} over {subject} on {base.backend}; it is kept in {folder}")
    console.print(f"workloads: {', '.join(drawn.workloads)}; kinds of fault: {', '.join(drawn.kinds)}")
    for why in dict.fromkeys(why for _, why in drawn.left_out):
        console.print(f"left out: {', '.join(kind for kind, other in drawn.left_out if other == why)}: {why}")
    if log.runs:
        console.print(f"goes on after {len(log.runs)} runs")
    try:
        code = hunt(drawn, log, Limits(minutes, times, keep_on), console.print)
    finally:
        console.print("\n" + "\n".join(summary(log)), markup=False)
        console.print(f"page: {render_hunt(log)}")
    raise click.exceptions.Exit(code)
