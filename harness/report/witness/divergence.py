"""Violations of logs and elections, as tables a reader can check: offsets × nodes by epoch, and ballots.

The witness names a few rows; around them a few equal entries are read from the run's own log tables, because a
difference is only seen next to what agrees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.json_file import mapping, number
from harness.plain_words import checksum_words, natural, shorten
from harness.report.run_data.report_data import ReportData

AROUND = 3
"""Equal offsets shown before and after a difference."""
MOST_OFFSETS = 60


@dataclass(frozen=True, slots=True)
class DrawnEntry:
    """One node's entry at one offset; None fields where the log holds nothing there."""

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
    high_watermark: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """offset None: `folded` equal offsets are left out here."""

    offset: int | None
    entries: list[DrawnEntry]
    folded: int
    marks: list[bool]  # of each column: this is the last offset below its high watermark


@dataclass(frozen=True, slots=True)
class LogTable:
    columns: list[Column]
    rows: list[Row]
    left_out: int


@dataclass(frozen=True, slots=True)
class DrawnBallot:
    """What one node did in one epoch.  votes: (candidate, seq) in order; led: seq at which it became leader."""

    node: str
    votes: list[tuple[str, int]]
    led: int | None
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
    """How far one node's log reached.  end: log end; durable: how far of it was on disk; shares of the drawn span."""

    node: str
    role: str
    end: int
    durable: int
    end_share: float
    durable_share: float
    covers: bool


@dataclass(frozen=True, slots=True)
class LogReach:
    """What was called committed, and how far every log reached at that moment.  base: where the bars begin."""

    committed_below: int
    mark_share: float
    base: int
    time_ns: int
    nodes: list[NodeReach]


