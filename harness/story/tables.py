"""The rows of a witness as tables, for page and terminal alike: logs of messages, and rows of any other table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plain_words import label, shorten
from harness.story.operations import DrawnWindow, value
from harness.story.transactions import message_logs

MOST_ROWS = 60
"""Rows of one table that are shown."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of a table: every column in which any of them holds something.  left_out: how many rows are not here."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    left_out: int = 0


def message_tables(window: DrawnWindow) -> list[RowTable]:
    """Return what sends and polls show of each log of messages."""
    return [
        RowTable(f"log of {name}", ["offset", f"in {name}", "sent by", "polled by"], rows)
        for key, rows in message_logs(window).items()
        for name in (shorten(key, 60),)
    ]


def row_tables(
    rows: Sequence[Mapping[str, Any]], most: int = MOST_ROWS, without: Collection[str] = ()
) -> list[RowTable]:
    """Return one table for each name in the column `table`.  without: columns that are left out."""
    out = []
    for name in dict.fromkeys(str(row.get("table") or "rows") for row in rows):
        some = [row for row in rows if str(row.get("table") or "rows") == name]
        columns = [c for c in dict.fromkeys(c for row in some for c in row) if c != "table" and c not in without]
        columns = [c for c in columns if any(row.get(c) is not None for row in some)]
        cells = [["" if row.get(c) is None else shorten(value(row[c]), 120) for c in columns] for row in some[:most]]
        out.append(RowTable(label(name), [label(c) for c in columns], cells, max(0, len(some) - most)))
    return out
