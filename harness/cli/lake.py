"""The commands that read stored runs: `runs`, `compare`, `query`, `serve` and `step`."""

from __future__ import annotations

import ipaddress
import json
import math
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.parameters import (
    Name,
    RunAddress,
    demand_run,
    nemeses,
    results_in,
    spark_master,
    store,
    subjects,
    workloads,
)
from harness.plain_words import in_columns
from harness.spec import WrongSpec, unknown_name

if TYPE_CHECKING:
    from harness.lake.lake import Lake
    from harness.serve.app import Source
    from harness.stepping import RunStep

VERDICTS = ("valid", "invalid", "unknown", "harness failed", "not judged")
in_lake = click.option(
    "--lake",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="The folder of the lake.  [default: `lake` in --results or above]",
)


def lake_at(folder: Path | None, results: Path, store: str = "") -> Lake:
    """Return the lake of the store if one is given, else the lake in `folder`, else the lake of the results folder."""
    from harness.lake.lake import Lake, lake_of

    if store:
        from harness.store import Store

        return Store.at(store).mirror().refresh()
    return Lake(folder.resolve() if folder is not None else lake_of(results))


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    from harness.lake.past import moment

    try:
        return moment(text) if text else None
    except ValueError:
        raise click.BadParameter(f"{text!r} is no date or time such as 2026-11-25 or 2026-11-25T14:00") from None


def _at(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        name, metavar="TIME", callback=_moment, default=None, help=f"Only runs that began {what} this time (UTC)."
    )


@click.command()
@click.option("--system", type=Name(subjects), default="", help="Only runs of this system.")
@click.option("--workload", type=Name(workloads), default="", help="Only runs of this workload.")
@click.option("--kind", type=Name(nemeses), default="", help="Only runs with this kind of fault.")
@click.option("--bug", default="", help="Only runs with this planted bug.")
@click.option("--verdict", type=click.Choice(VERDICTS), default=None, help="Only runs with this verdict.")
@click.option("--symptom", default="", metavar="ID", help="Only runs with a violation of this symptom.")
@click.option("--revision", default="", help="Only runs of a revision that begins with this text.")
@_at("--since", "at or after")
@_at("--until", "before")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Maximum number of runs; 0: all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each run.")
@click.option("--rebuild", is_flag=True, help="First rebuild the lake from the run folders in --results.")
@in_lake
@store
@results_in("results")
def runs(
    limit: int,
    as_json: bool,
    rebuild: bool,
    folder: Path | None,
    store: str,
    results: Path,
    verdict: str | None,
    **wanted: Any,
) -> None:
    """List the runs of the lake, newest first: time, verdict, test, symptom, folder."""
    from harness.backends.leftovers import kept_clusters
    from harness.lake import past

    lake = lake_at(folder, results, store)
    if rebuild and not store:
        held = lake.rebuild(results.resolve(), lambda line: click.echo(line, err=True))
        click.echo(f"the lake in {lake.folder} holds {held} runs", err=True)
    found = past.runs(lake, past.Filter(verdict=verdict or "", **wanted), limit or None)
    if as_json:
        for run in found:
            click.echo(json.dumps(run, default=str))
        return
    if not found:
        click.echo(f"no run in {lake.folder} matches; `krucible runs --rebuild` reads the run folders again")
        return
    click.echo("\n".join(past.lines(found)))
    for kept in kept_clusters():
        from harness.cli.ending import line_of

        click.echo(line_of(asdict(kept), kept.why_stale))


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@in_lake
@store
@results_in("results")
def compare(a: str, b: str, folder: Path | None, store: str, results: Path) -> None:
    """Compare the runs A and B, each given as a run folder or as the beginning of the name of a run in the lake.

    Prints the differences of their specs, their measurements (with a star if they differ), their timelines side by side
    (with an arrow at the first difference), and the first operation that differs.
    """
    from harness.lake import compare as comparing

    lake = lake_at(folder, results, store)
    try:
        one, other = comparing.find(lake, a), comparing.find(lake, b)
    except LookupError as problem:
        raise WrongSpec(str(problem.args[0])) from None
    click.echo("\n".join(comparing.compare(one[0], other[0], one[1], other[1]).lines()))


def _questions(_: click.Context) -> Iterable[str]:
    from harness.lake.sql import QUESTIONS

    return QUESTIONS


@click.command()
@click.argument("question", type=Name(_questions), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each row.")
@click.option("--show", is_flag=True, help="Print the SQL of a question instead of its answer.")
@in_lake
@store
@results_in("results")
@spark_master
def query(
    question: str | None,
    as_json: bool,
    show: bool,
    folder: Path | None,
    store: str,
    results: Path,
    spark_master: str | None,
) -> None:
    """Query all runs of the lake in SQL, with a predefined question by its name or with a query of your own.

    Without an argument, list the predefined questions and the tables.  DuckDB answers in this process; with
    --spark-master, Spark SQL answers on a cluster whose nodes can read the lake's folder.
    """
    from harness.lake.sql import QUESTIONS, WrongQuery, ask

    if question is None:
        click.echo("\n".join(_what_there_is()))
        return
    statement = QUESTIONS[question].sql if question in QUESTIONS else question
    if " " not in statement.strip():
        raise WrongSpec(f"{unknown_name('question', question, QUESTIONS)}; or give a statement: SELECT …")
    if show:
        click.echo(statement.strip())
        return
    from checkers.spark.java import SparkUnavailable

    spark = None
    if spark_master:
        from checkers.spark.session import SparkJudge

        spark = SparkJudge(spark_master)
    try:
        columns, rows = ask(lake_at(folder, results, store), statement, spark)
    except (LookupError, SparkUnavailable, WrongQuery) as problem:
        raise WrongSpec(str(problem.args[0])) from None
    finally:
        if spark is not None:
            spark.stop()
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=str))
        return
    lines = in_columns([list(columns), *([_cell(row[column]) for column in columns] for row in rows)])
    click.echo("\n".join([*lines, f"({len(rows)} rows)"]))


