"""Replication by fetching: the follower sends requests, and its next request acknowledges the previous answer
(KIP-595).

A Fetch names the offset and the epoch at which the follower's log ends.  If the leader's log contains this point, both
logs are equal below it.  Then the leader counts the entries below it as held by the follower, and answers with the
batches that follow.  If not, the leader answers with the point of divergence, and the follower truncates its log there.
Each such round goes back at least one epoch.  If the leader's log begins after the follower's log end, the leader
answers with the id of a snapshot.

A follower that the leader's log alone cannot bring up to date fetches a snapshot (KIP-630).

    Fetch          the leader answers with the id of its newest snapshot
    FetchSnapshot  repeated: each requests the bytes after those already written, and need not end at a batch
    install        once all bytes are written, the snapshot is made durable, and the log begins after it
    Fetch          from the snapshot's end on

If the leader no longer has the snapshot (error 98), or its snapshot is too short (99), the follower starts over with a
Fetch.  A follower of a new leader starts over, too.  A snapshot contains only committed records, so the follower's high
watermark advances to the end of the snapshot.
"""

from __future__ import annotations

from system_under_test.kraft.raft import leadership, messages
from system_under_test.kraft.raft.decisions import counts_for_commit, divergence, snapshot_instead
from system_under_test.kraft.raft.effects import WriteSnapshot
from system_under_test.kraft.raft.states import Download, Follower, FollowerProgress, Leader, Parked, Unattached
from system_under_test.kraft.raft.voter_memory import Voter

WAIT_MAX_S = 5.0
"""Maximum seconds that a Fetch waits for news, even if it requests more."""

# The leader's side


def on_fetch_request(voter: Voter, now: float, token: int, connection: int, request: messages.FetchRequest) -> None:
    leader = voter.state
    error = refusal(voter, request)
    possible = request.fetch_offset >= 0 and 0 <= request.last_fetched_epoch <= voter.epoch
    if error == messages.Error.NONE and not possible:
        error = messages.Error.INVALID_REQUEST
    if error != messages.Error.NONE or not isinstance(leader, Leader):
        response = messages.FetchResponse(error, voter.leader_id, voter.epoch)
        if isinstance(leader, Leader):
            leadership.answer_fetch(voter, leader, token, connection, response)
        else:
            voter.reply(token, response)
        return
    peer = request.replica.id
    counts = peer in leader.followers and voter.voter_set.holds(request.replica)
    if counts:
        leadership.heard(voter, now, leader, peer)
        leader.reads.fetched(peer, connection)
        leadership.answer_proved_reads(voter, leader)
    snapshot = snapshot_instead(voter.log, request)
    diverging = None if snapshot else divergence(voter.log, request, voter.bugs)
    if snapshot is not None or diverging is not None:
        mark = leadership.announced_mark(voter, leader)
        response = messages.FetchResponse(
            messages.Error.NONE, voter.me, voter.epoch, mark, diverging, snapshot=snapshot
        )
        leadership.answer_fetch(voter, leader, token, connection, response)
        return
    if counts_for_commit(is_voter=counts, bugs=voter.bugs):
        progress = leader.followers.get(peer)
        if progress is None:
            progress = leader.followers[peer] = FollowerProgress()
        progress.fetched(request.fetch_offset, voter.end_offset, now)
        leadership.commit(voter, leader)
    else:
        leader.observer(request.replica).fetched(request.fetch_offset, voter.end_offset, now)
    leader.parked.append(Parked(token, connection, request, now + min(request.max_wait_ms / 1000, WAIT_MAX_S)))
    leadership.answer_parked(voter, now, leader)


def on_fetch_snapshot_request(voter: Voter, now: float, token: int, request: messages.FetchSnapshotRequest) -> None:
    """Handle a request for part of a snapshot.  The request counts for check-quorum like a Fetch, but does not report
    the follower's log end.
    """
    leader, peer = voter.state, request.replica.id
    error = refusal(voter, request)
    if error == messages.Error.NONE and isinstance(leader, Leader):
        if peer in leader.followers and voter.voter_set.holds(request.replica):
            leadership.heard(voter, now, leader, peer)
        voter.reply(token, part(voter, request))
    else:
        voter.reply(token, messages.FetchSnapshotResponse(error, voter.leader_id, voter.epoch))


def refusal(voter: Voter, request: messages.FetchRequest | messages.FetchSnapshotRequest) -> messages.Error:
    """Return the error with which this voter rejects a fetch; NONE if it leads the epoch of the request."""
    if request.current_leader_epoch < voter.epoch:
        return messages.Error.FENCED_LEADER_EPOCH
    if request.current_leader_epoch > voter.epoch:
        return messages.Error.UNKNOWN_LEADER_EPOCH
    if not isinstance(voter.state, Leader):
        return messages.Error.NOT_LEADER_OR_FOLLOWER
    if voter.shutting_down:
        return messages.Error.BROKER_NOT_AVAILABLE
    return messages.Error.NONE


# The follower's side


def look_for_leader(voter: Voter, now: float) -> None:
    """Let an observer that knows no leader fetch from the next voter, whose answer names the leader."""
    if voter.others:
        voter.named_leaders[voter.others[voter.asked % len(voter.others)]] = voter.epoch
        voter.asked += 1
    if isinstance(voter.state, Follower):
        voter.state.fetch_deadline = voter.fetch_timeout(now)
    elif isinstance(voter.state, Unattached):
        voter.state.election_deadline = voter.fetch_timeout(now)


def must_campaign(voter: Voter) -> bool:
    """Return whether an observer that knows no leader campaigns now.  An observer that may be needed for an election
    campaigns after it has tried all voters.
    """
    return voter.may_be_needed and voter.asked % (len(voter.others) + 1) == len(voter.others)


