"""Is what a checker returned a verdict that can be kept, and does it rest on anything?

Anybody may write a checker, and a slip in it must cost neither the other verdicts nor the truth of the whole.  So what
is no verdict, or cannot be written to results.json, is unknown, and so is a valid verdict that rests on nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from checkers.base.checker import Checker
from checkers.base.verdict import VIOLATIONS_BY_KIND, Validity, Verdict


def sound(checker: Checker, returned: Any) -> Verdict:
    """What the checker returned if it is a sound verdict, else an unknown verdict that names the checker."""
    if not isinstance(returned, Verdict):
        return Verdict(Validity.UNKNOWN, reason=f"{checker.name} returned {returned!r:.60}, which is no Verdict")
    if wrong := _wrong_looked_at(returned.looked_at) or _wrong_counts(returned) or _not_json(returned):
        return Verdict(Validity.UNKNOWN, reason=f"{checker.name} returned {returned.validity}, but {wrong}")
    if returned.validity is Validity.VALID and not checker.about_the_run and not _looked_at_anything(returned):
        reason = f"{checker.name} returned valid, but it looked at nothing: no figure in its looked_at is positive"
        return Verdict(Validity.UNKNOWN, returned.looked_at, reason, details=returned.details)
    return returned


def _wrong_looked_at(looked_at: Any) -> str:
    """Why this is no JSON object of numbers and words; "" if it is one."""
    if not isinstance(looked_at, Mapping):
        return f"its looked_at is {looked_at!r:.60}, and a dict of numbers and words is expected"
    for name, value in looked_at.items():
        if not isinstance(name, str):
            return f"its looked_at has the key {name!r:.60}, which is no text"
        if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
            return f"{name!r} in its looked_at is {value!r:.60}, which is neither a number nor words"
    return ""


def _wrong_counts(verdict: Verdict) -> str:
    """Why its count of violations is no JSON object of numbers; "" if it is one, or if there is none."""
    counted = verdict.details.get(VIOLATIONS_BY_KIND, {}) if isinstance(verdict.details, Mapping) else {}
    if isinstance(counted, Mapping) and all(type(kind) is str and type(n) is int for kind, n in counted.items()):
        return ""
    return f"its {VIOLATIONS_BY_KIND} is {counted!r:.60}, and a dict of kinds and numbers is expected"


def _not_json(verdict: Verdict) -> str:
    """Why the verdict cannot be written to results.json; "" if it can."""
    try:
        json.dumps(verdict.to_json())
    except (TypeError, ValueError, AttributeError) as problem:
        return f"its witnesses or details cannot be written as JSON ({problem})"
    return ""


def _looked_at_anything(verdict: Verdict) -> bool:
    return any(value != "" if isinstance(value, str) else value > 0 for value in verdict.looked_at.values())
