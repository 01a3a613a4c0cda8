"""The header of a run, `test.json`: what was run, by which versions, and since when.

The harness writes it before the run begins, and again whenever it learns more: the clocks, and the cards it dealt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    nodes_clock: whose clock the nodes have (`base/clocks.py`).  None: not known.
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
