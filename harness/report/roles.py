"""Leaders, followers and committed offsets over time, from the nodes' own reports.

Sources, best first: the trace of each node (exact role changes and high watermarks); the nodes' status reports in the
journal; the leaders that the harness saw, in the journal.  If no source gives the role of a node, the role is
`UNKNOWN`, with related facts: the node's last report, and the number of its answers to clients in that time.  Times are
for drawing only; no verdict depends on them.

`circumstances` and `belief` describe the time of a violation: the faults in force, the leader, and the belief of one
node.  They only state measurements.  The reader has to conclude what caused what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from checkers.base.history import Type
from checkers.base.values import span_in_words
from checkers.record.header_and_outcome import Report, SeenLeader
from harness.plain_words import listed, plural, seconds
from harness.report.fault_views import FaultView
from harness.report.run_data import ReportData

DEAD = "dead"
UNKNOWN = "unknown"
UNLED_MOST = 20
"""Maximum number of epochs without a leader that a page lists."""
BUCKETS = 1200
"""Maximum number of steps into which a run is divided to show high watermarks."""
_LOOK_NS = 1_500_000_000
"""Maximum nanoseconds between two status reports for which the first is assumed to hold until the second.  Status is
requested several times a second.
"""


@dataclass(frozen=True, slots=True)
class RoleSegment:
    """One node in one role.

    role: as in `checkers.base.columns.TRACE`, or DEAD or UNKNOWN
    epoch: -1 if unknown
    known: facts about a node whose role is unknown, in words
    """

    node: str
    start_ns: int
    end_ns: int
    role: str
    epoch: int
    leader: str | None = None
    known: str = ""


@dataclass(frozen=True, slots=True)
class Deposed:
    """A leader that did not know its successor.

    start_ns, end_ns: from the election of the successor to the end of the old leadership
    reads, writes: numbers of operations that the old leader answered in this time
    """

    node: str
    epoch: int
    start_ns: int
    end_ns: int
    reads: int
    writes: int


def segments(data: ReportData) -> list[RoleSegment]:
    """Return the roles of every node during the run; nodes in natural order, segments in order of time."""
    if any(table.num_rows for table in data.traces.values()):
        return [s for node in data.servers for s in _of_trace(data, node)]
    reports, leads = data.outcome.reports or (), data.outcome.leaders
    reported = {report.node for report in reports}
    out: list[RoleSegment] = []
    for node in data.servers:
        if node in reported:
            seen = _of_reports(data, [report for report in reports if report.node == node])
        elif leads:
            seen = _of_leaders(data, leads, node)
        else:
            continue
        out += _with_unknown(data, node, seen)
    return out


def leaders(roles: Sequence[RoleSegment]) -> list[RoleSegment]:
    """Return the segments in which a node led, by epoch.  Adjoining segments of one node and epoch are joined."""
    merged: list[RoleSegment] = []
    for s in sorted((s for s in roles if s.role == "leader"), key=lambda s: (s.epoch, s.node, s.start_ns)):
        last = merged[-1] if merged else None
        if last and (last.node, last.epoch) == (s.node, s.epoch) and s.start_ns <= last.end_ns:
            merged[-1] = RoleSegment(s.node, last.start_ns, s.end_ns, s.role, s.epoch, s.leader)
        else:
            merged.append(s)
    return merged


def elections(roles: Sequence[RoleSegment]) -> list[RoleSegment]:
    """Return the first segment of each leader in each epoch, in order of time.  A leader that was silent for a while
    has not been elected again.
    """
    first = {(s.node, s.epoch): s for s in reversed(leaders(roles))}
    return sorted(first.values(), key=lambda s: s.start_ns)


def deposed_from(s: RoleSegment, led: Sequence[RoleSegment]) -> int:
    """Return the time of the first election of a later epoch within the segment of a leader; else the segment's end."""
    newer = min((o.start_ns for o in led if o.epoch > s.epoch and o.node != s.node), default=s.end_ns)
    return min(max(newer, s.start_ns), s.end_ns)


