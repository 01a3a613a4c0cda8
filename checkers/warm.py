"""Loading every kernel by judging a run of a few rows: the first time on a machine this compiles them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

from checkers.catalog import CATALOG
from checkers.checker import RunFiles
from checkers.columns import HISTORY, events_to_table
from checkers.history import Event, Type
from checkers.pipeline import Verdicts, judge_run
from checkers.seal import seal

_STALE_READ = [
    Event(0, 0, 0, Type.INVOKE, "write", "k", 1),
    Event(1, 1, 0, Type.OK, "write", "k", 1, node="n1"),
    Event(2, 2, 0, Type.INVOKE, "cas", "k", 1, 2),
    Event(3, 3, 0, Type.OK, "cas", "k", 1, 2, node="n1"),
    Event(4, 4, 1, Type.INVOKE, "read", "k"),
    Event(5, 5, 1, Type.OK, "read", "k", 1, node="n1"),
    Event(6, 6, 1, Type.INVOKE, "write", "k", 3),
]


def load_kernels() -> Verdicts:
    """Judge the few rows with every checker; the verdicts (a stale read among them) are the caller's to look at."""
    with tempfile.TemporaryDirectory(prefix="krucible-warm-") as name:
        folder = Path(name)
        with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
            stream.write_table(events_to_table(_STALE_READ))
        seal(folder)
        return judge_run(RunFiles(folder), list(CATALOG.values()))
