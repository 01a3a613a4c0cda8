"""Who led, who followed and what was committed, from what the nodes say of themselves.

Sources, best first: the trace of each node (exact role changes and high watermarks); the leaders the harness saw
(`outcome.json`), for subjects without traces.  Times are for drawing only; no verdict comes from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from checkers.base.history import Type
from checkers.base.json_file import mapping, number, sequence
from harness.report.evidence.report_data import ReportData

DEAD = "dead"
BUCKETS = 1200
"""The run is cut into at most this many steps to show high watermarks."""


@dataclass(frozen=True, slots=True)
class RoleSegment:
    """One node in one role.  role: as in `checkers.base.columns.TRACE`, or `dead`; epoch -1 where unknown."""

    node: str
    start_ns: int
    end_ns: int
    role: str
    epoch: int
    leader: str | None = None


@dataclass(frozen=True, slots=True)
class Deposed:
    """A leader that did not know of its successor: from the newer leader's election to the old one's end."""

    node: str
    epoch: int
    start_ns: int
    end_ns: int
    reads: int
    writes: int


def segments(data: ReportData) -> list[RoleSegment]:
    """Roles of every node over the run, nodes in natural order, each in order of time."""
    if any(table.num_rows for table in data.traces.values()):
        return [s for node in data.servers for s in _of_trace(data, node)]
    return _of_leaders(data)


def leaders(roles: Sequence[RoleSegment]) -> list[RoleSegment]:
    """Segments in which a node led, by epoch; one node's adjoining segments of one epoch count once."""
    merged: list[RoleSegment] = []
    for s in sorted((s for s in roles if s.role == "leader"), key=lambda s: (s.epoch, s.node, s.start_ns)):
        last = merged[-1] if merged else None
        if last and (last.node, last.epoch) == (s.node, s.epoch) and s.start_ns <= last.end_ns:
            merged[-1] = RoleSegment(s.node, last.start_ns, s.end_ns, s.role, s.epoch, s.leader)
        else:
            merged.append(s)
    return merged


def deposed(data: ReportData, roles: Sequence[RoleSegment]) -> list[Deposed]:
    """Every span in which a leader went on although one of a later epoch had been elected, with what it answered."""
    led = leaders(roles)
    ops = data.operations
    found = []
    for s in led:
        newer = [o.start_ns for o in led if o.epoch > s.epoch and o.node != s.node and o.start_ns < s.end_ns]
        if not newer:
            continue
        start = max(min(newer), s.start_ns)
        here = np.zeros(len(ops), dtype=bool)
        if s.node in ops.nodes:
            here = (ops.node == ops.nodes.index(s.node)) & (ops.type == Type.OK)
            here &= (ops.end_ns >= start) & (ops.end_ns <= s.end_ns)
        reads = ops.is_f("read")
        found.append(Deposed(s.node, s.epoch, start, s.end_ns, int((here & reads).sum()), int((here & ~reads).sum())))
    return sorted(found, key=lambda d: d.start_ns)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """High watermarks at the end of every step of `step_ns`: node -> array, -1 where the node knew none."""

    step_ns: int
    of: dict[str, np.ndarray]


def watermarks(data: ReportData) -> Watermarks:
    """The high watermark of every node with a trace, sampled; a restarted node's is unknown until it learns one."""
    count = max(1, min(BUCKETS, data.end_ns // 20_000_000))
    step_ns = -(-data.end_ns // count)
    grid = (np.arange(count, dtype=np.int64) + 1) * step_ns
    of = {}
    for node, table in data.traces.items():
        event = np.array(table["event"].to_pylist(), dtype=object)
        keep = (event == "high-watermark") | (event == "start")
        if not (event == "high-watermark").any():
            continue
        time = table["time_ns"].to_numpy()[keep]
        offset = table["offset"].fill_null(-1).to_numpy()[keep]
        mark = np.where(event[keep] == "high-watermark", offset, -1)
        at = np.searchsorted(time, grid, side="right") - 1
        of[node] = np.where(at >= 0, mark[np.maximum(at, 0)], -1)
    return Watermarks(step_ns, of)


def _of_trace(data: ReportData, node: str) -> list[RoleSegment]:
    table = data.traces.get(node)
    if table is None:
        return []
    names = ("incarnation", "time_ns", "event", "epoch", "role", "peer")
    keep = [i for i, e in enumerate(table["event"].to_pylist()) if e in ("start", "role", "stop", "fatal")]
    few = table.take(pa.array(keep, pa.int64())).select(list(names)).to_pylist()
    last_time = dict(
        zip(table["incarnation"].to_pylist(), table["time_ns"].to_pylist(), strict=True)
    )  # of each incarnation: rows are in order, so the last one wins
    out: list[RoleSegment] = []
    open_since: tuple[int, str, int, str | None] | None = None
    incarnation = None
    for row in few:
        time = min(max(int(row["time_ns"]), 0), data.end_ns)
        if row["event"] == "start" and incarnation is not None and open_since is not None:
            died = _died_ns(data, node, incarnation, min(last_time[incarnation], time))
            out.append(RoleSegment(node, open_since[0], died, *open_since[1:]))
            out.append(RoleSegment(node, died, time, DEAD, open_since[2]))
        elif open_since is not None:
            out.append(RoleSegment(node, open_since[0], time, *open_since[1:]))
        incarnation = row["incarnation"]
        ends = row["event"] in ("stop", "fatal")
        role = DEAD if ends else row["role"] if row["event"] == "role" else "unattached"
        open_since = (time, role or "unattached", int(row["epoch"]), None if ends else row["peer"])
    if open_since is not None:
        gone = None if open_since[1] == DEAD else _final_death_ns(data, node, incarnation)
        end = data.end_ns if gone is None else min(gone, data.end_ns)
        out.append(RoleSegment(node, open_since[0], end, *open_since[1:]))
        if gone is not None and end < data.end_ns:
            out.append(RoleSegment(node, end, data.end_ns, DEAD, open_since[2]))
    return [s for s in out if s.end_ns > s.start_ns]


def _died_ns(data: ReportData, node: str, incarnation: int, default_ns: int) -> int:
    found = _final_death_ns(data, node, incarnation)
    return default_ns if found is None else found


def _final_death_ns(data: ReportData, node: str, incarnation: int | None) -> int | None:
    for death in (mapping(d) for d in sequence(data.outcome.get("deaths"))):
        if death.get("node") == node and death.get("incarnation") == incarnation:
            return number(death.get("time_ns"), 0)
    return None


def _of_leaders(data: ReportData) -> list[RoleSegment]:
    """One leader after another, as the harness saw them; the others are taken to follow."""
    seen = [mapping(entry) for entry in sequence(data.outcome.get("leaders"))]
    seen = [entry for entry in seen if entry.get("node") in data.servers]
    out = []
    for i, entry in enumerate(seen):
        start = min(number(entry.get("time_ns"), 0), data.end_ns)
        end = number(seen[i + 1].get("time_ns"), 0) if i + 1 < len(seen) else data.end_ns
        leader, epoch = str(entry["node"]), number(entry.get("epoch"), -1)
        for node in data.servers:
            role = "leader" if node == leader else "follower"
            out.append(RoleSegment(node, max(start, 0), min(end, data.end_ns), role, epoch, leader))
    return sorted((s for s in out if s.end_ns > s.start_ns), key=lambda s: (data.servers.index(s.node), s.start_ns))
