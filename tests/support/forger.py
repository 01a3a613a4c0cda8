"""A forger who rewrites a whole sealed run: rows, the end mark's counts and digest, small files and the manifest.

What he leaves can be told from a run only by what its rows say.
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
from checkers.base.history import NEMESIS
from checkers.sealing.manifest import write_manifest
from checkers.sealing.row_digest import row_digest

Row = dict[str, Any]


def rows_of(run: Path) -> list[Row]:
    """The rows of a sealed run."""
    rows: list[Row] = pq.read_table(run / "history.parquet").to_pylist()
    return rows


def forge(run: Path, change: Callable[[list[Row]], object]) -> None:
    """Let `change` alter the rows of a sealed run, and make everything else that speaks of rows agree."""
    rows = rows_of(run)
    change(rows)
    for index, row in enumerate(rows):
        row["index"] = index
    end = rows[-1]
    counts = Counter((row["f"], row["type"]) for row in rows[:-1])
    digest = row_digest(pa.Table.from_pylist(rows[:-1], schema=HISTORY))
    said = {"rows": len(rows) - 1, "by_function": ledger.counted(counts), "digest": f"{digest:016x}"}
    end["payload"] = json.dumps({**json.loads(end["payload"]), **said})
    pq.write_table(pa.Table.from_pylist(rows, schema=HISTORY), run / "history.parquet")
    write_manifest(run)


def rewrite(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Let `change` alter the content of a small file, and what the ledger entered of it."""
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content))

    def entered(rows: list[Row]) -> None:
        for row in rows:
            if row["process"] == NEMESIS and row["f"] == ledger.FILE and ledger.payload(row)["name"] == name:
                row["payload"] = json.dumps({"name": name, "content": content})

    forge(run, entered)
