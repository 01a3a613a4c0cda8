"""Combines findings on the traces of nodes into a verdict: one part per node, its finding, and the verdict over all.

No checker compares clocks.  `seq` orders the rows of one node.  Rows of different nodes are compared only at equal
epochs or equal offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude, gaps
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """The finding on one part.

    witnesses: violations inside the part.  counts: what was looked at.  unknown: why the part was not judged, or "".
    """

    witnesses: tuple[Witness, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


def part_per_node(run: StoredRun) -> list[Part]:
    """Make one part per node: its trace, and the rows of its readable copies (`copies`, ascending)."""
    copied = run.copies
    return [
        Part((path,), {"node": node, "copies": [c for c in copied if c["node"] == node and not c["error"]]})
        for node, path in node_files(run.trace).items()
    ]


def beyond_budget(path: str, rows: int, row_size_bytes: int, budget: Budget) -> str:
    """Return why so many rows of a file are not judged, or "" if they fit the budget."""
    if rows * row_size_bytes <= budget.size_bytes:
        return ""
    return f"{path}: {rows} rows are beyond the budget of {budget.size_bytes} bytes"


def nothing_of(looked_at: Mapping[str, int | float | str], *names: str) -> list[str]:
    """Return one clause for each of these counts that is 0.  Such a run is never valid: nothing was looked at."""
    return [f"there were no {name} to look at" for name in names if not looked_at.get(name)]


def conclude_traces(run: StoredRun, findings: Sequence[TraceFinding], *needed: str) -> Verdict:
    """Combine the findings of all parts.  needed: if one of these counts is 0, the verdict is not valid."""
    counts: Counter[str] = Counter()
    for finding in findings:
        counts.update(finding.counts)
    witnesses = [w for f in findings for w in f.witnesses]
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces") + nothing_of(counts, *needed)
    return conclude(witnesses, {"nodes": len(node_files(run.trace)), **counts}, unknown)


def trace_checker(
    name: str,
    title: str,
    question: str,
    judge: Callable[[Part, Budget], TraceFinding],
    needed: Callable[[StoredRun], Sequence[str]],
    split: Callable[[StoredRun], Sequence[Part]] = part_per_node,
) -> Checker:
    """Make a checker that needs nothing but traces.  needed: as for `conclude_traces`, of this run."""

    def combine(run: StoredRun, findings: Sequence[TraceFinding]) -> Verdict:
        return conclude_traces(run, findings, *needed(run))

    return Checker(name, title, question, split, judge, combine, frozenset({"traces"}))
