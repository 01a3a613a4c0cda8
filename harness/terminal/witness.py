"""One witness, drawn: what happened, from where, why nothing explains it, and what would have been right.

What is drawn follows from what a witness holds, not from the checker that found it, as on the page
(`harness/report/witness/violation_views.py`).  Operations become lanes, cycles of transactions a ladder, entries of
logs a table of offsets by nodes.  All else that a checker hands over becomes a table of its rows and a list of its
facts.
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checkers.base.history import Type
from checkers.base.json_file import mapping, number, sequence
from checkers.by_hand.judge_registers import ONLY_OBJECT
from harness.explanations.kinds.catalog import name_in_words
from harness.plain_words import amount, checksum_words, either, label, listed, natural, sentence, shorten
from harness.terminal import cycle_ladder as ladder
from harness.terminal.lanes import draw_lanes, legend
from harness.witness.legal import FOREVER, Order, WindowOp
from harness.witness.witness_operations import (
    DRAWN_APART,
    culprit_of,
    letters_of,
    message_logs,
    operations_of,
    order_of,
    say,
    sentences_of_bars,
    value,
)

MOST_OPERATIONS = 40
MOST_ROWS = 24
_INDENT = "  "
_PLAIN = str.maketrans({
    **dict.fromkeys("├┤╞╡│┆", "|"), **dict.fromkeys("┌└┘", "+"), "─": "-", "═": "=", "┄": ".", "▸": ">", "✗": "X",
    "▾": "v", "→": ">", "…": "~", "≠": "!", "·": "-", "–": "-", "’": "'",
})  # fmt: skip
"""Each drawn character by one of ASCII, so that the drawing keeps its columns."""


def draw_witness(
    witness: Mapping[str, Any], width: int, *, compact: bool = False, plain: bool = False
) -> RenderableType:
    """witness: `Witness.to_json()`.  compact: without the reasons.  plain: ASCII only."""
    facts = mapping(witness.get("facts"))
    ops = operations_of([mapping(e) for e in sequence(witness.get("events"))])
    rows = [mapping(r) for r in sequence(witness.get("rows"))]
    parts: list[RenderableType] = [_head(witness, facts)]
    cycle, transactions = sequence(facts.get("cycle")), mapping(facts.get("transactions"))
    drawn_operations = False
    if cycle:
        parts += ladder.draw_cycle(cycle, transactions, number(facts.get("length"), len(cycle)), width)
    elif transactions:
        for name, transaction in transactions.items():
            head, *rest = ladder.describe(str(name), mapping(transaction), width - 10)
            parts.append(Text(f"{_INDENT}{name!s:<6}{head}"))
            parts += [Text(f"{_INDENT}{'':<6}{line}") for line in rest]
    elif ops:
        parts += _window(ops, facts, width)
        parts += _message_logs(ops, letters_of(ops, facts), plain)
        drawn_operations = True
    parts += _rows(rows, plain)
    summary = str(witness.get("summary") or "")  # stands above the drawing
    why = [str(w) for w in _sentences(facts.get("why")) if str(w).rstrip(".") not in summary]
    if cycle:
        why = []  # the edges say it
    elif "model" in facts and drawn_operations:  # the bars say what each operation did
        why = [w for w in why if not w.startswith(sentences_of_bars(letters_of(ops, facts), facts))]
    if not compact:
        parts += [_bullet(text, width) for text in why]
        if not drawn_operations and not cycle and not transactions:
            parts += [_bullet(f"{name}: {text}", width) for name, text in _facts(facts)]
    parts += [
        _wrapped(f"Right would have been: {_sentence(w)}", width, "green") for w in _sentences(facts.get("expected"))
    ]
    return _ascii(Group(*parts), width) if plain else Group(*parts)


def _head(witness: Mapping[str, Any], facts: Mapping[str, Any]) -> Text:
    head = Text(_INDENT)
    head.append(shorten(name_in_words(str(witness.get("kind") or "violation")), 80), style="bold red")
    if isinstance(facts.get("key"), str) and facts["key"] != ONLY_OBJECT:
        head.append(f", key {shorten(str(facts['key']), 60)}")
    return head


def _window(ops: Sequence[WindowOp], facts: Mapping[str, Any], width: int) -> list[RenderableType]:
    """Lanes, what they begin with, how far a legal order gets."""
    letters = letters_of(ops, facts)
    order = order_of(ops, facts)
    bad = culprit_of(ops, order, letters, facts)
    shown = ops[:MOST_OPERATIONS]
    lanes = draw_lanes(shown, letters, bad, width)
    parts: list[RenderableType] = []
    before = [value(s) for s in sequence(facts.get("states_before"))]
    if before:
        parts.append(_wrapped(f"Before: it holds {either(before)}.", width, ""))
    if lanes:
        parts += lanes.lines
        parts.append(Text(f"{_INDENT}{legend(shown, bad)}", style="dim"))
    if lanes is None or not lanes.labelled:
        parts += [_in_a_line(op, letters.get(str(op.invoke), ""), i == bad, width) for i, op in enumerate(shown)]
    if len(shown) < len(ops):
        parts.append(Text(f"{_INDENT}and {len(ops) - len(shown)} operations more", style="dim"))
    if order is not None:
        parts.append(_wrapped(_in_order(ops, order, letters, bad), width, ""))
    return parts


def _in_a_line(op: WindowOp, letter: str, bad: bool, width: int) -> Text:
    """One operation in a line: letter, process, rows, what it was."""
    rows = f"{op.invoke}–{op.complete}" if op.complete < FOREVER else f"{op.invoke}–"
    how = {Type.OK: "", Type.FAIL: ", failed", Type.INFO: ", outcome unknown"}[op.type]
    line = f"{_INDENT}{'✗' if bad else ' '} {letter:<3} p{op.process:<4} rows {rows:<12} {say(op)}{how}"
    return Text(line if len(line) <= width else line[: width - 1] + "…", style="bold red" if bad else "")


def _in_order(ops: Sequence[WindowOp], order: Order, names: Mapping[str, str], bad: int | None) -> str:
    """`The longest legal order: 0, A 2, B 4; C finds no place after it.`"""
    chain = f"it holds {value(order.states[0])}"
    for i, after in zip(order.steps, order.states[1:], strict=True):
        chain += f", {names.get(str(ops[i].invoke)) or say(ops[i])} → {value(after)}"
    if bad is None:
        return f"A legal order: {chain}."
    stuck = names.get(str(ops[bad].invoke)) or say(ops[bad])
    if not order.steps:
        if len(ops) == 1:
            return f"{stuck} does not fit."
        return f"{stuck} fits nowhere: neither at once nor after any of the others."
    return f"The longest legal order: {chain}; then {stuck} has no place."


def _message_logs(ops: Sequence[WindowOp], letters: Mapping[str, str], plain: bool) -> list[RenderableType]:
    """What sends and polls of Kafka say of each log."""
    parts: list[RenderableType] = []
    for key, rows in message_logs(ops, letters).items():
        table = _table(plain)
        for name in ("offset", f"in {shorten(key, 30)}", "sent by", "polled by"):
            table.add_column(Text(name), justify="right" if name == "offset" else "left")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        parts.append(Padding(table, (0, 0, 0, 2), expand=False))
    return parts


def _rows(rows: Sequence[Mapping[str, Any]], plain: bool) -> list[RenderableType]:
    """Rows of logs side by side; of traces, copies and anything else a table each."""
    parts: list[RenderableType] = []
    logs = [r for r in rows if r.get("table") == "log" and isinstance(r.get("offset"), int)]
    if logs:
        parts.append(Padding(_entries(logs, plain), (0, 0, 0, 2), expand=False))
    kinds = Counter(str(r.get("table")) for r in rows if r not in logs)
    for kind in kinds:
        of_kind = [r for r in rows if str(r.get("table")) == kind and r not in logs]
        parts.append(Padding(_grid(of_kind, plain), (0, 0, 0, 2), expand=False))
        if len(of_kind) > MOST_ROWS:
            parts.append(Text(f"{_INDENT}and {len(of_kind) - MOST_ROWS} rows more", style="dim"))
    return parts


def _entries(rows: Sequence[Mapping[str, Any]], plain: bool) -> Table:
    """Offsets down, logs across; what is unlike its neighbours is marked."""
    logs = sorted({(str(r.get("node")), number(r.get("copy"), 0)) for r in rows}, key=lambda c: (natural(c[0]), c[1]))
    several = len({copy for _, copy in logs}) > 1
    table = _table(plain)
    table.add_column("offset", justify="right")
    for node, copy in logs:
        table.add_column(Text(f"{node}, copy {copy}" if several else node))
    at: dict[tuple[int, tuple[str, int]], Mapping[str, Any]] = {}
    for row in rows:
        at[number(row.get("offset"), 0), (str(row.get("node")), number(row.get("copy"), 0))] = row
    for offset in sorted({offset for offset, _ in at})[:MOST_ROWS]:
        cells = [at.get((offset, log)) for log in logs]
        differ = len({(c.get("epoch"), c.get("checksum")) for c in cells if c}) > 1
        table.add_row(str(offset), *(_entry(cell, differ) for cell in cells))
    return table


def _entry(row: Mapping[str, Any] | None, differs: bool) -> Text:
    if row is None:
        return Text("–", style="dim")
    short = checksum_words(row.get("checksum"))
    wrote = f"  {shorten(str(row['key']), 20)} = {value(row.get('value'))}" if row.get("key") is not None else ""
    return Text(
        f"{'≠ ' if differs else ''}epoch {row.get('epoch')} · {short}{wrote}", style="bold red" if differs else ""
    )


def _grid(rows: Sequence[Mapping[str, Any]], plain: bool) -> Table:
    """Any rows: the columns in which any of them holds something."""
    table = _table(plain)
    left_out = {"table", "time_ns", "hash", "incarnation"}
    names = [n for n in dict.fromkeys(n for r in rows for n in r) if n not in left_out]
    names = [n for n in names if any(r.get(n) is not None for r in rows)]
    for name in names:
        table.add_column(label(name), justify="right" if all(isinstance(r.get(name), int) for r in rows) else "left")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(Text("" if row.get(n) is None else shorten(value(row[n]), 60)) for n in names))
    return table


def _table(plain: bool) -> Table:
    return Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts that no other part of the drawing shows."""
    out = []
    for name, given in facts.items():
        if name in DRAWN_APART or given is None or isinstance(given, Mapping):
            continue
        words = listed([amount(v) for v in given][:12]) if isinstance(given, list | tuple) else amount(given, name)
        out.append((label(name), shorten(words)))
    return out


def _sentences(given: Any) -> list[str]:
    return [given] if isinstance(given, str) and given else [str(w) for w in sequence(given)]


def _sentence(text: str) -> str:
    return sentence(shorten(text, 600))


def _bullet(text: str, width: int) -> Text:
    return Text(textwrap.fill(_sentence(text), width, initial_indent=f"{_INDENT}- ", subsequent_indent=f"{_INDENT}  "))


def _wrapped(text: str, width: int, style: str) -> Text:
    return Text(
        textwrap.fill(shorten(text, 900), width, initial_indent=_INDENT, subsequent_indent=_INDENT), style=style
    )


def _ascii(drawing: RenderableType, width: int) -> Text:
    """The same drawing in ASCII, without colour."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(drawing)
    return Text(out.getvalue().rstrip("\n").translate(_PLAIN).encode("ascii", "replace").decode())
