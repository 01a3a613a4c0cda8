"""The commands that judge files: `check` for histories of any source, `check-logs` for files of nodes.

They print a line per file: verdict, file, and the first witness in words, or the reason why the verdict is unknown.  A
file that cannot be read as a history is unknown, with `error: line N ...`; all other files are judged, and the exit
code is 3.
"""

from __future__ import annotations

import difflib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checkers.base.verdict import EXIT_CODES, HARNESS_FAILED, Validity, combine
from checkers.formats.read_once import cobra_logs, history_in
from checkers.kernels.jit import BEFORE_COMPILING
from harness.cli.parameters import Amount
from harness.plain_words import shorten

if TYPE_CHECKING:
    from checkers.base.checker import Budget
    from checkers.by_hand import Ask
    from harness.report.judged_file import JudgedFile

TRANSACTIONS = ("list-append", "rw-register")
KAFKA = ("kafka", "kafka-read-to-end")
MODELS = (
    "register",
    "cas-register",
    "kv",
    "set",
    "queue",
    "at-least-once-queue",
    "stack",
    "priority-queue",
    "counter",
    "mutex",
    "semaphore:N",
    "fenced-lock",
    "leased-lock",
    "append-log",
    "unique-ids",
    "bank",
    "bank-overdraft",
    "long-fork",
    "multi-register",
    *TRANSACTIONS,
    *KAFKA,
)

STDIN = Path("/dev/stdin")

_WHY_MAX = 160
"""Maximum number of characters of a reason in a table of levels."""

STRICTEST = "strict-serializable"
"""Default of --consistency."""

_OF_SOME_MODELS = (
    ("allow", KAFKA, "have anomalies to allow"),
    ("levels", ("", *TRANSACTIONS), "have levels"),
    ("order", ("", *TRANSACTIONS), "have orders"),
    ("consistency", ("", *TRANSACTIONS), "are judged at a level"),
)
"""Rows of: option, models to which it applies ("": the file names its model), and the reason in words."""

_REPORT = click.option(
    "--report",
    "report_to",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write a page about all files, with a drawing of every witness: one HTML file that needs no network.",
)


@click.command()
@click.option(
    "--model",
    default="",
    metavar="NAME|FILE.py",
    help=f"What the system claims to be: {', '.join(MODELS)}, or a Python file with a model of your own.  Files of "
    "DBCop, Plume, Cobra, Chronos and AWDIT need no model.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per file instead of words (docs/check.md).")
