"""The command line: run a test, judge a stored one again, list every name one may type.

Exit codes: 0 valid; 1 invalid; 2 unknown (a budget ran out, a fault was not achieved, the run was vacuous); 3 the
harness itself failed or was called wrongly.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import traceback
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from checkers.history import MalformedHistory
from checkers.json_file import BrokenFile, read_object
from checkers.verdict import HARNESS_FAILED
from harness.backends.backend import BackendUnavailable
from harness.check import check, check_logs
from harness.registry import BACKENDS, SUBJECTS, WORKLOADS, check_names, load_subject
from harness.spec import Spec, WrongSpec
from nemesis.deck import NEMESES, BadSchedule

_DEFAULT = Spec()
_EXPECTED = (WrongSpec, BadSchedule, BackendUnavailable, MalformedHistory, BrokenFile, OSError)
_COLOUR = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}


def _known_master(_: click.Context, __: click.Parameter, master: str | None) -> str | None:
    from checkers.spark.settings import problem_with

    if master and (problem := problem_with(master)):
        raise click.BadParameter(problem)
    return master


_spark_master = click.option(
    "--spark-master",
    metavar="URL",
    default=None,
    callback=_known_master,
    help="Judge on this Spark cluster (docs/cluster.md) instead of inside the process.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def cli() -> None:
    """Krucible breaks a distributed system on purpose and says, with evidence, whether it kept its promises.

    \b
    A first run:        python -m harness run --nemesis partition
    Prove it can fail:  python -m harness run --nemesis partition --bug stale-read
    Judge it again:     python -m harness analyze results/latest

    \b
    Exit codes: 0 valid, 1 invalid, 2 unknown (not enough was tested to say), 3 the harness failed or was
    called wrongly.
    """


@cli.command()
@click.option("--nemesis", default=_DEFAULT.nemesis, show_default=True, help="What breaks things; see `list`.")
@click.option("--subject", default=_DEFAULT.subject, show_default=True, help="The system under test.")
@click.option("--workload", default=_DEFAULT.workload, show_default=True, help="What clients ask.")
@click.option(
    "--backend", default=_DEFAULT.backend, show_default=True, help="Where nodes live; auto: docker if it answers."
)
@click.option("--nodes", default=_DEFAULT.nodes, show_default=True, help="Servers (client nodes come on top).")
@click.option("--time-limit", default=_DEFAULT.time_limit_s, show_default=True, help="Seconds of the main phase.")
@click.option(
    "--rate", default=_DEFAULT.rate_hz, show_default=True, help="Operations per second in all; 0: as fast as can be."
)
@click.option("--concurrency", default=_DEFAULT.concurrency, show_default=True, help="Processes at once, in all.")
@click.option("--keys", default=_DEFAULT.keys, show_default=True, help="Registers to work on.")
@click.option("--seed", type=int, default=None, help="Decides every random choice.  [default: a fresh one, printed]")
@click.option("--bug", default=None, help="Run the subject with this planted bug; see `list`.")
@click.option(
    "--schedule", type=click.Path(exists=True, dir_okay=False), default=None, help="Play this schedule of faults."
)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--online/--no-online", default=_DEFAULT.online, show_default=True, help="Judge while the run goes on, too."
)
@click.option("--stop-on-violation", is_flag=True, help="End the run early when an online check finds a violation.")
@_spark_master
def run(
    time_limit: float, rate: float, seed: int | None, results: Path, spark_master: str | None, **options: Any
) -> None:
    """Run one test and judge it.

    The run is kept under results/ before judging begins: history, logs, traces, faults.  Then Spark judges it and
    report.html is written beside it.  BUG changes nothing but one switch in the subject: the same seed deals the
    same faults and asks the same operations.
    """
    from harness.session import run_and_judge

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    options["bug"] = options["bug"] or None  # make passes BUG= as an empty word
    spec = Spec(time_limit_s=time_limit, rate_hz=rate, seed=seed, **options)
    check_names(spec)
    console = Console(soft_wrap=True)
    outcome = run_and_judge(spec, results, spark_master, console)
    _tell(console, outcome)


@cli.command()
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_spark_master
@click.option("--in-process", is_flag=True, help="Judge without Spark (same verdict; for small runs).")
def analyze(run_folder: Path, spark_master: str | None, in_process: bool) -> None:
    """Judge a stored run again, one whose harness was killed too."""
    from harness.session import judge_again

    console = Console(soft_wrap=True)
    root = run_folder.resolve()
    if not (root / "test.json").exists():
        raise WrongSpec(f"{run_folder} is not a run folder: it holds no test.json")
    _tell(console, judge_again(root, spark_master, in_process, console))


@cli.command()
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def mutate(run_folder: Path) -> None:
    """Prove that the judge is awake: falsify a valid run, one row at a time; every verdict must turn invalid.

    Exit code 0 if every falsified row was noticed, 1 if one was not.
    """
    from harness.judging import falsify

    root = run_folder.resolve()
    if not (root / "results.json").exists():
        raise WrongSpec(f"{run_folder} holds no results.json: judge the run first (analyze)")
    if (verdict := read_object(root / "results.json").get("verdict")) != "valid":
        raise WrongSpec(f"{run_folder} is {verdict}: only a valid run can be falsified")
    asleep = 0
    for mutant in falsify(root):
        asleep += not mutant.noticed
        by = ", ".join(mutant.by) if mutant.noticed else "NOBODY"
        click.echo(f"{mutant.name.replace('_', ' '):<42} noticed by {by}")
    raise click.exceptions.Exit(1 if asleep else 0)


@cli.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def list_names(as_json: bool) -> None:
    """List workloads, nemeses, backends, subjects and their planted bugs."""
    subjects = {name: load_subject(name) for name in SUBJECTS}
    names = {
        "workloads": {name: entry.summary for name, entry in WORKLOADS.items()},
        "nemeses": {name: nemesis.summary for name, nemesis in NEMESES.items()},
        "backends": {name: entry.summary for name, entry in BACKENDS.items()},
        "subjects": {name: entry.summary for name, entry in SUBJECTS.items()},
        "bugs": {
            f"{s.name}/{bug.name}": f"{bug.summary} (found by {bug.found_by}"
            + ("" if bug.in_containers else ", in simulation only")
            + ")"
            for s in subjects.values()
            for bug in s.bugs.values()
        },
    }
    if as_json:
        click.echo(json.dumps(names, indent=1))
        return
    console = Console(soft_wrap=True)
    for kind, rows in names.items():
        table = Table(title=kind, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
        for name, summary in rows.items():
            table.add_row(name, summary)
        console.print(table)
        console.print()


@cli.command()
@click.option("--backend", default=_DEFAULT.backend, show_default=True, help="Prepare what this backend needs.")
@click.option("--subject", default=_DEFAULT.subject, show_default=True, help="The system that will be tested.")
def setup(backend: str, subject: str) -> None:
    """Prepare this machine: Java, compiled kernels, Spark's class archive, the node image."""
    from harness.set_up import prepare

    check_names(Spec(backend=backend, subject=subject))
    prepare(Console(soft_wrap=True), backend, load_subject(subject).declares.nodes)


