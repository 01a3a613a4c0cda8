"""Checks that the deaths of outcome.json agree with what faults and traces show of the server processes.

`nodes-stay-up` judges only the deaths that outcome.json lists, so it cannot notice a death that is missing there.  Two
other records must therefore agree with the list:

* If a fault measured a server as dead, the list must have a death of this server before the end of that fault's heal.
* A trace has a row `start` for each life of its process.  Each life but the last must have a death in the list.

An ordered death is no violation, so it needs an order.  Servers are ended by faults, and in the phase of collection.
A fault that failed may have ended one later on.  So only faults that were in force bind the death to their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.base.clocks import error_ns
from checkers.base.json_file import mapping, number, real, sequence
from checkers.base.run_evidence import read_trace
from checkers.base.stored_run import StoredRun, node_files, was_ordered
from checkers.run_quality.announcements import MAY_ANNOUNCE, PROCESS_MARK
from checkers.run_quality.faults_installed import INSTALLED, achieved

DEAD = "dead"
ENDS_NO_SERVER = frozenset({"partition", "packets", "pause", "disk", "clock"})
"""Kinds of faults that never order a server to end."""

_LATE_NS = 5_000_000_000
"""An end may be noticed so long after the heal of the fault that ordered it, or be noted so long before its order."""


def not_listed(run: StoredRun) -> list[str]:
    """One sentence for each death that must have happened and that outcome.json does not list."""
    listed: dict[str, list[int]] = {}
    for death in map(mapping, sequence(run.outcome.get("deaths"))):
        if (at_ns := number(death.get("time_ns"), -1)) >= 0:  # a complaint in a node's log has no time
            listed.setdefault(str(death.get("node")), []).append(at_ns)
    clauses = []
    for fault in run.faults:
        healed_ns = number(fault.get("healed_ns"), -1)
        for node in sorted(_measured_dead(fault)):
            if not any(healed_ns < 0 or at_ns <= healed_ns for at_ns in listed.get(node, ())):
                named = f"fault {mapping(fault.get('card')).get('number')}"
                clauses.append(
                    f"{named} measured {node} as dead, and outcome.json lists no death of it before the heal"
                )
    for node, path in node_files(run.trace).items():
        lives = len(read_trace(path, ("start",), ("seq",)))
        if lives - 1 > len(listed.get(node, ())):
            ends = len(listed.get(node, ()))
            clauses.append(f"the trace of {node} shows {lives} starts, and outcome.json lists {ends} of its deaths")
    return clauses


def without_order(run: StoredRun) -> list[str]:
    """One sentence for each death that is listed as ordered, and that neither a fault nor the collection ordered.

    Empty if the run did not come to the collection: then its servers are ended at any time."""
    collected_ns = _collection_ns(run)
    if collected_ns < 0:
        return []
    clauses = []
    for death in map(mapping, sequence(run.outcome.get("deaths"))):
        node, at_ns = str(death.get("node")), number(death.get("time_ns"), -1)
        if at_ns < 0 or not was_ordered(death):
            continue
        slack_ns = _LATE_NS + error_ns(run.test, node)
        if at_ns < collected_ns - slack_ns and not any(_ordered(f, node, at_ns, slack_ns) for f in run.faults):
            clauses.append(
                f"outcome.json lists an ordered death of {node} at {at_ns / 1e9:.1f} s, and no fault ended {node} then"
            )
    return clauses


def _collection_ns(run: StoredRun) -> int:
    """When the collection began; -1 if it is not known."""
    phases = map(mapping, sequence(run.outcome.get("phases")))
    return next((number(p.get("start_ns"), -1) for p in phases if p.get("name") == "collection"), -1)


def _ordered(fault: Mapping[str, Any], node: str, at_ns: int, slack_ns: int) -> bool:
    """Whether this fault may have ended the node's server at that time."""
    kind, hits_one_process, _ = str(mapping(fault.get("card")).get("kind")).partition(PROCESS_MARK)
    if hits_one_process:
        return False
    if kind not in MAY_ANNOUNCE:
        return True  # a kind of one's own: it may end servers that it does not name
    if kind in ENDS_NO_SERVER or node not in sequence(fault.get("nodes")):
        return False
    injected_ns, healed_ns = number(fault.get("injected_ns"), -1), number(fault.get("healed_ns"), -1)
    if injected_ns < 0 or healed_ns < 0 or achieved(fault).word != INSTALLED:
        return True
    began_ns = injected_ns - int(max(real(fault.get("apply_ms"), 0.0), 0.0) * 1e6)
    return began_ns - slack_ns <= at_ns <= healed_ns + slack_ns


def _measured_dead(fault: Mapping[str, Any]) -> set[str]:
    nodes = set(map(str, sequence(fault.get("nodes"))))
    states = [mapping(mapping(measured).get("states")) for measured in sequence(fault.get("measured"))]
    return {node for each in states for node, state in each.items() if state == DEAD and node in nodes}