def reach(data: ReportData, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> LogReach | None:
    """How far each log reached when the last trace row of the witness was written; None if it is about no mark.

    By the nodes' traces up to that time, on the harness' clock: a picture, from which nothing was concluded.
    """
    mark = number(facts.get("committed_below"), -1)
    times = [number(r.get("time_ns"), -1) for r in rows]
    if mark < 0 or not times or max(times) < 0 or not data.traces:
        return None
    until = max(times)
    ends = {node: found for node, table in data.traces.items() if (found := _ends(table, until)) is not None}
    if not ends:
        return None
    most = max(mark, *(end for end, _, _ in ends.values()))
    base = max(0, min(mark, *(durable for _, durable, _ in ends.values())) - 4)
    span = max(1, most - base)
    return LogReach(
        committed_below=mark,
        mark_share=round(100 * (mark - base) / span, 1),
        base=base,
        time_ns=until,
        nodes=[
            NodeReach(
                node=shorten(node, 24),
                role=role,
                end=end,
                durable=durable,
                end_share=round(100 * max(0, end - base) / span, 1),
                durable_share=round(100 * max(0, durable - base) / span, 1),
                covers=durable >= mark,
            )
            for node, (end, durable, role) in sorted(ends.items(), key=lambda n: natural(n[0]))
        ],
    )


def _ends(table: pa.Table, until_ns: int) -> tuple[int, int, str] | None:
    """(log end, durable end, role) of one node by its trace up to a time; None if the trace has none of them."""
    rows = table.filter(pc.less_equal(table["time_ns"], until_ns)).select(["event", "offset", "role"])
    end = durable = -1
    role = ""
    for row in rows.to_pylist():
        offset = number(row["offset"], -1)
        match row["event"]:
            case "start":
                end = durable = offset
                role = ""
            case "append":
                end = offset
            case "flush":
                durable = offset
            case "truncate":
                end, durable = offset, min(durable, offset)
            case "role":
                role = shorten(str(row["role"] or ""), 24)
    return (end, min(durable, end) if durable >= 0 else end, role) if end >= 0 else None


def log_table(data: ReportData, rows: Sequence[Mapping[str, Any]]) -> LogTable | None:
    """The entries of a witness with `AROUND` offsets of context: a column for every log it names, and for the logs
    of the other nodes in its last copy."""
    named = [r for r in rows if r.get("node") is not None and number(r.get("offset"), -1) >= 0]
    if not named:
        return None
    columns = sorted({(str(r["node"]), number(r.get("copy"), 0)) for r in named}, key=lambda c: (natural(c[0]), c[1]))
    have = {n for n, _ in columns}
    last = max(c for _, c in columns)
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
    table, before = [], None
    for offset in present[:MOST_OFFSETS]:
        if before is not None and offset > before + 1:
            table.append(Row(None, [], offset - before - 1, []))
        before = offset
        cells = [entries[c].get(offset) for c in columns]
        table.append(
            Row(offset, _compare(cells, [offset < ends[c] for c in columns]), 0, [m == offset + 1 for m in marks])
        )
    heads = [
        Column(shorten(node, 24), _when(data, node, copy), mark)
        for (node, copy), mark in zip(columns, marks, strict=True)
    ]
    return LogTable(heads, table, max(0, len(present) - MOST_OFFSETS))


def ballots(data: ReportData, rows: Sequence[Mapping[str, Any]]) -> list[Ballots]:
    """Who voted for whom, and who led, in every epoch whose votes or elections the witness is about (at most 3)."""
    about = [r for r in rows if r.get("event") == "vote" or (r.get("event") == "role" and r.get("role") == "leader")]
    epochs = sorted({number(r.get("epoch"), -1) for r in about})[:3]
    out = []
    for epoch in epochs:
        votes: dict[str, list[tuple[str, int]]] = defaultdict(list)
        led: dict[str, int] = {}
        mine = {(str(r.get("node")), number(r.get("seq"), -1)): r for r in about if number(r.get("epoch"), -1) == epoch}
        for row in _of_epoch(data, epoch):
            mine.setdefault((str(row["node"]), int(row["seq"])), row)
        for (node, seq), row in sorted(mine.items(), key=lambda x: (natural(x[0][0]), x[0][1])):
            if row.get("event") == "vote":
                votes[node].append((shorten(str(row.get("peer")), 24), seq))
            else:
                led.setdefault(node, seq)
        names = sorted({*data.servers, *votes, *led}, key=natural)
        candidates = sorted({c for some in votes.values() for c, _ in some} | set(led), key=natural)
        out.append(
            Ballots(
                epoch=epoch,
                candidates=candidates,
                leaders=sorted(led, key=natural),
                rows=[DrawnBallot(n, votes[n], led.get(n), len({c for c, _ in votes[n]}) > 1) for n in names],
                need=len(data.servers) // 2 + 1,
            )
        )
    return out


def _compare(cells: Sequence[Mapping[str, Any] | None], reaches: Sequence[bool]) -> list[DrawnEntry]:
    """Entries of one offset; those unlike what most of the nodes hold differ."""
    same = Counter((number(c.get("epoch"), -1), c.get("checksum")) for c in cells if c)
    usual = max(same, key=lambda k: same[k], default=None)
    tied = sum(count == same[usual] for count in same.values()) > 1 if usual else False
    out = []
    for cell, reached in zip(cells, reaches, strict=True):
        if cell is None:
            out.append(DrawnEntry(None, "", "missing" if reached else "log ends before", False))
            continue
        epoch, checksum = number(cell.get("epoch"), -1), cell.get("checksum")
        wrote = f"{shorten(str(cell['key']), 24)} = {cell.get('value')}" if cell.get("key") is not None else ""
        short = checksum_words(checksum)
        out.append(DrawnEntry(epoch, short, wrote, (tied and len(same) > 1) or (epoch, checksum) != usual))
    return out


def _of_epoch(data: ReportData, epoch: int) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for table in data.traces.values():
        at = [i for i, e in enumerate(table["epoch"].to_pylist()) if e == epoch]
        found += [
            r
            for r in table.take(pa.array(at, pa.int64())).to_pylist()
            if r["event"] == "vote" or (r["event"] == "role" and r["role"] == "leader")
        ]
    return found


def _copy(data: ReportData, node: str, copy: int) -> Mapping[str, Any]:
    return next((mapping(c) for c in data.copies if c.get("node") == node and c.get("copy") == copy), {})


def _when(data: ReportData, node: str, copy: int) -> str:
    return shorten(str(_copy(data, node, copy).get("when") or f"copy {copy}"), 40)


def _high_watermark(data: ReportData, node: str, copy: int) -> int | None:
    """What the node last knew to be committed when its log was copied."""
    table = data.traces.get(node)
    upto = _copy(data, node, copy).get("trace_seq")
    if table is None or not isinstance(upto, int):
        return None
    mark = None
    for event, seq, offset in zip(
        table["event"].to_pylist(), table["seq"].to_pylist(), table["offset"].to_pylist(), strict=True
    ):
        if seq > upto:
            break
        mark = offset if event == "high-watermark" else None if event == "start" else mark
    return mark
