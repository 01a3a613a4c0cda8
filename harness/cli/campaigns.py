"""The commands that make many runs: `nightly`, `hunt`, `hunt-bugs`, `findings`, `replay`, `shrink`, `attribute`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from checkers.base.verdict import HARNESS_FAILED
from harness.cli.parameters import (
    Amount,
    Name,
    demand_run,
    nemeses,
    plain_console,
    results_in,
    spec_option,
    trust,
    workloads,
)
from harness.cli.parameters import findings as names_of_findings
from harness.spec import Spec, WrongSpec, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

    from harness.campaign.loop import Plan
    from harness.campaign.shrink import Limits, Reruns, ShrinkCandidate, TrialLog
    from harness.lake.lake import Lake

_DEFAULT = Spec()
_PARTS = ("canary", "clean", "peer", "bugs")
"""Copy of `PARTS` in `harness.campaign.plans`, which is imported only once all arguments are valid."""

_run_folder = click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
_minutes = click.option(
    "--minutes", type=Amount(0), default=None, help="Minutes after which no new run begins.  [default: no limit]"
)


def _carry_out(plan: Plan, folder: Path, console: Console) -> int:
    """Run the plan in this folder, keep the plan's page up to date, and print the result.

    The runs go into the lake of this folder or of a folder above it.  If there is none, a lake is created: in `results`
    if the folder is below `results`, else in the folder.
    """
    from harness.campaign.loop import CampaignLog, campaign
    from harness.campaign.page import lines_of, write_all
    from harness.lake.lake import existing_lake

    if existing_lake(folder) is None:
        _lake_above(folder).make()
    with CampaignLog.open(folder, {"campaign": plan.name, **plan.identity}, plan.goes_on) as log:
        if log.runs:
            console.print(f"continues after {len(log.runs)} runs in {folder}")

        def say(line: str) -> None:
            console.print(line)
            write_all(plan, log)

        try:
            return campaign(plan, log, say)
        finally:
            page = write_all(plan, log)
            console.print("\n".join(["", *lines_of(plan, log), f"page: {page}"]))


def _lake_above(folder: Path) -> Lake:
    from harness.lake.lake import NAME, Lake, existing_lake

    usual = Path("results").resolve()
    return Lake(existing_lake(folder) or (usual if folder.resolve().is_relative_to(usual) else folder.resolve()) / NAME)


def _night(plan: Plan, folder: Path, console: Console) -> int:
    """Run a night.  Tests that failed earlier are run first, and results are compared with all earlier runs.

    If the night is interrupted, for example because a CI job ran out of time, its summary, dashboard and failures are
    written too.
    """
    from harness.campaign import page
    from harness.campaign.loop import CampaignLog
    from harness.campaign.page import SUMMARY, headline
    from harness.lake.past import past_runs, standings
    from harness.run.recorder import revision

    began, at = datetime.now(UTC), revision()
    known_revision = "" if at.dirty else at.revision
    folder.mkdir(parents=True, exist_ok=True)
    failures = page.kept(folder)
    again = page.due(failures, known_revision)
    if again:
        console.print(f"{len(again)} tests that failed in an earlier night are run first")
    tests = [*again, *(spec for spec in plan.tests if spec not in set(again))]
    plan = replace(plan, tests=tests)
    interrupted = False
    try:
        code = _carry_out(plan, folder, console)
    except KeyboardInterrupt:
        code, interrupted = HARNESS_FAILED, True
    with CampaignLog.open(folder, {"campaign": plan.name, **plan.identity}, goes_on=True) as log:
        now = began.isoformat(timespec="seconds")
        page.keep(folder, page.after(failures, log.runs, folder, known_revision, now))
        lake = _lake_above(folder)
        runs = past_runs(lake)
        before, since = (
            [run for run in runs if (run.started >= began.replace(microsecond=0)) is late] for late in (False, True)
        )
        standing = standings(before, since)
        lines = page.words_of(standing, runs, datetime.now(UTC))
        summary = folder / SUMMARY
        summary.write_text("\n".join([summary.read_text(encoding="utf-8"), *lines, ""]), encoding="utf-8")
        dashboard = page.write_dashboard(folder, headline(plan, log), standing, runs, lake.folder.parent)
        page.write_badge(folder, code, standing)
    page.add_to_step_summary(summary.read_text(encoding="utf-8"))
    console.print("\n".join([*(one.line() for one in standing), f"dashboard: {dashboard}"]))
    if interrupted:
        raise KeyboardInterrupt
    return code


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Seeds per test and bug.")
@click.option("--first-seed", type=int, default=None, help="The first of consecutive seeds.  [default: random]")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Only these parts (may be repeated).  [default: all]",
)
@click.option(
    "--nemesis",
    "kinds",
    type=Name(nemeses),
    multiple=True,
    help="A short night: in tests without a planted bug, only this kind of fault (may be repeated).",
)
@click.option("--bug", "chosen", multiple=True, help="A short night: only this planted bug (may be repeated).")
@spec_option("backend")
@spec_option("time_limit_s", 60.0)
@spec_option("stop_on_violation")
@results_in("results/nightly")
def nightly(
    seeds: int,
    first_seed: int | None,
    parts: tuple[str, ...],
    kinds: tuple[str, ...],
    chosen: tuple[str, ...],
    results: Path,
    **given: Any,
) -> None:
    """Run every test and every planted bug over several seeds.

    \b
    Exit codes:
      0  every run ended as expected
      1  a system without a planted bug was invalid, or no checker noticed a falsified row of its run
      2  a planted bug was not found, or a run proved nothing
      3  a run could not be made or judged
    """
    from harness.campaign.plans import PARTS, night
    from harness.registry import check_names, load_subject

    base = Spec(**given)
    check_names(base)
    known = load_subject(base.subject).bugs
    for name in chosen:
        if name not in known or not known[name].in_containers:
            raise WrongSpec(unknown_name("planted bug that a run on nodes can show", name, known))
    first = secrets.randbelow(1_000_000) if first_seed is None else first_seed
    plan, console = night(range(first, first + seeds), parts or PARTS, base, kinds, chosen), plain_console()
    if not list(plan.tests):
        raise WrongSpec("this night has no test: none matches all of the given parts, kinds of fault and bugs")
    console.print(f"{len(list(plan.tests))} runs of about {base.time_limit_s + 30:.0f} s each")
    raise Exit(_night(plan, results, console))


@click.command(name="hunt")
@spec_option("subject")
@click.option(
    "--minutes", type=Amount(0), default=60.0, show_default=True, help="Minutes after which no new test begins."
)
@click.option("--times", type=click.IntRange(0), default=5, show_default=True, help="Replays of each finding.")
@click.option("--keep-on", is_flag=True, help="Continue until the time is up, even if something was found.")
@click.option(
    "--seed", type=int, default=None, help="Seed of the hunt; it determines all tests.  [default: random, printed]"
)
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
    help="Operations per second of all clients; 0: each client sends at once after an answer.  May be repeated.",
)
@spec_option("time_limit_s", 30.0)
@spec_option("backend")
@spec_option("bug", help_words="Plant this bug of the subject, to see whether the hunt finds it.")
@results_in("results/hunts")
def hunt_at_random(
    minutes: float,
    times: int,
    keep_on: bool,
    seed: int | None,
    chosen: tuple[str, ...],
    kinds: tuple[str, ...],
    nodes: tuple[int, ...],
    rates: tuple[float, ...],
    results: Path,
    **given: Any,
) -> None:
    """Run random tests of one system until something is found or the time is up, and replay each finding.

    The seed of the hunt determines workloads, kinds of fault, sizes and the seeds of the runs.  The same command with
    the same --seed continues an interrupted hunt.

    \b
    Exit codes:
      0  nothing was found, and at least one run was valid
      1  something was found
      2  nothing was found, and no run was valid
      3  three runs in a row could not be made, or the command line was wrong
    """
    from harness.campaign.plans import choices, hunt
    from harness.run.refused_before_start import choose_backend
    from harness.terminal.progress import Progress

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    console = plain_console()
    base = Spec(nodes=nodes[0], nemesis="none", **given)
    progress = Progress(console)
    try:
        base = replace(base, backend=choose_backend(base, progress))
    finally:
        progress.stop()
    drawn = choices(base, chosen, kinds, nodes, rates)
    folder = results / f"{Path(base.subject).stem}-{seed}"
    console.print(f"hunt with seed {seed} over {base.subject} on {base.backend}; its runs are kept in {folder}")
    console.print(f"workloads: {', '.join(drawn.workloads)}; kinds of fault: {', '.join(drawn.kinds)}")
    for why in dict.fromkeys(why for _, why in drawn.left_out):
        console.print(f"left out: {', '.join(kind for kind, other in drawn.left_out if other == why)}: {why}")
    raise Exit(_carry_out(hunt(drawn, seed, minutes, times, keep_on), folder, console))


@click.command(name="hunt-bugs")
@click.option("--bug", "bugs", multiple=True, help="Only this planted bug (may be repeated).  [default: all]")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each bug.")
@click.option("--first-seed", default=1, show_default=True, help="The first of consecutive seeds.")
@click.option(
    "--nemesis",
    type=Name(nemeses),
    default="",
    help="The kinds of fault, instead of those that the subject names for the bug.",
)
@spec_option("subject")
@spec_option("backend")
@spec_option("time_limit_s", 60.0)
@spec_option("stop_on_violation")
@results_in("results/hunt")
def hunt_bugs(
    bugs: tuple[str, ...],
    seeds: int,
    first_seed: int,
    nemesis: str,
    results: Path,
    **given: Any,
) -> None:
    """Run every planted bug over several seeds, and report how often and how soon it was found.

    The runs are kept below --results, in a folder named after the revision of the code.  The same command continues an
    interrupted hunt.

    \b
    Exit codes:
      0  every run found its bug
      2  a bug was not found
      3  a run could not be made or judged
    """
    from harness.campaign.page import SUMMARY
    from harness.campaign.plans import hunt_for_bugs
    from harness.registry import check_names
    from harness.run.recorder import revision

    base = Spec(**given)
    check_names(replace(base, nemesis=nemesis or _DEFAULT.nemesis))
    plan, console = hunt_for_bugs(bugs, range(first_seed, first_seed + seeds), base, nemesis), plain_console()
    at = revision()
    folder = results / (at.revision[:12] + ("-changed" if at.dirty else "") or "unknown")
    console.print(f"{len(list(plan.tests))} runs at most; each is kept in {folder}")
    code = _carry_out(plan, folder, console)
    console.print((folder / SUMMARY).read_text())
    raise Exit(code)


@click.command(name="findings")
@click.argument("chosen", nargs=-1, type=Name(names_of_findings), metavar="[NAMES]...")
@click.option("--times", type=click.IntRange(0), default=3, show_default=True, help="Runs of each; 0: run nothing.")
@spec_option("backend")
@results_in("results/findings")
def findings(chosen: tuple[str, ...], times: int, backend: str, results: Path) -> None:
    """Run every finding, its counterpart and the clean runs, and record how each ended (docs/findings-ledger.json).

    \b
    Exit codes:
      0  every finding was seen, and everything else was valid
      1  a counterpart or a clean run was invalid
      2  a finding was not seen, or a run proved nothing
      3  a run could not be made or judged
    """
    from harness.campaign.loop import RUNS
    from harness.campaign.plans import findings as plan_of
    from harness.campaign.plans import take_over_tries
    from harness.real_systems import names_of_runs

    known = names_of_runs()
    for name in chosen:
        if name not in known:
            raise WrongSpec(unknown_name("finding", name, known))
    seeds = [secrets.randbelow(1_000_000) for _ in range(times)]
    console = plain_console()
    code = _carry_out(plan_of(chosen or known, seeds, backend), results, console) if times else 0
    tries = len(take_over_tries(results / RUNS if (results / RUNS).exists() else results))
    console.print(f"{tries} tries are in docs/findings-ledger.json; `make docs` renews docs/findings.md")
    raise Exit(code)


@click.command()
@_run_folder
@click.option("--times", type=click.IntRange(1), default=5, show_default=True, help="Number of replays.")
@click.option("--as-executed", is_flag=True, help="Inject the faults on the same nodes as in the original run.")
@click.option(
    "--against",
    metavar="NAME=VALUE,…",
    default="",
    help="Alternate between the original settings and these (as in --set), and compare the verdicts.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=None,
    help="The folder that keeps the runs.  [default: replays in RUN_FOLDER]",
)
@trust
def replay(run_folder: Path, times: int, as_executed: bool, against: str, results: Path | None, trust: bool) -> None:
    """Run the test in RUN_FOLDER again with its own seed, and report how often its violations were seen again.

    The same seed injects the same faults on the same roles, such as the leader at that time.

    \b
    Exit codes:
      0  nothing was found, and at least one run was valid
      1  a run was invalid
      2  no run was valid or invalid
      3  three runs in a row could not be made, or the command line was wrong
    """
    from checkers.base.results import NO_RESULTS, read_results
    from harness.campaign.loop import CampaignLog, seen_again, violations_in
    from harness.campaign.plans import TwoSides, replays
    from harness.judge.judge_run import spec_of
    from harness.plain_words import plural
    from harness.registry import check_names

    root, console = demand_run(run_folder), plain_console()
    spec, schedule = spec_of(root, trust), root / "schedule.json"
    if as_executed or (spec.schedule is not None and not Path(spec.schedule).exists()):
        if not schedule.exists():
            raise WrongSpec(f"{run_folder} has no schedule.json: its faults cannot be repeated as they were")
        by_name = as_executed or spec.as_executed
        spec = replace(spec, schedule=str(schedule), finding=None, clean=False, as_executed=by_name)
    sides = TwoSides.of(spec, against) if against else None
    if sides is not None:
        check_names(sides.other)
    plan, folder = replays(spec, times, run_folder), (results or root / "replays")
    if sides is not None:
        plan = replace(plan, tests=sides.in_turn(times))
    count = plural(times * (2 if against else 1), "run")
    console.print(f"{count} of about {spec.time_limit_s + 30:.0f} s each; they are kept in {folder}")
    code = _carry_out(plan, folder, console)
    if sides is not None:
        with CampaignLog.open(folder, {"campaign": plan.name}, goes_on=True) as log:
            console.print("\n".join(["", *sides.table(log.runs, folder), sides.differs()]))
    elif before := violations_in(read_results(root) or NO_RESULTS):
        with CampaignLog.open(folder, {"campaign": plan.name}, goes_on=True) as log:
            again = f"seen again in {seen_again(before, log.runs)} of {plural(len(log.runs), 'replay')}"
        console.print(f"violations of the original: {again}")
    raise Exit(code)


@click.command()
@_run_folder
@click.option("--times", "--repeats", default=3, show_default=True, help="Runs of each smaller schedule.")
@click.option("--needed", default=1, show_default=True, help="Minimum number of failing runs of a failing schedule.")
@_minutes
@trust
def shrink(run_folder: Path, times: int, needed: int, minutes: float | None, trust: bool) -> None:
    """Find the smallest schedule of faults with which the run in RUN_FOLDER still fails.

    It removes faults, shortens faults and removes servers.  All tries are kept in RUN_FOLDER/shrink, so the same
    command continues after an interruption.  Exit code 0 if a smallest schedule was found.
    """
    from harness.campaign import shrink as shrinking
    from harness.campaign.shrink import Limits
    from harness.judge.judge_run import spec_of

    if not 1 <= needed <= times:
        raise WrongSpec(f"--needed must be at least 1 and at most --times, not {needed} of {times}")
    root, wanted = shrinking.violated_run(run_folder)
    console, spec = plain_console(), spec_of(root, trust)
    trials = _trials(spec, root / "shrink", root / "schedule.json", Limits(needed, times, _in_time(minutes), wanted))
    try:
        found = shrinking.shrink(*trials, console.print)
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem
    console.print("\n".join(shrinking.lines_of(found, root, root / "shrink", wanted)))


def _in_time(minutes: float | None) -> Callable[[], bool]:
    end_s = time.monotonic() + minutes * 60 if minutes is not None else float("inf")
    return lambda: time.monotonic() < end_s


def _trials(
    spec: Spec, folder: Path, schedule: Path, limits: Limits
) -> tuple[ShrinkCandidate, Reruns, Limits, TrialLog]:
    """Return the original schedule, the function that runs a schedule, the limits, and the log of earlier tries."""
    from harness.campaign.shrink import Reruns, ShrinkCandidate, TrialLog
    from harness.run.refused_before_start import read_schedule

    folder.mkdir(exist_ok=True)
    log = TrialLog.read(folder / "tried.json")
    return ShrinkCandidate(read_schedule(schedule), spec.nodes), Reruns(spec, folder, log.runs), limits, log


@click.command()
@_run_folder
@click.option("--times", default=12, show_default=True, help="Runs of each schedule.")
@click.option("--shift", default=0.5, show_default=True, help="Seconds by which each fault is moved; 0: not moved.")
@_minutes
@trust
def attribute(run_folder: Path, times: int, shift: float, minutes: float | None, trust: bool) -> None:
    """Run the test in RUN_FOLDER again without each of its faults, and with each fault earlier and later.

    For each variant, print how often the violation was seen, with bounds, and add the table to the run's report.  With
    many faults this takes long: shrink the run first.  All tries are kept in RUN_FOLDER/attribution, so the same
    command continues after an interruption.  Exit code 0 if every schedule was run --times times, else 2.
    """
    from harness.campaign import shrink as attribution
    from harness.campaign.shrink import Limits
    from harness.judge.judge_run import spec_of
    from harness.report.render import render

    if times < 1 or shift < 0:
        raise WrongSpec(f"--times must be at least 1 and --shift at least 0, not {times} and {shift:g}")
    root, wanted = attribution.violated_run(run_folder)
    spec, console = spec_of(root, trust), plain_console()
    written = Path(spec.schedule) if spec.schedule is not None else None
    schedule = written if written is not None and written.exists() else root / "schedule.json"
    limits = Limits(1, times, _in_time(minutes), wanted)
    original, run, limits, log = _trials(spec, root / "attribution", schedule, limits)
    found = attribution.attribute(original, shift, run, limits, log, console.print)
    attribution.keep(root, found)
    console.print("\n".join(["", *(one.line() for one in found)]))
    console.print(f"report: {render(root)}")
    raise click.exceptions.Exit(0 if all(one.runs >= times for one in found) else 2)
