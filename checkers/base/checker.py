"""What a checker is: a value that names its needs, splits a run into parts, judges them and combines the findings.

    run folder --split--> parts --judge (pure, in a Spark worker or in process)--> findings --combine--> Verdict

A part names files and a slice of them; `judge` opens them itself, so that no row crosses the JVM.  The same
`judge` runs in process and on Spark and gives the same findings, bit for bit.  A budget that runs out inside
one part makes that part unknown, never the run, and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from checkers.base.verdict import Verdict

if TYPE_CHECKING:  # it imports pyarrow, which a check of a small text does not need
    from checkers.base.stored_run import StoredRun

Need = Literal["history", "logs", "traces", "nodes", "model", "unique-values", "kraft-steps"]
"""What a checker needs.

history: the operations of clients.  logs, traces: of the servers.  nodes: server processes that faults act on.  model:
the workload has to name this checker, because no other checker understands its histories.  unique-values: no value is
written twice to a key.  kraft-steps: logs and traces of the bundled KRaft, so that each record and each row needs a
cause that its protocol knows.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One unit of work: files to open and parameters; small, picklable, and with no row in it."""

    paths: tuple[str, ...]
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one part.

    steps, size_bytes: counted inside the kernel, so that a history has one verdict everywhere.
    wall_s: a backstop in seconds, outside that promise: a part that takes longer is unknown
    (`judging/wall_clock.py`).
    """

    steps: int = 200_000_000
    size_bytes: int = 2_000_000_000
    wall_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Checker:
    """name: as in results.json; title: as in the report; question: what it decides, one sentence for readers.

    judge's second argument is the budget of that part.  `combine` sees findings in the order of parts.
    needs: a run that lacks one of these is not judged by this checker (`checkers.catalog.select`).
    """

    name: str
    title: str
    question: str
    split: Callable[[StoredRun], Sequence[Part]]
    judge: Callable[[Part, Budget], Any]
    combine: Callable[[StoredRun, Sequence[Any]], Verdict]
    needs: frozenset[Need] = frozenset({"history"})
