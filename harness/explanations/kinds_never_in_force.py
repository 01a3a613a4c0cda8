"""Which kinds of fault a run was to inject and never had in force.

Such a run may be valid, because one card that was skipped is bad luck.  But it shows nothing about that kind, and the
reader who ordered the kind must learn of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.base.json_file import mapping, number, sequence
from harness.plain_words import listed, plural, sentence, shorten


def kinds_never_in_force(results: Mapping[str, Any]) -> list[str]:
    """Their names, sorted.  results: content of results.json; those of older versions name none."""
    return [str(entry.get("kind")) for entry in _entries(results)]


def why_never_in_force(results: Mapping[str, Any]) -> list[str]:
    """One sentence about all kinds that were never dealt, and one about each other kind."""
    entries = _entries(results)
    never_dealt = [str(entry.get("kind")) for entry in entries if not _dealt(entry)]
    out = [f"The time was too short to deal {listed(never_dealt)}."] if never_dealt else []
    return out + [_why(entry) for entry in entries if _dealt(entry)]


def _why(entry: Mapping[str, Any]) -> str:
    reasons = "; ".join(map(str, sequence(entry.get("reasons")))) or "no reason is recorded"
    dealt = _dealt(entry)
    were = "was dealt and was not" if dealt == 1 else "were dealt and none was"
    return sentence(shorten(f"{plural(dealt, 'fault')} of kind {entry.get('kind')} {were} in force: {reasons}"))


def _dealt(entry: Mapping[str, Any]) -> int:
    return int(number(entry.get("dealt"), 0))


def _entries(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = mapping(mapping(mapping(results.get("checkers")).get("vacuity")).get("details"))
    return [mapping(entry) for entry in sequence(details.get("never_in_force"))]
