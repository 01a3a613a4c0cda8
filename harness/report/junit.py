"""The results for a CI system: one JUnit test case per checker.

Invalid is a failure, unknown an error (a run that proved nothing must not turn a build green), not applicable is
skipped.  A run may prove nothing although no checker shows that: the harness failed, a planted bug was not found, or
nothing was judged.  Such a run has an additional test case, which is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkers.base.results import CheckerResult, RunVerdict
from checkers.base.verdict import Validity
from harness.plain_words import looked_at
from harness.report.environment import environment
from harness.report.run_data import ReportData
from harness.story.findings import title_of
from harness.story.headline import verdict_in_words

THE_RUN = "the run itself"
"""Name of the test case that belongs to no checker."""


@dataclass(frozen=True, slots=True)
class JunitCase:
    """outcome: failure, error or skipped, with its kind, message and text; "" if it passed."""

    classname: str
    name: str
    output: str
    seconds: float = 0.0
    outcome: str = ""
    kind: str = ""
    message: str = ""
    text: str = ""


def junit_xml(
    name: str, cases: Sequence[JunitCase], facts: Mapping[str, object] = {}, output: str = "", started: str = ""
) -> str:
    """Return one suite as JUnit's XML."""
    template = environment().get_template("junit.xml.j2")
    return template.render(name=name, cases=cases, facts=facts, output=output, started=started)


def write(data: ReportData, path: Path) -> None:
    """Write junit.xml for one judged run."""
    header = data.header
    test = (header.test if header is not None else "") or data.folder.parent.name
    facts = {"run": data.folder.name, "seed": data.seed, "rerun": header and header.rerun, **data.spec}
    cases = [_case(test, name, checker) for name, checker in {**data.checkers, **_of_the_run(data)}.items()]
    name, started = f"{test} seed {'?' if data.seed is None else data.seed}", header.started_utc if header else ""
    path.write_text(junit_xml(name, cases, facts, verdict_in_words(data.results, header), started), encoding="utf-8")


def _of_the_run(data: ReportData) -> dict[str, CheckerResult]:
    """Return a case for the run itself, if it did not pass and no checker's case shows that."""
    passed = data.results.verdict is RunVerdict.VALID and not data.results.exit_code
    if passed or any(c.verdict in (Validity.INVALID, Validity.UNKNOWN) for c in data.checkers.values()):
        return {}
    return {THE_RUN: CheckerResult(Validity.UNKNOWN, reason=verdict_in_words(data.results, data.header))}


def _case(test: str, name: str, checker: CheckerResult) -> JunitCase:
    about = (test, name, f"{title_of(name, checker)}: {looked_at(checker.looked_at)}", checker.seconds)
    match checker.verdict:
        case Validity.INVALID:
            summaries = [witness.summary for witness in checker.witness]
            kind = next((witness.kind for witness in checker.witness), "violation")
            return JunitCase(*about, "failure", kind, (summaries or [checker.reason])[0], "\n".join(summaries))
        case Validity.NOT_APPLICABLE:
            return JunitCase(*about, "skipped", message=checker.reason)
        case Validity.UNKNOWN:
            return JunitCase(*about, "error", "unknown", checker.reason or "no verdict")
    return JunitCase(*about)
