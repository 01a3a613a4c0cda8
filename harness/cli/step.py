"""`step`: a stored run in the terminal, operation by operation."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.parameters import RunAddress
from harness.spec import WrongSpec

if TYPE_CHECKING:
    from harness.stepping import RunStep

_HELP = "Enter: next   N: N steps   v: to the next violation   f: to the next fault   /TEXT: to a line with it   q: end"


@click.command(short_help="Replay a stored run in the terminal, operation by operation.")
@click.argument("run_folder", type=RunAddress())
@click.option("--key", default=None, help="Only operations on this object.")
@click.option("--from", "from_s", type=float, default=0.0, help="Begin at this second of the test.")
@click.option("--to", "to_s", type=float, default=math.inf, help="End at this second.  [default: the end]")
def step(run_folder: Path, key: str | None, from_s: float, to_s: float) -> None:
    """Replay the run in RUN_FOLDER: each operation with the faults in force, elections, violations, and the states that
    its object may have afterwards.

    On a terminal it stops after every step; `?` says how to go on.  Elsewhere it prints all steps.
    """
    from checkers.base.history import MalformedHistory
    from checkers.catalog import names_in
    from harness.judge.judge_run import spec_of
    from harness.registry import load_workload
    from harness.stepping import steps_of

    root = run_folder.resolve()
    if not (root / "test.json").exists():
        raise WrongSpec(f"{run_folder} is not a run folder: it holds no test.json")
    try:
        steps = steps_of(root, names_in(load_workload(spec_of(root)).checkers), key)
        chosen = (one for one in steps if from_s * 1e9 <= one.time_ns <= to_s * 1e9)
        if not (_one_by_one if sys.stdin.isatty() and sys.stdout.isatty() else _all)(chosen):
            raise WrongSpec(f"{run_folder} has no such step" + (f" of the object {key}" if key else ""))
    except MalformedHistory as problem:
        raise WrongSpec(str(problem)) from None


def _all(steps: Iterator[RunStep]) -> int:
    """Print them; how many."""
    shown = 0
    for shown, one in enumerate(steps, 1):  # noqa: B007 - their number is what is wanted
        click.echo(one.line())
    return shown


def _one_by_one(steps: Iterator[RunStep]) -> int:
    """Print them as the user asks for them; how many were shown."""
    click.echo(_HELP)
    shown, left, until = 0, 1, ""
    for one in steps:
        click.echo(one.line())
        shown += 1
        left -= 1
        reached = (until in ("violation", "fault") and one.kind == until) or (
            until[:1] == "/" and until[1:] in one.line()
        )
        if (until and not reached) or left > 0:
            continue
        left, until = _asked()
        if left == 0:
            break
    return shown


def _asked() -> tuple[int, str]:
    """Return how many steps, and until what; 0 steps to end."""
    while True:
        words = click.prompt(">", default="", show_default=False, prompt_suffix=" ").strip()
        if words in ("q", "quit"):
            return 0, ""
        if words.isdigit() and int(words) > 0:
            return int(words), ""
        if words in ("v", "f"):
            return 1, "violation" if words == "v" else "fault"
        if words.startswith("/") and len(words) > 1:
            return 1, words
        if not words:
            return 1, ""
        click.echo(_HELP)
