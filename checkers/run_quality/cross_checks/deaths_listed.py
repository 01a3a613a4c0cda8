"""Checks that the deaths of outcome.json agree with what faults and traces show of the server processes.

`nodes-stay-up` judges only the deaths that outcome.json lists, so it cannot notice a death that is missing there.  Two
other records must therefore agree with the list:

* If a fault measured a server as dead, the list must have a death of this server before the end of that fault's heal.
* A trace has a row `start` for each life of its process.  Each life but the last must have a death in the list.

An ordered death is no violation, so it needs an order.  Servers are ended by faults, and in the phase of collection.
A fault that failed may have ended one later on.  So only faults that were in force bind the death to their time.
"""

from __future__ import annotations

from checkers.base.clocks import error_ns
from checkers.base.run_evidence import read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.record.faults import FaultRecord
from checkers.record.outcome import Death
from checkers.run_quality.faults_installed import INSTALLED, achieved

DEAD = "dead"
_LATE_NS = 5_000_000_000
"""An end may be noticed so long after the heal of the fault that ordered it, or be noted so long before its order."""


def not_listed(run: StoredRun) -> list[str]:
    """One sentence for each death that must have happened and that outcome.json does not list.  Raises BrokenFile."""
    listed: dict[str, list[int]] = {}
    for death in _ends(run):
        listed.setdefault(death.node, []).append(death.time_ns)
    clauses = []
    for fault in run.record.faults:
        for node in sorted(_measured_dead(fault)):
            if not any(at_ns <= fault.end_ns(at_ns) for at_ns in listed.get(node, ())):
                clauses.append(
                    f"fault {fault.card.number} measured {node} as dead, and outcome.json lists no death of it before "
                    "the heal"
                )
    for node, path in node_files(run.trace).items():
        lives = len(read_trace(path, ("start",), ("seq",)))
        ends = len(listed.get(node, ()))
        if lives - 1 > ends:
            clauses.append(f"the trace of {node} shows {lives} starts, and outcome.json lists {ends} of its deaths")
    return clauses


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
                f"outcome.json lists an ordered death of {node} at {at_ns / 1e9:.1f} s, and no fault ended {node} then"
            )
    return clauses


def _ends(run: StoredRun) -> list[Death]:
    """The deaths of processes; a complaint in a node's log has no time."""
    deaths = run.record.outcome.known_deaths if run.record.outcome is not None else ()
    return [death for death in deaths if death.time_ns >= 0]


def _ordered(fault: FaultRecord, node: str, at_ns: int, slack_ns: int) -> bool:
    """Whether this fault may have ended the node's server at that time."""
    if not fault.may_end(node):
        return False
    if not fault.carried_out or not fault.healed or achieved(fault).word != INSTALLED:
        return True
    return fault.began_ns - slack_ns <= at_ns <= fault.healed_ns + slack_ns


def _measured_dead(fault: FaultRecord) -> set[str]:
    shown = (item for measurement in fault.measurements for item in measurement.states.items())
    return {node for node, state in shown if state == DEAD and node in fault.nodes}
