"""Progress: how far every other replica has fetched from this node while it leads: what DescribeQuorum shows.

A replica is an id with the directory of its disk: one whose disk was replaced is not the voter of the same id."""

from __future__ import annotations

from collections.abc import Callable

from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.wire.quorum_service import VoterState

OBSERVED_FOR_MS = 5 * 60 * 1000
"""An observer is shown so long after its last Fetch, as Kafka does it."""
REPLICAS_MAX = 1000


class FetchProgress:
    """Times are milliseconds of the wall clock."""

    def __init__(self) -> None:
        self._fetched: dict[ReplicaKey, VoterState] = {}

    def fetched(self, replica: ReplicaKey, offset: int, log_end_offset: int, wall_ms: int) -> None:
        """A replica fetched from `offset`.  The Fetch must fit this leader's epoch and log."""
        known = self._fetched.pop(replica, None)  # who fetched last stands last
        caught_up_ms = wall_ms if offset >= log_end_offset else -1
        if caught_up_ms < 0 and known is not None:
            caught_up_ms = known.last_caught_up_ms
        self._fetched[replica] = VoterState(replica.id, offset, wall_ms, caught_up_ms, replica.directory)
        if len(self._fetched) > REPLICAS_MAX:  # anybody may fetch, under any id
            del self._fetched[next(iter(self._fetched))]

    def others(self, votes: Callable[[ReplicaKey], bool], wall_ms: int) -> tuple[VoterState, ...]:
        """The observers: who is no voter and has fetched in the last OBSERVED_FOR_MS, by id."""
        since_ms = wall_ms - OBSERVED_FOR_MS
        found = [
            state for replica, state in self._fetched.items() if not votes(replica) and state.last_fetch_ms >= since_ms
        ]
        return tuple(sorted(found, key=lambda state: (state.id, str(state.directory))))

    def forget(self) -> None:
        """The role changed: nothing was fetched from this node in its new epoch."""
        self._fetched.clear()

    def of(self, voter: ReplicaKey) -> VoterState:
        """Its directory counts where both sides know it."""
        for known in (voter, ReplicaKey(voter.id)):
            if known in self._fetched:
                return self._fetched[known]
        same_id = [state for replica, state in self._fetched.items() if replica.id == voter.id]
        return same_id[-1] if same_id and voter.directory is None else VoterState(voter.id)
