"""The commands about one test: `run`, `find`, `analyze` and `mutate`."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from checkers.base.verdict import HARNESS_FAILED
from harness.cli.parameters import (
    Name,
    RunAddress,
    as_json,
    beside,
    every_checker,
    fetched_from,
    findings,
    note_folder,
    refusing,
    results_in,
    spark_master,
    spec_option,
    spec_options,
    store,
    trust,
)
from harness.registry import check_names, names_for_bug, usual_options, with_limits
from harness.spec import Spec, WrongSpec

if TYPE_CHECKING:
    from rich.console import Console

    from harness.run.keeping import Policy
    from harness.run.session import JudgedRun


def _demand_address(text: str) -> None:
    from harness.live import address_of

    address_of(text)


@click.command()
@spec_options
@results_in("results")
@note_folder
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    default="",
    callback=refusing(_demand_address),
    help="Serve metrics for Prometheus during the run, such as at :9100 (loopback); see docs/metrics.md.",
)
@store
@click.option(
    "--keep",
    type=click.Choice(("never", "on-violation", "always")),
    default="never",
    show_default=True,
    help="Leave the cluster up after the run, and print how to enter it; `release` removes it.",
)
@spark_master
@every_checker
@as_json
def run(
    results: Path,
    note_folder: Path | None,
    metrics: str,
    store: str,
    keep: Policy,
    spark_master: str | None,
    every: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run one test and judge it.

    The run's history, logs, traces and faults are kept below results/.  Then the run is judged, and report.html is
    written to its folder.  --bug changes one switch in the subject and nothing else: the same seed generates the same
    first faults and the same operations.
    """
    keeper = None
    if keep != "never":
        from harness.run.keeping import apart

        child = apart(keep)
        if isinstance(child, int):
            raise click.exceptions.Exit(child)
        keeper = child
    options["bug"] = options["bug"] or None  # make passes an unset BUG= as an empty string
    fitting = names_for_bug(options["subject"], options["bug"])
    options |= {name: options[name] or fitting[name] for name in fitting}
    given_by = click.get_current_context().get_parameter_source
    usual = usual_options(options["subject"]).items()
    options |= {name: value for name, value in usual if given_by(name) is ParameterSource.DEFAULT}
    given = {name: value for name, value in options.items() if value is not None}
    spec = titled_by_schedule(Spec(**{"seed": secrets.randbelow(1_000_000), **given}))
    check_names(spec)
    spec = _with_every_kind(with_limits(spec, given))

    from harness.run.refused_before_start import check_spec

    check_spec(spec)

    from harness.cli.ending import end, print_end
    from harness.run.session import Aside, run_and_judge
    from harness.terminal.progress import LastingConsole

    console = LastingConsole(soft_wrap=True, stderr=as_json)
    aside = Aside(metrics, store, keeper, beside())
    found = run_and_judge(spec, results, spark_master, console, note_folder, aside)
    if keeper is not None:
        print_end(console, found, as_json, every)
        keeper.stay(found.exit_code)
        raise click.exceptions.Exit(found.exit_code)
    end(console, found, as_json, every)


def titled_by_schedule(spec: Spec) -> Spec:
    """Return the spec with the kinds of fault of its schedule file, if it has one, as its nemesis, because the run is
    named after the nemesis.

    An invalid file is refused later, with the reason.
    """
    if spec.schedule is None:
        return spec
    from harness.run.refused_before_start import read_schedule
    from nemesis.deck import BadSchedule

    try:
        kinds = dict.fromkeys(card.kind for card in read_schedule(Path(spec.schedule)).cards)
    except BadSchedule:
        return spec
    return replace(spec, nemesis=",".join(kinds) or spec.nemesis)


def _with_every_kind(spec: Spec) -> Spec:
    """Return the spec with the nemesis `all` replaced by all kinds of fault that fit, and print why others do not."""
    from nemesis.kinds import EVERY

    if spec.nemesis != EVERY:
        return spec

    from harness.run.refused_before_start import with_every_kind

    written_out, left_out = with_every_kind(spec)
    for kind, why in left_out.items():
        click.echo(f"left out: {kind} ({why})", err=True)
    return written_out


