"""The data behind the timeline: faults, roles, commits and operations on one axis, small enough for one page.

Operations are little-endian arrays, deflated and in base64; times and rows are stored as differences, which deflate
well.  Rates are counted over *all* operations, so they are right even if single operations of a very long run are
omitted.  The page says what is omitted.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.base.history import Type
from harness.plain_words import listed, plural, seconds, shorten
from harness.report.element_fates import ElementFates
from harness.report.fault_views import FaultView
from harness.report.roles import DEAD, Deposed, RoleSegment, elections, epochs_without_leader, watermarks
from harness.report.run_data import OperationColumns, ReportData
from harness.report.violation_views import FindingView
from harness.spec import CLIENT_NODES

MAX_OPERATIONS = 120_000
"""Maximum number of operations that are drawn individually; each needs about 15 bytes of the page."""
MAX_TABLE_ROWS = 400
_KEEP_AROUND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """Position of a violation on the time axis.

    anchor: id of the element that explains the violation
    key: key of its object, None if it has none
    open: True for the leading violation and the first wrong step
    """

    time_ns: int
    text: str
    anchor: str
    key: str | None = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the table that describes the canvas. mark: "" or "violation"."""

    time_ns: int
    what: str
    words: str
    mark: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Everything the timeline shows. words: sentences below the drawing, about facts that it does not show."""

    data: dict[str, Any]
    left_out: str
    words: list[str]
    events: list[EventRow]
    events_left_out: int


def view(
    data: ReportData,
    faults: Sequence[FaultView],
    roles: Sequence[RoleSegment],
    deposed: Sequence[Deposed],
    moments: Sequence[Moment],
    fates: ElementFates | None = None,
) -> TimelineView:
    """Return everything that the canvas draws, ready for JSON, and the same data as a table."""
    marks = watermarks(data)
    packed, left_out = pack(data.operations, [m.time_ns for m in moments], [f.start_ns for f in faults], fates)
    servers = [s for s in data.servers if any(r.node == s for r in roles) or any(s in f.nodes for f in faults)]
    if roles or any(f.cut for f in faults):
        servers = list(data.servers)
    payload = {
        "end": data.end_ns / 1e9,
        "main": data.main_start_ns / 1e9,
        "servers": [shorten(s, 24) for s in servers],
        "ops": packed,
        "segments": [
            [*_span(s, servers), shorten(s.role, 24), s.epoch, shorten(s.known or s.leader or "", 200)]
            for s in roles
            if s.node in servers
        ],
        "deposed": [[*_span(d, servers), d.epoch] for d in deposed if d.node in servers],
        "faults": [_fault(f, servers) for f in faults if f.happened],
        "marks": {
            "step": marks.step_ns / 1e9,
            "of": [np.diff(marks.of[s], prepend=0).tolist() if s in marks.of else None for s in servers],
        },
        "rate": _rates(data.operations, data.end_ns),
        "violations": [
            {"t": m.time_ns / 1e9, "text": m.text, "anchor": m.anchor, "key": m.key, "open": m.open}
            for m in moments
            if m.time_ns >= 0
        ],
    }
    rows = _events(data, faults, roles, deposed, moments)
    beyond = max(0, len(rows) - MAX_TABLE_ROWS)
    return TimelineView(payload, left_out, _notes(data, faults, roles), rows[:MAX_TABLE_ROWS], beyond)


def _span(s: RoleSegment | Deposed, servers: Sequence[str]) -> list[Any]:
    return [servers.index(s.node), s.start_ns / 1e9, s.end_ns / 1e9]


def _notes(data: ReportData, faults: Sequence[FaultView], roles: Sequence[RoleSegment]) -> list[str]:
    """Return sentences about facts that the drawing does not show."""
    notes = []
    if roles and data.outcome.declares.get("registers_brokers"):
        notes.append("Roles and epochs are those of the controllers; leaders of partitions are not drawn.")
    elif roles and data.outcome.declares.get("leaders_of_keys"):
        notes.append("Roles and epochs are those of the whole system; leaders of single keys are not drawn.")
    if any(client in f.words for f in faults for client in CLIENT_NODES):
        notes.append(f"{listed(CLIENT_NODES)} are the hosts of the clients.")
    return notes + _unled(data, roles)


def _unled(data: ReportData, roles: Sequence[RoleSegment]) -> list[str]:
    """Return a sentence on the epochs between two leaders in which nobody led; [] if there are none."""
    if not (epochs := epochs_without_leader(roles)):
        return []
    named = f"{'epoch' if len(epochs) == 1 else 'epochs'} {listed([str(epoch) for epoch in epochs])}"
    if any(table.num_rows for table in data.traces.values()):
        return [f"No trace shows that a node won the election of {named}."]
    return [f"No node was seen to lead {named}: nobody won, or the leader was gone before nodes were asked again."]


def moments(found: Sequence[FindingView], shown: FindingView | None) -> list[Moment]:
    """Return the positions of the violations on the time axis, `shown` first.  Violations without a time are
    omitted.
    """
    timed = [f for f in sorted(found, key=lambda f: f is not shown) if f.moment_ns >= 0]
    words = [", key ".join(filter(None, (f.kind, f.violation.key))) for f in timed]
    return [
        Moment(f.moment_ns, text, f.anchor, f.violation.key or None, open=not f.folded)
        for f, text in zip(timed, words, strict=True)
    ]


def pack(
    ops: OperationColumns, moments_ns: Sequence[int], faults_ns: Sequence[int], fates: ElementFates | None = None
) -> tuple[dict[str, Any], str]:
    """Return operations as packed arrays, and a sentence on omissions ("" if there are none).

    If there are too many, operations that are not ok come first, then those near a violation or the beginning of a
    fault, then an even sample of all others.

    fates: fates of the elements that the operations added
    """
    keep, left_out = np.ones(len(ops), dtype=bool), ""
    if len(ops) > MAX_OPERATIONS:
        keep = _most_telling(ops, moments_ns, faults_ns)
        left_out = (
            f"The timeline shows {int(keep.sum()):,} of {len(ops):,} operations: first failed and unknown ones and "
            f"those near a violation or the beginning of a fault, then an even sample. Rates include all operations."
        )
    start, latency = np.maximum(ops.start_ns[keep], 0), ops.latency_ns[keep]
    unit_ns = max(1000, -(-int((start.max() if len(start) else 0) + 1) // (2**32 - 1)))
    value, value2 = _values(ops, keep)
    place_of = np.cumsum(keep) - 1
    touching = keep[ops.touched[0]]
    fate = np.zeros(len(ops), np.int8)  # 0: the operation adds no element
    if fates is not None:
        fate[fates.places] = fates.fate + 1
    packed = {
        "n": int(keep.sum()),
        "unit": unit_ns / 1e9,
        "t": _b64(np.diff(start // unit_ns, prepend=0), "<u4"),
        "d": _b64(np.maximum(latency, 0) // unit_ns, "<u4"),
        "type": _b64(ops.type[keep], "u1"),
        "f": _b64(ops.f[keep], "u1"),
        "key": _b64(ops.key[keep] + 1, "<u2"),
        "touch": _b64(place_of[ops.touched[0][touching]], "<u4"),
        "touched": _b64(ops.touched[1][touching] + 1, "<u2"),
        "fate": _b64(fate[keep], "u1"),
        "node": _b64(ops.node[keep], "<u2"),
        "error": _b64(ops.error[keep] + 1, "<u2"),
        "process": _b64(ops.process[keep], "<u4"),
        "row": _b64(np.diff(ops.invoke_row[keep], prepend=0), "<i4"),
        "value": value,
        "value2": value2,
        "miss": _b64(ops.matched()[keep] & (ops.type[keep] == Type.FAIL), "u1"),
        "fs": [shorten(x, 40) for x in ops.fs],
        "keys": [shorten(x, 60) for x in ops.keys],
        "nodes": [shorten(x, 24) for x in ops.nodes],
        "errors": [shorten(x, 160) for x in ops.errors],
    }
    return packed, left_out


def _most_telling(ops: OperationColumns, moments_ns: Sequence[int], faults_ns: Sequence[int]) -> np.ndarray:
    near = np.zeros(len(ops), dtype=bool)
    for t in (*moments_ns, *faults_ns):
        near |= (ops.start_ns <= t + _KEEP_AROUND_NS) & (ops.end_ns >= t - _KEEP_AROUND_NS)
    keep = _at_most(near | (ops.type != Type.OK), MAX_OPERATIONS // 2)
    return np.asarray(keep | _at_most(~keep, MAX_OPERATIONS - int(keep.sum())))


def _at_most(wanted: np.ndarray, count: int) -> np.ndarray:
    """Return the mask, thinned out evenly to at most `count` True elements."""
    places = np.flatnonzero(wanted)
    if len(places) <= count:
        return wanted
    out = np.zeros_like(wanted)
    out[places[np.linspace(0, len(places) - 1, count).astype(np.int64)]] = True
    return out


def _values(ops: OperationColumns, keep: np.ndarray) -> tuple[dict[str, Any], dict[str, Any] | None]:
    def one(value: np.ndarray, has: np.ndarray) -> dict[str, Any]:
        small = bool((np.abs(value) < 2**31).all()) if len(value) else True
        return {"wide": not small, "v": _b64(value, "<i4" if small else "<f8"), "has": _b64(has, "u1")}

    first = one(ops.value[keep], ops.has_value[keep])
    return first, one(ops.value2[keep], ops.has_value2[keep]) if ops.has_value2.any() else None


def _b64(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).astype(dtype).tobytes(), 9)).decode("ascii")


def _rates(ops: OperationColumns, end_ns: int) -> dict[str, Any]:
    step = max(100_000_000, -(-end_ns // 1200))
    count = int(end_ns // step) + 1
    bins = np.clip(ops.end_ns // step, 0, count - 1)  # only a broken writer gives a time before the run began
    miss = ops.matched() & (ops.type == Type.FAIL)
    masks = {"ok": ops.type == Type.OK, "miss": miss, "fail": (ops.type == Type.FAIL) & ~miss}
    masks["info"] = ops.type == Type.INFO
    return {"step": step / 1e9} | {n: np.bincount(bins[m], minlength=count).tolist() for n, m in masks.items()}


def _fault(fault: FaultView, servers: Sequence[str]) -> dict[str, Any]:
    return {
        "n": fault.number,
        "name": fault.name,
        "kind": fault.kind,
        "words": fault.words,
        "achieved": fault.achieved,
        "start": fault.start_ns / 1e9,
        "end": fault.end_ns / 1e9,
        "alone": [servers.index(s) for s in fault.alone if s in servers],
        "nodes": [[servers.index(s), fault.held_states.get(s, "")] for s in fault.nodes if s in servers],
    }


def _events(
    data: ReportData,
    faults: Sequence[FaultView],
    roles: Sequence[RoleSegment],
    deposed: Sequence[Deposed],
    moments: Sequence[Moment],
) -> list[EventRow]:
    rows = []
    for f in faults:
        if f.happened:
            rows.append(EventRow(f.start_ns, f"fault {f.number} begins", f"{f.name}: {f.words}" if f.words else f.name))
            rows.append(EventRow(f.end_ns, f"fault {f.number} healed", f.name))
        else:
            rows.append(EventRow(f.ordered_ns, f"fault {f.number} {f.achieved}", f"{f.name}: {f.reason}"))
    rows += [EventRow(s.start_ns, "leader elected", f"{s.node} leads epoch {s.epoch}") for s in elections(roles)]
    for d in deposed:
        answered = plural(d.reads + d.writes, "operation")
        lasted = seconds(d.end_ns - d.start_ns)
        words = f"{d.node} still believes it leads epoch {d.epoch}, for {lasted}; it answers {answered}"
        rows.append(EventRow(d.start_ns, "leader deposed", words))
    rows += [EventRow(s.start_ns, "node down", f"{s.node} is not running") for s in roles if s.role == DEAD]
    rows += [
        EventRow(death.time_ns, "node died unexpectedly", f"{death.node}: {shorten(death.reason or 'no reason given')}")
        for death in data.outcome.deaths
        if not death.ordered and death.time_ns >= 0
    ]
    rows += [EventRow(m.time_ns, "violation", m.text, "violation", m.anchor) for m in moments if m.time_ns >= 0]
    rows += [EventRow(p.start_ns, "phase", f"{shorten(p.name, 40)} begins") for p in data.outcome.phases]
    return sorted(rows, key=lambda r: r.time_ns)
