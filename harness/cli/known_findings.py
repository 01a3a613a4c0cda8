"""`find`: see a known finding in a real system again, or see that its counterpart is clean."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkers.base.verdict import HARNESS_FAILED
from harness.cli.parameters import Name, beside, note_folder, results_in, spec_option

if TYPE_CHECKING:
    from rich.console import Console

    from harness.run.session import JudgedRun

NOT_FOUND = 2


def names(_: click.Context) -> list[str]:
    from harness.real_systems import names_of_runs

    return names_of_runs()


@click.command(short_help="See a known finding in a real system again.")
@click.argument("name", type=Name(names))
@click.option("--clean", is_flag=True, help="Run the counterpart, which keeps the promise.")
@spec_option("backend")
@click.option("--seed", type=int, default=None, help="Decides every random choice.  [default: a fresh one]")
@results_in("results")
@note_folder
def find(name: str, clean: bool, backend: str, seed: int | None, results: Path, note_folder: Path | None) -> None:
    """Run a system in the way in which it is known to break a promise, and say what was found.

    Exit code 0 if the finding was seen, 2 if it was not, 3 if the run could not be made.  With --clean: 0 if the
    counterpart is valid, else the exit code of its run.  The clean runs, such as etcd-set, have nothing to find.
    """
    from harness.real_systems import spec_of

    spec = spec_of(name, secrets.randbelow(1_000_000) if seed is None else seed, backend, clean)

    from harness.run.refused_before_start import check_spec

    check_spec(spec)

    from harness.campaign.findings_ledger import note
    from harness.plain_words import as_typed
    from harness.run.session import Aside, run_and_judge
    from harness.terminal.progress import LastingConsole

    console, began_s = LastingConsole(soft_wrap=True), time.monotonic()
    judged = run_and_judge(spec, results, None, console, note_folder, Aside(beside=beside()))
    code = _say(judged, console)
    if code != HARNESS_FAILED:
        note(results, name, clean, code == 0, time.monotonic() - began_s, judged.folder)
    console.print(f"report: {as_typed(judged.report)}", highlight=False)
    raise click.exceptions.Exit(code)


def _say(judged: JudgedRun, console: Console) -> int:
    """Print the story of the run (`real_systems.py`), and return the exit code of `find`."""
    if (story := judged.results.finding) is None:  # the run could not be judged
        console.print(judged.summary, highlight=False)
        return judged.exit_code
    console.print(f"\n{story.system} ({story.configuration})", highlight=False)
    console.print(story.words, highlight=False, style="red" if story.witness else None)
    if story.witness:
        console.print(f"The smallest witness, {story.witness}", highlight=False, markup=False)
        console.print(f"Published: {story.published}", highlight=False)
    if not story.as_expected:
        console.print(judged.summary, highlight=False)
    if story.clean or (judged.exit_code == HARNESS_FAILED and not story.as_expected):
        return judged.exit_code
    return 0 if story.as_expected else NOT_FOUND
