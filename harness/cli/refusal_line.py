"""Messages when nothing was run: one sentence on stderr, and one line of JSON for programs.

The line is {"utc", "verdict": "refused", "exit_code": 3, "reason", "command"}.  With `--json` it goes to stdout.  A
refused `run` also adds it to `refused.jsonl` in its folder of results; `latest` is not changed.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from checkers.base.verdict import HARNESS_FAILED
from harness.run.exceptions_for_users import sentences

REFUSED = "refused.jsonl"


def refuse(reason: str) -> None:
    """Report why nothing was run."""
    words = sys.argv[1:]
    click.echo(f"krucible: {reason.strip()}", err=True)
    line = {
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": "refused",
        "exit_code": HARNESS_FAILED,
        "reason": reason.strip(),
        "command": words,
    }
    if "--json" in words:
        click.echo(json.dumps(line))
    if words[:1] == ["run"] and not {"-h", "--help"} & set(words):
        _keep(json.dumps(line), results_folder(words))


def results_folder(words: Sequence[str]) -> Path:
    """Return the folder that `--results` names among the words of a `run`, or its default."""
    named = Path("results")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--results" and following:
            named = Path(following)
        elif word.startswith("--results="):
            named = Path(word.removeprefix("--results="))
    return named


def explain(problem: Exception) -> None:
    """Explain a problem: an expected one in one sentence.  Any other is a bug of the harness and is shown with its
    traceback.
    """
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
