"""A leader's lease by the wall clock: what a clean node never uses, and the planted bug lease-by-wall-clock does.

A follower seeks no office until a fetch timeout after the last answer of its leader.  So a leader whose answers a
majority has received, which their next fetches prove, cannot be replaced for that long.  It could answer reads on
its own, if its clock measured that time.  The wall clock does not: it may be set back, and the lease then lasts
for as long as the clock needs to come to the old time again.

The majority is one of the voters in force when the read is answered.  A leader that is no voter does not count itself.
"""

from __future__ import annotations

from collections.abc import Collection

from system_under_test.kraft.raft.decisions import may_answer_by_lease
from system_under_test.kraft.raft.messages import Identity
from system_under_test.kraft.raft.voters import held_by_majority

LEASE_SHARE = 0.75
"""Of the fetch timeout; the rest is for messages on their way."""

_NEVER_MS = -(1 << 62)


class Lease:
    """Times are milliseconds of the wall clock."""

    def __init__(self, identity: Identity) -> None:
        self._me = identity.me.id
        self._bugs = identity.bugs
        self._lasts_ms = round(LEASE_SHARE * identity.timing.fetch_timeout_s * 1000)
        self._answered_ms: dict[int, int] = {}  # connection -> when the last answer on it was written
        self._proved_ms: dict[int, int] = {}  # voter -> when the newest answer that it has certainly got was written

    def answered(self, connection: int, wall_ms: int) -> None:
        """An answer was written on this connection just now."""
        self._answered_ms[connection] = wall_ms

    def fetched(self, voter: int, connection: int) -> None:
        """A voter's next Fetch came on this connection, so that it has got the last answer."""
        if connection in self._answered_ms:
            self._proved_ms[voter] = self._answered_ms[connection]

    def forget(self) -> None:
        """The role changed: what was answered before says nothing of this epoch."""
        self._answered_ms.clear()
        self._proved_ms.clear()

    def answers(self, wall_ms: int, voters: Collection[int]) -> bool:
        """Return whether a read may be answered now without asking the others.

        voters: those in force, at least one.
        """
        proved = [wall_ms if voter == self._me else self._proved_ms.get(voter, _NEVER_MS) for voter in voters]
        return may_answer_by_lease(held_by_majority(proved) + self._lasts_ms, wall_ms, self._bugs)
