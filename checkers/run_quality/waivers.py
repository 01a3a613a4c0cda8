"""The minimums of figures that a user may waive by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # listings and refusals must start fast, without the readers of records
    from checkers.base.results import Criterion

WAIVABLE: Mapping[str, tuple[str, ...]] = {
    "elections": ("elections won under a fault",),
    "kinds": ("kinds of fault installed",),
    "share-in-faults": ("share of ok operations in faults",),
    "writes-in-faults": ("ok writes in faults", "faults with an ok write"),
    "operations": ("ok operations",),
    "reads": ("ok reads in the main phase",),
    "functions": ("functions with an ok answer",),
    "concurrency": ("keys with concurrency",),
    "keys": ("keys with enough ok writes",),
    "stretches": ("stretches with an ok answer",),
    "rate": ("share of the scheduled rate",),
    "servers": ("servers that answered clients", "servers read at the end"),
    "availability": (),
}
"""Name of a demand, as in `--waive` -> the criteria that it covers.  The checker `availability` has its own limit.

Criteria that prove that there was a test at all cannot be waived: a fault in force, final reads, logs and traces."""


def waived(criteria: Iterable[Criterion], names: Iterable[str]) -> tuple[list[Criterion], list[dict[str, str]]]:
    """Return (the criteria, of which waived ones are shown but not required; the waived entries for the headline).

    An entry is {"name", "shortfall"}; its shortfall is "" if the criterion was met.

    names: keys of WAIVABLE"""
    by_criterion = {criterion: name for name in names for criterion in WAIVABLE.get(name, ())}
    shown: list[Criterion] = []
    short: dict[str, list[str]] = {name: [] for name in names}
    for criterion in criteria:
        name = by_criterion.get(criterion.name)
        if name is not None and criterion.demanded:
            short[name] += [] if criterion.met else [criterion.shortfall()]
            criterion = replace(criterion, demanded=False, words=f"{criterion.words}; waived")
        shown.append(criterion)
    return shown, _entries(short)


def _entries(short: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [{"name": name, "shortfall": "; ".join(words)} for name, words in short.items()]