@cli.command()
@click.option("--seeds", default=2, show_default=True, help="Seeds per test and bug.")
@click.option("--first-seed", type=int, default=None, help="Count from here.  [default: a fresh one]")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(["canary", "clean", "peer", "bugs"]),
    help="Only these parts (may be repeated).  [default: all]",
)
@click.option("--backend", default=_DEFAULT.backend, show_default=True)
@click.option("--time-limit", default=_DEFAULT.time_limit_s, show_default=True, help="Seconds of each main phase.")
@click.option("--stop-on-violation", is_flag=True, help="End each run early when an online check finds a violation.")
@click.option("--results", type=click.Path(path_type=Path), default=Path("results/nightly"), show_default=True)
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
    from harness.nightly import campaign

    first = secrets.randbelow(1_000_000) if first_seed is None else first_seed
    options = ["--time-limit", str(time_limit)] + (["--backend", backend] if backend != "auto" else [])
    options += ["--stop-on-violation"] if stop_on_violation else []
    chosen = parts or ("canary", "clean", "peer", "bugs")
    console = Console(soft_wrap=True)
    raise click.exceptions.Exit(campaign(range(first, first + seeds), chosen, results, options, console))


@cli.command(name="clean-up")
def clean_up() -> None:
    """Remove what runs that died left behind; runs that are alive are not touched.

    Every run does so by itself when it begins; this is for whoever wants it gone now.
    """
    from harness.backends.docker import why_unavailable
    from harness.backends.docker.cleanup import sweep_dead
    from harness.backends.docker.engine import connect
    from harness.backends.namespaces.backend import sweep_folders

    removed = sweep_folders() + (sweep_dead(connect()) if why_unavailable() is None else [])
    click.echo("\n".join(f"removed what {name} had left" for name in removed) or "nothing was left behind")


