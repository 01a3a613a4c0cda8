"""Judges the reports of nodes about themselves: each epoch has at most one leader, and no epoch goes back.

The harness requests the `status` of every node a few times a second, and records each change of a report with the time
until which the report stayed the same.  The reports are the system's own statements, and two of them may contradict
each other:

- Two nodes report that they lead the same epoch.  An epoch counts elections, so it has at most one leader.
- A node reports a lower epoch than before, in one incarnation of its server and with the same disk.  A different disk
  is an excuse only if a fault wiped or damaged the earlier disk.

Reports are not compared by time, because a node that was cut off may rightly report that it leads an older epoch.  A
status may be composed of two readings with an election between them.  So a report that was observed only once makes the
verdict unknown instead of invalid.  The same is true of an epoch that is lower after a restart of the server, because
the node may not know the current epoch yet.

If no node counts elections (`elections = False`), an epoch has no meaning, and nothing is judged.

*Figures.*  The times of leadership are computed from clocks of one machine.  They are shown, but never decide a
violation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from checkers.base.checker import checker_of_run
from checkers.base.stored_rows import read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import Report, one_clock
from checkers.run_quality.faults_installed import INSTALLED, achieved
from checkers.run_quality.minimums import END_OF_TIME, with_majority

Leader = tuple[int, str, int]
"""(time in ns since the test began, node, epoch)."""

_NONE = -1


def leaders(run: StoredRun) -> list[Leader]:
    """Return every leader that the harness saw, or that reported in its trace that it led, in order of time.

    Traces are left out if nodes have their own clocks, because the times of faults are from the harness' clock."""
    seen = {(leader.node, leader.epoch): leader.time_ns for leader in run.outcome.leaders}
    for path in node_files(run.trace).values() if one_clock(run.header) else ():
        for row in read_trace(path, ("role",), ("node", "epoch", "time_ns", "role")).to_pylist():
            if row["role"] == "leader":
                name = (row["node"], row["epoch"])
                seen[name] = min(row["time_ns"], seen.get(name, row["time_ns"]))
    return sorted((time_ns, node, epoch) for (node, epoch), time_ns in seen.items())


@dataclass(frozen=True, slots=True)
class ElectionsInFaults:
    """Elections during faults.

    calling: number of faults that require an election
    won: number of these faults during which an election was won
    long: number of faults in `calling` that were in force long enough for an election
    late: for the other faults, (seconds until another leader was seen, seconds that the fault was in force)"""

    calling: int = 0
    won: int = 0
    late: tuple[tuple[float, float], ...] = ()
    long: int = 0


def under_faults(
    installed: Sequence[FaultRecord], led: Sequence[Leader], servers: Sequence[str], long_ns: int = 0
) -> ElectionsInFaults:
    """Return the elections that were won during faults, and the elections that came too late.

    servers: the servers that vote
    long_ns: minimum duration in ns of a fault that demands an election; a shorter fault ends before a new leader can be
        elected

    A fault requires an election if it separates the current leader from its majority and another server still reaches a
    majority.  Only a server that reaches a majority under the fault can win.  Other servers may report any epoch: a
    server that was cut off may still report that it leads, and the number in a status may grow without an election.
    """
    calling = won = long = 0
    late: list[tuple[float, float]] = []
    for fault in installed:
        begin, end = _in_force(fault)
        before = [(epoch, node) for time_ns, node, epoch in led if time_ns < begin]
        leader = fault.leader or (max(before)[1] if before else None)
        ended = {node for node, state in fault.ordered.held.states.items() if state != "running"}
        able = with_majority(servers, ended, set(fault.cut))
        if leader is None or leader in able or not able:
            continue
        calling += 1
        long += end - begin >= long_ns
        known = max((epoch for epoch, _ in before), default=_NONE)
        if any(begin <= at_ns < end and epoch > known and node in able for at_ns, node, epoch in led):
            won += 1
        elif after := [at_ns for at_ns, _, epoch in led if at_ns >= end and epoch > known]:
            late.append(((min(after) - begin) / 1e9, (end - begin) / 1e9))
    return ElectionsInFaults(calling, won, tuple(late), long)


def _in_force(fault: FaultRecord) -> tuple[int, int]:
    """Return the [from, to) of a fault in ns since the test began.

    An order to inject may take effect before it returns, and so may an order to heal."""
    return fault.began_ns, fault.heal_ordered_ns if fault.heal_ordered_ns >= 0 else int(np.iinfo(np.int64).max)


def deposed_leaders(run: StoredRun) -> list[tuple[str, int, int]] | None:
    """Return (node, begin_ns, end_ns) of each time in which a node led, by its trace, while another led a higher epoch.

    Returns None if there are no traces."""
    columns = ("node", "epoch", "time_ns", "role")
    tables = [read_trace(path, ("role", "start"), columns) for path in node_files(run.trace).values()]
    changes = [row for table in tables for row in table.to_pylist()]
    if not changes:
        return None
    changes.sort(key=lambda row: (row["time_ns"], row["seq"]))
    led: dict[str, int] = {}
    since: dict[str, int] = {}
    found, highest = list[tuple[str, int, int]](), _NONE
    for time_ns, together in groupby(changes, lambda row: row["time_ns"]):
        for row in together:
            led[row["node"]] = row["epoch"] if row["role"] == "leader" else _NONE
            highest = max(highest, led[row["node"]])
        deposed = {node for node, epoch in led.items() if _NONE < epoch < highest}
        found += [(node, since.pop(node), time_ns) for node in since.keys() - deposed]
        since.update(dict.fromkeys(deposed - since.keys(), time_ns))
    return found + [(node, begin_ns, END_OF_TIME) for node, begin_ns in since.items()]


