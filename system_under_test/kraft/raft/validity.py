"""What a message may hold: every field of every message is checked before it touches memory or disk.

A message may come from another voter, from another program, or from a voter of a broken configuration.  Believing it
is dangerous: quorum-state would keep a leader from which no voter can fetch, and the node could not even start again.

    Vote, Begin, End    94 INCONSISTENT_VOTER_SET   a replica that is no voter here, or one of another directory
                        42 INVALID_REQUEST          anything else that no correct voter sends
    Fetch               42 INVALID_REQUEST          observers may fetch, so that the replica need not be a voter
    a response          ignored                     the peer counts as silent, and gets the request again

A response comes from the address of a voter.  It may therefore contradict what this voter knows, and the voter then
stops (`election.recognise`).  A request may come from any program, so that a contradiction in it is only refused.
"""

from __future__ import annotations

from system_under_test.kraft.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    Error,
    FetchRequest,
    FetchResponse,
    Identity,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    VoteRequest,
)

EPOCH_JUMP_MAX = 1 << 24
"""A voter that lags behind by more epochs than this does not exist: an election takes a second, so that this many take
half a year.  Without a limit one frame could carry the epoch to the largest int32, where no election is possible."""


def request_error(identity: Identity, epoch: int, request: RaftRequest) -> Error:
    """Why this request cannot come from a correct replica of this quorum; NONE if it can.  epoch: the own one."""
    match request:
        case VoteRequest():
            return _vote_error(identity, epoch, request)
        case BeginQuorumEpochRequest(leader_id=leader, epoch=named):
            return _leader_error(identity, epoch, leader, named)
        case EndQuorumEpochRequest(leader_id=leader, epoch=named, preferred_candidates=preferred):
            if len({key.id for key in preferred}) != len(preferred):
                return Error.INVALID_REQUEST
            if not all(is_voter(identity, key) for key in preferred):
                return Error.INCONSISTENT_VOTER_SET
            return _leader_error(identity, epoch, leader, named)
        case FetchRequest():
            return _fetch_error(identity, request)


def is_sane(identity: Identity, epoch: int, response: RaftResponse) -> bool:
    """Whether a voter can have answered this.  epoch: the own one."""
    leader = response.leader_id
    if leader is not None and leader not in identity.voters:
        return False
    if not _is_epoch(epoch, response.leader_epoch):
        return False
    if isinstance(response, FetchResponse) and response.diverging is not None:
        diverging = response.diverging
        return 0 <= diverging.epoch <= response.leader_epoch and diverging.end_offset >= 0
    return True


def is_voter(identity: Identity, key: ReplicaKey) -> bool:
    """Whether this replica is one of the voters.  A voter's directory counts where both sides know it (KIP-853): a disk
    that was lost and made anew is another replica, because it has forgotten its votes and its log."""
    known = identity.directories.get(key.id)
    return key.id in identity.voters and (None in (known, key.directory) or known == key.directory)


def _vote_error(identity: Identity, epoch: int, request: VoteRequest) -> Error:
    """A candidate for a binding vote has raised its epoch beyond all that its log can hold; no voter asks itself."""
    newest_epoch = request.epoch if request.pre_vote else request.epoch - 1
    if request.candidate.id == identity.me.id or not _is_epoch(epoch, request.epoch):
        return Error.INVALID_REQUEST
    if not is_voter(identity, request.candidate):
        return Error.INCONSISTENT_VOTER_SET
    if not 0 <= request.last_epoch <= newest_epoch or request.last_offset < 0:
        return Error.INVALID_REQUEST
    return Error.NONE


def _leader_error(identity: Identity, epoch: int, leader_id: int, named_epoch: int) -> Error:
    if leader_id == identity.me.id or not _is_epoch(epoch, named_epoch):
        return Error.INVALID_REQUEST
    return Error.NONE if leader_id in identity.voters else Error.INCONSISTENT_VOTER_SET


def _fetch_error(identity: Identity, request: FetchRequest) -> Error:
    is_replica = request.replica.id >= 0 and request.replica.id != identity.me.id
    return Error.NONE if is_replica and request.max_wait_ms >= 0 else Error.INVALID_REQUEST


def _is_epoch(own: int, named: int) -> bool:
    """A lower epoch is fine here: it is answered with the own one."""
    return 0 <= named <= own + EPOCH_JUMP_MAX
