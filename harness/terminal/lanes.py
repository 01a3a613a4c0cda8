"""Operations as bars, one lane per process, left to right in the order of the history:

    index    0     4           7    9
    p0       ├─A write 1─┤
    p1             ├─B write 2──────────▸
    p2                         ╞═C read 7═╡ ✗

Only order is drawn, never time: an event stands right of all that came before it, and a bar is as long as its label
needs.  Where the labels do not fit into the width the bars carry their letters alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from checkers.base.history import Type
from harness.story.operations import FOREVER, DrawnWindow, WindowOp, say

_STRETCH_MOST = 2.0
_INDENT = "  "
_LABEL_SHORT = 14


@dataclass(frozen=True, slots=True)
class DrawnLanes:
    """lines: the drawing.  labelled: whether the bars carry more than letters."""

    lines: list[Text]
    labelled: bool


def draw_lanes(window: DrawnWindow, width: int) -> DrawnLanes | None:
    """None where so many operations do not fit, not even with letters alone."""
    ops = window.operations
    processes = list(dict.fromkeys(op.process for op in ops))
    gutter = len(_INDENT) + max(len("index"), *(len(f"p{p}") for p in processes)) + 2
    room = width - gutter - 3  # a mark may stand behind the last bar
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
    """What the shapes mean, of those that were drawn."""
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
"""(place of the operation, whether it is its call) -> column."""


def _columns(ops: Sequence[WindowOp], labels: Sequence[str], room: int) -> dict[tuple[int, bool], int] | None:
    """Column of every event, each right of those before it in the history; None if the room does not do."""
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
    """The indices of the history above the events, as many as have room."""
    line = f"{_INDENT}{'index':<{gutter - len(_INDENT)}}"
    for (i, begins), column in sorted(columns.items(), key=lambda event: event[1]):
        at = gutter + column
        if at >= len(line) + (1 if line[-1] != " " else 0):
            line = f"{line:<{at}}{ops[i].invoke if begins else ops[i].complete}"
    return Text(line, style="dim")


def _bar(line: Text, op: WindowOp, label: str, span: tuple[int, int], bad: bool) -> None:
    """Append one bar to its lane; span: columns of its first and last character."""
    start, end = span
    open_end = op.complete >= FOREVER
    line.append(" " * (start - len(line)))
    fill = "═" if bad else "┄" if op.type is Type.FAIL else "─"
    inner = f"{fill}{label}".ljust(end - start - 1, fill)
    style = "bold red" if bad else "magenta" if open_end else "yellow" if op.type is Type.FAIL else "cyan"
    left, right = ("╞", "╡ ✗") if bad else ("├", "▸" if open_end else "┤")
    line.append(f"{left}{inner}{right}", style=style)
