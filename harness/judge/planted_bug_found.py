"""Whether a run with a planted bug found it: decided once, when the run is judged, and kept in results.json.

A planted bug is there to prove that the harness finds it.  So a run that misses it is no success: its verdict is
unknown at best.  Found means that the checker which the subject names is invalid, with a witness of one of the bug's
kinds.  Another violation alone does not count, but it keeps the verdict invalid.
"""

from __future__ import annotations

from dataclasses import replace

from checkers.base.results import PlantedBugResult, Results, RunVerdict
from checkers.base.verdict import Validity
from system_under_test.subject import Bug


def decide(bug: Bug, results: Results) -> PlantedBugResult:
    """Whether the run found its bug, and why it counts as found or not."""
    checker = results.checkers.get(bug.found_by)
    if checker is None:
        return PlantedBugResult(bug.name, False, f"{bug.found_by} did not judge this run")
    if checker.verdict is not Validity.INVALID:
        why = f": {checker.reason}" if checker.reason else ""
        return PlantedBugResult(bug.name, False, f"{bug.found_by} is {checker.verdict}{why}")
    kinds = sorted({witness.kind for witness in checker.witness})
    if shown := [kind for kind in kinds if kind in bug.witness_kinds or not bug.witness_kinds]:
        return PlantedBugResult(bug.name, True, f"{bug.found_by} found: {', '.join(shown)}")
    reason = f"{bug.found_by} found only {', '.join(kinds)}, where {' or '.join(bug.witness_kinds)} would count"
    return PlantedBugResult(bug.name, False, reason)


def demand(bug: Bug | None, results: Results) -> Results:
    """The results of a run with this bug, with `planted`; a bug that was missed makes a valid run unknown."""
    if bug is None:
        return results
    results = replace(results, planted=(planted := decide(bug, results)))
    return results.unknown() if not planted.found and results.verdict is RunVerdict.VALID else results
