"""What an unknown run lacked, a line each, with the run that makes up for it; the same list as on the page."""

from __future__ import annotations

from rich.console import Console

from checkers.base.results import Results
from checkers.record.header import Header
from harness.explanations.next_steps import shortfalls
from harness.terminal.lines import width_of, wrapped


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
