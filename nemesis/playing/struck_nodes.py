"""Which nodes a card must leave alone while another fault is in force."""

from __future__ import annotations

from checkers.record.faults import MAY_DIE, Fault
from nemesis.cluster import PROCESSES
from nemesis.kind import Kind


def out_of_reach(kind: Kind, other: Kind, fault: Fault) -> frozenset[str]:
    """The nodes of a fault in force that a card of `kind` must not hit, or the one would undo or hide the other.

    Links can be cut around a server whose clock is wrong, but not around one that is down: it leads no server."""
    if PROCESSES in kind.needs:
        return frozenset(fault.nodes if PROCESSES in other.needs else ())
    return frozenset(fault.nodes if fault.settings.get(MAY_DIE) else other.orders(fault).held.states)


def isolated(fault: Fault) -> frozenset[str]:
    """The nodes that lose the most links to a fault that cuts links and names no node."""
    lost: dict[str, int] = {}
    for link in fault.cut:
        for end in link:
            lost[end] = lost.get(end, 0) + 1
    most = max(lost.values(), default=0)
    return frozenset(node for node, count in lost.items() if count == most and count > 1)
