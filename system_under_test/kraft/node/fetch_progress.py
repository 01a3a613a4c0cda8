"""How far every other voter has fetched from this node while it leads: what DescribeQuorum shows."""

from __future__ import annotations

from system_under_test.kraft.wire.quorum_service import VoterState


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
        self._fetched[voter] = VoterState(voter, offset, wall_ms, caught_up_ms)

    def forget(self) -> None:
        """The role changed: nothing was fetched from this node in its new epoch."""
        self._fetched.clear()

    def of(self, voter: int) -> VoterState:
        return self._fetched.get(voter, VoterState(voter))
