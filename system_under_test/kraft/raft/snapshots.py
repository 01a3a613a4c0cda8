"""Fetching a snapshot: for a follower that the leader's log alone cannot bring up to date (KIP-630).

    Fetch          the leader answers with the id of its newest snapshot
    FetchSnapshot  again and again, each for the bytes behind those that are here; they need not be whole batches
    installed      all bytes are here: the snapshot is made durable and the follower's log begins anew behind it
    Fetch          from the snapshot's end on

If the leader no longer has the snapshot (98), or not as much of it (99), the follower begins again with a Fetch.  So it
does under the next leader.  A snapshot stands for committed records only, so the high watermark reaches its end.
"""

from __future__ import annotations

from system_under_test.kraft.raft.effects import WriteSnapshot
from system_under_test.kraft.raft.messages import (
    Error,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    SnapshotId,
)
from system_under_test.kraft.raft.states import Download, Follower
from system_under_test.kraft.raft.voter_memory import Voter

PART_MAX_BYTES = 1 << 20
"""A response holds no more than this, even if the request asks for more."""


def part(voter: Voter, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    """The leader's answer: bytes of one of its snapshots."""
    wanted, position = request.snapshot, request.position
    size_max = max(1, min(request.max_size_bytes, PART_MAX_BYTES))
    found = voter.log.read_snapshot(wanted, position, size_max)
    if found is None:
        return FetchSnapshotResponse(Error.SNAPSHOT_NOT_FOUND, voter.me, voter.epoch, wanted)
    data, size_bytes = found
    if position >= size_bytes:
        return FetchSnapshotResponse(Error.POSITION_OUT_OF_RANGE, voter.me, voter.epoch, wanted)
    return FetchSnapshotResponse(Error.NONE, voter.me, voter.epoch, wanted, size_bytes, position, data)


def begin(voter: Voter, follower: Follower, snapshot: SnapshotId) -> None:
    """The leader answered a Fetch with a snapshot."""
    if snapshot.end_offset < voter.committed_end:
        voter.halt(
            f"epoch {voter.epoch}: leader n{follower.leader_id} sends a snapshot that ends at {snapshot.end_offset}, "
            f"below the high watermark {voter.committed_end}"
        )
    follower.download = Download(snapshot)


def request(voter: Voter, download: Download) -> FetchSnapshotRequest:
    identity = voter.identity
    return FetchSnapshotRequest(
        identity.cluster_id,
        identity.me,
        voter.epoch,
        download.snapshot,
        download.position,
        identity.snapshot_part_max_bytes,
    )


def on_response(
    voter: Voter, now: float, peer: int, request: FetchSnapshotRequest, response: FetchSnapshotResponse
) -> None:
    follower = voter.state
    if not isinstance(follower, Follower) or follower.leader_id != peer:
        return
    download = follower.download
    if download is None or download != Download(request.snapshot, request.position):
        return
    answers = (response.snapshot, response.position) == (request.snapshot, request.position)
    end = request.position + len(response.data)
    if response.error != Error.NONE or not answers or not response.data or end > response.size_bytes:
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
