"""The command `explore`: every order of the small, in place of chance."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from harness.spec import WrongSpec, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

    from harness.exploring.explore import Explored, Explorer
    from harness.exploring.steps import ClusterSteps


@click.command(short_help="Every order of messages, timeouts, crashes and cuts of three voters, breadth first.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="CPU time of a worker.",
)
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes.  [default: one a core]")
@click.option("--voters", type=click.IntRange(1, 5), default=3, show_default=True)
@click.option("--spares", type=click.IntRange(0, 2), default=0, show_default=True, help="Servers that can be added.")
@click.option("--epochs", type=click.IntRange(1), default=2, show_default=True, help="The last one that is entered.")
@click.option("--timeouts", type=click.IntRange(0), default=2, show_default=True, help="Of a voter that does not lead.")
@click.option("--crashes", type=click.IntRange(0), default=0, show_default=True, help="Power losses.")
@click.option("--insides", type=click.IntRange(0), default=0, show_default=True, help="Power losses between effects.")
@click.option("--losses", type=click.IntRange(0), default=0, show_default=True, help="Requests that are given up.")
@click.option("--cuts", type=click.IntRange(0), default=0, show_default=True, help="Times that a voter is cut off.")
@click.option("--splits", type=click.IntRange(0), default=0, show_default=True, help="Answers that come late.")
@click.option("--writes", type=click.IntRange(0), default=0, show_default=True)
@click.option("--reads", type=click.IntRange(0), default=0, show_default=True)
@click.option("--resigns", type=click.IntRange(0), default=0, show_default=True, help="Leaders that hear no majority.")
@click.option("--changes", type=click.IntRange(0), default=0, show_default=True, help="Voters added or removed.")
@click.option("--updates", type=click.IntRange(0), default=0, show_default=True, help="Of a voter's endpoints.")
@click.option("--looks", type=click.IntRange(0), default=0, show_default=True, help="Of a server that does not vote.")
@click.option(
    "--states", type=click.IntRange(1), default=2_000_000, show_default=True, help="So many at most (1 KB each)."
)
@click.option("--bug", default="", help="Plant this bug, to see in how many steps it shows.")
def explore(
    minutes: float,
    workers: int | None,
    voters: int,
    spares: int,
    epochs: int,
    timeouts: int,
    crashes: int,
    insides: int,
    losses: int,
    cuts: int,
    splits: int,
    writes: int,
    reads: int,
    resigns: int,
    changes: int,
    updates: int,
    looks: int,
    states: int,
    bug: str,
) -> None:
    """Take every order of steps of a few voters, level by level: the first violation has a shortest trace.

    The core is the very one that runs in containers; disks, links and timers are abstracted, and no chance is left.
    Each kind of step but the arrival of messages has a budget.  If all is exhausted within the budgets, no order of
    these steps breaks a rule: election safety, one vote, leader completeness, committed prefixes, majorities, reads.
    Without any budget on the command line, bounds grow by themselves until the time is used up.

    \b
    A first violation:   krucible explore --bug lone-vote
    Bugs of two terms:   krucible explore --bug stale-read --reads 1
    A proof of absence:  krucible explore --epochs 1 --timeouts 1 --writes 1 --minutes 10
    Voters that change:  krucible explore --epochs 1 --timeouts 1 --changes 1 --resigns 1

    \b
    Exit codes:
      0  all is exhausted, and no rule broke; of bounds that grow, at least one
      1  a rule broke
      2  time or memory was used up before; or, with --bug, nothing was found
      3  the command was called wrongly
    """
    from rich.console import Console

    from harness.exploring.explore import Explorer
    from harness.exploring.steps import Budgets
    from system_under_test.kraft.raft.decisions import BUGS

    if bug and bug not in BUGS:
        raise WrongSpec(unknown_name("planted bug", bug, BUGS))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    crew = workers or os.cpu_count() or 1
    cpu_s_max, planted = minutes * 60 * crew, f", with {bug}" if bug else ""
    if not _bound_given():
        console.print(f"{voters} voters, bounds that grow for {minutes:g} minutes{planted}")
        raise click.exceptions.Exit(_grow(console, voters, bug, cpu_s_max, states, crew))
    if spares and not changes:
        raise WrongSpec("--spares are servers that are added as voters, so they need --changes")
    left = (crashes, losses, cuts, splits, writes, reads, resigns, insides, changes, looks, updates)
    budgets = Budgets(epochs, timeouts, *left)
    servers = f"{voters} voters{f', {spares} spares' if spares else ''}"
    console.print(f"{servers}, {budgets.words()}{planted}")
    explorer = Explorer(voters, budgets, bug, spares=spares)
    raise click.exceptions.Exit(_search(console, explorer, bug, cpu_s_max, states, crew))


def _bound_given() -> bool:
    from harness.exploring.steps import LEFT

    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in ("epochs", *LEFT))


def _search(console: Console, explorer: Explorer, bug: str, cpu_s_max: float, states: int, crew: int) -> int:
    """Explore one bound; the exit code."""
    found = explorer.search(cpu_s_max, states, console.print, crew)
    counted = _counted(found.states, found.transitions, found.cpu_s)
    if found.broken:
        _broken(console, found, explorer.steps, counted)
    elif found.exhausted:
        console.print(f"exhausted: no order of these steps breaks a rule; {counted}")
    else:
        console.print(f"not exhausted: nothing broke within {found.depth} steps; {counted}")
    return 1 if found.broken else 2 if bug or not found.exhausted else 0


def _grow(console: Console, voters: int, bug: str, cpu_s_max: float, states: int, crew: int) -> int:
    """Explore bounds that grow; the exit code."""
    from harness.exploring.explore import grow

    grown = grow(voters, bug, cpu_s_max, states, console.print, crew)
    budgets, last = grown.last
    every = [found for _, found in grown.exhausted if found is not last] + [last]
    counted = _counted(
        sum(found.states for found in every),
        sum(found.transitions for found in every),
        sum(found.cpu_s for found in every),
    )
    if last.broken:
        console.print(f"broken within {budgets.words()}")
        _broken(console, last, grown.steps, counted)
        return 1
    if last.late:
        console.print(f"time is up within {budgets.words()}: nothing broke within {last.depth} steps")
    else:
        console.print(f"all bounds that are left have more than {states:,} states; --states allows more")
    console.print(f"proved absent within {len(grown.exhausted)} bounds; {counted}")
    return 2 if bug or not grown.exhausted else 0


def _broken(console: Console, found: Explored, steps: ClusterSteps, counted: str) -> None:
    console.print(f"broken after {len(found.trace)} steps: {found.broken}; {counted}")
    for number, step in enumerate(found.trace, 1):
        console.print(f"  {number:>2}  {steps.words(step)}")


def _counted(states: int, transitions: int, cpu_s: float) -> str:
    rate = f"{states / max(cpu_s, 1e-9):,.0f} states a CPU s"
    return f"{states:,} states, {transitions:,} transitions, {cpu_s:.1f} CPU s ({rate})"
