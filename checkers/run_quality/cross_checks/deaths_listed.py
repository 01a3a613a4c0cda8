"""Checks that outcome.json lists every death of a server process that faults and traces show.

`nodes-stay-up` judges only the deaths that outcome.json lists, so it cannot notice a death that is missing there.  Two
other records must therefore agree with the list:

* If a fault measured a server as dead, the list must have a death of this server before the end of that fault's heal.
* A trace has a row `start` for each life of its process.  Each life but the last must have a death in the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.base.json_file import mapping, number, sequence
from checkers.base.run_evidence import read_trace
from checkers.base.stored_run import StoredRun, node_files

DEAD = "dead"


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


def _measured_dead(fault: Mapping[str, Any]) -> set[str]:
    nodes = set(map(str, sequence(fault.get("nodes"))))
    states = [mapping(mapping(measured).get("states")) for measured in sequence(fault.get("measured"))]
    return {node for each in states for node, state in each.items() if state == DEAD and node in nodes}