@click.command()
@click.argument("run_folder", type=RunAddress())
@spark_master
@click.option("--in-process", is_flag=True, help="Judge without Spark (same verdict; for small runs).")
@trust
@every_checker
@as_json
def analyze(
    run_folder: Path, spark_master: str | None, in_process: bool, trust: bool, every: bool, as_json: bool
) -> None:
    """Judge a stored run again, also one whose harness was killed.

    RUN_FOLDER may be the address of a run in an object store, such as s3://bucket/prefix/runs/TEST/RUN.  The run is
    fetched, and its new results are written to the store.

    The first lines tell who signed the run: this machine, a known key, an unknown key, or nobody (docs/evidence.md).
    """
    root = run_folder.resolve()
    if not (root / "test.json").exists():
        from harness.judge import results_before

        words = f"{run_folder} is not a run folder: it holds no test.json"
        if results_before.is_judged(root):
            results_before.set_aside(root)
            results_before.refused(root, words)
        raise WrongSpec(words)

    from harness.cli.ending import end
    from harness.run.session import IN_PROCESS, judge_again
    from harness.terminal.progress import LastingConsole

    console = LastingConsole(soft_wrap=True, stderr=as_json)
    came_from = fetched_from()
    found = judge_again(root, IN_PROCESS if in_process else spark_master, console, trust, came_from)
    if came_from is not None:
        from harness.store import JUDGED

        console.print(f"stored: {came_from.upload(root, only=JUDGED)}", highlight=False, markup=False)
    end(console, found, as_json, every)


@click.command()
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def mutate(run_folder: Path) -> None:
    """Falsify single rows of a valid run, to prove that its checkers detect each change.

    Each change must make the verdict invalid, for a reason that needs no checker: a read returns a value that was never
    written, an entry below a reported high watermark is missing, or a leader's epoch is wrong.

    Exit code 0 if the checkers detected every change, else 1.
    """
    from checkers.base.results import RunVerdict, read_results

    root = run_folder.resolve()
    if (results := read_results(root)) is None:
        raise WrongSpec(f"{run_folder} has no results.json: judge the run first (analyze)")
    if results.verdict is not RunVerdict.VALID:
        raise WrongSpec(f"{run_folder} is {results.verdict}: only a valid run can be falsified")

    from harness.judge.judge_run import falsify

    found = []
    for mutant in falsify(root):
        found.append(mutant.noticed)
        by = ", ".join(mutant.by) if mutant.noticed else "NO CHECKER"
        click.echo(f"{mutant.name.replace('_', ' '):<42} noticed by {by}")
    click.echo(f"noticed {sum(found)} of {len(found)} changes")
    raise click.exceptions.Exit(0 if all(found) else 1)


NOT_FOUND = 2


@click.command()
@click.argument("name", type=Name(findings))
@click.option("--clean", is_flag=True, help="Run the counterpart, in which the system keeps the promise.")
@spec_option("backend")
@click.option("--seed", type=int, default=None, help="Seed of all random choices.  [default: random]")
@results_in("results")
@note_folder
def find(name: str, clean: bool, backend: str, seed: int | None, results: Path, note_folder: Path | None) -> None:
    """Run a system in a configuration in which it is known to break a promise, and report whether it did.

    Exit code 0 if the finding was seen, 2 if it was not, 3 if the run could not be made.  With --clean: 0 if the
    counterpart is valid, else the exit code of its run.  A clean run, such as etcd-set, has no finding.
    """
    from harness.real_systems import spec_of

    spec = spec_of(name, secrets.randbelow(1_000_000) if seed is None else seed, backend, clean)

    from harness.run.refused_before_start import check_spec

    check_spec(spec)

    from harness.campaign.plans import note
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
    """Print what was found (see `real_systems.py`), and return the exit code of `find`."""
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
