"""One row of a node's trace, in the forms of the monitor and of a witness.

This module imports no library of tables: the swarm and the explorer use it too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]
"""A row of a table in the form of a witness."""


WITNESSES_PER_PART = 100
"""Maximum number of witnesses of one kind in one part, because each costs memory; others are only counted."""


class TraceRow(NamedTuple):
    """One row of a node's trace, as `checkers.base.columns.TRACE` defines its columns."""

    seq: int
    incarnation: int
    event: str
    epoch: int
    offset: int | None = None
    hash: int | None = None
    peer: str | None = None
    role: str | None = None
    detail: str | None = None
    time_ns: int = 0
    node: str = ""

    @property
    def where(self) -> str:
        """Return the position of this row: the file in the run's folder, and the field `seq` of its line."""
        return f"trace/{self.node}.jsonl, seq {self.seq}"

    @property
    def hash_word(self) -> str:
        """Return its hash in the words of `rules.toml`."""
        return hash_words(self.hash or 0)

    def as_row(self) -> Row:
        """Return the row in the form of a witness."""
        return {"table": "trace", **{name: getattr(self, name) for name in _IN_ORDER}}


_IN_ORDER = ("node", "incarnation", "seq", "time_ns", "event", "epoch", "offset", "hash", "peer", "role", "detail")
"""The columns of TRACE."""


def in_trace(trace: Row) -> str:
    """Return the position of a row of a trace, in the form of `TraceRow.where`."""
    return f"trace/{trace['node']}.jsonl, seq {trace['seq']}"


def hash_words(value: int) -> str:
    """Return a hash of a trace as 16 hexadecimal digits.  value: the signed 64-bit number of the trace."""
    return f"{value & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def of_row(row: Row) -> TraceRow:
    """Return the trace row of a row in the form of a witness."""
    return TraceRow(**{name: row[name] for name in TraceRow._fields})


def copy_row(copy: Row) -> Row:
    """Return a row of COPIES in the form of a witness."""
    return {"table": "copies", **copy}