def deposed(data: ReportData, roles: Sequence[RoleSegment]) -> list[Deposed]:
    """Return every span in which a leader continued although a leader of a later epoch had been elected, with the
    number of its answers.
    """
    led = leaders(roles)
    ops = data.operations
    found = []
    for s in led:
        if (start := deposed_from(s, led)) == s.end_ns:
            continue
        here = np.zeros(len(ops), dtype=bool)
        if s.node in ops.nodes:
            here = (ops.node == ops.nodes.index(s.node)) & (ops.type == Type.OK)
            here &= (ops.end_ns >= start) & (ops.end_ns <= s.end_ns)
        reads = ops.is_f("read")
        found.append(Deposed(s.node, s.epoch, start, s.end_ns, int((here & reads).sum()), int((here & ~reads).sum())))
    return sorted(found, key=lambda d: d.start_ns)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """High watermarks. of: node -> array of values at the end of every step of `step_ns`; -1 if the node knew none."""

    step_ns: int
    of: dict[str, np.ndarray]


def watermarks(data: ReportData) -> Watermarks:
    """Return the sampled high watermark of every node with a trace.  After a restart it is unknown until the node
    learns it again.
    """
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
    keep = [i for i, e in enumerate(table["event"].to_pylist()) if e in ("start", "role", "stop", "fatal")]
    names = ["incarnation", "time_ns", "event", "epoch", "role", "peer"]
    few = table.take(pa.array(keep, pa.int64())).select(names).to_pylist()
    # one per incarnation: rows are in order, so the last one wins
    last_time = dict(zip(table["incarnation"].to_pylist(), table["time_ns"].to_pylist(), strict=True))
    out: list[RoleSegment] = []
    open_since: tuple[int, str, int, str | None] | None = None
    incarnation = None
    for row in few:
        time = min(max(int(row["time_ns"]), 0), data.end_ns)
        if row["event"] == "start" and incarnation is not None and open_since is not None:
            died = _died_ns(data, node, open_since[0], time, min(last_time[incarnation], time))
            out.append(RoleSegment(node, open_since[0], died, *open_since[1:]))
            out.append(RoleSegment(node, died, time, DEAD, open_since[2]))
        elif open_since is not None:
            out.append(RoleSegment(node, open_since[0], time, *open_since[1:]))
        incarnation = row["incarnation"]
        ends = row["event"] in ("stop", "fatal")
        role = DEAD if ends else row["role"] if row["event"] == "role" else "unattached"
        open_since = (time, role or "unattached", int(row["epoch"]), None if ends else row["peer"])
    if open_since is not None:
        dead = open_since[1] == DEAD
        gone = data.end_ns if dead else _died_ns(data, node, open_since[0], data.end_ns, data.end_ns)
        out.append(RoleSegment(node, open_since[0], gone, *open_since[1:]))
        out.append(RoleSegment(node, gone, data.end_ns, DEAD, open_since[2]))
    return [s for s in out if s.end_ns > s.start_ns]


def _died_ns(data: ReportData, node: str, from_ns: int, to_ns: int, default_ns: int) -> int:
    """Return the time at which a node's server ended in this span; else the default."""
    ends = (death.time_ns for death in data.outcome.deaths if death.node == node)
    return min((end for end in ends if from_ns < end <= to_ns), default=default_ns)


def _of_reports(data: ReportData, reports: Sequence[Report]) -> list[RoleSegment]:
    """Return the roles in one node's status reports.  A report holds until the next one if they are close in time."""
    out = []
    ordered = sorted((r for r in reports if r.time_ns >= 0), key=lambda r: (r.time_ns, r.until_ns))
    for report, following in zip(ordered, [*ordered[1:], None], strict=True):
        end = max(report.time_ns, report.until_ns)
        if following is not None and following.time_ns - end <= _LOOK_NS:
            end = following.time_ns
        span = report.time_ns, min(end, data.end_ns)
        out.append(RoleSegment(report.node, *span, report.role, report.epoch, report.leader))
    return [s for s in out if s.end_ns > s.start_ns]


def _of_leaders(data: ReportData, leads: Sequence[SeenLeader], node: str) -> list[RoleSegment]:
    """Return the spans in which the harness saw this node lead; each ends when the harness saw another leader."""
    ends = [*(leader.time_ns for leader in leads[1:]), data.end_ns]
    out = [
        RoleSegment(node, max(0, lead.time_ns), min(end, data.end_ns), "leader", lead.epoch, node)
        for lead, end in zip(leads, ends, strict=False)
        if lead.node == node
    ]
    return [s for s in out if s.end_ns > s.start_ns]


def _with_unknown(data: ReportData, node: str, seen: Sequence[RoleSegment]) -> list[RoleSegment]:
    """Return the segments, with unknown segments between and after them.

    Nothing is added before the first segment.
    """
    began = data.main_start_ns
    out: list[RoleSegment] = []
    at = seen[0].start_ns if seen else began
    at = min(at, began) if began else at
    last: RoleSegment | None = None
    for segment in sorted(seen, key=lambda s: s.start_ns):
        if segment.start_ns > at:
            out.append(_unknown(data, node, at, segment.start_ns, last))
        out.append(segment)
        at, last = max(at, segment.end_ns), segment
    if at < data.end_ns:
        out.append(_unknown(data, node, at, data.end_ns, last))
    return out


