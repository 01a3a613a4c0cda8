"""`nightly`: many runs, one after another, and one page that sums them up."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from harness.cli.parameters import backend_of_nodes, results_in
from harness.spec import Spec

_DEFAULT = Spec()
_PARTS = ("canary", "clean", "peer", "bugs")


@click.command(short_help="Run every test and every planted bug over several seeds.")
@click.option("--seeds", default=2, show_default=True, help="Seeds per test and bug.")
@click.option(
    "--first-seed", type=int, default=None, help="The first seed; the others follow it.  [default: a fresh one]"
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Only these parts (may be repeated).  [default: all]",
)
@backend_of_nodes
@click.option("--time-limit", default=_DEFAULT.time_limit_s, show_default=True, help="Seconds of each main phase.")
@click.option("--stop-on-violation", is_flag=True, help="End each run early when an online check finds a violation.")
@results_in("results/nightly")
def nightly(
    seeds: int,
    first_seed: int | None,
    parts: tuple[str, ...],
    backend: str,
    time_limit: float,
    stop_on_violation: bool,
    results: Path,
) -> None:
    """Run every test and every planted bug over several seeds; exit 0 if all ended as expected, else 1."""
    from rich.console import Console

    from harness.campaign.nightly import campaign
    from harness.registry import check_names

    check_names(Spec(backend=backend, time_limit_s=time_limit))
    first = secrets.randbelow(1_000_000) if first_seed is None else first_seed
    options = ["--time-limit", str(time_limit)] + (["--backend", backend] if backend != "auto" else [])
    options += ["--stop-on-violation"] if stop_on_violation else []
    console = Console(soft_wrap=True)
    chosen = range(first, first + seeds)
    raise click.exceptions.Exit(campaign(chosen, parts or _PARTS, results, options, console, backend))
