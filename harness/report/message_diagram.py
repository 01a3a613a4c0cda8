"""A diagram of messages around one violation: requests, cut links, and each node's knowledge.

Clients and servers are lines; time runs to the right.  Only recorded facts are drawn:

  * requests and answers, from the history; the arrival at the server is not recorded, so the slope is a guess;
  * leaders, votes, the arrival of a write in each log, and the time when it was called committed, from traces;
  * the faults that cut links, and the servers that could not reach a majority.

A violation without a client, such as two leaders of one epoch, is drawn from the traces of its nodes alone.  The time
axis is warped: events that lie close together are spread, and pauses shrink.  On narrow paper the same messages appear
as a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log2
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.plain_words import listed, natural, plural, seconds, shorten
from harness.report.divergence import TracedLog, traced_log
from harness.report.fault_views import FaultView
from harness.report.roles import DEAD, UNKNOWN, RoleSegment, elections
from harness.report.run_data import ReportData
from harness.spec import CLIENT_NODES
from harness.story.operations import FOREVER, DrawnWindow, WindowOp, say, value
from harness.story.story import trace_words

WIDTH = 1118
GUTTER = 118.0
ROW = 44.0
OPERATIONS_MOST = 8
STEPS_MOST = 12
_TOP = 58.0
_BEFORE_NS = 400_000_000
_CHAR = 7.2


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line. css: its class. head: True if it ends in an arrow head."""

    x1: float
    y1: float
    x2: float
    y2: float
    css: str
    head: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    css: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    words: str
    css: str = ""
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One line of the list of messages.

    way: "n1 → n3", or the name of a node for an action of its own
    bad: True for the wrong answer or step
    """

    time_ns: int
    way: str
    words: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Knew:
    """Recorded knowledge of one server when the answer was given; "" and "–" stand for unrecorded values."""

    node: str
    role: str
    log_end: str
    committed: str
    cut: str
    answered: bool


class Diagram:
    """Shapes in pixels, WIDTH wide.

    rows: name of a line -> its y
    x_of: function from a time to its x
    first_ns, last_ns: first and last drawn time
    at_ns: time of `knew`
    words: description of the drawing
    """

    def __init__(
        self, rows: Mapping[str, float], x_of: Callable[[int], float], first_ns: int, last_ns: int, at_ns: int
    ) -> None:
        self.rows, self.x_of = rows, x_of
        self.first_ns, self.last_ns, self.at_ns = first_ns, last_ns, at_ns
        self.height = _TOP + ROW * len(rows) + 10
        self.boxes: list[Box] = []
        self.lines: list[DrawnLine] = []
        self.labels: list[Label] = []
        self.dots: list[Label] = []
        self.knew: list[Knew] = []
        self.messages: list[Exchange] = []
        self.words, self.of_clients = "", True

    def box(self, x: float, y: float, width: float, height: float, css: str, title: str = "") -> None:
        self.boxes.append(Box(x, y, width, height, css, title))

    def line(self, start: tuple[float, float], end: tuple[float, float], css: str, head: bool = False) -> None:
        self.lines.append(DrawnLine(*start, *end, css, head))

    def label(self, x: float, y: float, words: str, css: str = "", anchor: str = "start") -> None:
        self.labels.append(Label(x, y, words, css, anchor))

    def free_y(self, x: float, width: float, *ys: float) -> float:
        """Return the first of these heights at which text of this width covers no label; else the first height."""
        taken = [(e.x - (e.anchor == "end") * (w := len(e.words) * _CHAR), w, e.y) for e in self.labels]
        free = (y for y in ys if all(abs(at - y) > 11 or x > x1 + w or x1 > x + width for x1, w, at in taken))
        return next(free, ys[0])

    def dot(self, x: float, y: float, words: str, css: str) -> None:
        self.dots.append(Label(x, y, words, css))

    def say(self, at_ns: int, way: str, words: str, bad: bool = False) -> None:
        self.messages.append(Exchange(at_ns, way, words, bad))

    def span(self, start_ns: int, end_ns: int) -> tuple[float, float] | None:
        """Return the x of beginning and end of a span, clipped to the drawn times; None if no part of the span is
        drawn.
        """
        if end_ns < self.first_ns or start_ns > self.last_ns:
            return None
        return self.x_of(max(start_ns, self.first_ns)), self.x_of(min(end_ns, self.last_ns))


@dataclass(frozen=True, slots=True)
class DrawnWrite:
    """One write in the logs.

    arrived: node -> time when its log first contained the write
    committed: node -> time when the node first considered the write committed
    """

    short: str
    words: str
    leader: str
    arrived: Mapping[str, int]
    committed: Mapping[str, int]


def draw(
    data: ReportData,
    window: DrawnWindow,
    faults: Sequence[FaultView],
    roles: Sequence[RoleSegment],
    trace_rows: Sequence[Mapping[str, Any]] = (),
) -> Diagram | None:
    """Return the diagram of a violation; None if neither its operations nor its traces name times and servers."""
    chosen = _chosen(window)
    if not any(op.node in data.servers for op in chosen):
        chosen = []
    did = [] if chosen else _steps_of_nodes(data, trace_rows)
    if not chosen and not did:
        return None
    culprit = (window.culprit or max(chosen, key=lambda op: op.end_ns)) if chosen else None
    at_ns = culprit.end_ns if culprit is not None else did[-1].time_ns
    entries = [entry for op in chosen if (entry := _entry(data, op, at_ns)) is not None]
    first = min([op.start_ns for op in chosen] + [step.time_ns for step in did]) - _BEFORE_NS
    ends = [op.end_ns for op in chosen] + [t for e in entries for t in e.arrived.values()]
    last = max(ends, default=at_ns + _BEFORE_NS // 4)
    elected = [s for s in elections(roles) if first <= s.start_ns <= last]
    votes = [v for s in elected for v in _votes(data, s)]
    times = {first, last, *(step.time_ns for step in did)}
    times |= {t for op in chosen for t in (op.start_ns, op.end_ns)}
    times |= {t for e in entries for t in e.arrived.values()}
    times |= {e.committed[e.leader] for e in entries if e.leader in e.committed}
    times |= {at for _, at, _ in votes} | {s.start_ns for s in elected}
    times |= {t for f in faults if f.happened for t in (f.start_ns, f.end_ns) if first <= t <= last}
    x_of = _axis(sorted(t for t in times if first <= t <= last))
    rows = _rows(data, chosen)
    canvas = Diagram(rows, x_of, first, last, at_ns)
    canvas.of_clients = bool(chosen)
    _frame(canvas, data, sorted(times))
    _cuts(canvas, faults)
    _roles_of(canvas, roles, data.servers)
    for node, at, leader in votes:
        if node in rows and leader.node in rows and node != leader.node:
            canvas.line((x_of(at), rows[node]), (x_of(leader.start_ns), rows[leader.node]), "vote", True)
            canvas.label(x_of(at) - 4, rows[node] - 7, f"votes for {leader.node}", "dim", "end")
            canvas.say(at, f"{node} → {leader.node}", f"vote of epoch {leader.epoch}")
    for entry in entries:
        _entry_of(canvas, entry)
    for op in chosen:
        _operation(canvas, op, window.letters.get(str(op.invoke), ""), op is window.culprit)
    for step in did:
        _step_of(canvas, step)
    if culprit is not None and culprit is window.culprit:
        _asked_nobody(canvas, data, culprit, faults)
    where = culprit.node if culprit is not None else did[-1].way
    canvas.knew = [_knew(data, node, at_ns, node == where, faults, roles) for node in data.servers]
    canvas.messages.sort(key=lambda message: message.time_ns)
    asked = plural(len(chosen), "request") + " of clients" if chosen else f"{plural(len(did), 'step')} of nodes"
    canvas.words = f"{asked}, {plural(len(votes), 'vote')} and {plural(len(entries), 'write')} in the logs"
    return canvas


def _steps_of_nodes(data: ReportData, trace_rows: Sequence[Mapping[str, Any]]) -> list[Exchange]:
    """Return the actions of nodes in the rows of a witness; the last one is marked as the wrong step."""
    rows = [row for row in trace_rows if row.get("node") in data.servers and isinstance(row.get("time_ns"), int)]
    rows = sorted(rows, key=lambda row: int(row["time_ns"]))[-STEPS_MOST:]
    return [Exchange(row["time_ns"], str(row["node"]), trace_words(row), row is rows[-1]) for row in rows]


def _step_of(canvas: Diagram, step: Exchange) -> None:
    x, y = canvas.x_of(step.time_ns), canvas.rows[step.way]
    css, width = "bad" if step.bad else "did", len(step.words) * _CHAR
    canvas.dot(x, y, f"{step.way}: {step.words}", css)
    left = max(GUTTER, min(x - 4, WIDTH - width - 8))
    canvas.label(left, canvas.free_y(left, width, *((y + 17, y - 9) if step.bad else (y - 9, y + 17))), step.words, css)
    canvas.messages.append(step)


def _asked_nobody(canvas: Diagram, data: ReportData, wrong: WindowOp, faults: Sequence[FaultView]) -> None:
    """Add a note if faults kept the node of the wrong answer from reaching a majority during the whole operation."""
    apart: dict[str, int] = {}
    for f in (f for f in faults if f.happened and f.start_ns <= wrong.start_ns and wrong.end_ns <= f.end_ns):
        cut = {n for pair in f.cut if wrong.node in pair for n in pair} - {wrong.node}
        apart |= dict.fromkeys(cut & {*data.servers}, f.number)
    if wrong.node not in canvas.rows or 2 * (len(data.servers) - len(apart)) > len(data.servers):
        return
    cut_from, by = listed(sorted(apart, key=natural)), listed(sorted({*map(str, apart.values())}))
    words = f"{wrong.node} asked nobody: cut from {cut_from}"
    x = min(canvas.x_of(wrong.end_ns) + 4, WIDTH - 6.0)
    canvas.label(x, canvas.rows[wrong.node] + 17, words, "bad", "end")
    canvas.say(wrong.start_ns, wrong.node, f"asked nobody: fault {by} cut it from {cut_from}", True)


def _chosen(window: DrawnWindow) -> list[WindowOp]:
    """Return the operations to draw: the wrong one and its predecessors."""
    timed, culprit = [op for op in window.operations if op.start_ns or op.end_ns], window.culprit
    if culprit is None:
        return timed[:OPERATIONS_MOST]
    before = [op for op in timed if op is not culprit]
    return sorted([*before[-OPERATIONS_MOST + 1 :], culprit], key=lambda op: op.invoke) if timed else []


def _rows(data: ReportData, ops: Sequence[WindowOp]) -> dict[str, float]:
    """Return name of a line -> its y: the processes of clients, then the servers."""
    names = [f"process {p}" for p in dict.fromkeys(op.process for op in ops)]
    return {name: _TOP + 20 + ROW * place for place, name in enumerate([*names, *data.servers])}


def _client_node(data: ReportData, process: int) -> str:
    concurrency = data.spec.get("concurrency")
    if not isinstance(concurrency, int) or not concurrency:
        return ""
    return CLIENT_NODES[process % concurrency % len(CLIENT_NODES)]


def _axis(times: Sequence[int]) -> Callable[[int], float]:
    """Return a function from time to x, which interpolates between known times."""
    gaps = [6 + 10 * log2(1 + (b - a) / 1e6) for a, b in pairwise(times)]
    scale = (WIDTH - GUTTER - 60) / max(1.0, sum(gaps))
    xs = list(accumulate((gap * scale for gap in gaps), initial=GUTTER + 8))
    return lambda at: float(np.interp(at, times, xs))


def _frame(canvas: Diagram, data: ReportData, times: Sequence[int]) -> None:
    for name, y in canvas.rows.items():
        client = _client_node(data, int(name.split()[1])) if name.startswith("process ") else ""
        canvas.label(12 if client else 24, y + 4, name, "name")
        if name in data.servers:
            canvas.dot(14, y, name, f"node nc{data.servers.index(name) % 9}")
        if client:
            canvas.label(12, y + 17, f"on {client}", "dim")
        canvas.line((GUTTER, y), (WIDTH - 12, y), "life")
    free = 0.0
    for at in times:
        if not canvas.first_ns <= at <= canvas.last_ns:
            continue
        words, tick_x = seconds(at), canvas.x_of(at)
        x = min(tick_x, WIDTH - len(words) * _CHAR - 6)
        if x >= free:
            canvas.label(x, 14, words, "dim")
            canvas.line((tick_x, 19), (tick_x, 24), "tick")
            free = x + len(words) * _CHAR + 14


def _cuts(canvas: Diagram, faults: Sequence[FaultView]) -> None:
    """Draw the faults in force: the span of each above the lines, and marks on servers that could not reach a
    majority.
    """
    for f in faults:
        if not f.happened or (span := canvas.span(f.start_ns, f.end_ns)) is None:
            continue
        a, b = span
        since = f", since {seconds(f.start_ns)}" if f.start_ns < canvas.first_ns else ""
        title = f"fault {f.number}: {f.name}{since}"
        canvas.box(a, 28, max(4.0, b - a), 17, "fault", title)
        if b - a > len(title) * _CHAR:
            canvas.label(a + 6, 40.5, title)
        elif b - a > 60:
            canvas.label(a + 6, 40.5, f"fault {f.number}")
        cut_off = {*f.alone, *f.nodes} if f.cut else set(f.nodes)
        for node in cut_off & canvas.rows.keys():
            canvas.box(a, canvas.rows[node] - ROW / 2 + 2, max(4.0, b - a), ROW - 4, "cut", f"{node}: {title}")
            apart = sorted({n for pair in f.cut if node in pair for n in pair} - {node}, key=natural)
            words = f"✂ cut from {', '.join(apart)}"
            if apart and b - a > len(words) * _CHAR:
                canvas.label(a + 6, canvas.rows[node] - 9, words, "dim")


def _roles_of(canvas: Diagram, roles: Sequence[RoleSegment], servers: Sequence[str]) -> None:
    for s in roles:
        if s.node not in canvas.rows or s.role not in ("leader", DEAD, UNKNOWN):
            continue
        if (span := canvas.span(s.start_ns, s.end_ns)) is None:
            continue
        (a, b), y = span, canvas.rows[s.node]
        if s.role == "leader":
            words = f"leads epoch {s.epoch}"
            canvas.box(a, y - 5, max(3.0, b - a), 10, f"lead nc{list(servers).index(s.node) % 9}", f"{s.node} {words}")
            if b - a > len(words) * _CHAR + 8:
                canvas.label(a + 4, y + 17, words, "dim")
        else:
            title = f"{s.node} is not running" if s.role == DEAD else f"{s.node}: its role is not known"
            canvas.box(a, y - 5, max(3.0, b - a), 10, "gone" if s.role == DEAD else "unknown", title)


def _votes(data: ReportData, led: RoleSegment) -> list[tuple[str, int, RoleSegment]]:
    """Return (voter, time, the leader) of every vote for a leader that was cast before the leader's election."""
    of_leader = (pc.field("epoch") == led.epoch) & (pc.field("peer") == led.node)
    return [
        (node, int(row["time_ns"]), led)
        for node, table in data.traces.items()
        for row in table.filter(of_leader).select(["event", "time_ns"]).to_pylist()
        if row["event"] == "vote" and row["time_ns"] <= led.start_ns
    ]


