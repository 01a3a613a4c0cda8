"""How far every other voter has fetched from this node while it leads: what DescribeQuorum shows."""

from __future__ import annotations

from collections.abc import Collection

from system_under_test.kraft.wire.quorum_service import VoterState

OBSERVED_FOR_MS = 5 * 60 * 1000
"""An observer is shown so long after its last Fetch, as Kafka does it."""
REPLICAS_MAX = 1000


class FetchProgress:
    """Times are milliseconds of the wall clock."""

    def __init__(self) -> None:
        self._fetched: dict[int, VoterState] = {}

    def fetched(self, voter: int, offset: int, log_end_offset: int, wall_ms: int) -> None:
        """A voter fetched from `offset`.  The Fetch must fit this leader's epoch and log."""
        known = self._fetched.get(voter)
        caught_up_ms = wall_ms if offset >= log_end_offset else -1
        if caught_up_ms < 0 and known is not None:
            caught_up_ms = known.last_caught_up_ms
        self._fetched.pop(voter, None)
        self._fetched[voter] = VoterState(voter, offset, wall_ms, caught_up_ms)
        if len(self._fetched) > REPLICAS_MAX:  # anybody may fetch, under any id
            del self._fetched[next(iter(self._fetched))]

    def others(self, voters: Collection[int], wall_ms: int) -> tuple[VoterState, ...]:
        """The observers: who is no voter and has fetched in the last OBSERVED_FOR_MS."""
        since_ms = wall_ms - OBSERVED_FOR_MS
        return tuple(
            state
            for replica, state in sorted(self._fetched.items())
            if replica not in voters and state.last_fetch_ms >= since_ms
        )

    def forget(self) -> None:
        """The role changed: nothing was fetched from this node in its new epoch."""
        self._fetched.clear()

    def of(self, voter: int) -> VoterState:
        return self._fetched.get(voter, VoterState(voter))
