"""The rows of a witness that no drawing shows, as tables: logs of messages, copies and unknown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plain_words import label, shorten
from harness.story.operations import message_logs, value
from harness.story.story import Story

MOST_ROWS = 60
"""Rows of one table that are shown."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of a table: every column in which any of them holds something."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    left_out: int


def message_tables(story: Story) -> list[RowTable]:
    """What sends and polls show of each log of messages."""
    columns = ["offset", "value", "sent by", "polled by"]
    logs = message_logs(story.window)
    return [RowTable(f"log of {shorten(key, 60)}", columns, rows, 0) for key, rows in logs.items()]


def other_tables(rows: Sequence[Mapping[str, Any]]) -> list[RowTable]:
    """One table for each name in the column `table`."""
    out = []
    for name in dict.fromkeys(str(row.get("table") or "rows") for row in rows):
        some = [row for row in rows if str(row.get("table") or "rows") == name]
        columns = [c for c in dict.fromkeys(c for row in some for c in row) if c != "table"]
        columns = [c for c in columns if any(row.get(c) is not None for row in some)]
        cells = [
            ["" if row.get(c) is None else shorten(value(row[c]), 120) for c in columns] for row in some[:MOST_ROWS]
        ]
        out.append(RowTable(label(name), [label(c) for c in columns], cells, max(0, len(some) - MOST_ROWS)))
    return out


def as_trace_row(copy: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of COPIES in the columns of a trace row: what a node's files held when they were copied."""
    return {
        "node": copy.get("node"),
        "seq": copy.get("trace_seq"),
        "event": f"quorum-state, {copy.get('when')}",
        "epoch": copy.get("quorum_epoch"),
        "peer": copy.get("voted_for"),
        "offset": copy.get("log_end"),
        "detail": copy.get("error"),
    }
