"""Whether a run with a planted bug found it, and for the right reason.

The harness decides this when it judges (`planted` in results.json).  Runs that were judged before it did are decided
here: the checker that the subject names must be invalid, with a witness of one of the bug's kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkers.base.results import Results, RunVerdict
from checkers.record.header import Header
from harness.plain_words import lower_first, sentence, shorten
from system_under_test.subject import Bug


@dataclass(frozen=True, slots=True)
class Planted:
    """words: one or two sentences."""

    name: str
    found: bool
    words: str


def planted(results: Results, header: Header | None) -> Planted | None:
    """None for a clean system."""
    spec = header.spec if header is not None else {}
    decided = results.planted
    name = decided.bug if decided is not None else spec.get("bug")
    if not name:
        return None
    bug = known_bug(str(spec.get("subject", "")), str(name))
    if decided is not None:
        return _decided(shorten(str(name), 60), decided.found, bug, decided.reason)
    invalid = results.verdict is RunVerdict.INVALID
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


def _undecided(results: Results, bug: Bug, invalid: bool) -> Planted:
    checker = results.invalid.get(bug.found_by)
    if checker is None:
        others = " Another checker is invalid." if invalid else ""
        return Planted(bug.name, False, f"Planted bug {bug.name}: not found by {bug.found_by}.{others}")
    kinds = {witness.kind for witness in checker.witness}
    if not bug.witness_kinds or kinds & set(bug.witness_kinds):
        return Planted(bug.name, True, f"Planted bug {bug.name}: found by {bug.found_by}.")
    reasons = ", ".join(sorted(kinds))
    words = f"Planted bug {bug.name}: {bug.found_by} is invalid, but for another reason ({reasons})."
    return Planted(bug.name, False, words)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if lower_first(text) == text else text
