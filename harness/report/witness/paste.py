"""A violation as plain text, to paste into an issue or a message: complete without the page.

It states the system and its version, the fault, what broke, and what that kind of violation means.  Then follow the
drawing of characters, the reasons, the rows of the history, and the command that runs the test again.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from checkers.base.json_file import number
from checkers.record.header import Revision
from harness.explanations.violations_by_cause import ReportedViolation
from harness.plain_words import seconds, sentence, shorten
from harness.report.run_data.report_data import ReportData
from harness.story.kinds import kind_of
from harness.story.operations import type_of, value
from harness.story.story import Story
from harness.terminal.witness import draw_witness

WIDTH = 100
"""Columns of the text."""

ROWS_MOST = 40


def paste(data: ReportData, finding: ReportedViolation, story: Story, around: str) -> str:
    """story: of the finding's witness.  around: the faults in force and who led at that moment, "" if unknown."""
    lines = [f"{finding.title}: {finding.name}", sentence(finding.summary), kind_of(finding.kind).means, ""]
    lines += [f"{name}: {words}" for name, words in _where(data, finding, around) if words]
    lines += ["", _drawing(story), ""]
    rows = finding.witness.events
    lines += [f"  {_row(row)}" for row in rows[:ROWS_MOST]]
    lines += [f"  and {len(rows) - ROWS_MOST} more rows"] if len(rows) > ROWS_MOST else []
    rerun = data.header.rerun if data.header is not None else ""
    lines += ["", f"Run again: {shorten(rerun, 600)}"] if rerun else []
    return "\n".join(line.rstrip() for line in lines)


def _where(data: ReportData, finding: ReportedViolation, around: str) -> list[tuple[str, str]]:
    spec, header = data.spec, data.header
    git = header.git if header is not None else Revision()
    revision = git.revision[:12]
    dirty = " with uncommitted changes" if git.dirty and revision else ""
    run = f"{data.folder.parent.name}/{data.folder.name}" if header is not None else ""
    versions = header.versions if header is not None else {}
    system = " ".join(str(part) for part in (spec.get("subject"), versions.get(str(spec.get("subject")))) if part)
    bug = f", planted bug {spec['bug']}" if spec.get("bug") else ""
    moment = seconds(finding.moment_ns) if finding.moment_ns >= 0 else ""
    return [
        ("Run", shorten(run, 120)),
        ("System", shorten(system, 120) + bug if system else ""),
        ("Revision", f"{shorten(revision, 12)}{dirty}" if revision else ""),
        ("Seed", "" if data.seed is None else str(data.seed)),
        ("At", f"{moment}; {around}" if moment and around else moment),
    ]


def _drawing(story: Story) -> str:
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    console.print(draw_witness(story, WIDTH))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def _row(row: Mapping[str, Any]) -> str:
    """`row 912    7.889 s  p3  ok      write k2 11   n2`."""
    kind = type_of(row.get("type"))
    given = "" if row.get("value") is None else value(row.get("value"))
    given += f" → {value(row['value2'])}" if row.get("value2") is not None else ""
    given = given or shorten(str(row.get("payload") or ""), 60)
    what = " ".join(str(part) for part in (row.get("f"), row.get("key"), given) if part not in (None, ""))
    time = seconds(number(row.get("time_ns"), 0)) if row.get("time_ns") else ""
    name = kind.name.lower() if kind is not None else shorten(str(row.get("type")), 8)
    parts = [f"row {row.get('index')!s:<8}", f"{time:>11}", f"p{row.get('process')!s:<4}", f"{name:<7}"]
    return shorten("  ".join([*parts, shorten(what, 60), *(str(row[c]) for c in ("error", "node") if row.get(c))]), 160)
