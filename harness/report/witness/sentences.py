"""A witness in sentences: what happened in order, the steps of the drawing, and a text to paste into an issue.

The text to paste is complete without the page.  It states the system and its version, the fault, what broke, and what
that kind of violation means.  Then follow the drawing of characters, the reasons, the rows of the history, and the
command that runs the test again.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from checkers.base.history import Type
from checkers.record.header import Revision
from checkers.record.reading import number
from harness.plain_words import plural, seconds, sentence, shorten
from harness.report.fault_views import FaultView
from harness.report.roles import RoleSegment, elections
from harness.report.run_data import ReportData
from harness.report.witness import picture
from harness.story.findings import ReportedViolation
from harness.story.kinds import kind_of
from harness.story.operations import (
    FOREVER,
    TRANSACTIONS,
    DrawnWindow,
    WindowOp,
    micro_operations,
    payload,
    said,
    say,
    type_of,
    value,
)
from harness.story.story import Story
from harness.terminal.witness import draw_witness


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a story.  look: "op", "context" or "bad".  rows: history rows it stands on."""

    words: str
    look: str
    rows: str = ""
    step: int | None = None


def in_sentences(
    window: DrawnWindow, held_before: str, faults: Sequence[FaultView], roles: Sequence[RoleSegment]
) -> list[Sentence]:
    """Return what clients invoked and which answers they got, in the order of the history, with the faults and
    elections of that time.  held_before: a sentence about the state before, or ""."""
    ops = window.operations
    if not ops:
        return []
    steps = {i: k + 1 for k, i in enumerate(window.order.steps)} if window.order else {}
    digits, timed = picture.digits_of(ops), window.has_times
    lines = [
        (op.start_ns, 1, _of_operation(op, i == window.bad, window.name_of(i), steps.get(i), digits, timed))
        for i, op in enumerate(ops)
    ]
    first, last = ops[0].start_ns - 2_000_000_000, max(op.end_ns for op in ops)
    meanwhile = [(f.start_ns, f"fault {f.number} began: {f.words or f.name}") for f in faults]
    meanwhile += [(f.end_ns, f"fault {f.number} was healed") for f in faults if f.happened]
    meanwhile += [(s.start_ns, f"{s.node} became leader of epoch {s.epoch}") for s in elections(roles)]
    lines += [
        (at, 0, Sentence(sentence(f"At {seconds(at)} {what}"), "context"))
        for at, what in meanwhile
        if first <= at <= last
    ]
    begin = [Sentence(held_before, "context")] if held_before else []
    return begin + [line for _, _, line in sorted(lines, key=lambda x: x[:2])]


def _request(op: WindowOp) -> str:
    if op.f in TRANSACTIONS and isinstance(op.given, tuple):
        return micro_operations(op.given)
    return op.f if op.given is None else f"{op.f} {value(op.given)}"


def _answered(op: WindowOp) -> str:
    return micro_operations(op.got) if op.f in TRANSACTIONS and isinstance(op.got, tuple) else value(op.got)


def _of_operation(op: WindowOp, bad: bool, letter: str, step: int | None, digits: int, timed: bool) -> Sentence:
    where = f" at {op.node}" if op.node else ""
    words = {
        "read": "read",
        "write": f"wrote {value(op.given)}",
        "cas": f"changed {value(op.given)} to {value(op.new)}",
    }.get(op.f, f"invoked {_request(op)}")
    start, end = (f" at {seconds(ns, digits)}" if timed else "" for ns in (op.start_ns, op.end_ns))
    who = f"{f'{letter}: process' if letter else 'Process'} {op.process} {words}{where}"
    rows = f"{op.invoke:,}" + (f", {op.complete:,}" if op.complete < FOREVER else ", no answer")
    if op.f == "read" and op.happened:
        words = f"{who}{start}: answered{end} with {value(op.got)}."
    elif op.f == "read":
        words = f"{who}{start}: no answer."
    elif op.happened and op.f not in ("write", "cas") and op.got != op.given:
        words = f"{who}{start}: answered{end} with {_answered(op)}."
    elif op.happened:
        words = f"{who}{start}: acknowledged{end}."
    elif op.type is Type.FAIL:
        words = f"{who}{start}: it certainly did not happen ({op.error or 'refused'})."
    else:
        words = f"{who}{start}: outcome unknown ({op.error or 'no answer'})."
    if bad:
        return Sentence(f"{words} No legal order contains this answer.", "bad", rows, step)
    return Sentence(words, "op", rows, step)


def steps(window: DrawnWindow) -> list[str]:
    """Return what the stepper says at each step, from 1; the last says why the order ends."""
    ops, order, last = window.operations, window.order, window.culprit
    if not order:
        return []
    out = []
    for k, i in enumerate(order.steps):
        op = ops[i]
        holds = value(order.states[k + 1])
        legal = f"it holds {holds}, so this is legal" if op.f == "read" else f"from now on it holds {holds}"
        out.append(f"Process {op.process}: {say(op)}; {legal}.")
    if last is not None:
        holds = value(order.states[-1]) if order.steps else window.before
        end = "No legal place is left."
        if not order.steps and len(ops) > 1:
            end = "Nor does it fit after any of the others: no legal place is left."
        out.append(f"Process {last.process}: {say(last)}, but it holds {holds}. {end}")
    return out


def window_words(data: ReportData, window: DrawnWindow, key: str | None, numbered: bool) -> str:
    """numbered: whether the drawing numbers the steps of the legal order."""
    ops = window.operations
    if not ops:
        return ""
    all_ops = data.operations
    total = int(all_ops.on(key).sum()) if key is not None else 0
    of = (
        f"{len(ops)} of the {total:,} operations on key {shorten(key, 60)}"
        if key is not None and total >= len(ops)
        else plural(len(ops), "operation")
    )
    are = "is" if len(ops) == 1 else "are"
    words = f"{of} {are} enough to show it. Each bar is one operation, from call to answer."
    if numbered and window.order and window.order.steps:
        words += " The numbered dots are the longest legal order; nothing legal can follow it."
    return words


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
    if row.get("payload") is not None:
        given = said(str(row.get("f")), payload(row))
    what = " ".join(str(part) for part in (row.get("f"), row.get("key"), given) if part not in (None, ""))
    time = seconds(number(row.get("time_ns"), 0)) if row.get("time_ns") else ""
    name = kind.name.lower() if kind is not None else shorten(str(row.get("type")), 8)
    parts = [f"row {row.get('index')!s:<8}", f"{time:>11}", f"p{row.get('process')!s:<4}", f"{name:<7}"]
    return shorten("  ".join([*parts, shorten(what, 60), *(str(row[c]) for c in ("error", "node") if row.get(c))]), 160)