def _entry(data: ReportData, op: WindowOp, until_ns: int) -> DrawnWrite | None:
    """Return the arrival of a write in the logs until a time; None if no log contains the write or no trace shows
    it.
    """
    written = op.new if op.f == "cas" else op.given if op.f == "write" else None
    if not isinstance(written, int) or op.key is None or not data.traces:
        return None
    found = data.entry_of(op.key, written)
    if found is None:
        return None
    offset, epoch = found
    arrived, committed = (
        {
            node: at
            for node, table in data.traces.items()
            if (at := _reached(table, event, offset, epoch, op.start_ns)) is not None and at <= until_ns
        }
        for event in ("append", "high-watermark")
    )
    if not arrived:
        return None
    leader = min(arrived, key=lambda node: arrived[node])
    words = f"{shorten(op.key, 16)} = {value(written)}, offset {offset}, epoch {epoch}"
    return DrawnWrite(value(written), words, leader, arrived, committed)


def _reached(table: pa.Table, event: str, offset: int, epoch: int, since_ns: int) -> int | None:
    """Return the time when a node's log, or its mark, first passed an offset in an epoch.  The epoch matters because
    the
    log may contain another entry at this offset: a deposed leader continues to append its own entries.
    """
    of_event = (pc.field("event").cast(pa.string()) == event) & (pc.field("epoch") == epoch)
    mask = of_event & (pc.field("offset") > offset) & (pc.field("time_ns") >= since_ns)
    first = pc.min(table.filter(mask)["time_ns"]).as_py()
    return None if first is None else int(first)


