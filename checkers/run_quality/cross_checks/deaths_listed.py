"""Checks that the deaths of the journal agree with what faults and traces show of the server processes.

`nodes-stay-up` judges only the deaths that the journal lists, so it cannot notice a death that is missing there.  Two
other records must therefore agree with the list:

* If a fault measured a server as dead, the list must have a death of this server before the end of that fault's heal.
* A trace has a row `start` for each life of its process.  Each life but the last must have a death in the list.

The time of a death is held against both, too.  An agent notes the end of a process after it ended and before it starts
the next one.  So a death lies between the last row of a life and the first row of the next one, and in no life.  The
process must have been dead when it was first measured so, and when its disk was copied as that of a dead one.  Rows and
deaths have the times of the same clock, that of the node.  Measurements and copies have those of the harness.

An ordered death is no violation, so it needs an order.  Servers are ended by faults, and in the phase of collection.
A fault that failed may have ended one later on.  So only faults that were in force bind the death to their time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from checkers.base.clocks import error_ns, one_clock
from checkers.base.run_evidence import numbers, read_table, read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.record.faults import FaultRecord
from checkers.record.outcome import Death
from checkers.run_quality.faults_installed import INSTALLED, achieved

DEAD = "dead"
_LATE_NS = 5_000_000_000
"""An end may be noticed so long after the heal of the fault that ordered it, or be noted so long before its order."""
_NOTED_NS = 1_000_000_000
"""A process that was measured dead ended at most so long after that: its agent notes the end in the same moment."""


def not_listed(run: StoredRun) -> list[str]:
    """One sentence for each death that must have happened and that the journal does not list.  Raises BrokenFile."""
    listed: dict[str, list[int]] = {}
    for death in _ends(run):
        listed.setdefault(death.node, []).append(death.time_ns)
    clauses = []
    for fault in run.record.faults:
        for node in sorted(_measured_dead(fault)):
            if not any(at_ns <= fault.end_ns(at_ns) for at_ns in listed.get(node, ())):
                clauses.append(
                    f"fault {fault.card.number} measured {node} as dead, and the journal lists no death of it before "
                    "the heal"
                )
    for node, path in node_files(run.trace).items():
        lives = len(read_trace(path, ("start",), ("seq",)))
        ends = len(listed.get(node, ()))
        if lives - 1 > ends:
            clauses.append(f"the trace of {node} shows {lives} starts, and the journal lists {ends} of its deaths")
    return clauses


def at_another_time(run: StoredRun) -> list[str]:
    """One sentence for each death whose time contradicts traces, measurements or copies, or that these show and that
    is not listed at its time.  Empty if nodes and harness have different clocks.  Raises BrokenFile."""
    ends: dict[str, list[int]] = {}
    for death in _ends(run):
        ends.setdefault(death.node, []).append(death.time_ns)
    last_ns = max((phase.end_ns for phase in run.outcome.phases), default=-1)
    out_of_run = any(at_ns < 0 or at_ns > last_ns + _LATE_NS for times in ends.values() for at_ns in times)
    if not one_clock(run.header) or last_ns < 0:
        return []
    clauses = []
    for node, path in node_files(run.trace).items() if run.demands.traces else ():
        clauses += _in_lives(node, _lives(path), sorted(ends.get(node, ())))
    if out_of_run:  # the nodes may run in a virtual machine with a clock of its own
        return clauses
    return clauses + _measured_before(run, ends) + _copied_before(run, ends)


class _Life(NamedTuple):
    """The times of the first and the last row of one process."""

    first_ns: int
    last_ns: int


def _lives(trace: str) -> list[_Life]:
    """The lives of a node's processes by its trace, in order."""
    rows = read_table(trace, ("incarnation", "time_ns"))
    incarnation, time_ns = numbers(rows, "incarnation"), numbers(rows, "time_ns")
    return [
        _Life(int(of_one.min()), int(of_one.max()))
        for of_one in (time_ns[incarnation == number] for number in np.unique(incarnation))
    ]


def _in_lives(node: str, lives: list[_Life], ends: list[int]) -> list[str]:
    clauses = []
    for at_ns in ends:
        if any(life.first_ns < at_ns < life.last_ns for life in lives):
            words = f"the journal lists a death of {node} at {at_ns / 1e9:.3f} s"
            clauses.append(f"{words}, and the trace of that process goes on")
    for life, following in pairwise(lives):
        if not any(life.last_ns <= at_ns <= following.first_ns for at_ns in ends):
            between = f"between {life.last_ns / 1e9:.3f} and {following.first_ns / 1e9:.3f} s"
            clauses.append(f"the trace of {node} shows that a process ended {between}, and the journal lists no death")
    return clauses


def _measured_before(run: StoredRun, ends: dict[str, list[int]]) -> list[str]:
    clauses = []
    for fault in run.record.faults:
        for node in sorted(_measured_dead(fault)) if not fault.hits_one_process else ():
            first_ns = min(m.to_ns for m in fault.measured if m.states.get(node) == DEAD)
            if not any(at_ns <= first_ns + _NOTED_NS for at_ns in ends.get(node, ())):
                clauses.append(
                    f"fault {fault.card.number} measured {node} as dead at {first_ns / 1e9:.3f} s, and the journal "
                    "lists no death of it before"
                )
    return clauses


def _copied_before(run: StoredRun, ends: dict[str, list[int]]) -> list[str]:
    return [
        f"copy {copy.copy} of {copy.node} found its process dead at {copy.taken_ns / 1e9:.3f} s, and the journal "
        "lists no death of it before"
        for copy in run.copies_index
        if copy.state == DEAD and copy.taken_ns >= 0
        if not any(at_ns <= copy.taken_ns + _NOTED_NS for at_ns in ends.get(copy.node, ()))
    ]


def without_order(run: StoredRun) -> list[str]:
    """One sentence for each death that is listed as ordered, and that neither a fault nor the collection ordered.

    Empty if the run did not come to the collection: then its servers are ended at any time.  Raises BrokenFile."""
    phases = run.record.outcome.phases if run.record.outcome is not None else ()
    collected_ns = next((phase.start_ns for phase in phases if phase.name == "collection"), -1)
    if collected_ns < 0:
        return []
    clauses = []
    for death in (death for death in _ends(run) if death.ordered):
        node, at_ns = death.node, death.time_ns
        slack_ns = _LATE_NS + error_ns(run.header, node)
        if at_ns < collected_ns - slack_ns and not any(_ordered(f, node, at_ns, slack_ns) for f in run.record.faults):
            clauses.append(
                f"the journal lists an ordered death of {node} at {at_ns / 1e9:.1f} s, and no fault ended {node} then"
            )
    return clauses


def _ends(run: StoredRun) -> list[Death]:
    """The deaths of processes; a complaint in a node's log has no time."""
    deaths = run.record.outcome.deaths if run.record.outcome is not None else ()
    return [death for death in deaths if death.time_ns >= 0]


def _ordered(fault: FaultRecord, node: str, at_ns: int, slack_ns: int) -> bool:
    """Whether this fault may have ended the node's server at that time."""
    if not fault.may_end(node):
        return False
    if not fault.carried_out or not fault.healed or achieved(fault).word != INSTALLED:
        return True
    return fault.began_ns - slack_ns <= at_ns <= fault.healed_ns + slack_ns


def _measured_dead(fault: FaultRecord) -> set[str]:
    shown = (item for measurement in fault.measured for item in measurement.states.items())
    return {node for node, state in shown if state == DEAD and node in fault.nodes}
