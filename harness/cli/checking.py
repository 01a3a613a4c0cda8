"""Judges files by hand: `check` for histories of any source, `check-logs` for files of nodes.

A line per file: verdict, file, and the first witness in words (or why the verdict is unknown).  A file that cannot be
read as a history is unknown, with `error: line N ...`; the others are judged all the same, and the exit code is 3.
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
"""Maximum length of a reason in a table of levels."""

STRICTEST = "strict-serializable"
"""The default of --consistency."""

_OF_SOME_MODELS = (
    ("allow", KAFKA, "have anomalies to allow"),
    ("levels", ("", *TRANSACTIONS), "have levels"),
    ("order", ("", *TRANSACTIONS), "have orders"),
    ("consistency", ("", *TRANSACTIONS), "are judged at a level"),
)
"""Option, the models that have it ("": the file names its own), and their description."""

_REPORT = click.option(
    "--report",
    "report_to",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write an HTML page of all of them, with every witness drawn: one file that needs no network.",
)


@click.command()
@click.option(
    "--model",
    default="",
    metavar="NAME|FILE.py",
    help=f"What the system claims to be: {', '.join(MODELS)}, or a Python file with a model of your own.  The files of "
    "DBCop, Plume, Cobra, Chronos and AWDIT name it themselves.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object per line instead of words (docs/check.md).")
@click.option("--explain", is_flag=True, help="Below the line of an invalid file, draw what is wrong with it.")
@_REPORT
@click.option("--keyed", is_flag=True, help="In EDN and logs a value [k v] is a key and its value.")
@click.option(
    "--failed-cas",
    type=click.Choice(["did-not-happen", "observed"]),
    default="did-not-happen",
    show_default=True,
    help="What a cas that did not match says: nothing, or that the register held another value.",
)
@click.option(
    "--consistency",
    metavar="NAME",
    default="",
    help="What transactions must be: serializable, snapshot-isolation, causal, read-committed, ...  "
    f"[default: {STRICTEST}; strong-session-serializable where a file records sessions, and no real time]",
)
@click.option(
    "--levels", is_flag=True, help="Transactions: below the line, a table of all levels and why each holds or not."
)
@click.option(
    "--order",
    "order_to",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Transactions, one file: if it is valid, write the order that was replayed, a JSON object per event.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="ANOMALY",
    help="kafka: this anomaly does not count; may be repeated.  Given once, nothing else is allowed but what is named "
    "('none' allows nothing).  [default: int-send-skip and G0 with its variants; poll-skip and nonmonotonic-poll where "
    "any process subscribes]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="What is known of the object: total=100 (bank: of all balances), or empty=observed (queue, stack, "
    "priority-queue: a take that failed with :empty shows that nothing was there).",
)
@click.option("--steps", type=click.IntRange(min=1), default=None, help="Budget of steps for each file.")
@click.option("--size-bytes", type=click.IntRange(min=1), default=None, help="Budget of memory for each file.")
@click.option("--seconds", "wall_s", type=Amount(min=0, min_open=True), default=None, help="Time limit for each file.")
@click.option(
    "--spark-master",
    metavar="MASTER|local",
    default=None,
    help="Judge many files at once on Spark: 'local' on all cores of this machine, or a master whose workers read the "
    "files under the same paths.  Same verdicts.",
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

    Reads Jepsen's EDN and log lines, operations as lines of JSON, Parquet and Arrow of Krucible, and what other
    checkers of transactions read: DBCop's bincode, Plume's and AWDIT's text, Cobra's logs, Chronos' JSON.  The content
    decides which format it is.

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
    A folder stands for every file in it and in its folders, in order of their names; hidden ones are left out.
    A folder of Cobra's logs is one history, and so is a run folder, or that of a test in Jepsen's store.
    Files compressed by gzip or zstd are unpacked.  - stands for what is piped in.

    \b
    A line per file: its verdict, its name, and what is wrong in one sentence.  With --json an object per line:
    file, verdict, witness (a list: kind, summary, events, facts), looked_at, reason, details, model, and error
    where the file could not be read.  docs/check.md describes what each model expects and shows an example.

    \b
    Exit codes: 0 all valid, 1 any invalid, else 2 any unknown; 3 if a file could not be read or a model of
    your own failed.
    """
    source = _known(model)
    _must_have_a_folder(report_to)
    for option, models, words in _OF_SOME_MODELS:
        if (given | {"order": order_to})[option] and model not in models:
            known = " and ".join(filter(None, models))
            raise click.BadParameter(f"only {known} {words}, not {model}", param_hint=f"--{option}")
    found = files_in([STDIN if str(path) == "-" else path for path in files])
    if order_to is not None and len(found) != 1:
        raise click.BadParameter(f"it is for one history, and there are {len(found)} files", param_hint="--order")
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
@click.option("--json", "as_json", is_flag=True, help="A JSON object per line instead of words.")
@click.option("--explain", is_flag=True, help="Below the line of an invalid folder, draw what is wrong with it.")
@_REPORT
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def check_logs(as_json: bool, explain: bool, report_to: Path | None, folders: tuple[Path, ...]) -> None:
    """Judge node logs: a run folder, or a folder that holds one Kafka data directory per node.

    Asks whether any two logs agree wherever they share an epoch, and whether each is in order in itself.
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
    """Return the question for each file, and its budget.  Raises click.BadParameter."""
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
    """Refuse a missing folder before hours of judging.  Raises click.BadParameter."""
    if report_to is not None and not report_to.resolve().parent.is_dir():
        raise click.BadParameter(f"there is no folder {report_to.parent}", param_hint="--report")


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the files of the paths: for a folder, every file in it, at any depth, except hidden ones.

    A folder of Cobra's logs counts as one history.  A run folder, and that of a test in Jepsen's store, mean the file
    that holds its history.  Raises click.BadParameter for a folder without a file: a check of nothing must not pass.
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
    """Return the files, with Cobra's logs replaced by their folder, and a run or test by its history."""
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
    """Return the source of a model of the user, "" for one of the project or of the file.  Raises
    click.BadParameter.
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
    """Return the anomalies that do not count; None: the default."""
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
    """Print one line for each file as soon as it is judged, then end with the exit code."""
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
    """Write the order of the one file, if it has one, and pass the file on without it."""
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
    """Return the drawing of the first witness below the line of its file."""
    from harness.terminal.witness import show_witness

    for witness in judged.verdict.witnesses[:1]:
        show_witness(witness)
        more = len(judged.verdict.witnesses) - 1
        click.echo(f"  and {more} more: --json and --report show all of them\n" if more else "")


QUIET_S = 2.0
"""Seconds before any progress of a check is shown."""

LINE_EVERY_S = 10.0
"""Seconds between printed lines without a terminal."""

CHANGED_EVERY_S = 0.2

CLEAR_LINE = "\r\x1b[K"

COMPILING = "preparing kernels, once per machine (`krucible setup --all` prepares them ahead)"

T = TypeVar("T")


class ReadingProgress:
    """Progress of a check: one line on stderr, which changes on a terminal; elsewhere a line every LINE_EVERY_S."""

    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET_S
        self._shown = False

    def __call__(self, words: str) -> None:
        """Show progress, if the check has taken a while."""
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
    """The number of judged files.  The line is removed before anything else is printed."""

    def __init__(self, total: int) -> None:
        self._line = ReadingProgress()
        self._total = total
        self._done = 0
        self._compiles = False

    def reading(self, first: Path) -> None:
        """Show the first sentence on a terminal, before anything slow is imported."""
        if sys.stderr.isatty():
            self._line.show("reading " + (str(first) if self._total == 1 else f"{self._total} files"))

    def tick(self, done: int) -> None:
        """Show the number of judged files on a terminal."""
        self._done = max(done, self._done)
        if self._total > 1 and sys.stderr.isatty():
            self._line(f"judged {self._done} of {self._total} files")

    def passing(self, judged: Iterator[T]) -> Iterator[T]:
        """Pass the files on as they are judged; between them the line is shown."""
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
        """Give the reason of a wait: on a terminal until the next file is judged, elsewhere as one line."""
        if sys.stderr.isatty() or not self._compiles:
            self._line.show(COMPILING)
        self._compiles = True
