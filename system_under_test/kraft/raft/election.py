"""Elections in two rounds, after a leader has fallen silent.

Round one asks whether an election would succeed (pre-vote, KIP-996).  It changes no voter's epoch, so a voter that
merely does not hear the leader cannot depose the leader.  Round two raises the epoch and asks for binding votes
(KIP-595).  After a lost campaign a candidate waits for its election deadline.  Deadlines are random, and there is no
other back-off.
"""

from __future__ import annotations

from dataclasses import replace

from system_under_test.kraft.raft import decisions, messages, states
from system_under_test.kraft.raft.voter_memory import Voter
from system_under_test.kraft.raft.voters import KRaftVersion, is_lost

# Entering the states


def become_unattached(voter: Voter, now: float, epoch: int) -> None:
    """Enter a higher epoch whose leader is unknown, or leave a lost campaign."""
    match voter.state:
        case states.Follower() | states.Leader():
            deadline = voter.election_timeout(now)
        case states.Prospective(votes=votes) if is_lost(len(voter.voters), len(votes.refused)):
            deadline = voter.election_timeout(now)
        case states.Resigned(election_deadline=past) if now >= past:
            deadline = voter.election_timeout(now)
        case _:  # keep the deadline of an election that is already in progress
            deadline = voter.state.election_deadline
    file = messages.QuorumState(epoch) if epoch > voter.epoch else voter.persisted
    voter.enter(states.Unattached(epoch, deadline), file)


def become_follower(voter: Voter, now: float, epoch: int, leader_id: int) -> None:
    voted = voter.persisted.voted if epoch == voter.epoch else None
    follower = states.Follower(epoch, leader_id, voter.fetch_timeout(now))
    voter.enter(follower, messages.QuorumState(epoch, leader_id, voted))
    kept = decisions.end_kept_by_new_follower(voter.end_offset, voter.high_watermark, voter.bugs)
    if kept < voter.end_offset:
        voter.truncate(kept)


def become_prospective(voter: Voter, now: float) -> None:
    campaign = states.Prospective(voter.epoch, voter.election_timeout(now), states.Votes({voter.me}), voter.leader_id)
    voter.enter(campaign)
    if voter.alone:
        become_candidate(voter, now)


def let_others_campaign(voter: Voter, now: float) -> None:
    """Wait another timeout instead of campaigning, and no longer refuse pre-votes on behalf of the silent leader."""
    match voter.state:
        case states.Follower() as follower:
            follower.has_fetched = False
            follower.fetch_deadline = voter.fetch_timeout(now)
        case states.Unattached() as unattached:
            unattached.election_deadline = voter.election_timeout(now)


def become_candidate(voter: Voter, now: float) -> None:
    """Raise the epoch and vote for this voter, durably, before it sends the first vote request.

    Make the log durable first.  Voters compare their logs with the log end in the request.  A candidate that restarts
    in the same epoch gets the same votes again, even if its log has become shorter.
    """
    if decisions.must_flush_before_campaign(voter.bugs):
        voter.flush()
    file = messages.QuorumState(voter.epoch + 1, None, voter.identity.me)
    candidate = states.Candidate(file.epoch, voter.election_timeout(now), states.Votes({voter.me}))
    voter.enter(candidate, file, voted_now=True)
    if voter.alone:
        become_leader(voter, now)


def become_leader(voter: Voter, now: float) -> None:
    """Append the LeaderChange that begins the epoch.  Once this record is committed, all earlier entries are committed.

    The first leader of a quorum whose voters can change also appends the voters, as Kafka's first leader does with the
    voters of the bootstrap snapshot.
    """
    granting = voter.state.votes.granted if isinstance(voter.state, states.Candidate) else set()
    start, epoch = voter.end_offset, voter.epoch
    leader = states.Leader(
        epoch,
        epoch_start_offset=start,
        followers={other: states.FollowerProgress(begin_due=now) for other in voter.others},
        quorum_deadline=quorum_deadline(voter, now),
        reads=states.Reads(voter.others),
    )
    leader.reads.take_voters(voter.others, counts_itself=not voter.observes)
    voter.enter(leader, replace(voter.persisted, leader_id=voter.me))
    change = messages.LeaderChange(voter.me, voter.voters, tuple(sorted(granting & set(voter.voters))))
    opening = [messages.Batch(start, epoch, 1, change)]
    if voter.identity.dynamic and not voter.history.may_change:
        opening += [
            messages.Batch(start + 1, epoch, 1, KRaftVersion(1)),
            messages.Batch(start + 2, epoch, 1, voter.voter_set),
        ]
    voter.append(opening)


def resign(voter: Voter, now: float) -> None:
    """Stop leading in this epoch, and announce the resignation.  Voters with the longest logs are the preferred
    successors.
    """
    leader = voter.state
    assert isinstance(leader, states.Leader)
    by_end = sorted(voter.others, key=lambda other: (-leader.followers[other].end_offset, other))
    preferred = tuple(voter.voter_set.key_of(other) for other in by_end)
    voter.enter(states.Resigned(voter.epoch, voter.election_timeout(now), preferred, set(voter.others)))


