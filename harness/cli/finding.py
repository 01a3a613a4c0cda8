"""`find`: see a known finding in a real system again."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from checkers.base.verdict import HARNESS_FAILED
from harness.cli.parameters import Name, backends
from harness.spec import Spec, WrongSpec, unknown_name

NOT_FOUND = 2


def _names(_: click.Context) -> list[str]:
    from harness.campaign.findings import FINDINGS

    return list(FINDINGS)


@click.command()
@click.argument("name", type=Name(_names))
@click.option("--backend", type=Name(backends), default=Spec().backend, show_default=True)
@click.option("--seed", type=int, default=None, help="Decides every random choice.  [default: a fresh one]")
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
def find(name: str, backend: str, seed: int | None, results: Path) -> None:
    """Run a system in the way in which it is known to break a promise, and say what was found.

    Exit code 0 if the finding was seen, 2 if it was not, 3 if the run could not be made.
    """
    from harness.campaign.findings import FINDINGS, found, in_words

    if name not in FINDINGS:
        raise WrongSpec(unknown_name("finding", name, FINDINGS))
    finding = FINDINGS[name]
    spec = finding.spec(secrets.randbelow(1_000_000) if seed is None else seed, backend)

    from harness.run.refusals import check_spec

    check_spec(spec)

    from rich.console import Console

    from harness.run.session import run_and_judge

    console = Console(soft_wrap=True)
    judged = run_and_judge(spec, results, None, console)
    console.print(f"\n{finding.system} ({finding.configuration})", highlight=False)
    if not found(finding, judged):
        console.print(f"not found in this run: {judged.get('summary', judged['verdict'])}", highlight=False)
        console.print(f"report: {judged['report']}", highlight=False)
        raise click.exceptions.Exit(HARNESS_FAILED if judged["exit_code"] == HARNESS_FAILED else NOT_FOUND)
    witness = judged["checkers"][finding.checker]["witness"][0]
    console.print(f"{in_words(finding, judged)}.", highlight=False, style="red")
    console.print(f"The smallest witness: {witness['summary']}", highlight=False)
    console.print(f"Published: {finding.published}", highlight=False)
    console.print(f"report: {judged['report']}", highlight=False)
