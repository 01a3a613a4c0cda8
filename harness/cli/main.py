"""The command line: find the command, run it, and report every error of use in one sentence with exit code 3.

A command's module is imported when the command is named.  The module imports large packages (Spark, numba, pyarrow)
only after it has verified the arguments.  So a refusal or `--help` takes little longer than the start of Python.

Exit codes: 0 valid; 1 invalid; 2 unknown (a budget ran out, a fault had no effect, the run was vacuous, a planted bug
was not found); 3 the harness failed or the command line was wrong.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import difflib
import gc
import importlib
import locale
import logging
import os
import select
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from checkers.base.verdict import HARNESS_FAILED
from harness.started import STARTED_AS, as_started

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run:run", "Run one test and judge it."),
    "analyze": ("run:analyze", "Judge a stored run again, also one whose harness was killed."),
    "mutate": ("run:mutate", "Falsify single rows of a valid run, to prove that its checkers detect each change."),
    "replay": ("campaigns:replay", "Run the test of a stored run again, several times."),
    "shrink": (
        "campaigns:shrink",
        "Find the smallest schedule of faults with which the run in RUN_FOLDER still fails.",
    ),
    "attribute": ("campaigns:attribute", "Measure which faults a violation needs."),
    "check": ("checking:check", "Judge histories of any source, by the name of a model."),
    "check-logs": (
        "checking:check_logs",
        "Judge node logs: a run folder, or a folder that contains one Kafka data directory per node.",
    ),
    "runs": ("lake:runs", "List the runs of the lake, the newest first."),
    "compare": ("lake:compare", "Compare two runs: specs, measurements, timelines, first difference."),
    "query": ("lake:query", "Query all runs, with a predefined question or in SQL."),
    "serve": ("lake:serve", "Show all runs on a local page: filter, compare, watch."),
    "step": ("lake:step", "Replay a stored run in the terminal, operation by operation."),
    "list": ("machine:list_names", "List workloads, nemeses and their targets, backends, subjects, planted bugs."),
    "setup": ("machine:setup", "Prepare this machine: Java, compiled kernels, Spark's class archive, the node image."),
    "release": ("machine:release", "End a cluster that `run --keep` left up, and remove all of it."),
    "clean-up": (
        "machine:clean_up",
        "Remove remains of dead runs.  Live runs and kept clusters are not touched.",
    ),
    "nightly": ("campaigns:nightly", "Run every test and every planted bug over several seeds."),
    "hunt": ("campaigns:hunt_at_random", "Run random tests over one system until something is found."),
    "hunt-bugs": ("campaigns:hunt_bugs", "Run every planted bug over several seeds, and count how often it is found."),
    "swarm": ("exploring:swarm", "Play thousands of storms against the bundled KRaft on virtual time, on Spark."),
    "explore": (
        "exploring:explore",
        "Explore every order of messages, timeouts, crashes and cuts of three voters, breadth first.",
    ),
    "find": ("run:find", "Reproduce a known finding in a real system."),
    "findings": ("campaigns:findings", "Run every finding, its counterpart and clean runs, and count how each ended."),
    "completion": ("machine:completion", "Print a script that makes a shell complete commands, options and names."),
}
"""Name of a command -> (module:attribute in this folder, which is imported when the command is named; short help)."""


class _Commands(click.Group):
    """Group that imports a command when it is named, and suggests a similar name for an unknown one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(f"harness.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        command.short_help = COMMANDS[name][1]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"No such command {name!r}; {meant}")
        return super().resolve_command(ctx, args)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"krucible {version('krucible')}")
        context.exit(0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Krucible injects faults into a distributed system and reports, with evidence, whether it kept its promises.

    \b
    A first run:        krucible run --nemesis partition
    Prove it can fail:  krucible run --nemesis partition --bug stale-read
    Judge it again:     krucible analyze results/latest

    `krucible` and `python -m harness` are the same command.

    \b
    Exit codes:
      0  valid: everything was checked, and nothing is wrong
      1  invalid: something is wrong, and the report shows it
      2  unknown: too little was tested, or a planted bug was not found
      3  the harness failed or was interrupted, or the command line was wrong
    """


def main() -> NoReturn:
    """Run the command line as the main program, and end the process.

    Python's own exit destroys every module, which costs half a second of CPU time after a run.  This function skips it:
    it joins threads, runs exit functions, flushes streams, and ends the process.
    """
    _demand_utf8()
    gc.set_threshold(10_000)  # objects of imported modules stay, so collecting after every 700 new objects is useless
    os.environ.setdefault(STARTED_AS, as_started(sys.orig_argv, sys.argv[0]))
    if needs_no_numpy(sys.argv[1:]):
        sys.modules["numpy"] = None  # type: ignore[assignment]  # Arrow imports it if it can
    if words := of_another_folder(Path.cwd(), Path(__file__).resolve().parents[2]):
        print(words, file=sys.stderr)
    try:
        run_command_line()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else HARNESS_FAILED
    threading._shutdown()  # type: ignore[attr-defined]  # joins what Python joins, pools of threads too
    atexit._run_exitfuncs()
    # the reader of our output has gone; the exit code still gives the verdict
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def needs_no_numpy(words: Sequence[str]) -> bool:
    """Return True if a command only reads the lake, for which Arrow works without NumPy.  The import of NumPy would
    take a third of the time of such a command.  A command that reads a run folder or an object store may need NumPy.

    words: the command line"""
    reads_runs = "--rebuild" in words or any(word.startswith("--store") for word in words)
    names_folder = any(Path(word, "test.json").exists() for word in words)
    return words[:1] in (["runs"], ["compare"]) and not reads_runs and not names_folder


def of_another_folder(here: Path, code: Path) -> str:
    """Return a warning if the current folder is a copy of the repository, but the code of the original runs; else "".

    here: the current folder
    code: the repository whose code is running
    """
    own = here / "harness" / "cli" / "main.py"
    if not own.is_file() or here.resolve() == code:
        return ""
    return f"krucible: this runs the code of {code}, not of {here}: a copied .venv keeps its paths, so create it again"


def _demand_utf8() -> None:
    """If the locale cannot encode every character of a report, restart this process in Python's UTF-8 mode."""
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def run_command_line() -> NoReturn:
    """Run the command line, and raise SystemExit.  Every refusal is one sentence on stderr and exit code 3."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    sys.exit(_exit_code())


def _output_has_no_reader() -> bool:
    """Return True if stdout is a pipe whose reading end is closed.  If it is, click and rich end the program, each with
    a different exception.
    """
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _exit_code() -> int:
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as problem:  # its message is the whole `--help`, not a sentence
        click.echo(problem.format_message(), err=True)
    except click.ClickException as problem:
        refuse(problem.format_message())
    except (click.Abort, KeyboardInterrupt):
        click.echo("krucible: interrupted", err=True)
    except SystemExit as end:
        # the reader has closed the output early, as in `krucible list | head`
        if isinstance(end.__context__, BrokenPipeError) or _output_has_no_reader():
            return HARNESS_FAILED
        # Otherwise a user's code has raised it, and its exit code is no verdict.
        refuse(f"code of the system, the workload or a checker ended the program (SystemExit: {end.code})")
    except Exception as problem:  # noqa: BLE001 - exit code 1 would say that an invariant was violated
        explain(problem)
    else:
        return code if isinstance(code, int) else 0
    return HARNESS_FAILED


REFUSED = "refused.jsonl"
"""File in the results folder with a line of JSON for each refused `run`: {"utc", "verdict": "refused", "exit_code": 3,
"reason", "command"}.  A refused run does not change `latest`.  With `--json` the line is also printed on stdout."""


def refuse(reason: str) -> None:
    """Report on stderr why the command was refused; for `run`, also append a line to REFUSED."""
    import json  # imported here, because most commands never refuse
    from datetime import UTC, datetime

    words = sys.argv[1:]
    click.echo(f"krucible: {reason.strip()}", err=True)
    about = {
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": "refused",
        "exit_code": HARNESS_FAILED,
        "reason": reason.strip(),
        "command": words,
    }
    line = json.dumps(about)
    if "--json" in words:
        click.echo(line)
    if words[:1] == ["run"] and not {"-h", "--help"} & set(words):
        _keep(line, results_folder(words))


def results_folder(words: Sequence[str]) -> Path:
    """Return the value of `--results` in the command line of a `run`, or the default of this option."""
    named = Path("results")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--results" and following:
            named = Path(following)
        elif word.startswith("--results="):
            named = Path(word.removeprefix("--results="))
    return named


def explain(problem: Exception) -> None:
    """Report an exception: an expected one in one sentence, any other, which is a bug of the harness, with its
    traceback.
    """
    import traceback

    from harness.run.exceptions_for_users import sentences

    if words := sentences(problem):
        for sentence in words:
            refuse(sentence)
    else:
        traceback.print_exception(problem)
        click.echo("krucible: a mistake of the harness itself; everything that a run recorded is kept", err=True)


def _keep(line: str, results: Path) -> None:
    try:
        results.mkdir(parents=True, exist_ok=True)
        with (results / REFUSED).open("a") as kept:
            kept.write(line + "\n")
    except OSError as problem:
        click.echo(f"krucible: the refusal could not be kept in {results}: {problem.strerror}", err=True)
