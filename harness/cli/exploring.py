"""The commands that use the simulation directly: `explore` searches orders of steps, `swarm` plays storms."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from click.exceptions import Exit

from harness.cli.parameters import Amount, plain_console, spark_master
from harness.spec import WrongSpec, unknown_name
from harness.started import program

if TYPE_CHECKING:
    from rich.console import Console

    from checkers.spark.session import SparkJudge
    from harness.campaign.swarm.swarm import Swarm
    from harness.exploring.explore import Explored, Explorer
    from harness.exploring.steps import ClusterSteps


_BOUNDS: Mapping[str, tuple[int, int, str]] = {
    "epochs": (1, 2, "Highest epoch that any voter may enter."),
    "timeouts": (0, 2, "Timeouts of voters that do not lead."),
    "crashes": (0, 0, "Power losses."),
    "insides": (0, 0, "Power losses between two effects of a step."),
    "losses": (0, 0, "Requests whose sender gives up."),
    "cuts": (0, 0, "Times that a voter is cut off."),
    "splits": (0, 0, "Answers that arrive late."),
    "writes": (0, 0, "Writes of clients."),
    "reads": (0, 0, "Reads of clients."),
    "resigns": (0, 0, "Leaders that resign because they hear no majority."),
    "changes": (0, 0, "Voters added or removed."),
    "updates": (0, 0, "Changes of a voter's endpoints."),
    "looks": (0, 0, "Searches of a server without a vote for the leader."),
}
"""Budget (`harness.exploring.steps.Budgets`) -> (minimum, default, help text)."""


def _bounds(command: Callable[..., None]) -> Callable[..., None]:
    for name, (least, default, words) in reversed(list(_BOUNDS.items())):
        option = click.option(f"--{name}", type=click.IntRange(least), default=default, show_default=True, help=words)
        command = option(command)
    return command


@click.command()
@click.option(
    "--minutes",
    type=Amount(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Maximum CPU time of each worker, in minutes.",
)
@click.option("--workers", type=click.IntRange(1), default=None, help="Worker processes.  [default: one per core]")
@click.option("--voters", type=click.IntRange(1, 5), default=3, show_default=True)
@click.option("--spares", type=click.IntRange(0, 2), default=0, show_default=True, help="Servers that can be added.")
@_bounds
@click.option(
    "--states", type=click.IntRange(1), default=2_000_000, show_default=True, help="Maximum of states (1 KB each)."
)
@click.option("--bug", default="", help="Plant this bug, and find the shortest trace that shows it.")
def explore(
    minutes: float,
    workers: int | None,
    voters: int,
    spares: int,
    states: int,
    bug: str,
    **bounds: int,
) -> None:
    """Explore every order of steps of a few voters, breadth first, so that the first violation has a shortest trace.

    The consensus core is the same code that runs in containers; disks, links and timers are abstracted, and nothing is
    random.  Each kind of step except the arrival of messages has a budget.  If the search is exhausted, no order of
    steps within the budgets breaks a rule: election safety, one vote, leader completeness, committed prefixes,
    majorities, reads.  Without any budget on the command line, budgets grow until the time is used up.

    \b
    A first violation:   krucible explore --bug lone-vote
    Bugs of two terms:   krucible explore --bug stale-read --reads 1
    A proof of absence:  krucible explore --epochs 1 --timeouts 1 --writes 1 --minutes 10
    Voters that change:  krucible explore --epochs 1 --timeouts 1 --changes 1 --resigns 1

    \b
    Exit codes:
      0  the search was exhausted and no rule was broken; with growing budgets, for at least one set of budgets
      1  a rule was broken
      2  time or memory was used up first; or, with --bug, nothing was found
      3  the command line was wrong
    """
    from harness.exploring.explore import Explorer
    from harness.exploring.steps import Budgets

    _demand_known(bug)
    console = plain_console()
    crew = workers or os.cpu_count() or 1
    cpu_s_max, planted = minutes * 60 * crew, f", with {bug}" if bug else ""
    if not _bound_given():
        console.print(f"{voters} voters, bounds that grow for {minutes:g} minutes{planted}")
        raise Exit(_grow(console, voters, bug, cpu_s_max, states, crew))
    if spares and not bounds["changes"]:
        raise WrongSpec("--spares are servers that are added as voters, so they need --changes")
    budgets = Budgets(**bounds)
    servers = f"{voters} voters{f', {spares} spares' if spares else ''}"
    console.print(f"{servers}, {budgets.words()}{planted}")
    explorer = Explorer(voters, budgets, bug, spares=spares)
    raise Exit(_search(console, explorer, bug, cpu_s_max, states, crew))


def _demand_known(bug: str) -> None:
    """Raise WrongSpec for an unknown name of a planted bug of the consensus core."""
    from system_under_test.kraft.raft.decisions import BUGS

    if bug and bug not in BUGS:
        raise WrongSpec(unknown_name("planted bug", bug, BUGS))


def _bound_given() -> bool:
    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in _BOUNDS)


def _search(console: Console, explorer: Explorer, bug: str, cpu_s_max: float, states: int, crew: int) -> int:
    """Explore within one set of budgets, print the result, and return the exit code."""
    found = explorer.search(cpu_s_max, states, console.print, crew)
    counted = _counted([found])
    if found.broken:
        _broken(console, found, explorer.steps, counted)
    elif found.exhausted:
        console.print(f"exhausted: no order of these steps breaks a rule; {counted}")
    else:
        console.print(f"not exhausted: no rule was broken within {found.depth} steps; {counted}")
    return 1 if found.broken else 2 if bug or not found.exhausted else 0


def _grow(console: Console, voters: int, bug: str, cpu_s_max: float, states: int, crew: int) -> int:
    """Explore within growing budgets, print the result, and return the exit code."""
    from harness.exploring.explore import grow

    grown = grow(voters, bug, cpu_s_max, states, console.print, crew)
    budgets, last = grown.last
    every = [found for _, found in grown.exhausted if found is not last] + [last]
    counted = _counted(every)
    if last.broken:
        console.print(f"broken within {budgets.words()}")
        _broken(console, last, grown.steps, counted)
        return 1
    if last.late:
        console.print(f"time is up within {budgets.words()}: no rule was broken within {last.depth} steps")
    else:
        console.print(f"all remaining bounds have more than {states:,} states; --states allows more")
    console.print(f"proved absent within {len(grown.exhausted)} bounds; {counted}")
    return 2 if bug or not grown.exhausted else 0


def _broken(console: Console, found: Explored, steps: ClusterSteps, counted: str) -> None:
    console.print(f"broken after {len(found.trace)} steps: {found.broken}; {counted}")
    for number, step in enumerate(found.trace, 1):
        console.print(f"  {number:>2}  {steps.words(step)}")


def _counted(every: Sequence[Explored]) -> str:
    states, transitions = (sum(getattr(found, name) for found in every) for name in ("states", "transitions"))
    cpu_s = sum(found.cpu_s for found in every)
    rate = f"{states / max(cpu_s, 1e-9):,.0f} states a CPU s"
    return f"{states:,} states, {transitions:,} transitions, {cpu_s:.1f} CPU s ({rate})"


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="Number of storms.")
@click.option("--first-seed", type=click.IntRange(0), default=None, help="The first seed.  [default: random]")
@click.option(
    "--whole", type=click.IntRange(0), default=0, show_default=True, help="Additional runs on the backend simulator."
)
@click.option("--seconds", type=Amount(5), default=60.0, show_default=True, help="Simulated seconds of each storm.")
@click.option("--rate", type=Amount(1), default=50.0, show_default=True, help="Operations per second.")
@click.option("--nodes", type=click.IntRange(0, 9), default=0, help="Servers.  [default: 3 or 5, by the seed]")
@click.option("--bug", default="", help="Plant this bug, and measure how soon it is found.")
@click.option("--unguided", is_flag=True, help="Aim no wave of seeds at moments that earlier waves rarely reached.")
@click.option("--until-found", is_flag=True, help="End after the first wave in which something was found.")
@click.option("--minutes", type=Amount(0), default=float("inf"), help="Minutes after which no new wave begins.")
@click.option("--each", type=click.IntRange(1), default=50, show_default=True, help="Seeds per Spark task.")
@click.option("--replay", type=click.Path(path_type=Path), default=None, help="Only play this schedule again.")
@click.option(
    "--plays", type=click.IntRange(0), default=400, show_default=True, help="Maximum plays to shrink a failure."
)
@spark_master
@click.option("--results", type=click.Path(path_type=Path), default=Path("results/swarm"), show_default=True)
def swarm(
    seeds: int,
    first_seed: int | None,
    whole: int,
    seconds: float,
    rate: float,
    nodes: int,
    bug: str,
    unguided: bool,
    until_found: bool,
    minutes: float,
    each: int,
    replay: Path | None,
    plays: int,
    spark_master: str | None,
    results: Path,
) -> None:
    """Play a storm for each seed: a cluster on virtual time with random faults, some of them aimed at a moment of the
    protocol, such as an election or the write of a vote.

    The protocol's invariants are verified after every event, and all answers at the end.  Then all faults are healed,
    and a majority must make progress.  A failing seed is shrunk and kept as a schedule, which replays byte for byte.

    \b
    A first failing swarm:  krucible swarm --seeds 100 --bug lone-vote
    Its schedule again:     krucible swarm --replay results/swarm/FOLDER/findings/NAME.json
    A clean night:          krucible swarm --seeds 10000

    The same command with the same --first-seed continues an interrupted swarm.  On a Spark cluster (--spark-master),
    Krucible must be installed on every node.

    \b
    Exit codes:
      0  no seed failed; or, with --bug, the bug was found
      1  a seed broke a rule
      2  with --bug: no seed found the bug; or a seed took too long
      3  a seed could not be played, or the command line was wrong
    """
    console = plain_console()
    if replay is not None:
        raise Exit(_replay(replay, console))
    from checkers.spark.session import SparkJudge, SparkUnavailable
    from harness.campaign.swarm.swarm import Swarm
    from harness.campaign.swarm.work import SeedTask
    from harness.run.recorder import revision

    _demand_known(bug)
    first = secrets.randbelow(1_000_000) if first_seed is None else first_seed
    at = revision()
    plain = SeedTask((), seconds, rate, nodes, bug, at.revision + ("-changed" if at.dirty else ""))
    folder = results / f"{first}{'-' + bug if bug else ''}"
    spark = SparkJudge(spark_master)
    spark.start_in_background()
    run = Swarm(folder, plain, console.print, each, guided=not unguided)
    console.print(f"seeds {first} to {first + seeds - 1}, kept in {folder}")
    try:
        run.run(range(first, first + seeds), spark, minutes, until_found)
        _sum_up(run, spark, plays, console)
    except SparkUnavailable as problem:
        raise WrongSpec(f"Spark cannot be used: {problem}") from None
    finally:
        spark.stop()
    code = _code([row["verdict"] for row in run.rows], planted=bool(bug))
    if whole and code in (0, 1):
        code = max(code, _whole(whole, first, bug, folder, console))
    raise Exit(code)


def _sum_up(run: Swarm, spark: SparkJudge, plays: int, console: Console) -> None:
    """Shrink and store failures, and write and print the summary.

    plays: maximum number of plays to shrink a failure"""
    from harness.campaign.swarm.swarm import in_words, summary

    kept, found = run.keep_findings(plays), summary(run, spark)
    (run.folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    console.print("\n".join(in_words(found)))
    for path in kept:
        console.print(f"again: {program()} swarm --replay {path}")


def _code(verdicts: list[str], *, planted: bool) -> int:
    if "failed" in verdicts:
        return 3
    if planted:
        return 0 if "invalid" in verdicts else 2
    return 1 if "invalid" in verdicts else 2 if "too long" in verdicts else 0


def _replay(path: Path, console: Console) -> int:
    from harness.campaign.swarm.swarm import replay, words

    say = console.print
    try:
        played, compared = replay(path)
    except (ValueError, OSError) as problem:
        raise WrongSpec(f"{path} cannot be played: {problem}") from None
    say(f"{words(played.scenario)}, seed {played.scenario.seed}")
    for card in played.scenario.cards:
        when = f"after {card.moment} number {card.nth} + {card.delay_s:g} s" if card.moment else f"at {card.at_s:g} s"
        say(f"  {when}: {card.fault} {card.who}{' ' + card.how if card.how else ''} for {card.for_s:g} s")
    for found in played.found:
        say(f"at {found.time_s:.3f} s: {found.rule}: {found.what}")
    say(f"digest {played.digest}{': ' + compared if compared else ''}")
    return 1 if played.found else 0


def _whole(count: int, first: int, bug: str, folder: Path, console: Console) -> int:
    """Run `count` complete tests, like a user's run, on the backend `simulator`, and return the worst exit code."""
    from harness.campaign.loop import run_child
    from harness.spec import Spec

    say, worst = console.print, 0
    kinds = "partition,kill,pause,power,clock"
    for seed in range(first, first + count):
        spec = Spec(nemesis=kinds, backend="simulator", seed=seed, rate_hz=50.0, bug=bug or None)
        child = run_child(spec.words(), folder / "whole", folder / "whole.log")
        say(f"whole run, seed {seed}: exit {child.exit_code} ({child.seconds:.0f} s) {child.folder or ''}")
        worst = max(worst, 0 if child.exit_code == 2 else child.exit_code)  # an unknown run is no finding
    return worst
