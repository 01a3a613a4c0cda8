"""The monotonic clocks of a run, as test.json describes them.

Times of the history are the harness' own.  Nodes of one machine share its clock, so a time in a trace can be compared
with a time in the history.  Nodes that are other machines have clocks of their own.  The harness measured how far each
is ahead, with a bound of the error (`clocks` in test.json), so that rows of nodes can be shown at about the right
place.  No violation may follow from such a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkers.base.json_file import mapping, number

BACKENDS_OF_ONE_MACHINE = frozenset({"docker", "namespaces", "in-process"})
UNBOUNDED_NS = 2**62
"""The error of a clock that was not measured: more than any run lasts."""


def one_clock(test: Mapping[str, Any]) -> bool:
    """Whether all nodes share the harness' clock.  test: the content of test.json."""
    return mapping(test.get("spec")).get("backend") in BACKENDS_OF_ONE_MACHINE


def started_on(test: Mapping[str, Any]) -> Callable[[str], int]:
    """Node -> when the test began, in ns of the node's own clock; 0 where test.json does not say when it began."""
    started_ns = max(number(test.get("started_monotonic_ns"), 0), 0)
    ahead_ns = {node: number(mapping(clock).get("ahead_ns"), 0) for node, clock in mapping(test.get("clocks")).items()}
    return lambda node: started_ns + ahead_ns.get(node, 0)


def error_ns(test: Mapping[str, Any], node: str) -> int:
    """The largest error of a time of this node on the axis of the history."""
    if one_clock(test):
        return 0
    return max(number(mapping(mapping(test.get("clocks")).get(node)).get("error_ns"), UNBOUNDED_NS), 0)
