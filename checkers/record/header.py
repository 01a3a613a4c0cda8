"""The header of a run, `test.json`: what was run, by which versions, and since when.

The harness writes it before the run begins, and again whenever it learns more: the clocks, and the cards it dealt.

*Clocks.*  The harness reads the times of the history from its own clock.  Nodes on the same machine share this clock,
so a time in a trace can be compared with a time in the history.  Nodes on other machines have other clocks.  The
harness measures how far each clock is ahead, and a bound of the error (`clocks` in test.json).  So the report can show
a node's rows at about the right place.  No violation may follow from such a comparison.

The backend determines whether nodes share that clock, and test.json records it as `nodes_clock`.  Without test.json,
the nodes of a run count as having clocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from checkers.record.faults import AT_TIMES, Card


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The monotonic clock of a node is ahead of the harness' own by ahead_ns, give or take error_ns."""

    ahead_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class Revision:
    """revision: of this repository, "" outside of one.  dirty: whether files differ from it."""

    revision: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """The content of test.json.

    format: of the run folder (`journal.FORMAT`).
    run_id: unique among runs of one machine.  test: name of the test, and of the folder above the run's.
    started_utc: in ISO 8601.  started_monotonic_ns: when the test began, by the monotonic clock of the harness.
    spec: what was to be run, every option by its name.  rerun: the shell command that runs it again.
    clocks: node -> its clock, for nodes that do not share the harness' own.
    schedule, main_began_ns: the cards that were dealt, and the begin of the main phase; None and -1 before it.
    nodes_clock: whose clock the nodes have, one of NodesClock.  None: not known.
    programs: path on the nodes -> SHA-256 of each program that was built for this run.
    """

    spec: Mapping[str, Any]
    run_id: str = ""
    started_monotonic_ns: int = 0
    format: int = 0
    clocks: Mapping[str, ClockOffset] = field(default_factory=dict)
    schedule: tuple[Card, ...] | None = field(default=None, metadata=AT_TIMES)
    main_began_ns: int = field(default=-1, metadata=AT_TIMES)
    test: str = field(default="", metadata=AT_TIMES)
    started_utc: str = field(default="", metadata=AT_TIMES)
    seed: int | None = field(default=None, metadata=AT_TIMES)
    rerun: str = field(default="", metadata=AT_TIMES)
    versions: Mapping[str, str] = field(default_factory=dict, metadata=AT_TIMES)
    git: Revision = field(default=Revision(), metadata=AT_TIMES)
    backend_notes: tuple[str, ...] = field(default=(), metadata=AT_TIMES)
    nodes_clock: str | None = field(default=None, metadata=AT_TIMES)
    programs: Mapping[str, str] = field(default_factory=dict, metadata=AT_TIMES)


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
