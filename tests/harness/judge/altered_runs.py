"""Runs whose evidence contradicts itself, as a wrong harness, agent, client or system leaves them.

A recorded run is altered, and the counts of its journal and its manifest are written anew.  So only what rows, traces,
logs and the journal say of one another can show that something is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from journals import count_rows, edit_journal, recorded

from checkers.base.columns import HISTORY
from checkers.sealing.manifest import write_manifest

Row = dict[str, Any]
PARTS = ("faults", "copies", "outcome")
"""Parts of the journal that `edit` knows by name."""


def rows_of(run: Path) -> list[Row]:
    """The rows of a sealed run."""
    rows: list[Row] = pq.read_table(run / "history.parquet").to_pylist()
    return rows


def alter(run: Path, change: Callable[[list[Row]], object] = lambda rows: None) -> None:
    """Alter the rows of a sealed run by `change`, and their count in the journal."""
    rows = rows_of(run)
    change(rows)
    for index, row in enumerate(rows):
        row["index"] = index
    count_rows(run, len(rows))
    pq.write_table(pa.Table.from_pylist(rows, schema=HISTORY), run / "history.parquet")
    write_manifest(run)


def edit(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Alter the content of a JSON file or of a part of the journal by `change`, and nothing else."""
    if name in PARTS:
        content = recorded(run, name)
        change(content)
        edit_journal(run, name, content)
        return
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content))
