"""The copies of data directories that a run took: what the journal lists, and which of them are still evidence.

A copy that is missing, or was changed after the run, is missing input.  It is never read as a log that lost entries:
what it no longer holds says nothing about the node.  Checkers see it as a copy that could not be read, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import COPIES
from checkers.base.stored_run import StoredRun
from checkers.record.files import BrokenFile
from checkers.record.journal import JOURNAL
from checkers.record.reading import RunRecord
from checkers.sealing.manifest import broken_files
from system_under_test.subject import Collected, ProcessState

_COPIES_MAX = 1 << 15
"""Copies are numbered from 0, and tables hold their numbers in 16 bits."""


def copies_of(run_folder: Path) -> list[Collected]:
    """The copies a run took, as the journal lists them; none if it took none.  Raises BrokenFile."""
    index = RunRecord(run_folder).copies
    if wrong := [row.copy for row in index if not 0 <= row.copy < _COPIES_MAX]:
        raise BrokenFile(f"{JOURNAL}: {wrong[0]} is no number of a copy")
    return [
        Collected(
            copy=row.copy,
            when=row.when,
            node=row.node,
            state=next((state for state in get_args(ProcessState) if state == row.state), "dead"),
            folder=_below(run_folder, row.folder),
            trace_size_bytes=row.trace_size_bytes,
            taken_ns=row.taken_ns,
        )
        for row in index
    ]


def _below(run_folder: Path, name: str) -> Path:
    """A folder of the run.  Raises BrokenFile for a name that leads out of it."""
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise BrokenFile(f"{JOURNAL} does not say what was copied ({name} leads out of the run)")
    return run_folder / name


def tabulate(root: Path, write_tables: Callable[[Sequence[Collected]], None]) -> None:
    """Make the tables of a run from the copies that are whole, and enter the others as unreadable, with the reason.

    write_tables: makes `tables/` from some copies (`Subject.tables`).  Raises BrokenFile.
    """
    copies = copies_of(root)
    lost = _not_whole(root, copies)
    write_tables([copy for number, copy in enumerate(copies) if number not in lost])
    if not lost:
        return
    run = StoredRun(root)
    rows = [*run.copies, *run.damaged_copies, *(_unreadable(copies[number], why) for number, why in lost.items())]
    run.copies_table.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=COPIES), run.copies_table, compression="zstd")


def _not_whole(root: Path, copies: Sequence[Collected]) -> dict[int, str]:
    """Places in `copies` of those that cannot be read as evidence, and why."""
    broken = broken_files(root, "nodes/")
    lost: dict[int, str] = {}
    for number, copy in enumerate(copies):
        folder = str(copy.folder.relative_to(root))
        if not copy.folder.is_dir() or not any(copy.folder.iterdir()):
            lost[number] = f"{folder} is missing"
        elif found := [f"{name} {what}" for name, what in broken.items() if name.startswith(f"{folder}/")]:
            lost[number] = found[0]
    return lost


def _unreadable(copy: Collected, why: str) -> Mapping[str, object]:
    """A row of COPIES for a copy of which nothing is known."""
    row = {"copy": copy.copy, "node": copy.node, "when": copy.when, "state": copy.state, "error": why}
    return row | {"log_end": 0, "torn_bytes": 0, "quorum_epoch": -1, "voted_for": None, "trace_seq": -1}
