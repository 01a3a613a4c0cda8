"""Whether a run with a planted bug found it: decided once, when the run is judged, and kept in results.json.

A planted bug is there to prove that the harness finds it.  So a run that misses it is no success: its verdict is
unknown at best.  Found means that the checker which the subject names is invalid, with a witness of one of the bug's
kinds.  Another violation alone does not count, but it keeps the verdict invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.base.json_file import mapping, sequence
from checkers.base.verdict import EXIT_CODES, Validity
from system_under_test.subject import Bug


def decide(bug: Bug, results: Mapping[str, Any]) -> dict[str, Any]:
    """{"bug": name, "found": bool, "reason": why it counts as found or not, in words}."""
    checker = mapping(mapping(results.get("checkers")).get(bug.found_by))
    verdict = checker.get("verdict")
    kinds = sorted({str(mapping(witness).get("kind")) for witness in sequence(checker.get("witness"))})
    shown = [kind for kind in kinds if kind in bug.witness_kinds or not bug.witness_kinds]
    if verdict == Validity.INVALID and shown:
        return {"bug": bug.name, "found": True, "reason": f"{bug.found_by} found: {', '.join(shown)}"}
    if verdict == Validity.INVALID:
        reason = f"{bug.found_by} found only {', '.join(kinds)}, where {' or '.join(bug.witness_kinds)} would count"
    elif verdict is None:
        reason = f"{bug.found_by} did not judge this run"
    else:
        why = f": {checker['reason']}" if checker.get("reason") else ""
        reason = f"{bug.found_by} is {verdict}{why}"
    return {"bug": bug.name, "found": False, "reason": reason}


def demand(bug: Bug | None, results: dict[str, Any]) -> None:
    """Add `planted` to the results of a run with this bug; a bug that was missed makes a valid run unknown."""
    if bug is None:
        return
    results["planted"] = decide(bug, results)
    if not results["planted"]["found"] and results["verdict"] == Validity.VALID:
        results |= {"verdict": str(Validity.UNKNOWN), "exit_code": EXIT_CODES[Validity.UNKNOWN]}
