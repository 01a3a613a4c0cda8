"""What a node's trace has reported so far, read row by row while the node runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Hearsay:
    """What a node's trace has reported so far.  largest_mark: over all its incarnations.  unread: rows that a follower
    of this node has not taken yet; None while it has no follower.  campaigned: it has sought votes since
    `take_campaigned` was called last.  voted_epoch: of its last vote, -1 before the first."""

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
    unread: bytearray | None = None

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
        if event == "start":
            self.role, self.leader, self.high_watermark = "unattached", None, None
        if event == "role":
            self.role, self.leader = row["role"], row.get("peer")
            self.campaigned |= self.role in ("prospective", "candidate")
        if event == "vote":
            self.voted_epoch = row["epoch"]
        if event == "high-watermark":
            self.high_watermark = row["offset"]
            self.largest_mark = max(self.largest_mark, row["offset"])
        if event in ("start", "append", "truncate"):
            self.log_end = row["offset"]