def _what_there_is() -> list[str]:
    from harness.lake.sql import QUESTIONS
    from harness.lake.tables import TABLES

    lines = ["questions:", *(f"  {name:<12} {one.words}" for name, one in QUESTIONS.items())]
    lines += ["", "tables (each also has the columns date and system):"]
    return lines + [f"  {name:<12} {', '.join(schema.names)}" for name, schema in TABLES.items()]


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}".removesuffix(" 00:00")
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else str(value)


_HELP = "Enter: next step   N: N steps   v: next violation   f: next fault   /TEXT: next line with TEXT   q: quit"


@click.command()
@click.argument("run_folder", type=RunAddress())
@click.option("--key", default=None, help="Only operations on this object.")
@click.option("--from", "from_s", type=float, default=0.0, help="Begin at this second of the test.")
@click.option("--to", "to_s", type=float, default=math.inf, help="Stop at this second of the test.  [default: the end]")
def step(run_folder: Path, key: str | None, from_s: float, to_s: float) -> None:
    """Replay the run in RUN_FOLDER: operations, faults in force, elections and violations.  After each operation it
    shows the states that the object may have.

    On a terminal it stops after every step, and `?` lists the keys.  Otherwise it prints all steps.
    """
    from checkers.base.history import MalformedHistory
    from checkers.catalog import names_in
    from harness.judge.judge_run import spec_of
    from harness.registry import load_workload
    from harness.stepping import steps_of

    root = demand_run(run_folder)
    try:
        steps = steps_of(root, names_in(load_workload(spec_of(root)).checkers), key)
        chosen = (one for one in steps if from_s * 1e9 <= one.time_ns <= to_s * 1e9)
        if not (_one_by_one if sys.stdin.isatty() and sys.stdout.isatty() else _all)(chosen):
            raise WrongSpec(f"{run_folder} has no such step" + (f" of the object {key}" if key else ""))
    except MalformedHistory as problem:
        raise WrongSpec(str(problem)) from None


def _all(steps: Iterator[RunStep]) -> int:
    """Print all steps, and return their number."""
    shown = 0
    for shown, one in enumerate(steps, 1):  # noqa: B007 - their number is what is wanted
        click.echo(one.line())
    return shown


def _one_by_one(steps: Iterator[RunStep]) -> int:
    """Print steps as the user requests them, and return the number of printed steps."""
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
    """Return (number of steps to print, event at which to stop), as the user requests; 0 steps to end."""
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


PORT = 8321


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORES]...")
@results_in("results")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; other addresses need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0: any free port.")
@click.option("--token", default=None, help="Token that readers need.  [default: random, unless --host is loopback]")
@click.option("--name", "names", multiple=True, help="A further host name of this server, for readers.")
def serve(
    stores: tuple[str, ...], results: Path, host: str, port: int, token: str | None, names: tuple[str, ...]
) -> None:
    """Show all runs of --results and of STORES on a local page.  STORES are results folders or object stores (s3://…).

    The page is read-only.  At any address but loopback, readers need the token that is printed.
    """
    from harness.serve.app import listen, serve_until_stopped

    sources = [_source("results", str(results))]
    sources += [_source(f"{number}: {place.partition('?')[0]}", place) for number, place in enumerate(stores, 1)]
    if token is None and not _is_loopback(host):
        token = secrets.token_urlsafe(24)
    try:
        socket = listen(host, port)
    except OSError as problem:
        raise WrongSpec(f"cannot listen at {host} port {port}: {problem.strerror or problem}") from None
    address = f"http://{'[' + host + ']' if ':' in host else host}:{socket.getsockname()[1]}/"
    click.echo(f"runs: {address}{'?token=' + token if token else ''}   (Ctrl-C ends it)")
    serve_until_stopped(sources, socket, (host, *names), token)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _source(name: str, place: str) -> Source:
    """Return a source of runs for the page.  Raises WrongSpec if the place cannot have runs.

    place: results folder or address of an object store"""
    from harness.lake.lake import Lake, lake_of
    from harness.serve.app import Source
    from harness.store import Store, StoreUnavailable, is_store

    if is_store(place):
        try:
            mirror = Store.at(place).mirror()
            return Source(name, mirror.refresh(), mirror)
        except StoreUnavailable as problem:
            raise WrongSpec(str(problem)) from None
    folder = Path(place)
    if not folder.is_dir():
        raise WrongSpec(f"{place} is no folder of runs")
    lake = Lake(lake_of(folder))
    if not lake.folder.exists():
        held = lake.rebuild(folder.resolve(), lambda line: click.echo(line, err=True))
        click.echo(f"{place} had no lake; a lake with {held} runs was created")
    return Source(name, lake)
