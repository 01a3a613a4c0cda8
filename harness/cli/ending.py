"""The last lines of a run: the overall verdict, the checkers' verdicts, the report's path, the command that repeats the
run.

For an unknown run they include its shortfalls, and for a kept cluster the commands that enter and release it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console

from checkers.base.results import CheckerResult, Results, RunVerdict, as_object
from checkers.base.verdict import Validity
from checkers.record.files import BrokenFile
from checkers.record.header_and_outcome import Header
from checkers.record.run_record import RunRecord
from checkers.sealing.manifest import SignedBy
from harness.plain_words import as_typed
from harness.started import program
from harness.story.findings import cause_of, findings
from harness.story.headline import NextStep, next_steps, shortfalls
from harness.terminal.progress import width_of, wrapped

if TYPE_CHECKING:
    from harness.run.session import JudgedRun

_REASONS_FROM = 24
"""Column in which continued lines of a checker's reason begin."""

_ERRORS_SHOWN = 4

_COLOUR = {"valid": "green", "invalid": "bold red", "unknown": "yellow", "harness failed": "bold red"}


def end(console: Console, judged: JudgedRun, as_json: bool, every: bool = False) -> NoReturn:
    """Print the last lines of a run, and end the command with the run's exit code.

    as_json: True to print also one line of JSON on stdout
    every: True to print also checkers that found nothing
    """
    print_end(console, judged, as_json, every)
    raise click.exceptions.Exit(judged.exit_code)


def print_end(console: Console, judged: JudgedRun, as_json: bool, every: bool = False) -> None:
    """Print the last lines of a run: see `end`."""
    _print(console, judged, every)
    if as_json:
        click.echo(json.dumps(in_short(judged)))


def in_short(judged: JudgedRun) -> dict[str, Any]:
    """Return a short summary of a run for programs; results.json has all results."""
    wanted, results = ("verdict", "exit_code", "summary", "reason", "planted", "signer"), as_object(judged.results)
    kept = {"kept": asdict(judged.kept)} if judged.kept is not None else {}
    return {
        **{name: results[name] for name in wanted if name in results},
        "report": as_typed(judged.report),
        "rerun": judged.rerun,
        **kept,
        "checkers": {name: str(checker.verdict) for name, checker in judged.results.checkers.items()},
    }


def _print(console: Console, judged: JudgedRun, every: bool) -> None:
    """Print headline, checkers, drawing and next steps; after a violation, repeat the headline before the steps."""
    results, header, width = judged.results, _header_of(judged), width_of(console)

    def say(words: str, style: str | None = None) -> None:
        console.print(words, highlight=False, markup=False, style=style, soft_wrap=True)

    signer = results.signer
    others = signer is not None and signer.by != SignedBy.THIS_MACHINE
    summary = judged.summary + (f" The run is {signer.words}." if signer is not None and others else "")
    say("")
    say(wrapped(summary, width), _COLOUR[results.verdict])
    if signer is not None and not others:
        say(signer.words, "dim")
    say("")
    print_checkers(console, results, width, every, summary)
    _count_errors(console, results, width)
    _draw_first(console, results)
    if results.verdict is RunVerdict.UNKNOWN and header is not None:
        show_to_do(console, results, header, as_typed(judged.folder), summary)
    if results.judged_by.startswith("in process ("):  # Spark was requested; the reason why it did not judge follows
        say(f"judged {results.judged_by}", "yellow")
    if findings(results):
        say(wrapped(judged.summary, width), _COLOUR[results.verdict])
    seen, valid = _seen_before(judged)
    if seen:
        say(f"seen:   {seen}")
    say(f"report: {as_typed(judged.report)}")
    say(f"again:  {judged.rerun}")
    for each in _further(judged, header, valid):
        say(f"{each.short + ':':<8}{each.command}")
    if judged.stored:
        say(f"stored: {judged.stored}")
    if judged.kept is not None:
        say("\n".join(["", *lines_to_enter(asdict(judged.kept))]))


def _header_of(judged: JudgedRun) -> Header | None:
    try:
        return RunRecord(judged.folder).header
    except BrokenFile:
        return None  # the verdict already reports the broken file


def _seen_before(judged: JudgedRun) -> tuple[str, str]:
    """Return a sentence about earlier runs with the same symptom, and the folder of the last valid run; "" if there is
    none."""
    from harness.lake.past import standing_of_run  # imported here, because a run without a violation reads no lake

    try:
        found = standing_of_run(judged.folder) if findings(judged.results) else None
    except BrokenFile:
        return "", ""
    return ("", "") if found is None else (found[0].seen(), found[1])


