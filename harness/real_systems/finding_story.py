"""The story of a run that `find` made, for a user of the system in it: what it was made to show, and what it showed.

It stands in results.json under `finding`, on the page and on the terminal.  It changes no verdict.
"""

from __future__ import annotations

from checkers.base.results import FindingStory, Results, RunVerdict
from harness.real_systems.clean_runs import CLEAN_RUNS, clean_in_words
from harness.real_systems.known_findings import FINDINGS, found, in_words, witness_in_words
from harness.spec import Spec


def story_of(spec: Spec, results: Results) -> FindingStory | None:
    """The story of a judged run; None if `find` did not make it."""
    known = FINDINGS.keys() | CLEAN_RUNS.keys() if spec.clean else FINDINGS.keys()
    if spec.finding is None or spec.finding not in known:
        return None
    return _of_clean(spec.finding, results) if spec.clean else _of_finding(spec.finding, results)


def _of_finding(name: str, results: Results) -> FindingStory:
    finding = FINDINGS[name]
    about = finding.system, finding.configuration
    if not found(finding, results):
        return FindingStory(
            name, False, False, *about, f"This run was made to show a finding: {finding.summary}. It did not show it."
        )
    witness = witness_in_words(finding, results)
    return FindingStory(name, False, True, *about, f"{in_words(finding, results)}.", witness, finding.published)


def _of_clean(name: str, results: Results) -> FindingStory:
    valid = results.verdict is RunVerdict.VALID
    what = "The system must keep its promise here" + (
        ", and it did." if valid else ". This run does not show that it did."
    )
    if name in CLEAN_RUNS:
        run = CLEAN_RUNS[name]
        return FindingStory(name, True, valid, run.system, run.configuration, what)
    finding = FINDINGS[name]
    words = f"This is the counterpart of a finding: {finding.summary}. {what}"
    return FindingStory(
        name, True, valid, finding.system, clean_in_words(name).removeprefix(f"{finding.system}, but "), words
    )
