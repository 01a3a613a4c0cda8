"""The interface of a checker.  A checker is a value: it names its needs, splits a run, judges parts, combines findings.

    run folder --split--> parts --judge (pure, in a Spark worker or in process)--> findings --combine--> Verdict

A part names files and a slice of them.  `judge` opens the files itself, so no row passes through the JVM.  The same
`judge` runs in process and on Spark, and its findings are equal bit for bit.  If the budget of a part runs out, `judge`
raises nothing: its finding states what is unknown, and the other parts are judged as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from checkers.base.verdict import Verdict

if TYPE_CHECKING:  # it imports pyarrow, which a check of a small text does not need
    from checkers.base.stored_run import StoredRun

Need = Literal[
    "history",
    "logs",
    "traces",
    "nodes",
    "model",
    "unique-values",
    "client-records",
    "kraft-records",
    "kraft-steps",
    "topic-logs",
    "two-implementations",
]
"""What a checker needs.

history: the operations of clients.
logs, traces: files that the servers wrote.
nodes: server processes that faults act on.
model: the workload names this checker, because no other checker understands its histories.
unique-values: the workload writes no value twice to a key.
client-records: the logs hold what clients write, and not the decisions of controllers alone.
topic-logs: copies of the logs of topics, with the checkpoint files beside them.
two-implementations: the subject compares what two implementations of one format wrote or read.
kraft-steps: logs and traces of the bundled KRaft.  Its protocol must know a cause for each record and each row.
"""


Ground = Literal["times", "answerers"]
"""What a violation may rest on besides its rows.

times: when operations were invoked and answered, beside the times of the servers' traces.
answerers: which server gave an answer.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One unit of work: the files to open, and parameters.  It is small and picklable, and it holds no rows."""

    paths: tuple[str, ...]
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one part.

    steps, size_bytes: the kernel counts both itself, so a history gets the same verdict on every machine.
    wall_s: a last limit in seconds.  A part that takes longer is unknown, and that may depend on the machine
    (`judging/tasks.py`).
    """

    steps: int = 200_000_000
    size_bytes: int = 2_000_000_000
    wall_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Checker:
    """One checker.

    name: as in results.json.  title: as in the report.  question: what the checker decides, one sentence for readers.
    split: run -> parts.  judge: part and its budget -> finding.  combine: run and findings, in the order of parts.
    needs: the checker does not judge a run that lacks one of these (`checkers.catalog.select`), nor one whose nodes
    delivered none of the logs or traces that it needs (`run_evidence.not_judged`): then `combine` is not called.
    rests_on: grounds of its violations.  Where a run proves one of them wrong, they are unknown.
    about_the_run: it judges the test itself, and may be valid though its figures are zero.
    in_process: its code stands in a user's own file, which workers of Spark have not got.

    Raises ValueError for a need that nothing offers.
    """

    name: str
    title: str
    question: str
    split: Callable[[StoredRun], Sequence[Part]]
    judge: Callable[[Part, Budget], Any]
    combine: Callable[[StoredRun, Sequence[Any]], Verdict]
    needs: frozenset[Need] = frozenset({"history"})
    rests_on: frozenset[Ground] = frozenset()
    about_the_run: bool = False
    in_process: bool = False

    def __post_init__(self) -> None:
        known = get_args(Need)
        if unknown := sorted(set(self.needs) - set(known)):
            words = f"(known: {', '.join(known)})"
            raise ValueError(f"checker {self.name} needs {unknown[0]!r}, which nothing offers {words}")
