"""Duties of a leader: it announces itself, appends, and resigns when no majority fetches any more.

It also decides which entries are committed, and completes the requests that wait for a commit: parked fetches and
reads.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from system_under_test.kraft.raft import decisions, messages
from system_under_test.kraft.raft.effects import Accepted, NotAccepted, ReadReady
from system_under_test.kraft.raft.election import become_prospective, contradicts, follows, give_up, quorum_deadline
from system_under_test.kraft.raft.states import Follower, Leader, Parked, Prospective, Resigned
from system_under_test.kraft.raft.voter_memory import NOT_LEADER, Voter
from system_under_test.kraft.raft.voters import majority

# Announcing


def announce_epoch(voter: Voter, now: float, leader: Leader) -> float:
    """Send BeginQuorumEpoch to each peer: at once, and again whenever the peer has not fetched for half a fetch
    timeout.

    Returns the time of the next BeginQuorumEpoch.  The function is called after every event, and nearly always nothing
    is due.  So it uses comparisons: calls of min and max take several times as long.
    """
    again_s = voter.timing.fetch_timeout_s / 2
    next_due = math.inf
    for peer in voter.others:
        progress = leader.followers[peer]
        due = progress.fetched_at + again_s
        if due < progress.begin_due:
            due = progress.begin_due
        if voter.retry_at:
            due = max(due, voter.retry_at.get(peer, due))
        if now < due:
            if due < next_due:
                next_due = due
        elif (peer, messages.BeginQuorumEpochRequest) not in voter.in_flight:
            key = voter.voter_set.key_of(peer)
            voter.send(peer, messages.BeginQuorumEpochRequest(voter.identity.cluster_id, voter.me, voter.epoch, key))
            progress.begin_due = now + again_s
    return next_due


def end_request(voter: Voter, resigned: Resigned) -> messages.EndQuorumEpochRequest:
    return messages.EndQuorumEpochRequest(voter.identity.cluster_id, voter.me, voter.epoch, resigned.preferred)


def on_begin_request(voter: Voter, now: float, request: messages.BeginQuorumEpochRequest) -> messages.EpochResponse:
    if request.epoch < voter.epoch:
        return epoch_response(voter, messages.Error.FENCED_LEADER_EPOCH)
    if contradicts(voter, request.leader_id, request.epoch):
        return epoch_response(voter, messages.Error.INVALID_REQUEST)
    if not voter.names_me(request.voter):
        return epoch_response(voter, messages.Error.INVALID_VOTER_KEY)
    if not follows(voter, request.leader_id, request.epoch):
        voter.named_leaders[request.leader_id] = request.epoch
    elif isinstance(voter.state, Prospective):  # its leader is alive after all
        give_up(voter, now)
    return epoch_response(voter, messages.Error.NONE)


def on_end_request(voter: Voter, now: float, request: messages.EndQuorumEpochRequest) -> messages.EpochResponse:
    """Handle the resignation of a leader: its first preferred successor campaigns at once, the others one after
    another.
    """
    if request.epoch < voter.epoch:
        return epoch_response(voter, messages.Error.FENCED_LEADER_EPOCH)
    if contradicts(voter, request.leader_id, request.epoch):
        return epoch_response(voter, messages.Error.INVALID_REQUEST)
    if not follows(voter, request.leader_id, request.epoch):
        voter.named_leaders[request.leader_id] = request.epoch
    follower = voter.state
    if isinstance(follower, Follower) and request.epoch == voter.epoch:
        follower.has_fetched = False  # its own leader resigns, so successors may be elected
        delay_s = _succession_delay_s(voter, request.preferred_candidates)
        follower.fetch_deadline = min(follower.fetch_deadline, now + delay_s)
        if delay_s == 0 and voter.seeks_office and not voter.shutting_down:
            become_prospective(voter, now)
    return epoch_response(voter, messages.Error.NONE)


def _succession_delay_s(voter: Voter, preferred: Sequence[messages.ReplicaKey]) -> float:
    """Return 0 for the first preferred successor, then t/4, t/2, t for the last three.  The delay of any other voter is
    random, in [t, 2t).
    """
    place = next((place for place, key in enumerate(preferred) if voter.names_me(key)), None)
    if place is None:
        return voter.election_timeout(0.0)
    if place == 0:
        return 0.0
    return voter.timing.election_timeout_s * 2.0 ** (place - len(preferred) + 1)


def epoch_response(voter: Voter, error: messages.Error) -> messages.EpochResponse:
    return messages.EpochResponse(error, voter.leader_id, voter.epoch)


# Appending


def propose(
    voter: Voter, now: float, token: int, bodies: Sequence[tuple[Hashable, int]], expected_epoch: int | None
) -> None:
    leader = voter.state
    if not isinstance(leader, Leader):
        voter.emit(NotAccepted(token, NOT_LEADER))
        return
    if expected_epoch is not None and expected_epoch != voter.epoch:
        voter.emit(NotAccepted(token, f"prepared in epoch {expected_epoch}, but this is epoch {voter.epoch}"))
        return
    first = end = voter.end_offset
    batches = []
    for body, count in bodies:
        batches.append(messages.Batch(end, voter.epoch, count, body))
        end += count
    voter.emit(Accepted(token, voter.epoch, first, end))
    voter.append(batches)
    leader.news_at = now


# Resign if no majority fetches


def heard(voter: Voter, now: float, leader: Leader, peer: int) -> None:
    """Note a Fetch of a peer for check-quorum: a leader from which no majority fetches may already be replaced.

    A Fetch after the deadline does not count, even if it was queued behind the timer: the leader resigns at its next
    tick.
    """
    leader.followers[peer].fetched_at = now
    if now >= leader.quorum_deadline:
        return
    leader.heard.add(peer)
    if len(leader.heard) + (not voter.observes) >= majority(len(voter.voters)):
        leader.heard.clear()
        leader.quorum_deadline = quorum_deadline(voter, now)


def heard_of_resignation(voter: Voter, epoch: int, peer: int) -> None:
    if isinstance(voter.state, Resigned) and voter.epoch == epoch:
        voter.state.untold.discard(peer)


FETCH_MAX_BYTES = 1 << 20
"""Maximum bytes of batches in a Fetch response, which must fit into a frame.  A single batch may be larger."""


def commit(voter: Voter, leader: Leader) -> None:
    """Advance the high watermark.

    The epoch rule: only an offset beyond the start of this epoch counts.  Entries of an older epoch that a majority
    holds may still be overwritten by a leader that lacks them (Raft, figure 8).  Once a majority holds a record of
    *this* epoch, no voter that lacks this record can be elected.
    """
    ends = [progress.end_offset for progress in leader.followers.values()]
    own = None
    if decisions.leader_counts_itself(is_voter=not voter.observes, bugs=voter.bugs):
        own = decisions.own_end_that_counts(voter.flushed_end, voter.end_offset, voter.bugs)
    mark = decisions.committed_end(own, ends, voter.bugs)
    if mark <= leader.epoch_start_offset:
        return
    voter.advance(mark)
    for token in leader.reads.take_held():
        note_read(voter, leader, token)


def announced_mark(voter: Voter, leader: Leader) -> int | None:
    """Return the high watermark that this leader reports: None until a record of its own epoch is committed."""
    mark = voter.high_watermark
    return mark if mark is not None and mark > leader.epoch_start_offset else None


# Reading


def read(voter: Voter, token: int) -> None:
    leader = voter.state
    if not isinstance(leader, Leader):
        voter.emit(NotAccepted(token, NOT_LEADER))
    elif announced_mark(voter, leader) is None:
        leader.reads.hold(token)
    else:
        note_read(voter, leader, token)


def note_read(voter: Voter, leader: Leader, token: int) -> None:
    mark = announced_mark(voter, leader)
    assert mark is not None
    if not decisions.must_confirm(voter.bugs):
        voter.emit(ReadReady(token, mark))
        return
    leader.reads.note(token, mark)
    answer_proved_reads(voter, leader)
    for parked in list(leader.parked):  # answering them starts the confirmation round
        if leader.reads.needs(parked.request.replica.id):
            release(voter, leader, parked)


def answer_proved_reads(voter: Voter, leader: Leader) -> None:
    for token, mark in leader.reads.take_proved():
        voter.emit(ReadReady(token, mark))


# Answering fetches


def answer_fetch(voter: Voter, leader: Leader, token: int, connection: int, response: messages.FetchResponse) -> None:
    leader.reads.answered(connection)
    voter.reply(token, response)


def answer_parked(voter: Voter, now: float, leader: Leader) -> None:
    """Answer every parked Fetch whose deadline has passed or for which there is news.

    There is news if records follow the fetch offset, if a high watermark exists and the sender knows none, or if a
    waiting read needs the answer as its proof.  A higher high watermark alone (KIP-1166) is no news for the first
    `mark_wait_s`.  Under load the next records come sooner and carry the high watermark, which halves the number of
    fetches.  No commit and no read waits until a follower knows the high watermark.
    """
    mark, end_offset = announced_mark(voter, leader), voter.log.end_offset
    lacks = False
    for parked in list(leader.parked):
        request, known = parked.request, parked.request.high_watermark
        lacks_mark = mark is not None and known is not None and known < mark
        due = now >= parked.deadline or (lacks_mark and now >= leader.mark_at)
        has_news = end_offset > request.fetch_offset or (known is None and mark is not None)
        if due or has_news or leader.reads.needs(request.replica.id):
            release(voter, leader, parked)
        else:
            lacks = lacks or lacks_mark
    if not lacks:
        leader.mark_at = math.inf
    elif leader.mark_at == math.inf:
        leader.mark_at = now + voter.timing.mark_wait_s


def release(voter: Voter, leader: Leader, parked: Parked) -> None:
    """Answer a parked Fetch with the available batches, possibly none.

    The answer names a snapshot instead if the log was shortened while the Fetch waited.
    """
    leader.parked.remove(parked)
    request = parked.request
    mark = announced_mark(voter, leader)
    if request.fetch_offset < voter.log.start.end_offset:
        response = messages.FetchResponse(messages.Error.NONE, voter.me, voter.epoch, mark, snapshot=voter.log.snapshot)
    else:
        batches = tuple(voter.log.read(request.fetch_offset, min(request.max_size_bytes, FETCH_MAX_BYTES)))
        response = messages.FetchResponse(messages.Error.NONE, voter.me, voter.epoch, mark, None, batches)
    answer_fetch(voter, leader, parked.token, parked.connection, response)
