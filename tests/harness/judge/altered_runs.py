"""Runs whose evidence contradicts itself, as a wrong harness, agent, client or system leaves them.

A recorded run is altered, and its end mark and manifest are written anew.  So only what rows, traces, logs and small
files say of one another can show that something is wrong.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base import ledger
from checkers.base.columns import HISTORY
from checkers.sealing.manifest import write_manifest

Row = dict[str, Any]


def rows_of(run: Path) -> list[Row]:
    """The rows of a sealed run."""
    rows: list[Row] = pq.read_table(run / "history.parquet").to_pylist()
    return rows


def alter(run: Path, change: Callable[[list[Row]], object] = lambda rows: None) -> None:
    """Let `change` alter the rows of a sealed run.  The end mark counts them, and the small files, as they are now."""
    rows = rows_of(run)
    change(rows)
    for index, row in enumerate(rows):
        row["index"] = index
    counts = Counter((row["f"], row["type"]) for row in rows[:-1])
    counted = {"rows": len(rows) - 1, "by_function": ledger.counted(counts)}
    for name in ("faults", "copies"):
        if (run / f"{name}.json").exists():
            counted[name] = len(json.loads((run / f"{name}.json").read_text()))
    rows[-1]["payload"] = json.dumps({**ledger.payload(rows[-1]), **counted})
    pq.write_table(pa.Table.from_pylist(rows, schema=HISTORY), run / "history.parquet")
    write_manifest(run)


def edit(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Let `change` alter the content of a JSON file; nothing else is touched."""
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content))
