"""The monotonic clocks of a run, as test.json describes them.

The harness reads the times of the history from its own clock.  Nodes on the same machine share this clock, so a time in
a trace can be compared with a time in the history.  Nodes on other machines have other clocks.  The harness measures
how far each clock is ahead, and a bound of the error (`clocks` in test.json).  So the report can show a node's rows at
about the right place.  No violation may follow from such a comparison.

The backend determines whether nodes share that clock, and test.json records it as `nodes_clock`.  Without test.json,
the nodes of a run count as having clocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from checkers.record.header import Header

NodesClock = Literal["same kernel", "same machine", "own"]
"""Owner of the nodes' monotonic clock.  same kernel: certainly the harness.  same machine: the harness too, unless the
container engine runs in a virtual machine.  own: every node has a clock of its own."""
_BEFORE_IT_WAS_RECORDED: Mapping[str, NodesClock] = {
    "docker": "same machine",
    "namespaces": "same kernel",
    "in-process": "same kernel",
}
"""Backend -> the clock of its nodes, for runs whose test.json does not record it.  No backend is ever added here."""
UNBOUNDED_NS = 2**62
"""Error of a clock that the harness did not measure, longer than any run."""


def nodes_clock(header: Header | None) -> NodesClock:
    """Return the owner of the clock of this run's nodes; "own" where that is not known."""
    if header is None:
        return "own"
    recorded = header.nodes_clock
    if recorded is None:
        recorded = _BEFORE_IT_WAS_RECORDED.get(str(header.spec.get("backend")))
    return next((clock for clock in get_args(NodesClock) if clock == recorded), "own")


def one_clock(header: Header | None) -> bool:
    """Return whether all nodes share the harness' clock."""
    return nodes_clock(header) != "own"


def one_kernel(header: Header | None) -> bool:
    """Return whether all nodes certainly run on the harness' kernel, so that its clock is theirs."""
    return nodes_clock(header) == "same kernel"


def started_on(header: Header | None) -> Callable[[str], int]:
    """Return a function from a node to the start of the test, in ns of the node's own clock.

    If test.json does not record the start, it counts as 0 on the clock of the harness.
    """
    if header is None:
        return lambda _: 0
    started_ns = max(header.started_monotonic_ns, 0)
    ahead_ns = {node: clock.ahead_ns for node, clock in header.clocks.items()}
    return lambda node: started_ns + ahead_ns.get(node, 0)


def error_ns(header: Header | None, node: str) -> int:
    """Return the maximum error, in ns, of a time of this node when it is shown as a time of the history."""
    if one_clock(header):
        return 0
    clock = header.clocks.get(node) if header is not None else None
    return max(clock.error_ns, 0) if clock is not None else UNBOUNDED_NS
