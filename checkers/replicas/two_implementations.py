"""Do two implementations of one format agree?

A system of two implementations compares what both wrote, and how both read one file (`System.comparisons`).  Each is an
oracle for the other that no common mistake of one code base can fool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict, Witness

DISAGREE = "two implementations disagree"


def _split(run: StoredRun) -> list[Part]:
    return [Part((str(run.comparisons),))] if run.comparisons.exists() else []


def _judge(part: Part, budget: Budget) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(part.paths[0]).to_pylist()
    return rows


def _combine(run: StoredRun, findings: Sequence[Sequence[dict[str, Any]]]) -> Verdict:
    rows = [row for rows in findings for row in rows]
    unknown = [f"{row['nodes']}: {row['what']}: {row['missing']}" for row in rows if row["missing"]]
    if not rows:
        unknown.append("nothing was compared")
    looked_at: dict[str, int] = {"comparisons": len(rows)}
    for row in rows:
        looked_at[row["what"]] = looked_at.get(row["what"], 0) + row["compared"]
    witnesses = [
        Witness(
            DISAGREE,
            f"{row['nodes']}: {row['what']}: {row['differs']}",
            facts={"nodes": row["nodes"].split(", "), "why": [row["differs"]], "expected": "no difference"},
        )
        for row in rows
        if row["differs"]
    ]
    return conclude(witnesses, looked_at, unknown)


TWO_IMPLEMENTATIONS = Checker(
    "two-implementations",
    "Two implementations agree",
    "Did both implementations write the same bytes, and does each read the other's files as its own code does?",
    _split,
    _judge,
    _combine,
    frozenset({"logs", "two-implementations"}),
)
