"""Drawing of one witness: its events, the reasons why they are wrong, and the answers that would have been right.

The witness is given as a `Story` (`harness/story/story.py`).  Operations are drawn as lanes, entries of logs as a table
of offsets by nodes, and a cycle of transactions as a ladder.  Each rung of a ladder is a transaction, and each edge
gives the reason why the transaction must come before the next:

    ┌─▸ T1   process 3, ok (rows 17, 21)
    │        append x 1, read y nil
    │    │ rw, key y: T1 read y as nil, which T2 appended to
    │    ▾
    │   T2   process 4, ok (rows 18, 20)
    │        append y 2, read x nil
    │    │ rw, key x: T2 read x as nil, which T1 appended to
    └────┘

All other evidence is drawn as a table of rows and a list of facts.

Operations are bars, one lane per process, left to right in the order of the history:

    index    0     4           7    9
    p0       ├─A write 1─┤
    p1             ├─B write 2──────────▸
    p2                         ╞═C read 7═╡ ✗

The drawing shows only order, and not time: each event is to the right of all earlier events, and a bar is as long as
    its
label.  If the labels do not fit into the width, bars are labelled only with letters.
"""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checkers.base.history import Type
from checkers.base.verdict import Witness
from checkers.record.run_record import number
from harness.plain_words import checksum_words, natural, shorten
from harness.story.operations import FOREVER, DrawnWindow, Order, WindowOp, say, value
from harness.story.story import Edge, RowTable, Story, Transaction, message_tables, odd_entries, row_tables

MOST_OPERATIONS = 40
MOST_ROWS = 24
WIDTH_LEAST = 80
_WIDTH_MOST = 160
"""Maximum columns of a line, so that it is easy to read."""

_NOT_SHOWN = ("time_ns", "hash", "incarnation")
_DID_LINES_MOST = 12
_INDENT = "  "
_STRETCH_MOST = 2.0
_LABEL_SHORT = 14
_PLAIN = str.maketrans({
    **dict.fromkeys("├┤╞╡│┆", "|"), **dict.fromkeys("┌└┘", "+"), "─": "-", "═": "=", "┄": ".", "▸": ">", "✗": "X",
    "▾": "v", "→": ">", "…": "~", "≠": "!", "·": "-", "–": "-", "’": "'",
})  # fmt: skip
"""Drawn character -> ASCII character.  Each is replaced by a single character, so that columns stay aligned."""


def show_witness(witness: Witness, *, compact: bool = False, file: IO[str] | None = None) -> None:
    """Print the drawing of a witness, as wide as the terminal, but at least WIDTH_LEAST columns.  Colours are used only
    on a terminal, and not if NO_COLOR is set.

    compact: True to omit the reasons
    file: stream to which it is printed; None for stdout
    """
    columns = shutil.get_terminal_size((WIDTH_LEAST, 24)).columns
    width = min(max(WIDTH_LEAST, columns), _WIDTH_MOST)
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    plain = not (console.encoding or "").lower().startswith("utf")
    console.print(draw_witness(Story(witness), width, compact=compact, plain=plain))


def draw_witness(story: Story, width: int, *, compact: bool = False, plain: bool = False) -> RenderableType:
    """Return the drawing of a witness.

    compact: True to omit the reasons
    plain: True for ASCII only"""
    parts: list[RenderableType] = [_head(story)]
    if story.edges:
        parts += _cycle(story, width)
    for transaction in () if story.edges else story.transactions:
        head, *rest = _described(transaction, width - 10)
        parts += [Text(f"{_INDENT}{transaction.name:<6}{head}"), *(Text(f"{_INDENT}{'':<6}{line}") for line in rest)]
    if story.bars:
        parts += _window(story.bars, width)
        parts += [part for table in message_tables(story.bars) for part in _grid(table, plain)]
    parts += _rows(story.rows, story.kept_by, plain)
    if not compact:
        parts += [_bullet(words, width) for words in _why(story)]
        if not (story.bars or story.edges or story.transactions):
            parts += [_bullet(f"{name}: {words}", width) for name, words in story.facts]
    parts += [_wrapped(f"Right would have been: {words}", width, "green") for words in story.expected]
    return _ascii(Group(*parts), width) if plain else Group(*parts)


