"""The verdict for a CI system: one JUnit test case per checker.

Invalid is a failure, unknown an error (a run that proved nothing must not turn a build green), not applicable is
skipped.  A run may prove nothing although no checker shows that: the harness failed, a planted bug was not found, or
nothing was judged.  Such a run has one test case more, which is an error.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from checkers.base.results import CheckerResult, RunVerdict
from checkers.base.verdict import Validity
from harness.plain_words import looked_at
from harness.report.run_data import ReportData
from harness.story.findings import title_of
from harness.story.headline import verdict_in_words

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST = 4000
THE_RUN = "the run itself"
"""Name of the test case that is no checker's."""


def write(data: ReportData, path: Path) -> None:
    """Write junit.xml for one judged run."""
    header = data.header
    test = (header.test if header is not None else "") or data.folder.parent.name
    checkers = {**data.checkers, **_of_the_run(data)}
    verdicts = [checker.verdict for checker in checkers.values()]
    suite = ET.Element(
        "testsuite",
        name=xml_text(f"{test} seed {'?' if data.seed is None else data.seed}"),
        tests=str(len(checkers)),
        failures=str(verdicts.count(Validity.INVALID)),
        errors=str(verdicts.count(Validity.UNKNOWN)),
        skipped=str(verdicts.count(Validity.NOT_APPLICABLE)),
        time=f"{sum(checker.seconds for checker in checkers.values()):.3f}",
        timestamp=xml_text(header.started_utc if header is not None else ""),
    )
    properties = ET.SubElement(suite, "properties")
    facts = {
        "run": data.folder.name,
        "seed": data.seed,
        "rerun": header.rerun if header is not None else None,
        **data.spec,
    }
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=xml_text(str(name)), value=xml_text(str(value)))
    for name, checker in checkers.items():
        _case(suite, test, name, checker)
    ET.SubElement(suite, "system-out").text = xml_text(verdict_in_words(data.results, data.header))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    path.write_bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _of_the_run(data: ReportData) -> dict[str, CheckerResult]:
    """A case for the run itself, if it did not pass and no checker's case shows that."""
    passed = data.results.verdict is RunVerdict.VALID and not data.results.exit_code
    if passed or any(c.verdict in (Validity.INVALID, Validity.UNKNOWN) for c in data.checkers.values()):
        return {}
    return {THE_RUN: CheckerResult(Validity.UNKNOWN, reason=verdict_in_words(data.results, data.header))}


def _case(suite: ET.Element, test: str, name: str, checker: CheckerResult) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=xml_text(test), name=xml_text(name), time=f"{checker.seconds:.3f}"
    )
    verdict = checker.verdict
    reason = xml_text(checker.reason)
    if verdict is Validity.INVALID:
        summaries = [witness.summary for witness in checker.witness]
        kind = next((witness.kind for witness in checker.witness), "violation")
        failure = ET.SubElement(
            case, "failure", type=xml_text(kind), message=xml_text(summaries[0] if summaries else reason)
        )
        failure.text = xml_text("\n".join(summaries))
    elif verdict is Validity.NOT_APPLICABLE:
        ET.SubElement(case, "skipped", message=reason)
    elif verdict is Validity.UNKNOWN:
        ET.SubElement(case, "error", type="unknown", message=reason or "no verdict")
    ET.SubElement(case, "system-out").text = xml_text(f"{title_of(name, checker)}: {looked_at(checker.looked_at)}")


def xml_text(text: str) -> str:
    """Text that XML can hold."""
    return _NOT_XML.sub("�", text[:_MOST])