def fetch_request(voter: Voter, epoch: int) -> messages.FetchRequest:
    """Return a Fetch at this voter's log end.

    epoch: the leader's epoch: this voter's own, or one that the leader still has to confirm
    """
    identity = voter.identity
    return messages.FetchRequest(
        identity.cluster_id,
        identity.me,
        current_leader_epoch=epoch,
        fetch_offset=voter.end_offset,
        last_fetched_epoch=voter.end_epoch,
        high_watermark=voter.high_watermark,
        max_wait_ms=round(voter.timing.fetch_max_wait_s * 1000),
    )


def on_fetch_response(
    voter: Voter, now: float, peer: int, request: messages.FetchRequest, response: messages.FetchResponse
) -> None:
    follower = voter.state
    if (
        not isinstance(follower, Follower)
        or follower.leader_id != peer
        or (request.current_leader_epoch, request.fetch_offset) != (voter.epoch, voter.end_offset)
    ):
        return
    follower.has_fetched = True
    follower.fetch_deadline = voter.fetch_timeout(now)
    if response.snapshot is not None:
        begin(voter, follower, response.snapshot)
        return
    if response.diverging is not None:
        voter.truncate(_common_end(voter, response.diverging))
        return
    if response.batches:
        _check_continuation(voter, response)
        voter.append(response.batches)
    if response.high_watermark is not None:
        mark = min(voter.end_offset, response.high_watermark)
        if voter.high_watermark is not None and mark < voter.high_watermark:
            voter.halt(
                f"epoch {voter.epoch}: leader {peer} reports the high watermark {response.high_watermark}, "
                f"below our own {voter.high_watermark}"
            )
        voter.advance(mark)


def _common_end(voter: Voter, diverging: messages.EpochEnd) -> int:
    """Return the end of the longest prefix that both logs can share: in the epoch that the leader names, the part that
    both logs contain.
    """
    ours = voter.log.end_offset_for_epoch(diverging.epoch)
    end = min(ours.end_offset, diverging.end_offset) if ours.epoch == diverging.epoch else ours.end_offset
    if end >= voter.end_offset:
        voter.halt(
            f"epoch {voter.epoch}: the leader reports that the log diverges at {diverging}, but our log ends at {ours}"
        )
    return end


def _check_continuation(voter: Voter, response: messages.FetchResponse) -> None:
    end, epoch = voter.end_offset, voter.end_epoch
    for batch in response.batches:
        if batch.base_offset != end or not epoch <= batch.epoch <= voter.epoch:
            voter.halt(
                f"epoch {voter.epoch}: the leader continues a log that ends at {end} in epoch {epoch} "
                f"with offset {batch.base_offset} of epoch {batch.epoch}"
            )
        end, epoch = batch.end_offset, batch.epoch


PART_MAX_BYTES = 1 << 20
"""Maximum bytes of a snapshot in one response, even if the request allows more."""


def part(voter: Voter, request: messages.FetchSnapshotRequest) -> messages.FetchSnapshotResponse:
    """Return the leader's response: bytes of one of its snapshots, or an error."""
    wanted, position = request.snapshot, request.position
    size_max = max(1, min(request.max_size_bytes, PART_MAX_BYTES))
    found = voter.log.read_snapshot(wanted, position, size_max)
    if found is None:
        return messages.FetchSnapshotResponse(messages.Error.SNAPSHOT_NOT_FOUND, voter.me, voter.epoch, wanted)
    data, size_bytes = found
    if position >= size_bytes:
        return messages.FetchSnapshotResponse(messages.Error.POSITION_OUT_OF_RANGE, voter.me, voter.epoch, wanted)
    return messages.FetchSnapshotResponse(
        messages.Error.NONE, voter.me, voter.epoch, wanted, size_bytes, position, data
    )


def begin(voter: Voter, follower: Follower, snapshot: messages.SnapshotId) -> None:
    """Start the download of the snapshot that the leader named in its answer to a Fetch."""
    if snapshot.end_offset < voter.committed_end:
        voter.halt(
            f"epoch {voter.epoch}: leader n{follower.leader_id} sends a snapshot that ends at {snapshot.end_offset}, "
            f"below the high watermark {voter.committed_end}"
        )
    follower.download = Download(snapshot)


def request(voter: Voter, download: Download) -> messages.FetchSnapshotRequest:
    identity = voter.identity
    return messages.FetchSnapshotRequest(
        identity.cluster_id,
        identity.me,
        voter.epoch,
        download.snapshot,
        download.position,
        identity.snapshot_part_max_bytes,
    )


def on_response(
    voter: Voter,
    now: float,
    peer: int,
    request: messages.FetchSnapshotRequest,
    response: messages.FetchSnapshotResponse,
) -> None:
    follower = voter.state
    if not isinstance(follower, Follower) or follower.leader_id != peer:
        return
    download = follower.download
    if download is None or download != Download(request.snapshot, request.position):
        return
    answers = (response.snapshot, response.position) == (request.snapshot, request.position)
    end = request.position + len(response.data)
    if response.error != messages.Error.NONE or not answers or not response.data or end > response.size_bytes:
        follower.download = None
        voter.back_off(peer, now)
        return
    follower.has_fetched = True
    follower.fetch_deadline = voter.fetch_timeout(now)
    voter.emit(WriteSnapshot(request.snapshot, request.position, response.data))
    download.position = end
    if end == response.size_bytes:
        follower.download = None
        voter.install(request.snapshot)
        voter.advance(request.snapshot.end_offset)
