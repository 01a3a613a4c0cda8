"""A cycle of transactions as a ladder: each a rung, each edge the reason why it must come before the next.

┌─▸ T1   process 3, ok (rows 17, 21)
│        append x 1, read y nil
│    │ rw, key y: T1 read y as nil, which T2 appended to
│    ▾
│   T2   process 4, ok (rows 18, 20)
│        append y 2, read x nil
│    │ rw, key x: T2 read x as nil, which T1 appended to
└────┘
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from checkers.base.json_file import mapping, sequence
from harness.plain_words import shorten
from harness.witness.witness_operations import micro_operations, value

_INDENT = "  "
_OPERATIONS_LINES_MAX = 4


def draw_cycle(cycle: Sequence[Any], transactions: Mapping[str, Any], length: int, width: int) -> list[Text]:
    """cycle: edges {"from", "to", "edge", "key", "why"}, each beginning where the one before ended."""
    edges = [mapping(edge) for edge in cycle]
    lines: list[Text] = []
    for place, edge in enumerate(edges):
        side = "┌─▸ " if place == 0 else "│   "
        name = shorten(str(edge.get("from")), 8)
        head, *rest = describe(name, mapping(transactions.get(name)), width - 14)
        lines.append(_line(side, f"{name:<5}", head, "bold"))
        lines += [_line("│   ", " " * 5, text, "") for text in rest]
        last = place == len(edges) - 1
        words = textwrap.wrap(label(edge), width - 14) or [""]
        lines += [_line("│    ", "│ ", text, "cyan") for text in words]
        if not last:
            lines.append(_line("│    ", "▾", "", "cyan"))
    if edges and length > len(edges):
        lines.append(_line("│    ", "┆ ", f"and so on through {length} transactions", "dim"))
    lines.append(_line("└────┘", "", "", "cyan"))
    return lines


def describe(name: str, transaction: Mapping[str, Any], width: int) -> list[str]:
    """Who ran it, how it ended, and what it did, wrapped."""
    rows = ", ".join(str(index) for index in sequence(transaction.get("events")))
    head = f"process {transaction.get('process', '?')}, {transaction.get('status', 'outcome unknown')}"
    head += f" (rows {rows})" if rows else ""
    did = textwrap.wrap(shorten(micro_operations(transaction.get("operations")), 600), width)
    if len(did) > _OPERATIONS_LINES_MAX:
        did = [*did[: _OPERATIONS_LINES_MAX - 1], did[_OPERATIONS_LINES_MAX - 1][: width - 2] + " …"]
    return [head, *did]


def label(edge: Mapping[str, Any]) -> str:
    """`rw, key x: T1 read x as nil, which T2 appended to`."""
    kind = str(edge.get("edge") or edge.get("kind") or "before")
    key = f", key {value(edge['key'])}" if edge.get("key") is not None else ""
    return shorten(f"{kind}{key}: {edge.get('why') or edge.get('words') or 'comes before'}", 600)


def _line(side: str, mark: str, words: str, style: str) -> Text:
    line = Text(f"{_INDENT}{side}", style="cyan")
    line.append(mark, style=style or "default")
    line.append(words, style="default")
    return line
