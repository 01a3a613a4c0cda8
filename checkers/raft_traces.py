"""What the checkers over traces share: one part per node, what a part finds, and what is concluded from all of them.

No clock is compared anywhere: rows of one node are ordered by `seq`, rows of different nodes meet only at equal epochs
or equal offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from checkers.checker import Part, RunFiles
from checkers.evidence import conclude, copies, gaps, node_files, row, trace_row
from checkers.kernels.raft import Int64
from checkers.verdict import Verdict, Witness

Row = dict[str, Any]


WITNESSES_PER_PART = 100
"""Violations of one kind in one part beyond these are not told: nobody reads them, and each costs memory."""


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """witnesses: violations inside the part.  counts: what it looked at.
    unknown: why the part could not be judged, "" if it was."""

    witnesses: tuple[Witness, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


def part_per_node(run: RunFiles) -> list[Part]:
    """The trace of each node, and what its readable copies say of its quorum-state (`copies`, ascending)."""
    copied = copies(run)
    return [
        Part((path,), {"node": node, "copies": [c for c in copied if c["node"] == node and not c["error"]]})
        for node, path in node_files(run.trace).items()
    ]


def conclude_traces(
    run: RunFiles,
    findings: Sequence[TraceFinding],
    more: Sequence[Witness] = (),
    looked_at: Mapping[str, int] | None = None,
) -> Verdict:
    """The verdict over all parts.  more: what was found by joining them."""
    counts: Counter[str] = Counter(looked_at or {})
    for finding in findings:
        counts.update(finding.counts)
    witnesses = [*more, *(w for f in findings for w in f.witnesses)]
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces")
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