@click.option("--explain", is_flag=True, help="Below the line of an invalid file, draw the first witness.")
@_REPORT
@click.option("--keyed", is_flag=True, help="In EDN and logs, [k v] means the key k and its value v.")
@click.option(
    "--failed-cas",
    type=click.Choice(["did-not-happen", "observed"]),
    default="did-not-happen",
    show_default=True,
    help="What a failed cas proves: nothing, or that the register had another value.",
)
@click.option(
    "--consistency",
    metavar="NAME",
    default="",
    help="Required isolation level: serializable, snapshot-isolation, causal, read-committed, ...  "
    f"[default: {STRICTEST}; strong-session-serializable if a file records sessions but no real time]",
)
@click.option(
    "--levels", is_flag=True, help="Transactions: below the line, print a table of all levels, each with its verdict."
)
@click.option(
    "--order",
    "order_to",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Transactions, one file: if valid, write an order that explains the history, as a JSON object per event.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="ANOMALY",
    help="kafka: allow this anomaly; may be repeated.  It replaces the default ('none' allows nothing).  "
    "[default: int-send-skip and G0 with its variants; also poll-skip and nonmonotonic-poll if any process "
    "subscribes]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A known property of the object: total=100 (bank: sum of all balances), or empty=observed (queue, stack, "
    "priority-queue: a take that failed with :empty proves that the object was empty).",
)
@click.option("--steps", type=click.IntRange(min=1), default=None, help="Budget of steps for each file.")
@click.option("--size-bytes", type=click.IntRange(min=1), default=None, help="Budget of memory for each file.")
@click.option("--seconds", "wall_s", type=Amount(min=0, min_open=True), default=None, help="Time limit for each file.")
@click.option(
    "--spark-master",
    metavar="MASTER|local",
    default=None,
    help="Judge many files at once on Spark, with the same verdicts: 'local' for all cores of this machine, or a "
    "master whose workers can read the files at the same paths.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(
    model: str,
    as_json: bool,
    explain: bool,
    report_to: Path | None,
    order_to: Path | None,
    spark_master: str | None,
    files: tuple[Path, ...],
    **given: Any,
) -> None:
    """Judge histories of any source, by the name of a model.

    Reads Jepsen's EDN and log lines, operations as lines of JSON, Krucible's Parquet and Arrow, and the formats of
    other checkers of transactions: DBCop's bincode, Plume's and AWDIT's text, Cobra's logs, Chronos' JSON.  The format
        is
    recognized by the content.

    \b
    krucible check --model cas-register etcd_*.log
    krucible check --model kv --json store.edn
    krucible check --model list-append --explain history.edn
    krucible check --model rw-register --consistency snapshot-isolation --order order.jsonl history.edn
    krucible check --model list-append --levels history.edn
    krucible check --consistency strong-session-snapshot-isolation FOLDER
    krucible check --model kafka --allow poll-skip --report kafka.html history.edn
    krucible check --model my_lock.py history.edn        (docs/models.md)

    \b
    A folder means every file in it, at any depth, in order of names, without hidden files.
    A folder of Cobra's logs is one history; so is a run folder, or the folder of a test in Jepsen's store.
    Files compressed by gzip or zstd are unpacked.  - means stdin.

    \b
    Prints a line per file: its verdict, its name, and what is wrong in one sentence.  With --json, a JSON object
    per file: file, verdict, witness (a list: kind, summary, events, facts), looked_at, reason, details, model,
    and error if the file could not be read.  docs/check.md describes what each model expects, with an example.

    \b
    Exit codes: 0 if all are valid, 1 if any is invalid, else 2 if any is unknown; 3 if a file could not be read
    or a model of your own failed.
    """
    source = _known(model)
    _must_have_a_folder(report_to)
    for option, models, words in _OF_SOME_MODELS:
        if (given | {"order": order_to})[option] and model not in models:
            known = " and ".join(filter(None, models))
            raise click.BadParameter(f"only {known} {words}, not {model}", param_hint=f"--{option}")
    found = files_in([STDIN if str(path) == "-" else path for path in files])
    if order_to is not None and len(found) != 1:
        raise click.BadParameter(f"needs exactly one history, and there are {len(found)} files", param_hint="--order")
    progress = FilesProgress(len(found))
    progress.reading(found[0])

    from harness.judge.check_files import judge_in_process, judge_on_spark

    ask, budget = _asked(model, source, order_to is not None, given)
    if spark_master is None:
        judged = judge_in_process(found, ask, budget)
    else:
        judged = judge_on_spark(found, ask, budget, spark_master, progress.tick)
    if order_to is not None:
        judged = _with_order_written(judged, order_to)
    _show(
        progress.passing(judged), as_json, explain, report_to, Path(model).stem if source else model or "transactions"
    )


@click.command(name="check-logs")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per folder instead of words.")
@click.option("--explain", is_flag=True, help="Below the line of an invalid folder, draw the first witness.")
@_REPORT
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def check_logs(as_json: bool, explain: bool, report_to: Path | None, folders: tuple[Path, ...]) -> None:
    """Judge node logs: a run folder, or a folder that contains one Kafka data directory per node.

    Any two logs must agree up to their last common epoch, and each log must be consistent in itself.
    """
    from harness.judge.check_logs import judge_logs

    def judged() -> Iterator[JudgedFile]:
        progress = ReadingProgress()
        for folder in folders:
            found = judge_logs(folder, progress)
            progress.done()
            yield found

    _must_have_a_folder(report_to)
    _show(judged(), as_json, explain, report_to, "logs")


