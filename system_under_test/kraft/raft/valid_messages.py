"""Validation of messages: every field of every message is verified before it affects memory or disk.

A message may come from another voter, from another program, or from a voter with a wrong configuration.  A message that
is accepted unchecked is dangerous: quorum-state could name a leader from which no voter can fetch, and the node could
not even start again.

    Vote, Begin, End    94 INCONSISTENT_VOTER_SET   where voters never change: a replica that is no voter, or that
                                                    has another directory
                        42 INVALID_REQUEST          anything else that no correct voter sends
    Fetch, FetchSnapshot
                        42 INVALID_REQUEST          anything that no correct replica sends; observers may fetch, so
                                                    the replica need not be a voter
    a response          ignored                     the peer counts as silent, and the request is sent again

A response comes from the address of a voter.  So a response that contradicts this voter's knowledge shows an error in
the quorum, and this voter stops (`election.recognise`).  A request may come from any program.  So a contradicting
request is only rejected, and a higher epoch in a request is not adopted at once:

    Begin, End          the voter sends a Fetch to the named leader at its known address, and trusts the answer
    Vote                must be answered now, but raises the epoch no faster than elections do (`EpochAllowance`)

Otherwise a few hundred frames could raise the epoch to the end of int32, after which no election is possible, or could
make two voters follow different leaders of one epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.voters import VoterSet

EPOCH_MAX = 2**31 - 2
"""Maximum epoch of a voter.  A candidate needs the next epoch, and Kafka's epochs are of type int32."""

EPOCHS_AT_ONCE_MAX = 1000
EPOCHS_PER_S = 10


class EpochAllowance:
    """A limit on how far vote requests raise the epoch: by EPOCHS_AT_ONCE_MAX at once, and by EPOCHS_PER_S after that.

    An election takes about a second, so elections never need more.  A voter that lags further behind learns the epoch
    from the responses to its own requests.  At this rate, the epochs of int32 last for six years.
    """

    def __init__(self, now: float) -> None:
        self._left = float(EPOCHS_AT_ONCE_MAX)
        self._counted_at = now

    def grants(self, now: float, jump: int) -> bool:
        """Return whether the epoch may rise by `jump` now.  A granted rise is deducted from the allowance."""
        self._left = min(EPOCHS_AT_ONCE_MAX, self._left + (now - self._counted_at) * EPOCHS_PER_S)
        self._counted_at = now
        if jump > self._left:
            return False
        self._left -= max(jump, 0)
        return True

    def copy(self) -> EpochAllowance:
        """Return an independent copy."""
        twin = EpochAllowance(self._counted_at)
        twin._left = self._left
        return twin


class Trusted(NamedTuple):
    """The replicas that may be voters.

    may_change: True if any replica may be a voter, because voters can change and the own log may lag (KIP-853)
    """

    me: messages.ReplicaKey
    voters: VoterSet
    may_change: bool

    def votes(self, key: messages.ReplicaKey) -> bool:
        return key.id >= 0 if self.may_change else self.voters.holds(key)

    def may_lead(self, leader_id: int) -> bool:
        """Return whether a message may name this leader.  Messages name leaders by id alone, without a directory."""
        return leader_id >= 0 if self.may_change else self.voters.entry(leader_id) is not None


def request_error(trusted: Trusted, request: messages.RaftRequest) -> messages.Error:
    """Return the error if this request cannot come from a correct replica of this quorum; NONE if it can."""
    match request:
        case messages.VoteRequest():
            return _vote_error(trusted, request)
        case messages.BeginQuorumEpochRequest(leader_id=leader, epoch=named):
            return _leader_error(trusted, leader, named)
        case messages.EndQuorumEpochRequest(leader_id=leader, epoch=named, preferred_candidates=preferred):
            if len({key.id for key in preferred}) != len(preferred):
                return messages.Error.INVALID_REQUEST
            if not all(trusted.votes(key) for key in preferred):
                return messages.Error.INCONSISTENT_VOTER_SET
            return _leader_error(trusted, leader, named)
        case messages.FetchRequest():
            return _replica_error(trusted, request.replica, request.max_wait_ms)
        case messages.FetchSnapshotRequest(snapshot=snapshot, position=position):
            return _replica_error(trusted, request.replica, min(snapshot.end_offset - 1, snapshot.epoch, position))


def is_sane(trusted: Trusted, response: messages.RaftResponse) -> bool:
    """Return whether a correct voter could have sent this response."""
    leader = response.leader_id
    if leader is not None and not trusted.may_lead(leader):
        return False
    if not _is_epoch(response.leader_epoch):
        return False
    if isinstance(response, messages.FetchResponse) and response.snapshot is not None:
        return 0 <= response.snapshot.epoch <= response.leader_epoch and response.snapshot.end_offset > 0
    if isinstance(response, messages.FetchResponse) and response.diverging is not None:
        diverging = response.diverging
        return 0 <= diverging.epoch <= response.leader_epoch and diverging.end_offset >= 0
    return True


def _vote_error(trusted: Trusted, request: messages.VoteRequest) -> messages.Error:
    """Return the error of a vote request, or NONE.  A candidate for a binding vote has raised its epoch above all
    epochs in its log.
    """
    newest_epoch = request.epoch if request.pre_vote else request.epoch - 1
    if not trusted.may_change and not trusted.voters.holds(trusted.me):
        return messages.Error.INCONSISTENT_VOTER_SET  # an observer
    if request.candidate.id == trusted.me.id or not _is_epoch(request.epoch):
        return messages.Error.INVALID_REQUEST
    if not trusted.votes(request.candidate):
        return messages.Error.INCONSISTENT_VOTER_SET
    if not 0 <= request.last_epoch <= newest_epoch or request.last_offset < 0:
        return messages.Error.INVALID_REQUEST
    return messages.Error.NONE


def _leader_error(trusted: Trusted, leader_id: int, named_epoch: int) -> messages.Error:
    if leader_id == trusted.me.id or not _is_epoch(named_epoch):
        return messages.Error.INVALID_REQUEST
    return messages.Error.NONE if trusted.may_lead(leader_id) else messages.Error.INCONSISTENT_VOTER_SET


def _replica_error(trusted: Trusted, replica: messages.ReplicaKey, lowest: int) -> messages.Error:
    """Return the error of a fetch, or NONE.

    lowest: minimum of the fields that must not be negative
    """
    is_replica = replica.id >= 0 and replica.id != trusted.me.id
    return messages.Error.NONE if is_replica and lowest >= 0 else messages.Error.INVALID_REQUEST


def _is_epoch(named: int) -> bool:
    """Return whether the number is a valid epoch.  An epoch below this voter's epoch is valid here, and is answered
    with this voter's epoch.
    """
    return 0 <= named <= EPOCH_MAX