TWO_LEADERS = "two leaders of one epoch"
EPOCH_WENT_BACK = "an epoch that went back"
LEADER = "leader"
LOOKS_LEAST = 2
"""Minimum number of consecutive looks that must see a report.  A report seen once may mix two moments."""


def _stood(report: Report) -> bool:
    return report.looks >= LOOKS_LEAST


def _words(report: Report) -> str:
    named = f"{report.leader} leads" if report.leader else "no leader is known"
    says = "it leads" if report.role == LEADER else named
    span = f"from {report.time_ns / 1e9:.1f} to {report.until_ns / 1e9:.1f} s"
    return f"{report.node}: {says} epoch {report.epoch}, {span}"


def two_leaders(reports: Iterable[Report]) -> Iterator[tuple[Report, Report]]:
    """Yield pairs of reports in which two nodes report that they lead the same epoch.

    For each epoch and pair of nodes, each node's longest report is chosen."""
    longest: dict[int, dict[str, Report]] = {}
    for report in reports:
        if report.role == LEADER:
            of_epoch = longest.setdefault(report.epoch, {})
            if report.node not in of_epoch or report.looks > of_epoch[report.node].looks:
                of_epoch[report.node] = report
    for of_epoch in longest.values():
        yield from pairwise(sorted(of_epoch.values(), key=lambda report: report.time_ns))


def went_back(reports: Iterable[Report], faults: Sequence[FaultRecord] = ()) -> Iterator[tuple[Report, Report]]:
    """Yield pairs of consecutive reports of one node of which the second has a lower epoch.

    A pair is skipped if its reports name different disks and a fault had wiped or damaged the first disk."""
    before: dict[str, Report] = {}
    for report in reports:
        last = before.get(report.node)
        if last is not None and report.epoch < last.epoch:
            replaced = last.disk and report.disk and last.disk != report.disk
            if not replaced or not _disk_was_taken(faults, last, report):
                yield last, report
        before[report.node] = report


def _disk_was_taken(faults: Sequence[FaultRecord], before: Report, after: Report) -> bool:
    """Return True if a fault that wipes or damages the node's disk may have been in force between the two reports."""
    return any(
        after.node in fault.nodes
        and (
            (fault.wipes_disks and fault.in_force(before.time_ns, after.time_ns))
            or (fault.damages_data and fault.carried_out and fault.began_ns <= after.time_ns)
        )
        for fault in faults
    )


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    if run.outcome.reports is None:
        return Verdict(Validity.NOT_APPLICABLE, reason="no report of a node was kept")
    if not run.demands.elections:
        return Verdict(Validity.NOT_APPLICABLE, reason="the epochs of this system count no elections")
    reports = sorted(run.outcome.reports, key=lambda report: report.time_ns)
    if not reports:
        return Verdict(Validity.UNKNOWN, {"reports": 0}, "no node reported anything about itself")
    witnesses, doubts = [], []
    for one, other in two_leaders(reports):
        if _stood(one) and _stood(other):
            summary = f"{one.node} and {other.node} both reported that they lead epoch {one.epoch}"
            expected = "one leader of an epoch; if its number does not count elections, state `elections = False`"
            witnesses.append(_against(TWO_LEADERS, one, other, summary, expected))
        else:
            doubts.append(_single(one, other))
    for before, after in went_back(reports, run.faults):
        if _started_between(run, before, after):
            words = "after its server was started again: let `status` return None until the node knows its epoch"
            doubts.append(f"the epoch of {after.node} went back from {before.epoch} to {after.epoch} {words}")
        elif _stood(before) and _stood(after):
            summary = f"{after.node} reported epoch {before.epoch}, and then epoch {after.epoch}"
            expected = f"epoch {before.epoch} or a later one"
            witnesses.append(_against(EPOCH_WENT_BACK, before, after, summary, expected))
        else:
            doubts.append(_single(before, after))
    doubts += _never_changed(run, reports)
    looked_at = {
        "reports": len(reports),
        "nodes": len({report.node for report in reports}),
        "epochs led": len({report.epoch for report in reports if report.role == LEADER}),
    }
    return conclude(witnesses, looked_at, doubts)


def _single(one: Report, other: Report) -> str:
    return f"{_words(one)}; and {_words(other)}: one of these reports was seen only once"


def _against(kind: str, one: Report, other: Report, summary: str, expected: str) -> Witness:
    both: dict[str, Any] = {"reports": [asdict(one), asdict(other)], "why": [_words(one), _words(other)]}
    return Witness.of(kind, summary, nodes=[one.node, other.node], epoch=other.epoch, expected=expected, **both)


def _started_between(run: StoredRun, before: Report, after: Report) -> bool:
    """Return True if the server of the node ended between the two reports."""
    ends = (death.time_ns for death in run.outcome.deaths if death.node == after.node)
    return any(before.time_ns <= end <= after.time_ns for end in ends)


def _never_changed(run: StoredRun, reports: Sequence[Report]) -> list[str]:
    """Return a doubt if no status changed although faults separated the leader from its majority."""
    nodes = {report.node for report in reports}
    if len(reports) > len(nodes):
        return []
    installed = [fault for fault in run.faults if achieved(fault).word == INSTALLED]
    led = [(report.time_ns, report.node, report.epoch) for report in reports if report.role == LEADER]
    calling = under_faults(installed, led, run.voters).calling
    if not calling:
        return []
    faults = "1 fault" if calling == 1 else f"{calling} faults"
    return [f"no status changed in the whole run, although {faults} took the leader from its majority"]


LEADERSHIP = checker_of_run(
    "leadership",
    "Leadership",
    "Do the nodes report at most one leader of each epoch, and epochs that never decrease?",
    _combine,
    frozenset({"history", "nodes"}),
    about_the_run=False,
)
