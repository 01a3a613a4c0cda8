"""Judge files by hand: `check` for histories of any source, `check-logs` for what nodes left behind.

A line per file: verdict, file, and the first witness in words (or why nothing can be said).  A file that cannot be read
as a history is unknown, with `error: line N ...`; the others are judged all the same, and the exit code is 3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkers.history import MalformedHistory
from checkers.verdict import EXIT_CODES, HARNESS_FAILED, Validity, Verdict, combine
from harness.judged_file import Judged

if TYPE_CHECKING:
    from checkers.checker import Budget
    from checkers.history import Event
    from checkers.models.model import Model

TRANSACTIONS = ("list-append", "rw-register")
MODELS = (
    "register",
    "cas-register",
    "kv",
    "set",
    "queue",
    "counter",
    "mutex",
    "append-log",
    "unique-ids",
    *TRANSACTIONS,
)


@click.command()
@click.option(
    "--model",
    required=True,
    metavar="NAME|FILE.py",
    help=f"What the system claims to be: {', '.join(MODELS)}, or a Python file with a model of your own.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object per line instead of words.")
@click.option("--keyed", is_flag=True, help="In EDN and logs a value [k v] is a key and its value.")
@click.option(
    "--failed-cas",
    type=click.Choice(["did-not-happen", "observed"]),
    default="did-not-happen",
    show_default=True,
    help="What a cas that did not match says: nothing, or that the register held another value.",
)
@click.option("--steps", type=click.IntRange(min=1), default=None, help="Budget of steps for each file.")
@click.option("--size-bytes", type=click.IntRange(min=1), default=None, help="Budget of memory for each file.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(
    model: str,
    as_json: bool,
    keyed: bool,
    failed_cas: str,
    steps: int | None,
    size_bytes: int | None,
    files: tuple[Path, ...],
) -> None:
    """Judge histories: Jepsen's EDN and log lines, or our own Parquet and Arrow, recognised by their content.

    \b
    python -m harness check --model cas-register etcd_*.log
    python -m harness check --model kv --json store.edn
    python -m harness check --model my_lock.py history.edn        (docs/models.md)

    \b
    Exit codes: 0 all valid, 1 any invalid, else 2 any unknown; 3 if a file could not be read.
    """
    from checkers.checker import Budget

    default = Budget()
    budget = Budget(steps or default.steps, size_bytes or default.size_bytes)
    judge = _judge_of(model, budget, failed_cas)
    _show((judge_file(path, judge, keyed) for path in files), as_json)


@click.command(name="check-logs")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per line instead of words.")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def check_logs(as_json: bool, folders: tuple[Path, ...]) -> None:
    """Judge node logs: a run folder, or a folder that holds one Kafka data directory per node.

    Asks whether any two logs agree wherever they share an epoch, and whether each is in order in itself.
    """
    from harness.check_logs import judge_logs

    _show((judged for folder in folders for judged in judge_logs(folder)), as_json)


def judge_file(path: Path, judge: Callable[[Sequence[Event]], Verdict], keyed: bool = False) -> Judged:
    """One file.  Never raises for what is in it."""
    from checkers.formats import read_any

    try:
        events = read_any(path, keyed=keyed)
    except MalformedHistory as damage:
        return Judged(str(path), Verdict(Validity.UNKNOWN, reason=str(damage)), str(damage))
    except OSError as problem:
        words = problem.strerror or str(problem)
        return Judged(str(path), Verdict(Validity.UNKNOWN, reason=words), words)
    try:
        return Judged(str(path), _or_unknown(judge(events)))
    except Exception as problem:  # noqa: BLE001 - one file that breaks a checker must not keep the others from theirs
        words = f"the checker failed ({type(problem).__name__}: {problem})"
        return Judged(str(path), Verdict(Validity.UNKNOWN, reason=words), words)


def _judge_of(model: str, budget: Budget, failed_cas: str) -> Callable[[Sequence[Event]], Verdict]:
    """What judges events as the model asked for.  Raises click.BadParameter."""
    if model in TRANSACTIONS:
        from checkers.transactions import judge_transactions

        if model == "list-append":
            return lambda events: judge_transactions(events, "list-append", budget)
        return lambda events: judge_transactions(events, "rw-register", budget)
    from checkers.judge_events import judge_events

    chosen: str | Model = model
    if model.endswith(".py"):
        from checkers.models.own import BadModel, load_model

        try:
            chosen = load_model(Path(model))
        except BadModel as problem:
            raise click.BadParameter(str(problem), param_hint="--model") from problem
    elif model not in MODELS:
        raise click.BadParameter(f"there is no {model!r}; there are {', '.join(MODELS)}", param_hint="--model")
    return lambda events: judge_events(events, chosen, budget, failed_cas)


def _or_unknown(verdict: Verdict) -> Verdict:
    """A file in which nothing was judged is no pass."""
    if verdict.validity is Validity.NOT_APPLICABLE:
        return Verdict(Validity.UNKNOWN, verdict.looked_at, verdict.reason)
    return verdict


def _show(judged: Iterator[Judged], as_json: bool) -> None:
    """A line for each as soon as it is judged, then the exit code."""
    seen: list[Validity] = []
    broken = False
    for each in judged:
        click.echo(json.dumps(each.to_json()) if as_json else each.in_words())
        seen.append(each.verdict.validity)
        broken = broken or bool(each.error)
    overall = combine(seen)
    raise click.exceptions.Exit(HARNESS_FAILED if broken else EXIT_CODES.get(overall, EXIT_CODES[Validity.UNKNOWN]))
