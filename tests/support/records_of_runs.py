"""Records and results of runs as tests write them: only the fields that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.base.results import Results, parse_results
from checkers.base.verdict import Witness
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import Header, RunOutcome
from checkers.record.run_record import TEST, decoded

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "results": {"verdict": "unknown"},
    "checker": {"verdict": "valid"},
    "witness": {"kind": "", "summary": ""},
}
"""What a test may leave out of an object of results.json."""


def results_in(raw: Results | Mapping[str, Any]) -> Results:
    """Results, from an object of results.json in which the demanded fields may be missing."""
    if isinstance(raw, Results):
        return raw
    checkers = {name: _DEFAULTS["checker"] | entry for name, entry in raw.get("checkers", {}).items()}
    whole = {
        name: entry | {"witness": [_DEFAULTS["witness"] | witness for witness in entry.get("witness", ())]}
        for name, entry in checkers.items()
    }
    return parse_results({**_DEFAULTS["results"], **raw, "checkers": whole})


def witness_in(raw: Witness | Mapping[str, Any]) -> Witness:
    """A witness, from an object of results.json in which any field may be missing."""
    if isinstance(raw, Witness):
        return raw
    results = results_in({"checkers": {"one": {"verdict": "invalid", "witness": [raw]}}})
    return results.checkers["one"].witness[0]


def header_of(test: Mapping[str, Any]) -> Header:
    """test: what test.json holds, as far as it matters."""
    return decoded(TEST, {"spec": {}, **test}, Header, whole=False)


def outcome_of(outcome: Mapping[str, Any]) -> RunOutcome:
    """outcome: what the journal holds, as far as it matters."""
    return decoded("outcome", outcome, RunOutcome, whole=False)


def whole(raw: dict[str, Any]) -> dict[str, Any]:
    """A record of a fault with all that it cannot lack."""
    card = {"number": 1, "kind": "partition", "name": "one", "at_s": 0.0, "heal_s": 1.0} | raw.get("card", {})
    return {"achieved": "installed", "words": ""} | raw | {"card": card}


def fault_of(raw: dict[str, Any]) -> FaultRecord:
    """The record of one fault."""
    return decoded("fault", whole(raw), FaultRecord, whole=False)