cli.add_command(check)
cli.add_command(check_logs)


def main() -> None:
    """Run the command line; every refusal is one sentence on stderr and exit code 3."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    sys.exit(_exit_code())


def _exit_code() -> int:
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as problem:
        problem.show()
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
    except Exception as problem:  # noqa: BLE001 - whatever fails, 1 would say that an invariant was violated
        _explain(problem)
    else:
        return code if isinstance(code, int) else 0
    return HARNESS_FAILED


def _explain(problem: Exception) -> None:
    """What was expected to go wrong one day is one sentence; anything else is a mistake of the harness, told whole."""
    leaves = [problem]
    while any(isinstance(leaf, ExceptionGroup) for leaf in leaves):
        leaves = [
            inner for leaf in leaves for inner in (leaf.exceptions if isinstance(leaf, ExceptionGroup) else [leaf])
        ]
    if all(isinstance(leaf, _EXPECTED) for leaf in leaves):
        for leaf in leaves:
            click.echo(f"krucible: {leaf}", err=True)
    else:
        traceback.print_exception(problem)
        click.echo("krucible: a mistake of the harness itself; what the run had recorded is kept", err=True)


def _draw_first(results: dict[str, Any]) -> None:
    """The first witness of an invalid run, drawn; all of them, with their reasons, are in the report."""
    from harness.terminal import show_witness

    bad = [entry for entry in results["checkers"].values() if entry["verdict"] == "invalid" and entry["witness"]]
    if bad:
        click.echo()
        show_witness(bad[0]["witness"][0], compact=True)
        click.echo()


def _tell(console: Console, results: dict[str, Any]) -> None:
    """The verdict at the end, and its exit code."""
    verdict = results["verdict"]
    console.print()
    for name, entry in results["checkers"].items():
        colour = _COLOUR.get(entry["verdict"], "dim")
        why = entry["reason"] or (entry["witness"][0]["summary"] if entry["witness"] else "")
        console.print(f"  [{colour}]{entry['verdict']:>14}[/]  {name:<22} ", end="")
        console.print(why, highlight=False, markup=False)
    console.print()
    console.print(results.get("summary", verdict), highlight=False, markup=False, style=_COLOUR[verdict])
    _draw_first(results)
    if results.get("judged_by", "").startswith("in process ("):  # not where it was asked for; in brackets why
        console.print(f"judged {results['judged_by']}", highlight=False, markup=False, style="yellow")
    console.print(f"report: {results['report']}", highlight=False, markup=False)
    console.print(f"again:  {results['rerun']}", highlight=False, markup=False)
    raise click.exceptions.Exit(results["exit_code"])
