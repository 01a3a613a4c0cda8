"""Which voters a node's log named last, at each row of its trace (KIP-853)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Int64

EVENT = "voters"


@dataclass(frozen=True, slots=True)
class VotersByRow:
    """number: of each row, how many rows named voters up to it.  sets: what each of them named."""

    number: Int64
    sets: tuple[frozenset[str], ...]

    def at(self, row: int) -> frozenset[str] | None:
        """None if no row has named voters up to there."""
        number = int(self.number[row])
        return self.sets[number - 1] if number else None

    @property
    def named(self) -> frozenset[frozenset[str]]:
        return frozenset(self.sets)


def voters_by_row(rows: pa.Table) -> VotersByRow:
    """rows: of one node in seq order, with the columns event and detail; those of EVENT among them."""
    events = rows["event"]
    index = pc.index_in(events, value_set=pa.array([EVENT])) if len(rows) else pa.array([], pa.int32())
    is_voters = np.asarray(index.is_valid().to_numpy(zero_copy_only=False), bool)
    places = np.flatnonzero(is_voters)
    named = rows["detail"].take(pa.array(places)).to_pylist()
    return VotersByRow(np.cumsum(is_voters).astype(np.int64), tuple(frozenset((each or "").split()) for each in named))
