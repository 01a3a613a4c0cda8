"""Values of the record of a run, from the few fields that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.record.header import Header
from checkers.record.outcome import RunOutcome
from checkers.record.reading import TEST, decoded


def header_of(test: Mapping[str, Any]) -> Header:
    """test: what test.json holds, as far as it matters."""
    return decoded(TEST, {"spec": {}, **test}, Header, whole=False)


def outcome_of(outcome: Mapping[str, Any]) -> RunOutcome:
    """outcome: what the journal holds, as far as it matters."""
    return decoded("outcome", outcome, RunOutcome, whole=False)
