"""Times for which a voter waits: for a leader, for an answer, for a majority."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; Kafka's defaults."""

    election_timeout_s: float = 1.0  # drawn from [t, 2t)
    fetch_timeout_s: float = 2.0
    request_timeout_s: float = 2.0
    retry_backoff_s: float = 0.02
    fetch_max_wait_s: float = 0.5
    mark_wait_s: float = 0.05  # so long the high watermark alone waits for records to share an answer with
    check_quorum_factor: float = 1.5  # of the fetch timeout
