"""The drawing of a witness: operations as bars per process, in order; long pauses shortened; the legal order numbered.

The drawing is laid out here, in pixels, for one width; the template turns it into SVG.  The time axis is warped,
because the reader must see which operation ended before another began.  So every event gets room for its words, and an
empty pause is shortened and labelled with its length.  Below the bars, on the same axis, are the states of the object,
the faults in force and the leaders.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from checkers.base.values import span_in_words
from harness.plain_words import natural, seconds, shorten
from harness.report.fault_views import FaultView
from harness.report.roles import RoleSegment, deposed_from, leaders
from harness.story.operations import FOREVER, DrawnWindow, Order, WindowOp, say, value

WIDTHS = (("wide", 1118), ("middle", 748), ("narrow", 346))
"""(class, width in pixels) of each drawing of one witness; the page shows the drawing that fits."""

ONE_WIDTH = (("any", 748),)
"""(class, width in pixels) of the only drawing of a folded witness.  One width saves space: a page may contain dozens.
"""

_NARROW = 500
_CHAR = 7.3  # width of a character of the labels' font
_LANE = 50
_LABEL_MOST = 28
_TOP = 46
_STRIP = 20
_BEFORE_MOST = 40


def context(
    window: DrawnWindow, faults: Sequence[FaultView], roles: Sequence[RoleSegment], servers: Sequence[str]
) -> list[Context]:
    """Return the faults in force and the leaders while these operations ran; [] if nothing has a time."""
    if not window.has_times:
        return []
    ops = window.operations
    first, last = min(op.start_ns for op in ops), max(op.end_ns for op in ops)
    out = [
        Context(f.start_ns, f.end_ns, "faults", (f"fault {f.number}: {f.name}", f"fault {f.number}"), "fault")
        for f in faults
        if f.in_force(first, last)
    ]
    led = leaders(roles)
    for s in sorted(led, key=lambda s: (natural(s.node), s.start_ns)):
        until = deposed_from(s, led)
        words = f"{s.node} leads epoch {s.epoch}", f"{s.node}, epoch {s.epoch}", s.node
        hue = servers.index(s.node) % 9 if s.node in servers else 0
        if until > s.start_ns:
            out.append(Context(s.start_ns, until, s.node, words, "leader", hue))
        if until < s.end_ns:
            out.append(Context(until, s.end_ns, s.node, (f"{words[0]}, deposed", *words[1:]), "deposed", hue))
    return [c for c in out if c.start_ns <= last and c.end_ns >= first]


class Picture:
    """One witness, laid out."""

    def __init__(self, window: DrawnWindow, css: str, target: int, *, context: Sequence[Context] = ()) -> None:
        """target: minimum width in pixels; the drawing is wider if its words need it.  context: result of `context`."""
        ops, order, bad, before = window.operations, window.order, window.bad, window.before
        labels = [(window.name_of(i), shorten(say(op), _LABEL_MOST)) for i, op in enumerate(ops)]
        drawn = {op.invoke: " ".join(label).strip() for op, label in zip(ops, labels, strict=True)}
        self.gutter = 12.0 if target < _NARROW else 132.0
        lane_of, self.lanes = _lanes(ops, target < _NARROW)
        room = min(len(shorten(before, _BEFORE_MOST)) * _CHAR + 16, target / 3) if before else 0.0
        x_of, self.gaps, right = _axis(ops, lane_of, drawn, self.gutter + 6 + room, target - 18)
        steps = {i: k + 1 for k, i in enumerate(order.steps)} if order else {}
        dots = _dots(ops, order, x_of, right)
        extents = [(x_of[op.invoke], right if op.complete >= FOREVER else x_of[op.complete]) for op in ops]
        self.bars: list[Bar] = []
        for i, (op, (x1, x2)) in enumerate(zip(ops, extents, strict=True)):
            y, width, dot_x = lane_of[op.process], max(6.0, x2 - x1), dots.get(i, (x1 + x2) / 2)
            (letter, label), shown, is_open = labels[i], "bad" if i == bad else look(op), op.complete >= FOREVER
            title = f"process {op.process}{f' at {op.node}' if op.node else ''}: {say(op)}"
            self.bars.append(Bar(x1, y, width, letter, label, shown, is_open, steps.get(i), dot_x, title))
        left = self.gutter + 6
        self.css, self.held_y = css, self.lanes[-1].y + 38
        self.held = _held(order, dots, left, room, right, before)
        self.width = max(float(target), right + 18)
        below = self.held_y + (46 if self.held else 6)
        times = sorted((ns, x_of[row]) for row, ns in _times(ops).items())
        self.strips, self.strip_rows = _strips(context, times, left, right, below)
        self.height = below + (_STRIP * len(self.strip_rows) + 8 if self.strip_rows else 0)
        self.path = _path(order, dots, self.bars, bad)
        self.ticks = _ticks(window, x_of, right)
        self.bracket = _bracket(window, x_of, lane_of, self.width)
        self.last_step = (len(order.steps) + (bad is not None)) if order else 0


def digits_of(ops: Sequence[WindowOp]) -> int:
    """Return the number of decimals of a second with which beginning and end of every operation differ."""
    return 6 if any(op.complete < FOREVER and op.end_ns - op.start_ns < 1_000_000 for op in ops) else 3


def look(op: WindowOp) -> str:
    if op.happened:
        return "ok-read" if op.f == "read" else "ok-write"
    return "fail" if op.type.name == "FAIL" else "info"


def _lanes(ops: Sequence[WindowOp], narrow: bool) -> tuple[dict[int, float], list[ProcessLane]]:
    processes = dict.fromkeys(op.process for op in sorted(ops, key=lambda op: op.invoke))
    lane_of = {process: _TOP + 30.0 + (_LANE + 14 * narrow) * place for place, process in enumerate(processes)}
    lanes = []
    for process, y in lane_of.items():
        nodes = sorted({op.node for op in ops if op.process == process and op.node})
        lanes.append(ProcessLane(y, f"process {process}", f"at {shorten(', '.join(nodes), 16)}" if nodes else ""))
    return lane_of, lanes


def _axis(
    ops: Sequence[WindowOp], lane_of: dict[int, float], labels: dict[int, str], left: float, right: float
) -> tuple[dict[int, float], list[Mark], float]:
    """Return the x of every event (by history index), the shortened pauses, and the right end of the drawing."""
    events: dict[int, tuple[int, WindowOp, bool]] = {}
    for op in ops:
        events[op.invoke] = (op.start_ns, op, True)
        if op.complete < FOREVER:
            events[op.complete] = (op.end_ns, op, False)
    rows = sorted(events)
    spans = [max(0, events[b][0] - events[a][0]) for a, b in itertools.pairwise(rows)]
    usual = median([s for s in spans if s] or [1])
    x_of: dict[int, float] = {}
    gaps = []
    taken: dict[float, float] = {}
    x = left
    for k, row in enumerate(rows):
        if k:
            span = spans[k - 1]
            folded = span > 6 * usual
            step = 42.0 if folded else 16 + 30 * min(1.0, span / (2 * usual))
            if folded:
                gaps.append(Mark(x + step / 2, span_in_words(span)))
            x += step
        _, op, begins = events[row]
        lane = lane_of[op.process]
        if begins:
            x = max(x, taken.get(lane, 0.0))
            taken[lane] = x + len(labels[op.invoke]) * _CHAR + 12
        x_of[row] = x
    after = 28.0 if any(op.complete >= FOREVER for op in ops) else 4.0
    tails = [(x_of[op.invoke], len(labels[op.invoke]) * _CHAR) for op in ops] + [(x, after)]
    end = max(at + tail for at, tail in tails)
    stretch = max(1.0, min((right - left - tail) / (at - left) for at, tail in tails if at > left) if x > left else 1.0)
    x_of = {row: left + (at - left) * stretch for row, at in x_of.items()}
    gaps = [Mark(left + (g.x - left) * stretch, g.words) for g in gaps]
    return x_of, gaps, max(right, end)


def _dots(ops: Sequence[WindowOp], order: Order | None, x_of: dict[int, float], right: float) -> dict[int, float]:
    """Return the point at which each step of the order takes effect: within the bar of its operation, one after
    another.
    """
    out: dict[int, float] = {}
    last = 0.0
    for i in order.steps if order else ():
        op = ops[i]
        begin, end = x_of[op.invoke], x_of.get(op.complete, right)
        room = end - begin
        last = max(last + 3, begin + min(14.0, room / 2))
        out[i] = min(last, max(end - 3, begin))
    return out


def _held(
    order: Order | None, dots: dict[int, float], left: float, room: float, right: float, before: str
) -> list[HeldState]:
    """Return the initial state, and the state after every step that changes it."""
    words = shorten(value(order.states[0]) if order and order.steps else before, _BEFORE_MOST)
    if not order:
        return [HeldState(left, room, words, 0)] if words else []
    begins = [(left, words, 0)] if words else []
    for k, i in enumerate(order.steps):
        if not begins or order.states[k + 1] != order.states[k]:
            begins.append((dots[i], value(order.states[k + 1]), k + 1))
    ends = [*(x for x, _, _ in begins[1:]), right]
    return [HeldState(x, end - x, words, step) for (x, words, step), end in zip(begins, ends, strict=True)]


def _times(ops: Sequence[WindowOp]) -> dict[int, int]:
    """Return the time of every event, by its history index."""
    return {op.invoke: op.start_ns for op in ops} | {op.complete: op.end_ns for op in ops if op.complete < FOREVER}


def _strips(
    context: Sequence[Context], times: Sequence[tuple[int, float]], left: float, right: float, top: float
) -> tuple[list[Strip], list[tuple[float, str]]]:
    """Return the contexts on the axis of the events, in one row for all faults and one row for each leader; and (y,
    name) of the rows.
    """
    rows = list(dict.fromkeys(c.row for c in context))
    ns, xs = [t for t, _ in times], [x for _, x in times]

    def x_at(at: int) -> float:
        return left if at < ns[0] else right if at > ns[-1] else float(np.interp(at, ns, xs))

    strips = []
    for c in context:
        x1, x2 = x_at(c.start_ns), x_at(c.end_ns)
        width = max(3.0, x2 - x1)
        fits = int((width - 8) / 6.6)
        words = next((words for words in c.words if len(words) <= fits), "")
        span = f"{c.words[0]}, {seconds(c.start_ns)} to {seconds(c.end_ns)}"
        strips.append(Strip(x1, top + _STRIP * rows.index(c.row), width, words, span, c.look, c.hue))
    return strips, [(top + _STRIP * place, name) for place, name in enumerate(rows)]


def _path(
    order: Order | None, dots: dict[int, float], bars: Sequence[Bar], bad: int | None
) -> list[tuple[int, float, float, float, float]]:
    """Return lines between the steps: (number of the next step, x1, y1, x2, y2); the last line ends at the bad
    operation.
    """
    if not order:
        return []
    chain = [*order.steps, *([bad] if bad is not None and bad not in order.steps else [])]
    points = [(dots.get(i, bars[i].x + bars[i].width / 2), bars[i].y) for i in chain]
    return [(k + 2, *a, *b) for k, (a, b) in enumerate(itertools.pairwise(points))]


def _ticks(window: DrawnWindow, x_of: dict[int, float], right: float) -> list[Mark]:
    digits, out, free = digits_of(window.operations), list[Mark](), 0.0
    for row, time_ns in sorted(_times(window.operations).items()):
        words = seconds(time_ns, digits) if window.has_times else f"row {row}"
        if x_of[row] >= free and x_of[row] + len(words) * 6.4 <= right + 16:
            out.append(Mark(x_of[row], words))
            free = x_of[row] + len(words) * 6.4 + 14
    return out


def _bracket(window: DrawnWindow, x_of: dict[int, float], lane_of: dict[int, float], width: float) -> Bracket | None:
    """Return a bracket from the end of the last change before the bad operation to the beginning of that operation."""
    ops, order, late = window.operations, window.order, window.culprit
    if order is None or late is None:
        return None
    over = [ops[i] for i in order.steps if ops[i].complete < late.invoke and ops[i].f != "read"]
    if isinstance(late.got, list | tuple):  # answers about a set or a log show the effect of many operations
        over = [op for op in over if op.given not in late.got]
    if not over or late.f != "read":
        return None
    seen = over[-1]
    after = seen.new if seen.f == "cas" else seen.given
    if after == late.got:
        return None
    x1, x2 = x_of[seen.complete], x_of[late.invoke]
    gap = span_in_words(max(0, late.start_ns - seen.end_ns))
    ago = f"{gap} " if window.has_times else ""
    words = f"{value(after)} acknowledged {ago}{'earlier' if width < 500 else 'before the read began'}"
    half = len(words) * 3.9
    text_x = min(max((x1 + x2) / 2, half + 4), width - half - 4)
    return Bracket(x1, x2, lane_of[seen.process], lane_of[late.process], words, text_x)


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    letter: str
    label: str
    look: str  # ok-write, ok-read, fail, info or bad
    open: bool
    step: int | None  # position in the legal order, from 1
    dot_x: float
    title: str


@dataclass(frozen=True, slots=True)
class ProcessLane:
    y: float
    name: str
    place: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Words at a position of the axis."""

    x: float
    words: str


@dataclass(frozen=True, slots=True)
class HeldState:
    """State of the object between two steps of the legal order."""

    x: float
    width: float
    words: str
    step: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """A bracket from an acknowledgement to the later call whose answer does not show the acknowledged change."""

    x1: float
    x2: float
    y1: float
    y2: float
    words: str
    text_x: float


@dataclass(frozen=True, slots=True)
class Context:
    """A condition that held while the operations ran.

    words: descriptions of decreasing length
    look: fault, leader or deposed
    hue: of a node, 0 to 8
    """

    start_ns: int
    end_ns: int
    row: str
    words: tuple[str, ...]
    look: str
    hue: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """A context laid out. words: the longest description that fits; title: the full description."""

    x: float
    y: float
    width: float
    words: str
    title: str
    look: str
    hue: int
