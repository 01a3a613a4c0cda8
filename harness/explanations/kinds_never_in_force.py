"""Which kinds of fault a run was to inject and never had in force.

Such a run may be valid, because one card that was skipped is bad luck.  But it shows nothing about that kind, and the
reader who ordered the kind must learn of it.
"""

from __future__ import annotations

from checkers.base.results import KindNeverInForce, Results
from harness.plain_words import listed, plural, sentence, shorten


def kinds_never_in_force(results: Results) -> list[str]:
    """Their names, sorted.  Results of older versions name none."""
    return [each.kind for each in results.vacuity.never_in_force]


def why_never_in_force(results: Results) -> list[str]:
    """One sentence about all kinds that were never dealt, and one about each other kind."""
    found = results.vacuity.never_in_force
    never_dealt = [each.kind for each in found if not each.dealt]
    out = [f"The time was too short to deal {listed(never_dealt)}."] if never_dealt else []
    return out + [_why(each) for each in found if each.dealt]


def _why(found: KindNeverInForce) -> str:
    reasons = "; ".join(found.reasons) or "no reason is recorded"
    were = "was dealt and was not" if found.dealt == 1 else "were dealt and none was"
    return sentence(shorten(f"{plural(found.dealt, 'fault')} of kind {found.kind} {were} in force: {reasons}"))
