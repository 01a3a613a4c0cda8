"""Results of judgings as tests write them: only the fields that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.base.results import Results, parse_results
from checkers.base.verdict import Witness

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
