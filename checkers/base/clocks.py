"""The monotonic clocks of a run, as test.json describes them.

The harness reads the times of the history from its own clock.  Nodes on the same machine share this clock, so a time in
a trace can be compared with a time in the history.  Nodes on other machines have other clocks.  The harness measures
how far each clock is ahead, and a bound of the error (`clocks` in test.json).  So the report can show a node's rows at
about the right place.  No violation may follow from such a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkers.base.json_file import mapping, number

BACKENDS_OF_ONE_MACHINE = frozenset({"docker", "namespaces", "in-process"})
BACKENDS_OF_ONE_KERNEL = frozenset({"namespaces", "in-process"})
"""Of those, the ones whose nodes run on the harness' kernel.  A Docker engine may run in a virtual machine."""
UNBOUNDED_NS = 2**62
"""The error of a clock that the harness did not measure: it is longer than any run."""


def one_clock(test: Mapping[str, Any]) -> bool:
    """Whether all nodes share the harness' clock.  test: the content of test.json."""
    return mapping(test.get("spec")).get("backend") in BACKENDS_OF_ONE_MACHINE


def one_kernel(test: Mapping[str, Any]) -> bool:
    """Whether all nodes certainly run on the harness' kernel, so that its clock is theirs."""
    return mapping(test.get("spec")).get("backend") in BACKENDS_OF_ONE_KERNEL


def started_on(test: Mapping[str, Any]) -> Callable[[str], int]:
    """Returns a function from a node to the start of the test, in ns of the node's own clock.

    If test.json does not record the start, it counts as 0 on the clock of the harness.
    """
    started_ns = max(number(test.get("started_monotonic_ns"), 0), 0)
    ahead_ns = {node: number(mapping(clock).get("ahead_ns"), 0) for node, clock in mapping(test.get("clocks")).items()}
    return lambda node: started_ns + ahead_ns.get(node, 0)


def error_ns(test: Mapping[str, Any], node: str) -> int:
    """The largest error, in ns, of a time of this node when it is shown as a time of the history."""
    if one_clock(test):
        return 0
    return max(number(mapping(mapping(test.get("clocks")).get(node)).get("error_ns"), UNBOUNDED_NS), 0)