def quorum_deadline(voter: Voter, now: float) -> float:
    if voter.alone or not decisions.resigns_without_majority(voter.identity.bugs):
        return float("inf")
    return now + voter.timing.check_quorum_factor * voter.timing.fetch_timeout_s


def recognise(voter: Voter, now: float, leader_id: int | None, epoch: int) -> None:
    """Adopt the epoch, and the leader if known, that a response or a vote request names.

    Two leaders of one epoch stop the voter.  A peer may also name this voter as the leader of an epoch that this voter
    never led: either this voter lost the knowledge with its disk, or the peer was deceived.  This voter must neither
    lead nor vote in that epoch, so it moves to the next one.  If this voter is an observer, the leader was the previous
    replica with this id, on another disk.  Then the observer adopts the epoch without a leader.
    """
    if epoch < voter.epoch:
        return
    if leader_id == voter.me and voter.observes:
        leader_id = None
    known = led_by(voter)
    if leader_id == voter.me and (epoch > voter.epoch or known is None):
        become_unattached(voter, now, epoch + 1)
    elif epoch > voter.epoch:
        if leader_id is None:
            become_unattached(voter, now, epoch)
        else:
            become_follower(voter, now, epoch, leader_id)
    elif leader_id is not None and known is None:
        become_follower(voter, now, epoch, leader_id)
    elif leader_id is not None and known != leader_id:
        voter.halt(f"epoch {epoch} has two leaders: n{known} and n{leader_id}")


def led_by(voter: Voter) -> int | None:
    """Return the leader of the voter's epoch, even if it has resigned; None if it is unknown."""
    return voter.me if voter.role == states.Role.RESIGNED else voter.leader_id


def follows(voter: Voter, leader_id: int, epoch: int) -> bool:
    """Return whether this voter already knows that `leader_id` leads or led this epoch."""
    return epoch == voter.epoch and led_by(voter) == leader_id


def contradicts(voter: Voter, leader_id: int, epoch: int) -> bool:
    """Return whether a request names another leader of this epoch than the one this voter knows."""
    return epoch == voter.epoch and led_by(voter) not in (None, leader_id)


# Answering vote requests


def on_vote_request(voter: Voter, now: float, request: messages.VoteRequest) -> messages.VoteResponse:
    def answer(error: messages.Error, *, granted: bool = False) -> messages.VoteResponse:
        return messages.VoteResponse(error, voter.leader_id, voter.epoch, granted, request.pre_vote)

    if request.epoch < voter.epoch:
        return answer(messages.Error.FENCED_LEADER_EPOCH)
    recognise(voter, now, None, request.epoch)
    if not voter.names_me(request.voter):
        return answer(messages.Error.INVALID_VOTER_KEY)
    granted = decisions.grants_vote(
        voter.role,
        pre_vote=request.pre_vote,
        up_to_date=(request.last_epoch, request.last_offset) >= (voter.end_epoch, voter.end_offset),
        candidate=request.candidate,
        voted=voter.persisted.voted,
        leader_known=voter.leader_id is not None,
        has_fetched=isinstance(voter.state, states.Follower) and voter.state.has_fetched,
        bugs=voter.bugs,
    )
    if granted and not request.pre_vote:
        _cast(voter, now, request.candidate)
    return answer(messages.Error.NONE, granted=granted)


def _cast(voter: Voter, now: float, candidate: messages.ReplicaKey) -> None:
    assert isinstance(voter.state, states.Unattached | states.Prospective)
    voter.persist(replace(voter.persisted, voted=candidate), voted_now=True)
    voter.state.election_deadline = voter.election_timeout(now)


# Sending vote requests


def vote_request(voter: Voter, peer: int) -> messages.VoteRequest:
    identity = voter.identity
    return messages.VoteRequest(
        identity.cluster_id,
        voter.epoch,
        candidate=identity.me,
        voter=voter.voter_set.key_of(peer),
        last_epoch=voter.end_epoch,
        last_offset=voter.end_offset,
        pre_vote=voter.role == states.Role.PROSPECTIVE,
    )


def on_vote_response(
    voter: Voter, now: float, peer: int, request: messages.VoteRequest, response: messages.VoteResponse
) -> None:
    campaign = voter.state
    if request.epoch != voter.epoch:
        return
    if isinstance(campaign, states.Prospective) and request.pre_vote:
        campaign.votes.record(peer, granted=response.granted)
        if decisions.wins(campaign.votes.granted, voter.voters, voter.me, voter.bugs):
            become_candidate(voter, now)
        elif is_lost(len(voter.voters), len(campaign.votes.refused)):
            give_up(voter, now)
    elif isinstance(campaign, states.Candidate) and not request.pre_vote:
        campaign.votes.record(peer, granted=response.granted)
        if decisions.wins(campaign.votes.granted, voter.voters, voter.me, voter.bugs):
            become_leader(voter, now)


def give_up(voter: Voter, now: float) -> None:
    """End a lost pre-vote: follow the known leader again, which seems to be alive, or wait until a leader is known."""
    if voter.leader_id is None:
        become_unattached(voter, now, voter.epoch)
    else:
        become_follower(voter, now, voter.epoch, voter.leader_id)