def _why(story: Story) -> Sequence[str]:
    """Return the reasons that neither the summary nor the drawing contains.  The drawing of a cycle contains the
    reasons of its edges."""
    if story.edges:
        return ()
    # for registers the reasons also give the time of each operation
    reasons = story.why if story.model else story.reasons
    return [words for words in reasons if words.rstrip(".") not in story.summary]


def _head(story: Story) -> Text:
    head = Text(_INDENT)
    head.append(story.kind, style="bold red")
    if story.key:
        head.append(f", key {story.key}")
    return head


def _window(window: DrawnWindow, width: int) -> list[RenderableType]:
    """Return the lanes of a window, with the state before the window and the longest legal order."""
    shown = window.first(MOST_OPERATIONS)
    lanes = draw_lanes(shown, width)
    parts: list[RenderableType] = []
    if window.before:
        parts.append(_wrapped(f"Before: it holds {window.before}.", width, ""))
    if lanes:
        parts += lanes.lines
        parts.append(Text(f"{_INDENT}{legend(shown)}", style="dim"))
    if lanes is None or not lanes.labelled:
        parts += [_in_a_line(op, shown.name_of(i), i == shown.bad, width) for i, op in enumerate(shown.operations)]
    if left_out := len(window.operations) - len(shown.operations):
        parts.append(Text(f"{_INDENT}and {left_out} operations more", style="dim"))
    if window.order is not None:
        parts.append(_wrapped(_in_order(window, window.order), width, ""))
    return parts


def _in_a_line(op: WindowOp, letter: str, bad: bool, width: int) -> Text:
    """Return one operation as a line: letter, process, rows, description."""
    rows = f"{op.invoke}–{op.complete}" if op.complete < FOREVER else f"{op.invoke}–"
    how = {Type.OK: "", Type.FAIL: ", failed", Type.INFO: ", outcome unknown"}[op.type]
    line = f"{_INDENT}{'✗' if bad else ' '} {letter:<3} p{op.process:<4} rows {rows:<12} {say(op)}{how}"
    return Text(line if len(line) <= width else line[: width - 1] + "…", style="bold red" if bad else "")


def _in_order(window: DrawnWindow, order: Order) -> str:
    """Return a sentence such as `The longest legal order: it holds 0, A → 2, B → 4; then C has no place.`"""
    chain = f"it holds {value(order.states[0])}"
    for i, after in zip(order.steps, order.states[1:], strict=True):
        chain += f", {window.name_of(i) or say(window.operations[i])} → {value(after)}"
    if window.bad is None:
        return f"A legal order: {chain}."
    stuck = window.name_of(window.bad) or say(window.operations[window.bad])
    if not order.steps:
        if len(window.operations) == 1:
            return f"{stuck} does not fit."
        return f"{stuck} fits nowhere: neither at once nor after any of the others."
    return f"The longest legal order: {chain}; then {stuck} has no place."


def _cycle(story: Story, width: int) -> list[Text]:
    """Return the lines of a cycle.  Each edge begins at the transaction where the previous edge ends."""
    known = {transaction.name: transaction for transaction in story.transactions}
    lines: list[Text] = []
    for place, edge in enumerate(story.edges):
        of = known.get(edge.source, Transaction(edge.source))
        head, *rest = _described(of, width - 14)
        lines.append(_rung("┌─▸ " if place == 0 else "│   ", f"{edge.source:<5}", head, "bold"))
        lines += [_rung("│   ", " " * 5, text, "") for text in rest]
        words = textwrap.wrap(_of_edge(edge), width - 14) or [""]
        lines += [_rung("│    ", "│ ", text, "cyan") for text in words]
        if place < len(story.edges) - 1:
            lines.append(_rung("│    ", "▾", "", "cyan"))
    if story.length > len(story.edges):
        lines.append(_rung("│    ", "┆ ", f"and so on through {story.length} transactions", "dim"))
    lines.append(_rung("└────┘", "", "", "cyan"))
    return lines