def _unknown(data: ReportData, node: str, start_ns: int, end_ns: int, last: RoleSegment | None) -> RoleSegment:
    ops = data.operations
    answered = 0
    if node in ops.nodes:
        mine = (ops.node == ops.nodes.index(node)) & (ops.type == Type.OK)
        answered = int((mine & (ops.end_ns >= start_ns) & (ops.end_ns < end_ns)).sum())
    report = "it had reported nothing before"
    if last is not None:
        epoch = f" of epoch {last.epoch}" if last.epoch >= 0 else ""
        report = f"its last report, {last.role}{epoch}, is of {seconds(last.end_ns)}"
    gave = f"it answered {plural(answered, 'operation')} of clients meanwhile" if answered else "it answered no client"
    return RoleSegment(node, start_ns, end_ns, UNKNOWN, -1, None, f"{report}; {gave}")


def circumstances(time_ns: int, faults: Sequence[FaultView], roles: Sequence[RoleSegment]) -> str:
    """Return the faults in force and the leaders at a time, in one line; "" if nothing is known of that time."""
    if time_ns < 0 or not (faults or roles):
        return ""
    led = _leading(time_ns, roles)
    newest = max((s.epoch for s in led), default=-1)
    lead = [
        f"{listed(list(dict.fromkeys(s.node for s in led if s.epoch == epoch)))} led epoch {epoch}"
        + ("" if epoch == newest else " (deposed)")
        for epoch in sorted({s.epoch for s in led})
    ]
    who = "; ".join(lead) if lead else "no node led" if roles else ""
    return "; ".join(part for part in (_faults_near(time_ns, faults), who) if part)


def _faults_near(time_ns: int, faults: Sequence[FaultView]) -> str:
    """Return the faults in force; if there are none, the fault that was healed last."""
    held = [
        f"fault {f.number} ({f.what}) had been in force for {span_in_words(time_ns - f.start_ns)}"
        for f in faults
        if f.in_force(time_ns, time_ns)
    ]
    return listed(held) or _healed_before(time_ns, faults)


def _healed_before(time_ns: int, faults: Sequence[FaultView]) -> str:
    """Return the fault that was healed last before a time without faults."""
    before = [f for f in faults if f.happened and f.end_ns < time_ns]
    if not before:
        return "no fault had been in force before" if faults else "no fault was in force"
    last = max(before, key=lambda f: f.end_ns)
    return f"fault {last.number} ({last.what}) had been healed {span_in_words(time_ns - last.end_ns)} before"


def belief(node: str, time_ns: int, roles: Sequence[RoleSegment], since_ns: int | None = None) -> str:
    """Return a sentence if a node led at that time although a leader of a later epoch had been elected; else "".

    since_ns: invocation of the operation that the node answered; None if it is unknown, or if leaders need no majority
    """
    mine = [s for s in _leading(time_ns, roles) if s.node == node]
    later = (s for s in leaders(roles) if mine and s.epoch > mine[-1].epoch and s.node != node)
    newer = next((s for s in later if s.start_ns <= time_ns), None)
    if newer is None:
        return ""
    unconfirmed = since_ns is not None and newer.start_ns <= since_ns
    end = f": if a majority elected {newer.node}, none confirmed its answer." if unconfirmed else "."
    believed = f"{node} still believed it led epoch {mine[-1].epoch}, {span_in_words(time_ns - newer.start_ns)}"
    return f"{believed} after {newer.node} had been elected for epoch {newer.epoch}{end}"


def epochs_without_leader(roles: Sequence[RoleSegment]) -> list[int]:
    """Return the epochs between the first and the last leader in which no node was seen to lead.  Returns none if there
    are more than UNLED_MOST: then an epoch does not stand for an election.
    """
    led = sorted({s.epoch for s in leaders(roles) if s.epoch >= 0})
    if not led or led[-1] - led[0] + 1 - len(led) > UNLED_MOST:
        return []
    return sorted({*range(led[0], led[-1])}.difference(led))


def _leading(time_ns: int, roles: Sequence[RoleSegment]) -> list[RoleSegment]:
    return [s for s in leaders(roles) if s.start_ns <= time_ns <= s.end_ns]