def _asked(model: str, source: str, with_order: bool, given: Mapping[str, Any]) -> tuple[Ask, Budget]:
    """Return the parameters of the judgement of each file, and its budget.  Raises click.BadParameter."""
    from checkers.base.checker import Budget
    from checkers.by_hand import Ask

    ask = Ask(
        model,
        source,
        given["keyed"],
        given["failed_cas"],
        _consistency(given["consistency"]),
        _allowed(given["allow"]),
        with_order,
        given["levels"],
        _settings(model, given["settings"]),
    )
    limits = {name: given[name] for name in ("steps", "size_bytes", "wall_s") if given[name] is not None}
    return ask, replace(Budget(), **limits)


def _must_have_a_folder(report_to: Path | None) -> None:
    """Raise click.BadParameter if the folder of the report does not exist, before judging, which may take hours."""
    if report_to is not None and not report_to.resolve().parent.is_dir():
        raise click.BadParameter(f"there is no folder {report_to.parent}", param_hint="--report")


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return all given files, and for each given folder all files in it, at any depth, except hidden ones.

    A folder of Cobra's logs counts as one history.  A run folder, or the folder of a test in Jepsen's store, is
    replaced by the file with its history.  Raises click.BadParameter for a folder without files, because a check of
    nothing must not pass.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
        if not inside:
            raise click.BadParameter(f"there is no file in the folder {path}", param_hint="FILES")
        found += _histories(inside)
    return found


def _histories(files: Sequence[Path]) -> list[Path]:
    """Return the files, with Cobra's logs replaced by their folder, and the files of a run or test by its history."""
    folders = {path.parent for path in files}
    logs = {log for folder in folders for log in cobra_logs(folder)}
    tests = {folder: history for folder in folders if (history := history_in(folder)) is not None}
    found = dict[Path, None]()
    for path in files:
        test = next((tests[folder] for folder in path.parents if folder in tests), None)
        found[path.parent if path in logs else test or path] = None
    return list(found)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _known(model: str) -> str:
    """Return the source code of a user's model; "" if the model is one of MODELS, or if the file names its model.
    Raises click.BadParameter for an unknown model.
    """
    if model in ("", *MODELS) and model != "semaphore:N":
        return ""
    if model.startswith("semaphore:"):
        from checkers.models.each_object import known_object

        if known_object(model) is not None:
            return ""
        raise click.BadParameter("a semaphore has a number of permits, such as semaphore:3", param_hint="--model")
    if model.endswith(".py"):
        from checkers.models.read_own_model import BadModel, load_model

        try:
            load_model(Path(model))
            return Path(model).read_text(encoding="utf-8")
        except BadModel as problem:
            raise click.BadParameter(str(problem), param_hint="--model") from problem
    raise click.BadParameter(_no_such(model, MODELS), param_hint="--model")


def _consistency(name: str) -> str:
    if name in ("", STRICTEST):
        return name
    from checkers.transactions.anomalies import MODELS as CONSISTENCIES

    if name not in CONSISTENCIES:
        raise click.BadParameter(_no_such(name, CONSISTENCIES), param_hint="--consistency")
    return name


def _allowed(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the anomalies that are allowed; None for the default.  Raises click.BadParameter."""
    if not names:
        return None
    from checkers.kafka_log.judge import ANOMALIES

    for name in names:
        if name not in (*ANOMALIES, "none"):
            raise click.BadParameter(_no_such(name, ANOMALIES), param_hint="--allow")
    return tuple(name for name in names if name != "none")


def _settings(model: str, given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each setting.  Raises click.BadParameter."""
    if not given:
        return ()
    from checkers.models.each_object import refused_setting

    pairs = [(name, value) for name, _, value in (each.partition("=") for each in given)]
    for name, value in pairs:
        if refusal := refused_setting(model, name, value):
            raise click.BadParameter(refusal, param_hint="--set")
    return tuple(pairs)


def _no_such(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no {name!r}; there are {', '.join(names)}{meant}"


def _show(judged: Iterator[JudgedFile], as_json: bool, explain: bool, report_to: Path | None, model: str) -> None:
    """Print one line for each file as soon as it is judged, then end the command with the exit code."""
    seen: list[Validity] = []
    kept: list[JudgedFile] = []
    broken = False
    for each in judged:
        click.echo(json.dumps(each.to_json()) if as_json else each.in_words())
        if not as_json:
            _show_levels(each)
        if explain and not as_json:
            _explain(each)
        seen.append(each.verdict.validity)
        broken = broken or bool(each.error)
        if report_to is not None:
            kept.append(each)
    overall = combine(seen)
    if report_to is not None:
        from harness.report.check_page import render_check

        render_check(kept, model, report_to)
        click.echo(f"report: {report_to}", err=as_json)
    raise click.exceptions.Exit(HARNESS_FAILED if broken else EXIT_CODES.get(overall, EXIT_CODES[Validity.UNKNOWN]))


def _with_order_written(judged: Iterator[JudgedFile], path: Path) -> Iterator[JudgedFile]:
    """Write the order of the only file, if the file has one, and yield the file without the order."""
    for each in judged:
        details = dict(each.verdict.details)
        order = details.pop("order", None)
        if order is None:
            click.echo(f"no order was written: {each.file} is {each.verdict.validity}", err=True)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in order))
        yield replace(each, verdict=replace(each.verdict, details=details))


