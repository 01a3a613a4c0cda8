"""Whether a run with a planted bug found it, and for the right reason.

The harness decides this when it judges (`planted` in results.json).  Runs that were judged before it did are decided
here: the checker that the subject names must be invalid, with a witness of one of the bug's kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkers.base.json_file import mapping, sequence
from checkers.record.header import Header
from harness.plain_words import lower_first, sentence, shorten
from system_under_test.subject import Bug


@dataclass(frozen=True, slots=True)
class Planted:
    """words: one or two sentences."""

    name: str
    found: bool
    words: str


def planted(results: Mapping[str, Any], header: Header | None) -> Planted | None:
    """None for a clean system."""
    spec = header.spec if header is not None else {}
    decided = mapping(results.get("planted"))
    name = decided.get("bug") or spec.get("bug")
    if not name:
        return None
    bug = known_bug(str(spec.get("subject", "")), str(name))
    if isinstance(decided.get("found"), bool):
        return _decided(shorten(str(name), 60), bool(decided["found"]), bug, str(decided.get("reason") or ""))
    invalid = results.get("verdict") == "invalid"
    if bug is None:
        return Planted(str(name), invalid, f"Planted bug {name}: {'found' if invalid else 'not found'}.")
    return _undecided(results, bug, invalid)


def known_bug(subject: str, name: str) -> Bug | None:
    """What the subject declares about its planted bug.

    None if this version has no such subject or bug, or cannot load it: the report on an old run must not fail then.
    Systems from outside have no planted bugs, and a report executes no code that a run names.
    """
    from harness.registry import SUBJECTS, load_subject
    from harness.spec import WrongSpec

    if subject not in SUBJECTS:
        return None
    try:
        return load_subject(subject).bugs.get(name)
    except (WrongSpec, ImportError):
        return None


def _decided(name: str, found: bool, bug: Bug | None, reason: str) -> Planted:
    by = f" by {bug.found_by}" if bug else ""
    words = f"Planted bug {name}: {'found' if found else 'not found'}{by}."
    return Planted(name, found, f"{words} {sentence(shorten(_capital(reason)))}" if reason and not found else words)


def _undecided(results: Mapping[str, Any], bug: Bug, invalid: bool) -> Planted:
    checker = mapping(mapping(results.get("checkers")).get(bug.found_by))
    kinds = {str(mapping(w).get("kind")) for w in sequence(checker.get("witness"))}
    if checker.get("verdict") != "invalid":
        others = " Another checker is invalid." if invalid else ""
        return Planted(bug.name, False, f"Planted bug {bug.name}: not found by {bug.found_by}.{others}")
    if not bug.witness_kinds or kinds & set(bug.witness_kinds):
        return Planted(bug.name, True, f"Planted bug {bug.name}: found by {bug.found_by}.")
    reasons = ", ".join(sorted(kinds))
    words = f"Planted bug {bug.name}: {bug.found_by} is invalid, but for another reason ({reasons})."
    return Planted(bug.name, False, words)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if lower_first(text) == text else text
