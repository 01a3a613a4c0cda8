"""A forger who rewrites a whole sealed run: rows, the end mark's counts and digest, small files and the manifest.

Only the rows show that a forged folder is no run.
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
from checkers.sealing.manifest import SEALED, STREAM, entries_of, write_manifest
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
    figures = {"rows": len(rows) - 1, "by_function": ledger.counted(counts), "digest": f"{digest:016x}"}
    end["payload"] = json.dumps({**json.loads(end["payload"]), **figures})
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


def forge_everything(run: Path, change: Callable[[list[Row]], object] = lambda rows: None) -> None:
    """As `forge`, after files of the run were altered: the ledger enters what they hold now, and binds it.

    Only what rows, traces, logs and small files say of one another can give this forger away.
    """
    bound = {name: entry for name, entry in entries_of(run).items() if name not in (SEALED, STREAM)}

    def enter(rows: list[Row]) -> None:
        change(rows)
        for row in rows:
            if row["process"] != NEMESIS:
                continue
            if row["f"] == ledger.FILE:
                name = ledger.payload(row)["name"]
                row["payload"] = json.dumps({"name": name, "content": json.loads((run / name).read_text())})
            elif row["f"] == ledger.BOUND:
                row["payload"] = json.dumps(bound)
            elif row["f"] == ledger.BEGIN:
                test = json.loads((run / "test.json").read_text())
                row["payload"] = json.dumps({**ledger.payload(row), "spec": test["spec"], "run_id": test["run_id"]})
        counted = {"faults": len(json.loads((run / "faults.json").read_text()))}
        if (run / "copies.json").exists():
            counted["copies"] = len(json.loads((run / "copies.json").read_text()))
        rows[-1]["payload"] = json.dumps({**ledger.payload(rows[-1]), **counted})

    forge(run, enter)


def edit(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Let `change` alter the content of a JSON file; nothing else is touched."""
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content))
