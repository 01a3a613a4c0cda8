"""Judges what nodes report about themselves: who leads which epoch, and that no epoch goes back.

The harness asks every node for its `status` a few times a second, and keeps each change of a report with the time until
which it stood.  The answers are the system's own statements, and two of them may contradict each other:

- Two nodes report that each leads one epoch.  An epoch counts elections, so it has one leader at most.
- A node reports a lower epoch than before, in one life of its server and with the same disk.  Another disk excuses it
  only if a fault took the one before.

Nothing is compared by time: a node that was cut off may rightly take itself for the leader of an older epoch.  A status
may be composed of two readings, and an election may come between them.  So a report that stood for a single look
violates nothing alone; it leaves the verdict unknown.  The same is true of an epoch that is lower after the server was
started again: the node may not know it yet.

Where no node counts elections (`elections = False`), an epoch has no meaning, and nothing is judged.

*Figures.*  Who led when is computed from clocks of one machine.  It is shown, and never decides a violation.
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
    """Return every leader that the harness saw, or that reported in its trace that it leads, in order of time.

    If nodes have clocks of their own, traces are left out, because the clock of the harness times the faults."""
    seen = {(leader.node, leader.epoch): leader.time_ns for leader in run.outcome.leaders}
    for path in node_files(run.trace).values() if one_clock(run.header) else ():
        for row in read_trace(path, ("role",), ("node", "epoch", "time_ns", "role")).to_pylist():
            if row["role"] == "leader":
                name = (row["node"], row["epoch"])
                seen[name] = min(row["time_ns"], seen.get(name, row["time_ns"]))
    return sorted((time_ns, node, epoch) for (node, epoch), time_ns in seen.items())


@dataclass(frozen=True, slots=True)
class ElectionsInFaults:
    """calling: faults that call for an election.  won: how many of them saw one won.
    long: of those that call for one, how many held long enough for it.
    late: of the others, (how long it took until another leader was seen, how long the fault held), in seconds."""

    calling: int = 0
    won: int = 0
    late: tuple[tuple[float, float], ...] = ()
    long: int = 0


def under_faults(
    installed: Sequence[FaultRecord], led: Sequence[Leader], servers: Sequence[str], long_ns: int = 0
) -> ElectionsInFaults:
    """Return the elections that fell into faults, and those that came too late for them.

    servers: those that vote.
    long_ns: a fault that holds for less ends before a new leader can be elected, so it demands none.

    A fault calls for an election if it takes the current leader from its majority and leaves a majority to another
    server.  Only a server that reaches a majority under the fault can win.  Others may report any epoch: a server that
    was cut off takes itself for the leader, and a status may show a number that grows without an election.
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
    """[from, to) in ns since the test began.  An order to inject may take effect before it returns, and so may an order
    to heal."""
    return fault.began_ns, fault.heal_ordered_ns if fault.heal_ordered_ns >= 0 else int(np.iinfo(np.int64).max)


def deposed_leaders(run: StoredRun) -> list[tuple[str, int, int]] | None:
    """Return when a node led by its own trace while another one led a higher epoch: (node, begin_ns, end_ns).

    None without traces."""
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
"""Consecutive looks that must see a report: one seen once may mix two moments."""


def _stood(report: Report) -> bool:
    return report.looks >= LOOKS_LEAST


def _words(report: Report) -> str:
    named = f"{report.leader} leads" if report.leader else "no leader is known"
    says = "it leads" if report.role == LEADER else named
    span = f"from {report.time_ns / 1e9:.1f} to {report.until_ns / 1e9:.1f} s"
    return f"{report.node}: {says} epoch {report.epoch}, {span}"


def two_leaders(reports: Iterable[Report]) -> Iterator[tuple[Report, Report]]:
    """The pairs of reports in which two nodes claim to lead one epoch: for each epoch and pair of nodes the one that
    stood longest of each."""
    longest: dict[int, dict[str, Report]] = {}
    for report in reports:
        if report.role == LEADER:
            of_epoch = longest.setdefault(report.epoch, {})
            if report.node not in of_epoch or report.looks > of_epoch[report.node].looks:
                of_epoch[report.node] = report
    for of_epoch in longest.values():
        yield from pairwise(sorted(of_epoch.values(), key=lambda report: report.time_ns))


def went_back(reports: Iterable[Report], faults: Sequence[FaultRecord] = ()) -> Iterator[tuple[Report, Report]]:
    """The pairs of one node: a report, and the next one if its epoch is lower.

    Not where both name disks that differ, and a fault had taken the first disk."""
    before: dict[str, Report] = {}
    for report in reports:
        last = before.get(report.node)
        if last is not None and report.epoch < last.epoch:
            replaced = last.disk and report.disk and last.disk != report.disk
            if not replaced or not _disk_was_taken(faults, last, report):
                yield last, report
        before[report.node] = report


def _disk_was_taken(faults: Sequence[FaultRecord], before: Report, after: Report) -> bool:
    """Return whether a fault that wipes or damages this node's disk was in force between the two reports, or may have
    been."""
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
        return Verdict(Validity.UNKNOWN, {"reports": 0}, "no node reported anything of itself")
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
    return f"{_words(one)}; and {_words(other)}: one of these reports stood for a single look"


def _against(kind: str, one: Report, other: Report, summary: str, expected: str) -> Witness:
    both: dict[str, Any] = {"reports": [asdict(one), asdict(other)], "why": [_words(one), _words(other)]}
    return Witness.of(kind, summary, nodes=[one.node, other.node], epoch=other.epoch, expected=expected, **both)


def _started_between(run: StoredRun, before: Report, after: Report) -> bool:
    """Return whether the server of the node ended since the report before, or may have."""
    ends = (death.time_ns for death in run.outcome.deaths if death.node == after.node)
    return any(before.time_ns <= end <= after.time_ns for end in ends)


def _never_changed(run: StoredRun, reports: Sequence[Report]) -> list[str]:
    """A status that stays the same while faults take the leader away says nothing of who leads."""
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
