"""Violations that are not about operations on one object, as tables that a reader can check.

    log_table   entries of logs: offsets × nodes, by epoch
    ballots     votes and elections of an epoch
    reach       the end of each log when a high watermark was set
    cycle_of    transactions: a ring that shows their order, and a ladder with the reason of each edge

The witness names a few entries of a log.  A difference is visible only next to equal entries, so a few equal entries
around each named one are read from the log tables of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import networkx
import pyarrow as pa
import pyarrow.compute as pc

from checkers.record.faults import LOST_OF
from checkers.record.run_record import mapping, number, sequence
from harness.plain_words import checksum_words, natural, seconds, shorten
from harness.report.run_data import ReportData
from harness.story.findings import ReportedViolation
from harness.story.story import Edge, Story, Transaction, odd_entries

AROUND = 3
"""Number of equal offsets shown before and after a difference."""
MOST_OFFSETS = 60


@dataclass(frozen=True, slots=True)
class DrawnEntry:
    """One node's entry at one offset; fields are None or "" if the log contains no entry there."""

    epoch: int | None
    checksum: str
    words: str
    differs: bool

    @property
    def hue(self) -> int:
        return -1 if self.epoch is None else self.epoch % 6


@dataclass(frozen=True, slots=True)
class Column:
    node: str
    when: str


@dataclass(frozen=True, slots=True)
class Row:
    """One offset of a table of logs. offset: None if this row stands for `folded` omitted equal offsets."""

    offset: int | None
    entries: list[DrawnEntry]
    folded: int
    marks: list[bool]  # per column: True at the last offset below the replica's high watermark


@dataclass(frozen=True, slots=True)
class LogTable:
    columns: list[Column]
    rows: list[Row]
    left_out: int


@dataclass(frozen=True, slots=True)
class DrawnBallot:
    """The actions of one node in one epoch. votes: (candidate, seq of the trace row), in order."""

    node: str
    votes: list[tuple[str, int]]
    twice: bool


@dataclass(frozen=True, slots=True)
class Ballots:
    epoch: int
    candidates: list[str]
    leaders: list[str]
    rows: list[DrawnBallot]
    need: int


@dataclass(frozen=True, slots=True)
class NodeReach:
    """End of one node's log and of its durable part, also as shares of the drawn span."""

    node: str
    role: str
    end: int
    durable: int
    end_share: float
    durable_share: float
    covers: bool


@dataclass(frozen=True, slots=True)
class LogReach:
    """The prefix that a node called committed, and the end of every log at that time. base: offset where the bars
    start.
    """

    committed_below: int
    mark_share: float
    base: int
    time_ns: int
    nodes: list[NodeReach]