def _described(transaction: Transaction, width: int) -> list[str]:
    """Return the client, the outcome and the steps of a transaction, as wrapped lines."""
    head = transaction.who + (f" (rows {transaction.rows})" if transaction.rows else "")
    did = [line for step in transaction.lines for line in textwrap.wrap(step, width, subsequent_indent="  ")]
    if len(did) > _DID_LINES_MOST:
        did = [*did[: _DID_LINES_MOST - 1], f"{did[_DID_LINES_MOST - 1]} …"]
    return [head, *did]


def _of_edge(edge: Edge) -> str:
    """Return an edge in words, such as `rw, key x: T1 read x as nil, which T2 appended to`."""
    return f"{edge.kind}{f', key {edge.key}' if edge.key else ''}: {edge.why.removesuffix('.')}"


def _rung(side: str, mark: str, words: str, style: str) -> Text:
    line = Text(f"{_INDENT}{side}", style="cyan")
    line.append(mark, style=style or "default")
    line.append(words, style="default")
    return line


def _rows(rows: Sequence[Mapping[str, Any]], kept_by: tuple[str, int] | None, plain: bool) -> list[RenderableType]:
    """Return one table of all log entries, side by side per node, and one table for each other kind of rows."""
    logs = [r for r in rows if r.get("table") == "log" and isinstance(r.get("offset"), int)]
    others = row_tables([r for r in rows if r not in logs], MOST_ROWS, _NOT_SHOWN)
    entries = [Padding(_entries(logs, kept_by, plain), (0, 0, 0, 2), expand=False)] if logs else []
    return [*entries, *(part for table in others for part in _grid(table, plain))]


def _entries(rows: Sequence[Mapping[str, Any]], kept_by: tuple[str, int] | None, plain: bool) -> Table:
    """Return a table with a row per offset and a column per log.  Entries that differ from the committed entry, or from
    those of other logs, are marked.
    """
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
        committed = at.get((offset, kept_by)) if kept_by is not None else None
        table.add_row(str(offset), *map(_entry, cells, odd_entries(cells, committed)))
    return table


def _entry(row: Mapping[str, Any] | None, differs: bool) -> Text:
    if row is None:
        return Text("–", style="dim")
    short = checksum_words(row.get("checksum"))
    wrote = f"  {shorten(str(row['key']), 20)} = {value(row.get('value'))}" if row.get("key") is not None else ""
    return Text(
        f"{'≠ ' if differs else ''}epoch {row.get('epoch')} · {short}{wrote}", style="bold red" if differs else ""
    )


def _grid(table: RowTable, plain: bool) -> list[RenderableType]:
    grid = _table(plain)
    for name, *cells in zip(table.columns, *table.rows, strict=True):
        grid.add_column(Text(name), justify="right" if all(c.lstrip("-").isdigit() for c in cells if c) else "left")
    for row in table.rows:
        grid.add_row(*(Text(shorten(cell, 60)) for cell in row))
    more = [Text(f"{_INDENT}and {table.left_out} rows more", style="dim")] if table.left_out else []
    return [Padding(grid, (0, 0, 0, 2), expand=False), *more]


def _table(plain: bool) -> Table:
    return Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)


def _bullet(text: str, width: int) -> Text:
    return Text(textwrap.fill(text, width, initial_indent=f"{_INDENT}- ", subsequent_indent=f"{_INDENT}  "))


def _wrapped(text: str, width: int, style: str) -> Text:
    return Text(
        textwrap.fill(shorten(text, 900), width, initial_indent=_INDENT, subsequent_indent=_INDENT), style=style
    )


