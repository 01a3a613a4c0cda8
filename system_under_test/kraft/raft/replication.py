"""Replication by fetching: the follower sends requests, and its next request acknowledges the previous answer
(KIP-595).

A Fetch names the end of the follower's log and its epoch.  If the leader's log contains that point, everything before
it is equal in both, so that the leader may count the follower as holding it, and answers with the following batches. If
not, the leader answers with the point of divergence, and the follower truncates its log there; each such round goes
back at least one epoch.  If the log begins after that point, the leader names a snapshot instead (see below).

A follower that the leader's log alone cannot bring up to date fetches a snapshot (KIP-630).

    Fetch          the leader answers with the id of its newest snapshot
    FetchSnapshot  again and again, each for the bytes behind those that are here; they need not be whole batches
    installed      all bytes are here: the snapshot is made durable and the follower's log begins anew behind it
    Fetch          from the snapshot's end on

If the leader no longer has the snapshot (98), or a shorter one (99), the follower starts over with a Fetch.  So it does
under the next leader.  A snapshot stands for committed records only, so the high watermark reaches its end.
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
    """Handle a request for part of a snapshot, which counts for check-quorum like a Fetch, but does not report the
    follower's log end.
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
    """Return the reason why this voter answers no fetch of that epoch; NONE if it leads the epoch."""
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
    """Find the leader as an observer that hears of none: fetch from one voter after another, whose answers name the
    leader.
    """
    if voter.others:
        voter.named_leaders[voter.others[voter.asked % len(voter.others)]] = voter.epoch
        voter.asked += 1
    if isinstance(voter.state, Follower):
        voter.state.fetch_deadline = voter.fetch_timeout(now)
    elif isinstance(voter.state, Unattached):
        voter.state.election_deadline = voter.fetch_timeout(now)


def must_campaign(voter: Voter) -> bool:
    """Return whether an observer that hears of no leader campaigns now: one that may be needed does, whenever it has
    tried all voters.
    """
    return voter.may_be_needed and voter.asked % (len(voter.others) + 1) == len(voter.others)


def fetch_request(voter: Voter, epoch: int) -> messages.FetchRequest:
    """epoch: the leader's, which is the voter's own or one that the leader still has to confirm."""
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
    """Return the end of the longest prefix that can still be equal: of the leader's epoch, the part that both have."""
    ours = voter.log.end_offset_for_epoch(diverging.epoch)
    end = min(ours.end_offset, diverging.end_offset) if ours.epoch == diverging.epoch else ours.end_offset
    if end >= voter.end_offset:
        voter.halt(
            f"epoch {voter.epoch}: the leader reports that the log diverges at {diverging}, but it ends at {ours}"
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
"""Maximum bytes of a response, even if the request asks for more."""


def part(voter: Voter, request: messages.FetchSnapshotRequest) -> messages.FetchSnapshotResponse:
    """Handle the leader's answer: bytes of one of its snapshots."""
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
    """Start a download after the leader answered a Fetch with a snapshot."""
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
