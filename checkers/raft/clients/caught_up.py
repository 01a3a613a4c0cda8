"""Decides which final logs hold everything that was ever committed.

A log has *caught up* if its final copy reaches the largest mark that any node had reported before that node's own final
copy.  It must also hold exactly that prefix, or have an entry of the mark's epoch or a later one.  A node that was cut
off until the end may have a longer tail of an older epoch; its log has not caught up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from checkers.base.run_evidence import numbers, present, read_trace
from checkers.raft.committed import CopiedLog, Marks, holds


def caught_up(log: CopiedLog, top: Marks) -> bool:
    """Return whether this final log reaches the largest committed mark, and not by a tail of an older epoch.

    A log that begins above 0 has not, because its lower entries are in a snapshot and cannot be compared.
    """
    if len(top.offset) == 0 or log.end < top.offset[0] or log.start > 0:
        return False
    return bool(holds(log, top)[0].any() or log.last_epoch >= top.epoch.min())


def largest_marks(traces: Sequence[str], until: Mapping[str, int]) -> Marks:
    """Return the marks of the largest offset that any node reported up to its final copy.  until: node -> seq."""
    found: list[tuple[int, int, bool, int]] = []
    for path in traces:
        marks = read_trace(path, ("high-watermark",), ("offset", "hash", "epoch"))
        offsets = np.where(numbers(marks, "seq") <= until.get(Path(path).stem, -1), numbers(marks, "offset"), 0)
        largest = np.flatnonzero((offsets > 0) & (offsets == offsets.max(initial=0)))
        rows = marks.take(pa.array(largest))
        columns = (numbers(rows, "offset"), numbers(rows, "hash", 0), present(rows, "hash"), numbers(rows, "epoch"))
        found += zip(*(column.tolist() for column in columns), strict=True)
    end = max((offset for offset, *_ in found), default=0)
    rows_there = [mark for mark in found if mark[0] == end]
    offset, hashes, known, epoch = (np.array([mark[i] for mark in rows_there]) for i in range(4))
    return Marks(offset, hashes, known.astype(np.bool_), epoch)
