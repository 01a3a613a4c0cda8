"""What a checker is: a value that says which files it needs, what is judged apart, and how verdicts combine.

    run folder --split--> parts --judge (pure, in a Spark worker or in process)--> findings --combine--> Verdict

A part names files and a slice of them; `judge` opens them itself, so that no row crosses the JVM.  The same
`judge` runs in process and on Spark and gives the same findings, bit for bit.  A budget that runs out inside
one part makes that part unknown, never the run, and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where the sealed files of one run lie (see results/README.md)."""

    root: Path

    @property
    def history(self) -> Path:
        return self.root / "history.parquet"

    @property
    def buckets(self) -> Path:
        """Folder of `bucket-NNN.parquet`: the operations of the history's clients, split by key (`bucket.py`)."""
        return self.root / "buckets"

    @property
    def log(self) -> Path:
        """Folder of `<node>.parquet` (schema LOG: all copies of one node, copies ascending, then offsets)."""
        return self.root / "tables" / "log"

    @property
    def trace(self) -> Path:
        """Folder of `<node>.parquet` (schema TRACE, in seq order)."""
        return self.root / "tables" / "trace"

    @property
    def copies(self) -> Path:
        return self.root / "tables" / "copies.parquet"

    @property
    def test(self) -> Path:
        return self.root / "test.json"

    @property
    def faults(self) -> Path:
        """JSON list of fault records (`nemesis.faults.FaultRecord.to_json`)."""
        return self.root / "faults.json"

    @property
    def outcome(self) -> Path:
        """JSON facts of the run that only the harness knows: phases, rates, deaths, recovery (results/README.md)."""
        return self.root / "outcome.json"


@dataclass(frozen=True, slots=True)
class Part:
    """One unit of work: files to open and parameters; small, picklable, and with no row in it."""

    paths: tuple[str, ...]
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits counted inside the kernel, so that a history has one verdict everywhere."""

    steps: int = 200_000_000
    size_bytes: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Checker:
    """name: as in results.json; title: as in the report; question: what it asks, one sentence for readers.

    judge's second argument is the budget of that part.  `combine` sees findings in the order of parts.
    """

    name: str
    title: str
    question: str
    split: Callable[[RunFiles], Sequence[Part]]
    judge: Callable[[Part, Budget], Any]
    combine: Callable[[RunFiles, Sequence[Any]], Verdict]