def _ascii(drawing: RenderableType, width: int) -> Text:
    """Return a drawing in ASCII, without colours."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(drawing)
    return Text(out.getvalue().rstrip("\n").translate(_PLAIN).encode("ascii", "replace").decode())


@dataclass(frozen=True, slots=True)
class DrawnLanes:
    """Lanes of a window.

    lines: the drawing
    labelled: True if the bars have labels and not only letters"""

    lines: list[Text]
    labelled: bool


def draw_lanes(window: DrawnWindow, width: int) -> DrawnLanes | None:
    """Return the lanes of a window; None if they do not fit into the width even with letters only."""
    ops = window.operations
    processes = list(dict.fromkeys(op.process for op in ops))
    gutter = len(_INDENT) + max(len("index"), *(len(f"p{p}") for p in processes)) + 2
    room = width - gutter - 3  # a mark may follow the last bar
    short = [window.name_of(place) for place in range(len(ops))]
    full = [f"{a} {say(op)}".strip() for a, op in zip(short, ops, strict=True)]
    cut = [text if len(text) <= _LABEL_SHORT else text[: _LABEL_SHORT - 1] + "…" for text in full]
    for labels in (full, cut, short):
        columns = _columns(ops, labels, room)
        if columns is not None:
            break
    else:
        return None
    lines = [_ruler(ops, columns, gutter)]
    for process in processes:
        line = Text(f"{_INDENT}{f'p{process}':<{gutter - len(_INDENT)}}")
        for i, op in enumerate(ops):
            if op.process == process:
                span = gutter + columns[i, True], gutter + columns.get((i, False), room - 1)
                _bar(line, op, labels[i], span, i == window.bad)
        lines.append(line)
    return DrawnLanes(lines, labels is not short)


def legend(window: DrawnWindow) -> str:
    """Return a line that explains the shapes in a drawing of this window."""
    ops, bad = window.operations, window.bad
    shapes = []
    if any(op.happened for i, op in enumerate(ops) if i != bad):
        shapes.append("├──┤ answered")
    if any(op.complete >= FOREVER for op in ops):
        shapes.append("├──▸ outcome unknown")
    if any(op.type is Type.FAIL for op in ops):
        shapes.append("├┄┄┤ did not happen")
    if bad is not None:
        shapes.append("╞══╡ ✗ nothing legal is left for this")
    return "   ".join(shapes)


_Columns = Mapping[tuple[int, bool], int]
"""(index of an operation, True for its invoke or False for its completion) -> column."""


def _columns(ops: Sequence[WindowOp], labels: Sequence[str], room: int) -> dict[tuple[int, bool], int] | None:
    """Return the column of every event, to the right of all earlier events; None if there are too few columns."""
    events = [(op.invoke, 0, i) for i, op in enumerate(ops)]
    events += [(op.complete, 1, i) for i, op in enumerate(ops) if op.complete < FOREVER]
    column: dict[tuple[int, bool], int] = {}
    free: dict[int, int] = {}
    at = -1
    for _, ends, i in sorted(events):
        least = column[i, True] + len(labels[i]) + 3 if ends else free.get(ops[i].process, 0)
        at = max(at + 1, least)
        column[i, not ends] = at
        if ends:
            free[ops[i].process] = at + 3
    open_ends = [column[i, True] + len(labels[i]) + 5 for i, op in enumerate(ops) if op.complete >= FOREVER]
    needed = max([at + 1, *open_ends])
    if needed > room:
        return None
    stretch = min(_STRETCH_MOST, (room - (needed - at)) / at) if at > 0 else 1.0
    return {event: round(x * max(1.0, stretch)) for event, x in column.items()}


def _ruler(ops: Sequence[WindowOp], columns: _Columns, gutter: int) -> Text:
    """Return a line with the events' indices in the history, as many as fit."""
    line = f"{_INDENT}{'index':<{gutter - len(_INDENT)}}"
    for (i, begins), column in sorted(columns.items(), key=lambda event: event[1]):
        at = gutter + column
        if at >= len(line) + (1 if line[-1] != " " else 0):
            line = f"{line:<{at}}{ops[i].invoke if begins else ops[i].complete}"
    return Text(line, style="dim")


def _bar(line: Text, op: WindowOp, label: str, span: tuple[int, int], bad: bool) -> None:
    """Append one bar to a lane.

    span: columns of the bar's first and last character"""
    start, end = span
    open_end = op.complete >= FOREVER
    line.append(" " * (start - len(line)))
    fill = "═" if bad else "┄" if op.type is Type.FAIL else "─"
    inner = f"{fill}{label}".ljust(end - start - 1, fill)
    style = "bold red" if bad else "magenta" if open_end else "yellow" if op.type is Type.FAIL else "cyan"
    left, right = ("╞", "╡ ✗") if bad else ("├", "▸" if open_end else "┤")
    line.append(f"{left}{inner}{right}", style=style)
