"""The common parts of checkers over traces: one part per node, its finding, and the verdict over all of them.

No clock is compared anywhere: rows of one node are ordered by `seq`, rows of different nodes meet only at equal epochs
or equal offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.checker import Part
from checkers.base.run_evidence import conclude, gaps, row, trace_row
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness

Row = dict[str, Any]


WITNESSES_PER_PART = 100
"""Violations of one kind in one part beyond these are only counted: each costs memory."""


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """witnesses: violations inside the part.  counts: what it looked at.
    unknown: why the part could not be judged, "" if it was."""

    witnesses: tuple[Witness, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


def part_per_node(run: StoredRun) -> list[Part]:
    """The trace of each node, and what its readable copies say of its quorum-state (`copies`, ascending)."""
    copied = run.copies
    return [
        Part((path,), {"node": node, "copies": [c for c in copied if c["node"] == node and not c["error"]]})
        for node, path in node_files(run.trace).items()
    ]


def nothing_of(looked_at: Mapping[str, int | float | str], *names: str) -> list[str]:
    """One clause for each of these counts that is 0.  Without them there was nothing to judge: never valid."""
    return [f"there were no {name} to look at" for name in names if not looked_at.get(name)]


def conclude_traces(run: StoredRun, findings: Sequence[TraceFinding], *needed: str) -> Verdict:
    """The verdict over all parts.  needed: counts without which it is unknown."""
    counts: Counter[str] = Counter()
    for finding in findings:
        counts.update(finding.counts)
    witnesses = [w for f in findings for w in f.witnesses]
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces") + nothing_of(counts, *needed)
    return conclude(witnesses, {"nodes": len(node_files(run.trace)), **counts}, unknown)


Fetch = Callable[[pa.Table, int], Row]
"""How a rule gets the whole row of a witness: from the table it looked at, or from where that was read."""


def whole(table: pa.Table, position: int) -> Row:
    """A row of a table that has all columns."""
    return row(table, position, "trace")


def fetched_from(path: str) -> Fetch:
    """Rows of a table that has only some columns of a trace, seq among them."""
    return lambda table, position: trace_row(path, int(table["seq"][position].as_py()))


def rows_of(table: pa.Table) -> list[Row]:
    """Trace rows as a witness carries them."""
    return [{"table": "trace", **r} for r in table.to_pylist()]


def copy_row(copy: Row) -> Row:
    """A row of COPIES as a witness carries it."""
    return {"table": "copies", **copy}


def pairs(found: tuple[Int64, Int64]) -> Iterable[tuple[int, int]]:
    """Pairs of rows as a kernel returns them, at most WITNESSES_PER_PART."""
    first, second = (rows[:WITNESSES_PER_PART].tolist() for rows in found)
    return zip(first, second, strict=True)
