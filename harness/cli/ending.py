"""The last lines of a run: every checker's verdict, the verdict of all, where the report is, how to run it again.

An unknown run is followed by what it lacked, and a kept cluster by how to enter and release it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console

from checkers.base.results import CheckerResult, Results, RunVerdict, as_object
from checkers.record.header import Header
from checkers.record.reading import RunRecord
from checkers.sealing.signature import SignedBy
from harness.run.run_folder import as_typed
from harness.started import program
from harness.story.next_steps import shortfalls
from harness.terminal.progress import width_of, wrapped

if TYPE_CHECKING:
    from harness.run.session import JudgedRun

_REASONS_FROM = 24
"""Column in which the reason of a checker goes on."""

_ERRORS_SHOWN = 4

_COLOUR = {"valid": "green", "invalid": "bold red", "unknown": "yellow", "harness failed": "bold red"}


def end(console: Console, judged: JudgedRun, as_json: bool) -> NoReturn:
    """Print them, and end the command with the run's exit code.  as_json: one line of JSON on stdout as well."""
    print_end(console, judged, as_json)
    raise click.exceptions.Exit(judged.exit_code)


def print_end(console: Console, judged: JudgedRun, as_json: bool) -> None:
    """As `end`, and the command goes on."""
    _print(console, judged)
    if as_json:
        click.echo(json.dumps(in_short(judged)))


def in_short(judged: JudgedRun) -> dict[str, Any]:
    """What a program wants to know of a run; all the rest stands in results.json."""
    wanted, results = ("verdict", "exit_code", "summary", "reason", "planted", "signer"), as_object(judged.results)
    kept = {"kept": asdict(judged.kept)} if judged.kept is not None else {}
    return {
        **{name: results[name] for name in wanted if name in results},
        "report": as_typed(judged.report),
        "rerun": judged.rerun,
        **kept,
        "checkers": {name: str(checker.verdict) for name, checker in judged.results.checkers.items()},
    }


def _print(console: Console, judged: JudgedRun) -> None:
    results = judged.results
    console.print()
    width = width_of(console)
    signer = results.signer
    others = signer is not None and signer.by != SignedBy.THIS_MACHINE
    summary = judged.summary + (f" The run is {signer.words}." if signer is not None and others else "")
    console.print(wrapped(summary, width), highlight=False, markup=False, style=_COLOUR[results.verdict])
    if signer is not None and not others:
        console.print(signer.words, highlight=False, markup=False, style="dim")
    console.print()
    for name, checker in results.checkers.items():
        verdict = f"{checker.verdict:>14}"
        head = f"  {verdict}  {name:<22} "
        lines = wrapped("; ".join(filter(None, (_kinds(checker), checker.why))), width, head, " " * _REASONS_FROM)
        console.print(f"  [{_COLOUR.get(checker.verdict, 'dim')}]{verdict}[/]", end="")
        console.print(lines.removeprefix(f"  {verdict}"), highlight=False, markup=False)
    _count_errors(console, results, width)
    _draw_first(console, results)
    _show_to_do(console, judged)
    if results.judged_by.startswith("in process ("):  # Spark was wanted; in brackets why it did not judge
        console.print(f"judged {results.judged_by}", highlight=False, markup=False, style="yellow")
    console.print(f"report: {as_typed(judged.report)}", highlight=False, markup=False)
    console.print(f"again:  {judged.rerun}", highlight=False, markup=False)
    if judged.stored:
        console.print(f"stored: {judged.stored}", highlight=False, markup=False)
    if judged.kept is not None:
        console.print("\n".join(["", *lines_to_enter(asdict(judged.kept))]), highlight=False, markup=False)


def _count_errors(console: Console, results: Results, width: int) -> None:
    """The errors that clients met most often: they show what a client, or a fault, did."""
    errors = results.statistics.errors
    if not errors:
        return
    words = [f"{each.fail + each.info} times {each.error}" for each in errors[:_ERRORS_SHOWN]]
    more = f"; {len(errors) - _ERRORS_SHOWN} more in the report" if len(errors) > _ERRORS_SHOWN else ""
    lines = wrapped("; ".join(words) + more, width, "  errors of clients: ", " " * 4)
    console.print(lines, highlight=False, markup=False)


def _kinds(checker: CheckerResult) -> str:
    """The kinds of violations that a checker kept; the first of them all stands in the first line."""
    from harness.story.kinds import name_in_words

    return ", ".join(dict.fromkeys(name_in_words(witness.kind) for witness in checker.witness))


def _show_to_do(console: Console, judged: JudgedRun) -> None:
    """Of an unknown run what it lacked, with the runs that would make up for it."""
    if judged.results.verdict is not RunVerdict.UNKNOWN:
        return

    if (header := RunRecord(judged.folder).header) is not None:
        show_to_do(console, judged.results, header, as_typed(judged.folder))


def _draw_first(console: Console, results: Results) -> None:
    """The witness that the first line is about, drawn; all of them, with their reasons, are in the report."""
    from harness.story.findings import violations_by_cause
    from harness.terminal.witness import show_witness

    if found := violations_by_cause(results):
        console.print()
        show_witness(found[0].witness, compact=True, file=console.file)
    console.print()


def show_to_do(console: Console, results: Results, header: Header | None, folder: str) -> None:
    """Nothing for a run with another verdict.  folder: of the run, as a user types it."""
    found = shortfalls(results, header, folder)
    if not found:
        return
    console.print("what it would take to know:", highlight=False, markup=False)
    for each in found:
        figures = f": wanted {each.wanted}, got {each.got}" if each.wanted else ""
        words = "" if each.wanted and each.words.rstrip(".") in each.what else f" {each.words}"
        lines = wrapped(f"{each.what}{figures}.{words}", width_of(console), "  - ", "    ")
        console.print(lines, highlight=False, markup=False)
    for command in dict.fromkeys(each.command for each in found if each.command):
        console.print(f"    {command}", highlight=False, markup=False, soft_wrap=True)


def lines_to_enter(kept: Mapping[str, Any]) -> list[str]:
    """kept: a `KeptCluster` as a dictionary."""
    nodes: Sequence[Mapping[str, Any]] = kept["entrances"]
    lines = ["The cluster is up.  Faults are healed, and servers that the harness had stopped were started again."]
    width = max((len(node["node"]) for node in nodes), default=0)
    for node in nodes:
        lines.append(f"  {node['node']:<{width}}  {node['command']}")
        where = f"address {node['address']}"
        where += f", client shell:\n  {'':<{width}}  {node['client']}" if node["client"] else ""
        where += "" if node["client"] else f", data {node['data']}, logs {node['logs']}"
        lines.append(f"  {'':<{width}}  {where}")
    lines.append(f"release: {program()} release {kept['folder']}")
    return lines


def line_of(kept: Mapping[str, Any], stale: str) -> str:
    """A kept cluster in a list.  stale: why it is up no more, "" if it is."""
    where = kept["folder"]
    if stale:
        return f"kept, but {stale}: {where} ({kept['title']}); `{program()} release {where}` removes what is left"
    return f"kept: {where} ({kept['title']}), up since {kept['since']}; {program()} release {where}"