def reach(data: ReportData, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> LogReach | None:
    """Return the end of each log at the last trace row of the witness; None if the witness has no mark.

    The traces of all nodes are read up to that time on the clock of the harness.  This is a picture only: no verdict
    depends on it.
    """
    mark = number(facts.get("committed_below"), -1)
    times = [number(r.get("time_ns"), -1) for r in rows]
    if mark < 0 or not times or max(times) < 0 or not data.traces:
        return None
    until = max(times)
    logs = {n: traced_log(table.filter(pc.less_equal(table["time_ns"], until))) for n, table in data.traces.items()}
    ends = {node: log for node, log in logs.items() if log.end >= 0}
    if not ends:
        return None
    most = max(mark, *(log.end for log in ends.values()))
    base = max(0, min(mark, *(log.durable for log in ends.values())) - 4)

    def share(offset: int) -> float:
        return round(100 * max(0, offset - base) / max(1, most - base), 1)

    nodes = [
        NodeReach(
            shorten(node, 24), log.role, log.end, log.durable, share(log.end), share(log.durable), log.durable >= mark
        )
        for node, log in sorted(ends.items(), key=lambda n: natural(n[0]))
    ]
    return LogReach(mark, share(mark), base, until, nodes)


@dataclass(slots=True)
class TracedLog:
    """A log according to rows of a node's trace: end, end on disk, high watermark (None if unknown), and the role."""

    end: int = -1
    durable: int = -1
    mark: int | None = None
    role: str = ""


def traced_log(rows: pa.Table) -> TracedLog:
    """Return the log after these rows. rows: of one trace, from its beginning."""
    found = TracedLog()
    for row in rows.select(["event", "offset", "role"]).to_pylist():
        offset = number(row["offset"], -1)
        match row["event"]:
            case "start":
                found = TracedLog(offset, offset)
            case "append":
                found.end = offset
            case "flush":
                found.durable = offset
            case "truncate":
                found.end, found.durable = offset, min(found.durable, offset)
            case "high-watermark":
                found.mark = row["offset"]
            case "role":
                found.role = shorten(str(row["role"] or ""), 24)
    found.durable = min(found.durable, found.end) if found.durable >= 0 else found.end
    return found


def log_table(data: ReportData, story: Story) -> LogTable | None:
    """Return the entries of a witness with `AROUND` offsets of context.  There is a column for every log that the
    witness names; the other nodes' logs are shown as in the last copy that it names.
    """
    named = [r for r in story.rows_of("log") if r.get("node") is not None and number(r.get("offset"), -1) >= 0]
    if not named:
        return None
    of_rows = {(str(r["node"]), number(r.get("copy"), 0)) for r in named}
    columns = sorted(of_rows | {c for c in story.copies if _copy(data, *c)})
    have = {n for n, _ in columns}
    last = max(c for _, c in of_rows)
    columns += [(n, last) for n in data.servers if n not in have and _copy(data, n, last)]
    columns.sort(key=lambda c: (natural(c[0]), c[1]))
    offsets = sorted({number(r["offset"], 0) for r in named})[: MOST_OFFSETS // 2]
    wanted = {o for offset in offsets for o in range(max(0, offset - AROUND), offset + AROUND + 1)}
    entries: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {c: {} for c in columns}
    for node, copy in columns:
        entries[node, copy] = {row["offset"]: row for row in data.log_rows(node, copy, wanted)}
    for entry in named:
        entries[str(entry["node"]), number(entry.get("copy"), 0)][number(entry["offset"], 0)] = entry
    present = sorted(o for o in wanted if any(o in of for of in entries.values()))
    ends = {c: number(_copy(data, *c).get("log_end"), max(entries[c], default=-1) + 1) for c in columns}
    marks = [_high_watermark(data, node, copy) for node, copy in columns]
    kept = entries.get(story.kept_by, {}) if story.kept_by is not None else {}
    wrong = [c in story.copies and c != story.kept_by for c in columns]
    table, before = [], None
    for offset in present[:MOST_OFFSETS]:
        if before is not None and offset > before + 1:
            table.append(Row(None, [], offset - before - 1, []))
        before = offset
        cells = [entries[c].get(offset) for c in columns]
        reached, lacks = [offset < ends[c] for c in columns], [each and offset in offsets for each in wrong]
        drawn = _compare(cells, reached, kept.get(offset), lacks)
        table.append(Row(offset, drawn, 0, [m == offset + 1 for m in marks]))
    heads = [Column(shorten(node, 24), _when(data, node, copy)) for node, copy in columns]
    return LogTable(heads, table, max(0, len(present) - MOST_OFFSETS))


def ballots(data: ReportData, rows: Sequence[Mapping[str, Any]]) -> list[Ballots]:
    """Return the votes and leaders of each epoch that the witness contains, for at most 3 epochs."""
    about = [r for r in rows if _decides(r)]
    epochs = sorted({number(r.get("epoch"), -1) for r in about})[:3]
    out = []
    for epoch in epochs:
        votes: dict[str, list[tuple[str, int]]] = defaultdict(list)
        led: set[str] = set()
        mine = {(str(r.get("node")), number(r.get("seq"), -1)): r for r in about if number(r.get("epoch"), -1) == epoch}
        for row in _of_epoch(data, epoch):
            mine.setdefault((str(row["node"]), int(row["seq"])), row)
        for (node, seq), row in sorted(mine.items(), key=lambda x: (natural(x[0][0]), x[0][1])):
            if row.get("event") == "vote":
                votes[node].append((shorten(str(row.get("peer")), 24), seq))
            else:
                led.add(node)
        names = sorted({*data.servers, *votes, *led}, key=natural)
        candidates = sorted({c for some in votes.values() for c, _ in some} | led, key=natural)
        rows_of = [DrawnBallot(n, votes[n], len({c for c, _ in votes[n]}) > 1) for n in names]
        out.append(Ballots(epoch, candidates, sorted(led, key=natural), rows_of, len(data.servers) // 2 + 1))
    return out


def _decides(row: Mapping[str, Any]) -> bool:
    return row.get("event") == "vote" or (row.get("event") == "role" and row.get("role") == "leader")


def _compare(
    cells: Sequence[Mapping[str, Any] | None],
    reaches: Sequence[bool],
    committed: Mapping[str, Any] | None,
    wrong: Sequence[bool],
) -> list[DrawnEntry]:
    """Compare the entries of one offset.  An entry differs if `odd_entries` says so, or if it is missing in a wrong log
    although it is committed.
    """
    out = []
    for cell, reached, odd, lacks in zip(cells, reaches, odd_entries(cells, committed), wrong, strict=True):
        if cell is None:
            gone = lacks and committed is not None
            out.append(DrawnEntry(None, "", "missing" if reached else "log ends before", gone))
            continue
        wrote = f"{shorten(str(cell['key']), 24)} = {cell.get('value')}" if cell.get("key") is not None else ""
        out.append(DrawnEntry(number(cell.get("epoch"), -1), checksum_words(cell.get("checksum")), wrote, odd))
    return out


def _of_epoch(data: ReportData, epoch: int) -> list[Mapping[str, Any]]:
    tables = (table.filter(pc.equal(table["epoch"], epoch)) for table in data.traces.values())
    return [row for table in tables for row in table.to_pylist() if _decides(row)]


def _copy(data: ReportData, node: str, copy: int) -> Mapping[str, Any]:
    return next((mapping(c) for c in data.copies if c.get("node") == node and c.get("copy") == copy), {})


def copied_log(data: ReportData, facts: Mapping[str, Any]) -> str:
    """Return the first copy that the facts of a violation name, with its node and offset, in words."""
    nodes, copies = sequence(facts.get("nodes")), sequence(facts.get("copies"))
    if not nodes or not copies:
        return "in a copy of a log"
    node, copy, offset = shorten(str(nodes[0]), 24), number(copies[0], 0), facts.get("offset")
    at = f" at offset {offset:,}" if isinstance(offset, int) else ""
    return f"in the log of {node}{at}, by copy {copy} ({_when(data, node, copy)})"


def never_fsynced(data: ReportData, lost: ReportedViolation) -> str:
    """Return a sentence about the bytes that a power loss discarded from a node's disk before the node started again;
    "" if the violation shows no such start, or if the loss was not measured.
    """
    traced = [row for row in lost.witness.rows if row.get("table") == "trace"]
    if not traced or traced[-1].get("event") != "start":
        return ""
    node, at_ns = str(traced[-1].get("node")), number(traced[-1].get("time_ns"), -1)
    hit = [f for f in data.faults if f.carried_out and node in f.nodes and f.began_ns <= at_ns]
    ending = [f for f in hit if f.loses_unsynced or f.ended or f.may_die]
    fault = max(ending, key=lambda f: f.began_ns, default=None)
    if fault is None or not fault.loses_unsynced:
        return ""
    began, measured = f"{node}: {LOST_OF}", (pair for each in fault.measured for pair in each.values.items())
    taken = {name.removeprefix(began): int(size) for name, size in measured if name.startswith(began)}
    if not taken:
        return ""
    file = max(taken, key=lambda name: taken[name])
    return (
        f"But {taken[file]:,} bytes of {shorten(file, 80)} had never been fsynced when fault {fault.card.number} took "
        f"the power of {node} at {seconds(fault.began_ns)}, and they were gone when it started again."
    )


def _when(data: ReportData, node: str, copy: int) -> str:
    return shorten(str(_copy(data, node, copy).get("when") or f"copy {copy}"), 40)


def _high_watermark(data: ReportData, node: str, copy: int) -> int | None:
    """Return the node's last known high watermark at the time when its log was copied."""
    table = data.traces.get(node)
    upto = _copy(data, node, copy).get("trace_seq")
    if table is None or not isinstance(upto, int):
        return None
    return traced_log(table.filter(pc.less_equal(table["seq"], upto))).mark


RING_MOST = 12
"""Maximum number of transactions in a ring; a longer cycle is shown as a ladder only."""

KEY_SHOWN_MOST = 10
"""Maximum number of characters of a key beside an arrow; the sentence of the edge contains the full key."""

_WIDTH = 330
_RADIUS_NODE = 19.0


@dataclass(frozen=True, slots=True)
class CycleNode:
    x: float
    y: float
    name: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A curve between the rims of two nodes. tip: head of the arrow, as a path. x, y, anchor: position of the words."""

    curve: str
    tip: str
    x: float
    y: float
    words: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Ring:
    width: float
    height: float
    nodes: list[CycleNode]
    arrows: list[Arrow]


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle of transactions.

    transactions: the source of each edge
    left_out: number of edges of a long cycle that are not drawn
    """

    edges: Sequence[Edge]
    transactions: list[Transaction]
    ring: Ring | None
    left_out: int


def cycle_of(story: Story) -> Cycle | None:
    """Return the cycle of a violation of isolation; None if the violation has no cycle."""
    edges = story.edges
    if not edges:
        return None
    known = {transaction.name: transaction for transaction in story.transactions}
    nodes = [known.get(e.source, Transaction(e.source)) for e in edges]
    closed = story.length <= len(edges) <= RING_MOST and _is_simple_cycle(edges)
    return Cycle(edges, nodes, _ring(edges) if closed else None, max(0, story.length - len(edges)))


def _is_simple_cycle(edges: Sequence[Edge]) -> bool:
    """Return True if the edges form one cycle that visits each transaction once.  They may not: the page also shows
    files of unknown origin.
    """
    graph = _graph_of(edges)
    each_once = graph.number_of_nodes() == graph.number_of_edges() == len(edges) > 1
    return each_once and bool(networkx.is_strongly_connected(graph))


def _graph_of(edges: Sequence[Edge]) -> networkx.DiGraph:
    return networkx.DiGraph([(edge.source, edge.target) for edge in edges])


def _short(edge: Edge) -> str:
    """Return the label on the ring: kind and key."""
    return f"{edge.kind} {shorten(edge.key, KEY_SHOWN_MOST)}" if edge.key else edge.kind


def _ring(edges: Sequence[Edge]) -> Ring:
    """Arrange the transactions clockwise from the top; two transactions side by side."""
    count = len(edges)
    radius = 84.0 if count == 2 else 62.0 + 13.0 * max(0, count - 3)
    centre_x, centre_y = _WIDTH / 2, 62.0 if count == 2 else radius + 46
    place = {}
    for name, (x, y) in networkx.circular_layout(_graph_of(edges), scale=radius).items():
        across, down = (-x, -y) if count == 2 else (y, -x)  # the layout starts on the right
        place[name] = CycleNode(round(centre_x + float(across), 1), round(centre_y + float(down), 1), name)
    arrows = [_arrow(place[e.source], place[e.target], _short(e)) for e in edges]
    return Ring(_WIDTH, round(2 * centre_y, 1), list(place.values()), arrows)


def _arrow(a: CycleNode, b: CycleNode, words: str) -> Arrow:
    """Return a curve that bends outwards, with the words outside the bend."""
    middle_x, middle_y = (a.x + b.x) / 2, (a.y + b.y) / 2
    length = hypot(b.x - a.x, b.y - a.y) or 1.0
    # to the left of the direction from a to b: outwards
    across_x, across_y = (b.y - a.y) / length, -(b.x - a.x) / length
    bend = 0.28 * length
    bend_x, bend_y = middle_x + across_x * bend, middle_y + across_y * bend
    from_x, from_y = _rim(a.x, a.y, bend_x, bend_y, _RADIUS_NODE)
    to_x, to_y = _rim(b.x, b.y, bend_x, bend_y, _RADIUS_NODE + 3)
    back_x, back_y = _rim(to_x, to_y, bend_x, bend_y, 9)
    side_x, side_y = (to_y - back_y) / 2, -(to_x - back_x) / 2
    tip = (
        f"M{to_x:.1f} {to_y:.1f}L{back_x + side_x:.1f} {back_y + side_y:.1f}"
        f"L{back_x - side_x:.1f} {back_y - side_y:.1f}Z"
    )
    text_x, text_y = middle_x + across_x * (bend / 2 + 14), middle_y + across_y * (bend / 2 + 14) + 4
    anchor = "start" if across_x > 0.35 else "end" if across_x < -0.35 else "middle"
    half = len(words) * 3.65
    least, most = (4.0, _WIDTH - 2 * half) if anchor == "start" else (2 * half, _WIDTH - 4.0)
    if anchor == "middle":
        least, most = half + 4, _WIDTH - half - 4
    text_x = min(max(text_x, least), max(most, least))
    curve = f"M{from_x:.1f} {from_y:.1f}Q{bend_x:.1f} {bend_y:.1f} {back_x:.1f} {back_y:.1f}"
    return Arrow(curve, tip, round(text_x, 1), round(text_y, 1), words, anchor)


def _rim(x: float, y: float, towards_x: float, towards_y: float, radius: float) -> tuple[float, float]:
    """Return the point at distance `radius` from (x, y) in the direction of the other point."""
    length = hypot(towards_x - x, towards_y - y) or 1.0
    return x + (towards_x - x) * radius / length, y + (towards_y - y) * radius / length
