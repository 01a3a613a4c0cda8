"""The page of `check --report`: the result of each judged file, and every witness drawn as in the report of a run.

There is no run, so no timeline and no faults are shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from checkers.base.results import CheckerResult, Results, RunVerdict
from checkers.base.verdict import Validity, combine
from checkers.record.header_and_outcome import RunOutcome
from harness import plain_words as words
from harness.report import run_data
from harness.report import violation_views as witness
from harness.report.environment import STYLES, environment, json_block, script_hash, template_text
from harness.report.judged_file import JudgedFile
from harness.report.run_data import ReportData
from harness.story.findings import violations_by_cause

_SCRIPTS = ("scripts/page.js", "scripts/proof.js", "scripts/check.js")

FINDINGS_MOST = 60
"""Maximum number of drawn witnesses.  If there are more, only the first witness of each file is drawn."""

FINDINGS_OPEN = 10
"""Number of kinds of violations whose first violation is shown with its evidence unfolded."""

LOGS = "logs"
"""Value of `model` for judged logs (`check-logs`)."""

_QUESTIONS = {
    "list-append": "Can transactions with the demanded isolation have given these answers?",
    "rw-register": "Can transactions with the demanded isolation have given these answers?",
    "kafka": "Did every log keep what was sent to it, in one order, and show that order to every consumer?",
    "kafka-read-to-end": "Did every log keep what was sent to it, in one order, and show all of it to consumers?",
    "unique-ids": "Was no id handed out twice?",
    LOGS: "Do the logs of the nodes agree wherever they share an epoch?",
}
_QUESTION = "Is there one order of all operations that respects real time and explains every answer?"


def render_check(judged: Sequence[JudgedFile], model: str, out: Path) -> Path:
    """Write the page of these files to `out`; return `out`.  Raises OSError."""
    found, left_out = _findings(judged)
    title, below = _head(judged, ("folder", "folders") if model == LOGS else ("history", "histories"))
    overall = combine(j.verdict.validity for j in judged)
    script = "(() => {\n'use strict';\n" + "\n".join(template_text(name) for name in _SCRIPTS) + "\n})();"
    page = environment().get_template("check.html.j2").render(
        title=title,
        below=below,
        mark=_mark(overall),
        model=words.shorten(model, 80),
        what="logs of nodes" if model == LOGS else "histories",
        question=_QUESTIONS.get(model, _QUESTION),
        files=judged,
        mark_of=lambda each: _mark(each.verdict.validity),
        findings=found,
        left_out=left_out,
        has_timeline=False,
        payload=json_block({"steps": {f.number: f.steps for f in found}}),
        style=Markup("\n".join(template_text(name) for name in STYLES)),
        script=Markup(script),
        script_hash=script_hash(script),
    )  # fmt: skip
    out.write_text(page, encoding="utf-8", errors="replace")
    return out


def _findings(judged: Sequence[JudgedFile]) -> tuple[list[witness.FindingView], int]:
    """Return (the witnesses to draw, the number of omitted ones).  The field `checker` contains the index of the
    file.
    """
    every = sum(len(j.verdict.witnesses) for j in judged)
    most = None if every <= FINDINGS_MOST else 1
    checkers = {
        str(place): CheckerResult.of(replace(each.verdict, witnesses=each.verdict.witnesses[:most]), title=each.file)
        for place, each in enumerate(judged)
        if each.verdict.validity is Validity.INVALID
    }
    checkers = dict(list(checkers.items())[:FINDINGS_MOST])
    data = ReportData(
        folder=Path(os.devnull), header=None, results=Results(RunVerdict.INVALID, checkers), outcome=RunOutcome(),
        faults=(), operations=run_data.none(), traces={}, copies=[], event_count=0,
    )  # fmt: skip
    listed = sorted(violations_by_cause(data.results), key=lambda f: int(f.checker))
    views = [witness.FindingView(witness.Surroundings(data), f, n, False) for n, f in enumerate(listed, 1)]
    witness.fold(views, FINDINGS_OPEN)
    return views, every - len(views)


def _head(judged: Sequence[JudgedFile], nouns: tuple[str, str]) -> tuple[str, list[str]]:
    """Return the verdict over all files in one sentence, and further sentences below it."""
    counts = {v: sum(j.verdict.validity is v for j in judged) for v in Validity}
    total = f"{len(judged):,} {nouns[len(judged) != 1]}"
    bad, unknown = counts[Validity.INVALID], counts[Validity.UNKNOWN]
    broken = sum(bool(j.error) for j in judged)
    below = [f"{words.plural(broken, 'file')} could not be read: that is no verdict on the system."] if broken else []
    if bad:
        first = next(j for j in judged if j.verdict.validity is Validity.INVALID)
        below.insert(0, words.sentence(words.shorten(first.verdict.witnesses[0].summary)))
        title = f"Invalid: {bad} of {total}" if len(judged) > 1 else f"Invalid: {Path(first.file).name}"
        return words.sentence(words.shorten(title, 120)), below
    if unknown:
        title = f"Unknown: the verdict of {unknown} of {total} is unknown." if len(judged) > 1 else "Unknown."
        first = next(j for j in judged if j.verdict.validity is Validity.UNKNOWN)
        return title, [words.sentence(words.shorten(first.verdict.reason)), *below]
    return f"Valid: {total}, and nothing is wrong with {'any of them' if len(judged) > 1 else 'it'}.", below


def _mark(validity: Validity) -> str:
    return str(validity) if validity in (Validity.VALID, Validity.INVALID) else "unknown"
