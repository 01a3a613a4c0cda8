"""What the checkers over traces share: one part per node, what a part finds, and what is concluded from all of them.

No clock is compared anywhere: rows of one node are ordered by `seq`, rows of different nodes meet only at equal epochs
or equal offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from checkers.checker import Part, RunFiles
from checkers.evidence import conclude, copies, gaps, node_files
from checkers.kernels.raft import Int64
from checkers.verdict import Verdict, Witness

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """witnesses: violations inside the part.  counts: what it looked at.  rows: for `combine` to join.
    unknown: why the part could not be judged, "" if it was."""

    witnesses: tuple[Witness, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
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


def rows_of(table: pa.Table) -> list[Row]:
    """Trace rows as a witness carries them."""
    return [{"table": "trace", **r} for r in table.to_pylist()]


def copy_row(copy: Row) -> Row:
    """A row of COPIES as a witness carries it."""
    return {"table": "copies", **copy}


def pairs(found: tuple[Int64, Int64]) -> Iterable[tuple[int, int]]:
    """Pairs of rows as a kernel returns them."""
    return zip(found[0].tolist(), found[1].tolist(), strict=True)
