"""Fetches: the progress of other replicas while this node leads (shown by DescribeQuorum), leases, and received
batches.

A replica is identified by its id and the directory id of its disk.  A replica whose disk was replaced is not the voter
with the same id.

*Lease.*  A leader's lease by the wall clock.  Only a node with the planted bug lease-by-wall-clock uses it.

A follower campaigns at the earliest a fetch timeout after the last answer of its leader.  A follower's next Fetch
proves that it has received the leader's answer.  So once a majority has received answers, the leader cannot be replaced
for a fetch timeout.  It could answer reads on its own, if its clock measured that time.  The wall clock does not: if it
is set back, the lease lasts until the clock reaches the old time again.

The majority is a majority of the voters in force when the read is answered.  A leader that is no voter does not count
itself.

*Received batches.*  A follower accepts the batches of a Fetch response before the first corrupt batch.

A leader with a corrupt disk must not stop its followers.  They reject the corrupt batch, report it once, and fetch
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import CorruptBatch
from system_under_test.kraft.raft.decisions import may_answer_by_lease
from system_under_test.kraft.raft.messages import FetchResponse, Identity, ReplicaKey
from system_under_test.kraft.raft.voters import held_by_majority
from system_under_test.kraft.wire.quorum_service import VoterState

OBSERVED_FOR_MS = 5 * 60 * 1000
"""Milliseconds after its last Fetch for which an observer is listed, as in Kafka."""
REPLICAS_MAX = 1000


class FetchProgress:
    """Progress of the replicas that fetch from this node.  Times are milliseconds of the wall clock."""

    def __init__(self) -> None:
        self._fetched: dict[ReplicaKey, VoterState] = {}

    def fetched(self, replica: ReplicaKey, offset: int, log_end_offset: int, wall_ms: int) -> None:
        """Note a Fetch of a replica from `offset`.  The Fetch must match this leader's epoch and log."""
        known = self._fetched.pop(replica, None)  # the replica that fetched last becomes the last entry
        caught_up_ms = wall_ms if offset >= log_end_offset else -1
        if caught_up_ms < 0 and known is not None:
            caught_up_ms = known.last_caught_up_ms
        self._fetched[replica] = VoterState(replica.id, offset, wall_ms, caught_up_ms, replica.directory)
        if len(self._fetched) > REPLICAS_MAX:  # any program may fetch, under any id
            del self._fetched[next(iter(self._fetched))]

    def others(self, votes: Callable[[ReplicaKey], bool], wall_ms: int) -> tuple[VoterState, ...]:
        """Return the observers, by id: replicas that are no voters and have fetched in the last OBSERVED_FOR_MS."""
        since_ms = wall_ms - OBSERVED_FOR_MS
        found = [
            state for replica, state in self._fetched.items() if not votes(replica) and state.last_fetch_ms >= since_ms
        ]
        return tuple(sorted(found, key=lambda state: (state.id, str(state.directory))))

    def forget(self) -> None:
        """Forget all fetches after a change of role: nothing was fetched from this node in its new epoch."""
        self._fetched.clear()

    def of(self, voter: ReplicaKey) -> VoterState:
        """Return the progress of a voter.  The directories are compared only if both are known."""
        for known in (voter, ReplicaKey(voter.id)):
            if known in self._fetched:
                return self._fetched[known]
        same_id = [state for replica, state in self._fetched.items() if replica.id == voter.id]
        return same_id[-1] if same_id and voter.directory is None else VoterState(voter.id)


LEASE_SHARE = 0.75
"""Duration of a lease as a fraction of the fetch timeout.  The remaining fraction covers messages in flight."""

_NEVER_MS = -(1 << 62)


class Lease:
    """A lease of this node as the leader.  Times are milliseconds of the wall clock."""

    def __init__(self, identity: Identity) -> None:
        self._me = identity.me.id
        self._bugs = identity.bugs
        self._lasts_ms = round(LEASE_SHARE * identity.timing.fetch_timeout_s * 1000)
        self._answered_ms: dict[int, int] = {}  # connection -> time of the last answer written to it
        self._proved_ms: dict[int, int] = {}  # voter -> time of the newest answer that it has certainly received

    def answered(self, connection: int, wall_ms: int) -> None:
        """Note that an answer was just written on this connection."""
        self._answered_ms[connection] = wall_ms

    def fetched(self, voter: int, connection: int) -> None:
        """Note a voter's next Fetch on this connection, which proves that it has received the last answer."""
        if connection in self._answered_ms:
            self._proved_ms[voter] = self._answered_ms[connection]

    def forget(self) -> None:
        """Forget all answers after a change of role: they prove nothing about this epoch."""
        self._answered_ms.clear()
        self._proved_ms.clear()

    def answers(self, wall_ms: int, voters: Collection[int]) -> bool:
        """Return whether a read may be answered now without asking the other voters.

        voters: voters in force, at least one
        """
        proved = [wall_ms if voter == self._me else self._proved_ms.get(voter, _NEVER_MS) for voter in voters]
        return may_answer_by_lease(held_by_majority(proved) + self._lasts_ms, wall_ms, self._bugs)


class ReceivedBatches:
    """Rejects corrupt batches of Fetch responses.

    report: called with peer, offset and error, but not twice in a row for one position
    """

    def __init__(self, report: Callable[[int, int, CorruptBatch], None]) -> None:
        self._report = report
        self._reported: tuple[int, int] | None = None  # (peer, offset)

    def undamaged(self, peer: int, log_end_offset: int, response: FetchResponse) -> FetchResponse | None:
        """Return the response with only the batches before the first corrupt batch.  If the first batch is corrupt,
        return None, as if there were no answer.

        log_end_offset: offset at which the first batch of the response would be appended
        """
        offset = log_end_offset
        for number, batch in enumerate(response.batches):
            try:
                codec.check(batch)
            except CorruptBatch as problem:
                if self._reported != (peer, offset):
                    self._reported = (peer, offset)
                    self._report(peer, offset, problem)
                return response._replace(batches=response.batches[:number]) if number else None
            offset += batch.count
        return response
