"""How far the monotonic clock of a host is ahead of the harness' own, with a bound of the error.

Theory.  The harness notes its time, asks the agent for its time, and notes its own time again.  The agent read its
clock between the two, so one reading bounds the difference within its round trip, however long the network took.
Clocks drift (some 10 ppm, at most 500 ppm while they are slewed), so readings are repeated while the run lasts.  The
estimate is the middle of the best readings; the error covers all of them, their own bounds, and a drift between two.

No verdict rests on it.  It puts rows of nodes on the axis of the history, and it widens excuses (`health.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from checkers.record.header import ClockOffset

KEPT_EVERY_NS = 10_000_000_000
"""The best reading of so long is kept, so two neighbours lie at most twice as far apart."""
DRIFT_SHARE_MAX = 500e-6


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One answer.  sent_ns, received_ns: of the harness' clock; node_ns: of the node's."""

    sent_ns: int
    node_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        return self.received_ns - self.sent_ns

    @property
    def ahead_ns(self) -> int:
        return self.node_ns - (self.sent_ns + self.received_ns) // 2

    @property
    def error_ns(self) -> int:
        return self.round_trip_ns // 2 + 1


class NodeClock:
    """The readings of one node, which must come more often than every KEPT_EVERY_NS."""

    def __init__(self) -> None:
        self._kept: list[ClockReading] = []

    def add(self, reading: ClockReading) -> None:
        last = self._kept[-1] if self._kept else None
        if last is None or reading.sent_ns // KEPT_EVERY_NS != last.sent_ns // KEPT_EVERY_NS:
            self._kept.append(reading)
        elif reading.round_trip_ns < last.round_trip_ns:
            self._kept[-1] = reading

    def offset(self) -> ClockOffset:
        """Raises ValueError before the first reading."""
        if not self._kept:
            raise ValueError("the clock was never read")
        least = min(reading.ahead_ns for reading in self._kept)
        most = max(reading.ahead_ns for reading in self._kept)
        middle = (least + most) // 2
        bound = max(abs(reading.ahead_ns - middle) + reading.error_ns for reading in self._kept)
        return ClockOffset(middle, bound + int(2 * KEPT_EVERY_NS * DRIFT_SHARE_MAX))
