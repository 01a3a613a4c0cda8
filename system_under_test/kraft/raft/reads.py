"""Linearizable reads: a leader answers only what it can prove to be current.

A leader that was deposed does not know it.  Its committed state is that of its past, and a read answered from it may
miss a write that the new leader has already acknowledged.  So a read waits for proof that, *after* it arrived, a
majority still stood in this epoch.  Any later leader needs the vote of one of them, so it was elected after the read
arrived.  So the read may be ordered before everything that this leader commits (Raft, section 6.4).

The proof comes from the fetches that run anyway.  A Fetch shows only that its sender was in the epoch when it *sent*
the request, perhaps long ago.  But a follower sends its next Fetch only once it has the answer to the last one, on the
same connection.  So if an answer was written after the read arrived, the Fetch that follows it was also sent after the
read arrived.  So the first Fetch of a connection proves nothing.

Time is a counter that grows with each noted read.  A connection remembers the counter at its last answer; the next
Fetch on it lifts its voter to that value; a read is proved once a majority has been lifted to its stamp.  All waiting
reads thus share the rounds.

A read that arrives before the leader has committed its own LeaderChange is not even noted: the leader does not know
yet what its predecessors acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from system_under_test.kraft.raft.voters import held_by_majority

ABSENT = -1


class Reads:
    """The waiting reads of one leader in one epoch; `others` are the voters without the leader itself."""

    def __init__(self, others: Sequence[int]) -> None:
        self._others = tuple(others)
        self._clock = 0
        self._early: list[int] = []
        self._noted: deque[tuple[int, int, int]] = deque()  # (stamp, token, mark), stamps ascending
        self._answered: dict[int, int] = {}  # connection -> clock at the last Fetch answered on it
        self._confirmed: dict[int, int] = dict.fromkeys(others, ABSENT)  # voter -> newest stamp it has confirmed
        self._counts_itself = True

    def take_voters(self, others: Sequence[int], *, counts_itself: bool) -> None:
        """Other voters are in force; `counts_itself`: the leader is one of them."""
        self._others = tuple(others)
        self._confirmed = {voter: self._confirmed.get(voter, ABSENT) for voter in others}
        self._counts_itself = counts_itself

    def hold(self, token: int) -> None:
        """Keep a read until the leader has committed something of its own epoch."""
        self._early.append(token)

    def take_held(self) -> list[int]:
        held, self._early = self._early, []
        return held

    def note(self, token: int, mark: int) -> None:
        """A read that must see everything below `mark`; what is answered from now on can prove it."""
        self._clock += 1
        self._noted.append((self._clock, token, mark))

    def answered(self, connection: int) -> None:
        """A Fetch was answered on this connection just now."""
        self._answered[connection] = self._clock

    def fetched(self, voter: int, connection: int) -> None:
        """A Fetch of this epoch came from a voter on this connection."""
        if connection in self._answered and voter in self._confirmed:
            self._confirmed[voter] = max(self._confirmed[voter], self._answered[connection])

    def forget(self, connection: int) -> None:
        """The connection broke: what was written on it may never have arrived."""
        self._answered.pop(connection, None)

    def needs(self, voter: int) -> bool:
        """Return whether the next Fetch of this voter could prove a read that it has not proved yet."""
        return bool(self._noted) and self._confirmed.get(voter, self._clock) < self._noted[-1][0]

    def take_proved(self) -> list[tuple[int, int]]:
        """The (token, mark) of every read that a majority has proved by now, in order of arrival."""
        if not self._noted:
            return []
        own = [self._clock] if self._counts_itself else []
        proved_stamp = held_by_majority([*own, *(self._confirmed[voter] for voter in self._others)])
        proved = []
        while self._noted and self._noted[0][0] <= proved_stamp:
            _, token, mark = self._noted.popleft()
            proved.append((token, mark))
        return proved

    def copy(self) -> Reads:
        """Return the same reads, which wait by themselves."""
        twin = object.__new__(Reads)
        twin.__dict__.update(self.__dict__)
        twin._early, twin._noted = list(self._early), self._noted.copy()
        twin._answered, twin._confirmed = dict(self._answered), dict(self._confirmed)
        return twin

    @property
    def proofs(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Connection -> stamp at its last answer, and voter -> the newest stamp that it has confirmed."""
        return self._answered, self._confirmed

    @property
    def waiting(self) -> tuple[Sequence[tuple[int, int, int]], Sequence[int], int]:
        """The noted reads as (stamp, token, mark), the tokens of the held ones, and the counter."""
        return tuple(self._noted), tuple(self._early), self._clock

    def unanswered(self) -> list[int]:
        """The tokens of all reads still waiting."""
        return [*(token for _, token, _ in self._noted), *self._early]
