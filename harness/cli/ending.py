"""The last lines of a run: every checker's verdict, the verdict of all, where the report is, how to run it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from checkers.record.reading import Record
from checkers.sealing.signature import SignedBy
from harness.terminal.lines import width_of, wrapped

_REASONS_FROM = 24
"""Column in which the reason of a checker goes on."""

_ERRORS_SHOWN = 4

_COLOUR = {"valid": "green", "invalid": "bold red", "unknown": "yellow", "harness failed": "bold red"}


def end(console: Console, results: Mapping[str, Any], as_json: bool) -> NoReturn:
    """Print them, and end the command with the run's exit code.  as_json: one line of JSON on stdout as well."""
    print_end(console, results, as_json)
    raise click.exceptions.Exit(results["exit_code"])


def print_end(console: Console, results: Mapping[str, Any], as_json: bool) -> None:
    """As `end`, and the command goes on."""
    _print(console, results)
    if as_json:
        click.echo(json.dumps(in_short(results)))


def in_short(results: Mapping[str, Any]) -> dict[str, Any]:
    """What a program wants to know of a run; all the rest stands in results.json."""
    wanted = ("verdict", "exit_code", "summary", "reason", "planted", "signer", "report", "rerun", "kept")
    checkers = {name: entry["verdict"] for name, entry in results["checkers"].items()}
    return {name: results[name] for name in wanted if name in results} | {"checkers": checkers}


def _print(console: Console, results: Mapping[str, Any]) -> None:
    verdict = results["verdict"]
    console.print()
    width = width_of(console)
    signer = results.get("signer", {})
    ours = signer.get("by", SignedBy.THIS_MACHINE) == SignedBy.THIS_MACHINE
    summary = wrapped(str(results.get("summary", verdict)) + ("" if ours else f" The run is {signer['words']}."), width)
    console.print(summary, highlight=False, markup=False, style=_COLOUR[verdict])
    if ours and signer:
        console.print(signer["words"], highlight=False, markup=False, style="dim")
    console.print()
    for name, entry in results["checkers"].items():
        head = f"  {entry['verdict']:>14}  {name:<22} "
        lines = wrapped("; ".join(filter(None, (_kinds(entry), entry["reason"]))), width, head, " " * _REASONS_FROM)
        console.print(f"  [{_COLOUR.get(entry['verdict'], 'dim')}]{entry['verdict']:>14}[/]", end="")
        console.print(lines.removeprefix(f"  {entry['verdict']:>14}"), highlight=False, markup=False)
    _count_errors(console, results, width)
    _draw_first(console, results)
    _show_to_do(console, results)
    if results.get("judged_by", "").startswith("in process ("):  # Spark was wanted; in brackets why it did not judge
        console.print(f"judged {results['judged_by']}", highlight=False, markup=False, style="yellow")
    console.print(f"report: {results['report']}", highlight=False, markup=False)
    console.print(f"again:  {results['rerun']}", highlight=False, markup=False)
    if "stored" in results:
        console.print(f"stored: {results['stored']}", highlight=False, markup=False)
    if "kept" in results:
        from harness.terminal.kept import lines_to_enter

        console.print("\n".join(["", *lines_to_enter(results["kept"])]), highlight=False, markup=False)


def _count_errors(console: Console, results: Mapping[str, Any], width: int) -> None:
    """The errors that clients met most often: they show what a client, or a fault, did."""
    details = results["checkers"].get("statistics", {}).get("details", {})
    errors = details.get("errors", ())
    if not errors:
        return
    words = [f"{each['fail'] + each['info']} times {each['error']}" for each in errors[:_ERRORS_SHOWN]]
    more = f"; {len(errors) - _ERRORS_SHOWN} more in the report" if len(errors) > _ERRORS_SHOWN else ""
    lines = wrapped("; ".join(words) + more, width, "  errors of clients: ", " " * 4)
    console.print(lines, highlight=False, markup=False)


def _kinds(entry: Mapping[str, Any]) -> str:
    """The kinds of violations that a checker kept; the first of them all stands in the first line."""
    from harness.explanations.kinds.catalog import name_in_words

    return ", ".join(dict.fromkeys(name_in_words(witness["kind"]) for witness in entry["witness"]))


def _show_to_do(console: Console, results: Mapping[str, Any]) -> None:
    """Of an unknown run what it lacked, with the runs that would make up for it."""
    if results["verdict"] != "unknown":
        return
    from harness.terminal.to_do import show_to_do

    folder = Path(results["report"]).parent
    if (header := Record(folder).header) is not None:
        show_to_do(console, results, header, folder.as_posix())


def _draw_first(console: Console, results: Mapping[str, Any]) -> None:
    """The witness that the first line is about, drawn; all of them, with their reasons, are in the report."""
    from harness.explanations.violations_by_cause import violations_by_cause
    from harness.terminal.witness import show_witness

    if found := violations_by_cause(results):
        console.print()
        show_witness(found[0].witness, compact=True, file=console.file)
    console.print()