def _entry_of(canvas: Diagram, entry: DrawnWrite) -> None:
    """Draw the arrival of a write in the leader's log, then in the other logs, and a ring at the time of its commit."""
    rows, x_of = canvas.rows, canvas.x_of
    began = entry.arrived[entry.leader]
    for node, at in entry.arrived.items():
        if node not in rows:
            continue
        if node != entry.leader:
            canvas.line((x_of(began), rows[entry.leader]), (x_of(at), rows[node]), "copy", True)
            canvas.label(x_of(at) + 6, rows[node] - 6, f"holds {entry.short}", "copy")
            canvas.say(at, f"{entry.leader} → {node}", f"copies {entry.words}")
        canvas.dot(x_of(at), rows[node], f"{node} holds {entry.words}", "held")
    if entry.leader in entry.committed:
        at = entry.committed[entry.leader]
        canvas.dot(x_of(at), rows[entry.leader], f"{entry.leader}: {entry.words} is committed", "committed")
        canvas.label(x_of(at) + 8, rows[entry.leader] - 8, f"{entry.short} committed", "copy")
        canvas.say(at, entry.leader, f"{entry.words} is committed")


def _operation(canvas: Diagram, op: WindowOp, letter: str, bad: bool) -> None:
    """Draw the request to the server and the answer.  It is not known which server answered."""
    client, server = canvas.rows[f"process {op.process}"], canvas.rows.get(op.node)
    a, b = canvas.x_of(op.start_ns), canvas.x_of(op.end_ns if op.complete < FOREVER else canvas.last_ns)
    css = "bad" if bad else "asked"
    asked = f"{letter} {op.f if op.f == 'read' else say(op)}".strip()
    canvas.label(a, client - 8, asked, css)
    if server is None:
        canvas.line((a, client), (b, client), "lost")
        return
    third = (b - a) / 3
    canvas.line((a, client), (a + third, server), css, True)
    way = f"process {op.process} → {op.node}"
    canvas.say(op.start_ns, way, asked)
    if op.complete >= FOREVER:
        canvas.label(min(b, WIDTH - 90), client - 8, "no answer", "dim", "end")
        return
    canvas.line((b - third, server), (b, client), f"{css} answer", True)
    words = value(op.got) if op.f == "read" and op.happened else "ok" if op.happened else "failed"
    canvas.say(op.end_ns, f"{op.node} → process {op.process}", f"{letter} answered {words}".strip(), bad)
    canvas.label(b + 4, client - 8 if b - a > (len(asked) + 1) * _CHAR else client + 17, words, css)


def _knew(
    data: ReportData, node: str, at: int, answered: bool, faults: Sequence[FaultView], roles: Sequence[RoleSegment]
) -> Knew:
    mine = next((s for s in roles if s.node == node and s.start_ns <= at <= s.end_ns), None)
    role = "" if mine is None else mine.known if mine.role == UNKNOWN else _role_words(mine)
    log = TracedLog()
    if (table := data.traces.get(node)) is not None:
        log = traced_log(table.filter(pc.less_equal(table["time_ns"], at)))
    log_end = f"{log.end:,}" if log.end >= 0 else "–"
    committed = "–" if log.mark is None else f"{log.mark:,}"
    cut = {n for f in faults if f.in_force(at, at) for link in f.cut if node in link for n in link} - {node}
    apart = sorted(cut & {*data.servers, *CLIENT_NODES}, key=natural)
    return Knew(shorten(node, 24), role, log_end, committed, ", ".join(apart), answered)


def _role_words(s: RoleSegment) -> str:
    if s.role == DEAD:
        return "not running"
    epoch = f", epoch {s.epoch}" if s.epoch >= 0 else ""
    return f"{s.role}{epoch}{f', led by {s.leader}' if s.leader and s.leader != s.node else ''}"