def _show_levels(judged: JudgedFile) -> None:
    for row in judged.verdict.details.get("levels", ()):
        click.echo(f"  {row['verdict']:<8} {row['level']:<34} {shorten(row['why'], _WHY_MAX)}")


def _explain(judged: JudgedFile) -> None:
    """Print the drawing of the first witness below the line of its file."""
    from harness.terminal.witness import show_witness

    for witness in judged.verdict.witnesses[:1]:
        show_witness(witness)
        more = len(judged.verdict.witnesses) - 1
        click.echo(f"  and {more} more: --json and --report show all of them\n" if more else "")


QUIET_S = 2.0
"""Seconds after the start of a check before any progress is shown."""

LINE_EVERY_S = 10.0
"""Seconds between lines of progress if stderr is no terminal."""

CHANGED_EVERY_S = 0.2

CLEAR_LINE = "\r\x1b[K"

COMPILING = "preparing kernels, once per machine (`krucible setup --all` prepares them ahead)"

T = TypeVar("T")


class ReadingProgress:
    """Progress of a check on stderr: on a terminal one line that changes, otherwise a new line every LINE_EVERY_S."""

    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET_S
        self._shown = False

    def __call__(self, words: str) -> None:
        """Show progress, but not in the first QUIET_S and not too often."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (CHANGED_EVERY_S if sys.stderr.isatty() else LINE_EVERY_S)
            self.show(words)

    def show(self, words: str) -> None:
        """Show the words at once."""
        self._shown = sys.stderr.isatty()
        sys.stderr.write(f"{CLEAR_LINE}{words}" if self._shown else f"{words}\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Remove the line."""
        if self._shown:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
            self._shown = False


class FilesProgress:
    """Progress line with the number of judged files.  It is removed before anything else is printed."""

    def __init__(self, total: int) -> None:
        self._line = ReadingProgress()
        self._total = total
        self._done = 0
        self._compiles = False

    def reading(self, first: Path) -> None:
        """On a terminal, show which files are read, before slow imports begin."""
        if sys.stderr.isatty():
            self._line.show("reading " + (str(first) if self._total == 1 else f"{self._total} files"))

    def tick(self, done: int) -> None:
        """Show the number of judged files on a terminal."""
        self._done = max(done, self._done)
        if self._total > 1 and sys.stderr.isatty():
            self._line(f"judged {self._done} of {self._total} files")

    def passing(self, judged: Iterator[T]) -> Iterator[T]:
        """Yield the files as they are judged, and show the progress line in between."""
        BEFORE_COMPILING.append(self._compiling)
        try:
            for done, each in enumerate(judged, 1):
                self._line.done()
                yield each
                self.tick(done)
            self._line.done()
        finally:
            BEFORE_COMPILING.remove(self._compiling)

    def _compiling(self) -> None:
        """Show that kernels are being compiled: on a terminal until the next file is judged, otherwise once."""
        if sys.stderr.isatty() or not self._compiles:
            self._line.show(COMPILING)
        self._compiles = True
