"""State that a node's trace has reported so far, read row by row while the node runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Hearsay:
    """State that a node's trace has reported so far.  largest_mark: over all its incarnations.  unread: rows that a
    follower of this node has not taken yet; None while it has no follower.  campaigned: it has sought votes since
    `take_campaigned` was called last.  voted_epoch: of its last vote, -1 before the first.  voters: the names that its
    log names last, empty if it names none.  disk: its id, "" if no row names it.
    lost: the trace no longer goes on where it was read last, so what it reported before may not hold any more."""

    read_bytes: int = 0
    rows: int = 0
    epoch: int = 0
    role: str = "unattached"
    leader: str | None = None
    high_watermark: int | None = None
    log_end: int = 0
    largest_mark: int = -1
    campaigned: bool = False
    voted_epoch: int = -1
    voters: tuple[str, ...] = ()
    disk: str = ""
    unread: bytearray | None = None
    lost: bool = False

    @property
    def wanted_from(self) -> int:
        """From this byte on, `take_from` wants the trace: the end of the last row that it has read comes first."""
        return max(0, self.read_bytes - 1)

    def take_from(self, start: int, data: bytes) -> None:
        """Take the bytes of the trace from `start` on.  They are ignored if another call took them first.

        A node only adds to its trace.  If it lacks what was read before, another hand has cut or removed it."""
        if start != self.wanted_from:
            return
        seen = self.read_bytes - start
        if data[:seen] != b"\n"[:seen]:
            self.lost = True
        if not self.lost:
            try:
                self.take(data[seen:])
            except (ValueError, KeyError, TypeError):  # not a row of a trace
                self.lost = True

    def take(self, data: bytes) -> None:
        """More of the trace, from `read_bytes` on; an unfinished row is left for the next time."""
        whole = data.rfind(b"\n") + 1
        self.read_bytes += whole
        if self.unread is not None:
            self.unread += data[:whole]
        for line in data[:whole].splitlines():
            self._row(json.loads(line))

    def take_campaigned(self) -> bool:
        campaigned, self.campaigned = self.campaigned, False
        return campaigned

    def _row(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        event = row["event"]
        self.epoch = max(self.epoch, row["epoch"])
        if event == "disk":
            if self.disk not in ("", row["detail"]):  # another replica, which knows nothing yet
                self.epoch, self.voted_epoch, self.voters = row["epoch"], -1, ()
            self.disk = row["detail"]
        if event == "start":
            self.role, self.leader, self.high_watermark = "unattached", None, None
        if event == "role":
            self.role, self.leader = row["role"], row.get("peer")
            self.campaigned |= self.role in ("prospective", "candidate")
        if event == "voters":
            self.voters = tuple(str(row.get("detail", "")).split())
        if event == "vote":
            self.voted_epoch = row["epoch"]
        if event == "high-watermark":
            self.high_watermark = row["offset"]
            self.largest_mark = max(self.largest_mark, row["offset"])
        if event in ("start", "append", "truncate"):
            self.log_end = row["offset"]