def _further(judged: JudgedRun, header: Header | None, valid: str) -> list[NextStep]:
    """Return at most three next steps other than repeating the test; none for a run without a violation.

    valid: folder of the last valid run of the test, or "" """
    if not findings(judged.results):
        return []
    steps = next_steps(judged.results, header, as_typed(judged.folder), logs=False, valid=valid)
    return [step for step in steps if step.command != judged.rerun][: 3 if valid else 2]


def print_checkers(console: Console, results: Results, width: int, every: bool, said: str) -> None:
    """Print a row for each checker that found a violation or could not decide, and the number of the other checkers.

    said: text printed above, which is not repeated
    """
    quiet = (Validity.VALID, Validity.NOT_APPLICABLE)
    shown = {name: c for name, c in results.checkers.items() if every or c.verdict not in quiet}
    for name, checker in sorted(shown.items(), key=lambda row: row[1].verdict is not Validity.INVALID):
        verdict = f"{checker.verdict:>14}"
        head = f"  {verdict}  {name:<22} "
        why = "" if checker.why.lower() in said.lower() else checker.why
        lines = wrapped("; ".join(filter(None, (_kinds(checker), why))), width, head, " " * _REASONS_FROM)
        console.print(f"  [{_COLOUR.get(checker.verdict, 'dim')}]{verdict}[/]", end="", soft_wrap=True)
        console.print(lines.removeprefix(f"  {verdict}"), highlight=False, markup=False, soft_wrap=True)
    left_out = Counter(str(c.verdict) for name, c in results.checkers.items() if name not in shown)
    if left_out:
        counted = ", ".join(f"{count} {verdict}" for verdict, count in left_out.items())
        console.print(f"  {counted} (--all shows them)", highlight=False, markup=False, style="dim")


def _count_errors(console: Console, results: Results, width: int) -> None:
    """Print the most frequent errors of clients, which may explain a verdict."""
    errors = results.statistics.errors
    if not errors:
        return
    words = [f"{each.fail + each.info} times {each.error}" for each in errors[:_ERRORS_SHOWN]]
    more = f"; {len(errors) - _ERRORS_SHOWN} more in the report" if len(errors) > _ERRORS_SHOWN else ""
    lines = wrapped("; ".join(words) + more, width, "  errors of clients: ", " " * 4)
    console.print(lines, highlight=False, markup=False)


def _kinds(checker: CheckerResult) -> str:
    """Return the names of the kinds of violations that a checker found."""
    from harness.story.kinds import name_in_words

    return ", ".join(dict.fromkeys(name_in_words(witness.kind) for witness in checker.witness))


def _draw_first(console: Console, results: Results) -> None:
    """Draw the witness of the headline and the witness of its cause.  The report shows all others."""
    from harness.terminal.witness import show_witness

    found = findings(results)
    for each in [*found[:1], *([cause] if (cause := cause_of(found)) is not None else [])]:
        console.print()
        show_witness(each.lead.witness, compact=True, file=console.file)
    console.print()


def show_to_do(console: Console, results: Results, header: Header | None, folder: str, said: str = "") -> None:
    """Print the shortfalls of an unknown run, and commands for runs without them.

    folder: path of the run's folder as a user types it
    said: text printed above, which is not repeated
    """
    found = shortfalls(results, header, folder)
    if not found:
        return
    console.print("what it would take to know:", highlight=False, markup=False)
    for each in found:
        stated = f"got {each.got}, wanted {each.wanted}" in said
        figures = f": wanted {each.wanted}, got {each.got}" if each.wanted and not stated else ""
        words = "" if each.wanted and each.words.rstrip(".") in each.what else f" {each.words}"
        lines = wrapped(f"{each.what}{figures}{':' if stated else '.'}{words}", width_of(console), "  - ", "    ")
        console.print(lines, highlight=False, markup=False)
    for command in dict.fromkeys(each.command for each in found if each.command):
        console.print(f"    {command}", highlight=False, markup=False, soft_wrap=True)


def lines_to_enter(kept: Mapping[str, Any]) -> list[str]:
    """Return lines about a kept cluster: how to enter each node, and how to release the cluster.

    kept: a `KeptCluster` as a dictionary"""
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
    """Return one line about a kept cluster.

    kept: a `KeptCluster` as a dictionary
    stale: reason why the cluster is no longer up; "" if it is up"""
    where = kept["folder"]
    if stale:
        return f"kept, but {stale}: {where} ({kept['title']}); `{program()} release {where}` removes what is left"
    return f"kept: {where} ({kept['title']}), up since {kept['since']}; {program()} release {where}"
