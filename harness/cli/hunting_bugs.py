"""`hunt-bugs`: every planted bug with a nemesis that can show it, and how long it took to find it."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.parameters import Name, backend_of_nodes, nemeses, results_in, subjects
from harness.spec import Spec, WrongSpec

_DEFAULT = Spec()
NOT_FOUND = 2


@click.command(
    name="hunt-bugs", short_help="Run every planted bug over several seeds, and count how often it is found."
)
@click.option("--bug", "bugs", multiple=True, help="Only this planted bug (may be repeated).  [default: all]")
@click.option("--seeds", default=3, show_default=True, help="Runs of each bug.")
@click.option("--first-seed", default=1, show_default=True, help="The first seed; the others follow it.")
@click.option(
    "--nemesis",
    type=Name(nemeses),
    default="",
    help="What breaks things, instead of the nemesis that the subject names for the bug.",
)
@click.option(
    "--subject", type=Name(subjects), default=_DEFAULT.subject, show_default=True, help="The system under test."
)
@backend_of_nodes
@click.option("--time-limit", default=_DEFAULT.time_limit_s, show_default=True, help="Seconds of each main phase.")
@click.option("--stop-on-violation", is_flag=True, help="End each run as soon as an online check finds a violation.")
@results_in("results/hunt")
def hunt_bugs(
    bugs: tuple[str, ...],
    seeds: int,
    first_seed: int,
    nemesis: str,
    subject: str,
    backend: str,
    time_limit: float,
    stop_on_violation: bool,
    results: Path,
) -> None:
    """Run every planted bug over several seeds, and say how often and how soon it was found.

    What was run is kept under RESULTS, in a folder named after the revision of the code.  A hunt that was broken off
    goes on where it stood.  Exit code 0 if every run found its bug, 2 if not.
    """
    from rich.console import Console

    from harness.campaign.hunt_bugs import TABLE, hunt, preys, table
    from harness.registry import check_names
    from harness.run.run_folder import revision

    check_names(Spec(subject=subject, backend=backend, time_limit_s=time_limit, nemesis=nemesis or _DEFAULT.nemesis))
    try:
        wanted = list(preys(subject, bugs, range(first_seed, first_seed + seeds), nemesis))
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem
    at = revision()
    folder = results / (at["revision"][:12] + ("-changed" if at["dirty"] else "") or "unknown")
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{len(wanted)} runs at most; each is kept in {folder}")
    options = ["--time-limit", f"{time_limit:g}", "--backend", backend]
    options += ["--stop-on-violation"] if stop_on_violation else []
    caught = hunt(subject, wanted, folder, options, console)
    console.print(
        f"\n{table(caught)}\n\nfound {sum(c.found for c in caught)} of {len(caught)}; table: {folder / TABLE}"
    )
    raise click.exceptions.Exit(0 if all(c.found for c in caught) else NOT_FOUND)
