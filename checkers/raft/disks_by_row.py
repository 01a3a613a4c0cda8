"""Which disk a node had at each row of its trace (KIP-853).

A replica is a node together with the directory id of its disk.  A disk that was lost and made anew has forgotten the
votes and the log.  If it has an id of its own, the node is another replica from then on: what the replica before it
voted, held and reported binds it to nothing.  If it passes for the disk that it was, nothing excuses what it forgot.

A node reports the id before its `start` row.  A trace that reports none is that of one disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Bools, Int64
from checkers.base.run_evidence import coded
from checkers.raft.witness_rows import Row

EVENT = "disk"
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class DisksByRow:
    """number: of the disk at each row, from 0 on.  is_report: the rows that name a disk.  ids: the id of each disk; ""
    if no row names it."""

    number: Int64
    is_report: Bools
    ids: tuple[str, ...]

    @property
    def last_report(self) -> tuple[int, ...]:
        """The last row that names a disk: later rows are compared with it.  Empty if there is none."""
        reports = np.flatnonzero(self.is_report)
        return (int(reports[-1]),) if len(reports) else ()

    def of_copy(self, copy: Row) -> int:
        """The number of the disk that this copy (a row of COPIES) was made of.

        UNKNOWN: a disk that no row names, so that no row speaks of it.  Where no row names any disk, there is one."""
        if self.ids == ("",):
            return 0
        return max((number for number, known in enumerate(self.ids) if known == copy.get("disk")), default=UNKNOWN)


def disks_by_row(rows: pa.Table) -> DisksByRow:
    """rows: of one node in seq order, with the columns event and detail; those of EVENT among them."""
    is_report = coded(rows, "event", {EVENT: 1}) == 1
    reports = np.flatnonzero(is_report)
    named = [str(name) for name in rows["detail"].take(pa.array(reports)).to_pylist()]
    replaced = np.zeros(len(rows), np.int64)
    replaced[reports[1:]] = [after != before for before, after in pairwise(named)]
    ids = [name for at, name in enumerate(named) if at == 0 or name != named[at - 1]]
    return DisksByRow(np.cumsum(replaced), is_report, tuple(ids) or ("",))
