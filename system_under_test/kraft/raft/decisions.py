"""The rules on which safety depends: pure functions, each with one planted bug.

A planted bug is a name in `Identity.bugs`.  It changes the result of one function of this file and nothing else: no
message, no timer, no random number.  So a run with the bug and a run without it differ only by this result.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.states import Role
from system_under_test.kraft.raft.voters import VoterHistory, VoterSet, held_by_majority, majority

STALE_READ = "stale-read"
MINORITY_COMMIT = "minority-commit"
DIVERGENCE_BY_OFFSET = "divergence-by-offset"
LONE_VOTE = "lone-vote"
DOUBLE_VOTE = "double-vote"
NO_OP_UNCONFIRMED = "no-op-unconfirmed"
ACCEPTS_CORRUPT_BATCH = "accepts-corrupt-batch"
NO_FSYNC = "no-fsync"
FORGETS_ON_FULL_DISK = "forgets-on-full-disk"
VOTE_NOT_PERSISTED = "vote-not-persisted"
TRUNCATES_TO_HIGH_WATERMARK = "truncates-to-high-watermark"
LEASE_BY_WALL_CLOCK = "lease-by-wall-clock"
SNAPSHOT_FORGETS_TAIL = "snapshot-forgets-tail"
SNAPSHOT_OF_UNCOMMITTED = "snapshot-of-uncommitted"
SNAPSHOT_ID_INCLUSIVE = "snapshot-id-inclusive"
RENAME_BEFORE_FSYNC = "rename-before-fsync"
CLEANS_PAST_SNAPSHOT = "cleans-past-snapshot"
APPLIES_DELTA_AFTER_SNAPSHOT = "applies-delta-after-snapshot"
OBSERVER_COUNTS = "observer-counts"
TWO_CHANGES_AT_ONCE = "two-voter-changes-at-once"
CHANGE_BEFORE_EPOCH_COMMITS = "change-before-epoch-commits"
VOTERS_AT_COMMIT = "voters-at-commit"
VOTERS_NOT_TRUNCATED = "voters-not-truncated"
REMOVED_LEADER_COUNTS_ITSELF = "removed-leader-counts-itself"
COUNTS_UNFLUSHED_SELF = "counts-unflushed-self"
FETCH_ACKS_UNFLUSHED = "fetch-acks-unflushed"
FLUSH_OF_CUT_TAIL = "flush-of-cut-tail"
ACKS_BEFORE_COMMIT = "acks-before-commit"
RENOUNCE_KEEPS_SPECULATIVE = "renounce-keeps-speculative"
WIPED_DISK_KEEPS_ID = "wiped-disk-keeps-id"
JOINS_WITHOUT_CATCHING_UP = "joins-without-catching-up"
CAMPAIGNS_UNFLUSHED = "campaigns-unflushed"

T = TypeVar("T")

BUGS: dict[str, str] = {
    STALE_READ: "a leader answers reads without confirming that it still leads",
    MINORITY_COMMIT: "the leader uses its own flushed log end as the high watermark",
    DIVERGENCE_BY_OFFSET: "when a follower fetches, the leader compares only offsets and not epochs",
    LONE_VOTE: "a candidate's own vote or pre-vote counts as a majority",
    DOUBLE_VOTE: "a vote already cast in this epoch is ignored when the next candidate requests one",
    NO_OP_UNCONFIRMED: "a leader acknowledges a write that changes nothing, and does not confirm that it still leads",
    ACCEPTS_CORRUPT_BATCH: "the CRC of a batch is not verified when the batch is read, fetched or recovered",
    NO_FSYNC: "appended entries are acknowledged without an fsync of the log",
    FORGETS_ON_FULL_DISK: "an append that fails because the disk is full is treated as written",
    VOTE_NOT_PERSISTED: "a vote is granted and remembered, but not written to quorum-state",
    TRUNCATES_TO_HIGH_WATERMARK: "a new follower truncates its log to its own high watermark before it asks the leader",
    LEASE_BY_WALL_CLOCK: "a leader without a majority answers reads during a lease that it measures by the wall clock",
    SNAPSHOT_FORGETS_TAIL: "the last entry of the state is left out of a snapshot",
    SNAPSHOT_OF_UNCOMMITTED: "a leader's snapshots include appended entries that are not committed",
    SNAPSHOT_ID_INCLUSIVE: "the name of a snapshot contains its last offset instead of the next one",
    RENAME_BEFORE_FSYNC: "a snapshot gets its final name before its bytes are fsynced",
    CLEANS_PAST_SNAPSHOT: "the log is deleted up to the high watermark, not up to the end of a snapshot",
    APPLIES_DELTA_AFTER_SNAPSHOT: "a fetched snapshot is applied on top of the old state instead of replacing it",
    OBSERVER_COUNTS: "the log end of an observer counts for the high watermark",
    TWO_CHANGES_AT_ONCE: "the voters may change while their previous change is not committed",
    CHANGE_BEFORE_EPOCH_COMMITS: "a leader may change the voters before a record of its epoch has committed",
    VOTERS_AT_COMMIT: "a change of voters takes effect at the commit of its record instead of the append",
    VOTERS_NOT_TRUNCATED: "a change of voters stays in effect after its record was truncated",
    REMOVED_LEADER_COUNTS_ITSELF: "a leader that is being removed counts its own log until the removal is committed",
    COUNTS_UNFLUSHED_SELF: "a leader counts its own log end for the high watermark before these entries are durable",
    FETCH_ACKS_UNFLUSHED: "a follower acknowledges appended entries before they are durable",
    FLUSH_OF_CUT_TAIL: "an fsync that ends after a truncation also counts for entries appended after the truncation",
    JOINS_WITHOUT_CATCHING_UP: "a replica becomes a voter before it has fetched the leader's log",
    ACKS_BEFORE_COMMIT: "a write is acknowledged as soon as its leader appends it, before it is committed",
    RENOUNCE_KEEPS_SPECULATIVE: "a node that loses leadership keeps the effects of uncommitted entries in its state",
    CAMPAIGNS_UNFLUSHED: "a candidate asks for votes with a log that is not durable yet",
    WIPED_DISK_KEEPS_ID: "an empty disk gets the directory id of the disk that it replaces (KAFKA-17426)",
}
"""Planted bug of the core -> its effect."""


def grants_vote(
    role: Role,
    *,
    pre_vote: bool,
    up_to_date: bool,
    candidate: messages.ReplicaKey,
    voted: messages.ReplicaKey | None,
    leader_known: bool,
    has_fetched: bool,
    bugs: Collection[str] = (),
) -> bool:
    """Return whether a voter in `role` grants a vote of its own epoch (KIP-595; pre-votes: KIP-996).

    up_to_date: True if the candidate's (last epoch, log end) is at least the voter's
    voted: the candidate for which this voter has voted in this epoch, or None
    has_fetched: True for a follower whose leader has answered a fetch

    A pre-vote does not bind the voter: the voter only estimates whether an election would be useful.  A standard vote
    is given to one candidate per epoch.
    """
    if pre_vote:
        if role == Role.LEADER or (role == Role.FOLLOWER and has_fetched):
            return False
        return up_to_date
    if role not in (Role.UNATTACHED, Role.PROSPECTIVE):
        return False  # this voter leads, follows, has resigned, or has voted for itself
    if voted is not None and DOUBLE_VOTE not in bugs:
        return same_key(voted, candidate)
    return up_to_date and not leader_known


def may_join(caught_up_s_ago: float, within_s: float, bugs: Collection[str] = ()) -> bool:
    """Return whether a replica may become a voter: its log reached the leader's log end at most `within_s` ago
    (KIP-853).

    If it joined earlier, a majority might need it, and nothing could commit until it had caught up.
    """
    return caught_up_s_ago <= within_s or JOINS_WITHOUT_CATCHING_UP in bugs


def id_of_new_disk(drawn: UUID, replaced: UUID | None, bugs: Collection[str] = ()) -> UUID:
    """Return the directory id of an empty disk: a new id, because the votes and the log of the previous disk are lost
    (KIP-853).

    replaced: the id of the previous disk, or None
    """
    return replaced if WIPED_DISK_KEEPS_ID in bugs and replaced is not None else drawn


def wins(granted: Collection[int], voters: Sequence[int], me: int, bugs: Collection[str] = ()) -> bool:
    """Return whether these votes, including the vote of candidate `me` for itself, elect the candidate.

    The vote of a candidate that is no voter does not count.
    """
    if LONE_VOTE in bugs and me in granted:
        return True
    return len(set(granted) & set(voters)) >= majority(len(voters))


def must_flush_before_campaign(bugs: Collection[str] = ()) -> bool:
    """Return whether a candidate makes its log durable before it asks for votes.

    Voters compare their logs with the log end that the candidate reports.  After a power loss the candidate's log may
    be shorter, and the same votes would still elect it in this epoch, because a voter repeats its vote without another
    comparison.
    """
    return CAMPAIGNS_UNFLUSHED not in bugs


def own_end_that_counts(flushed_end: int, end_offset: int, bugs: Collection[str] = ()) -> int:
    """Return the log end that a leader counts for itself in the high watermark: the end of its durable part
    (KAFKA-10533).
    """
    return end_offset if COUNTS_UNFLUSHED_SELF in bugs else flushed_end


def may_acknowledge(flushed_end: int, end_offset: int, bugs: Collection[str] = ()) -> bool:
    """Return whether a follower may send a Fetch, which acknowledges its log end: only if its whole log is durable
    (KAFKA-17332).
    """
    return flushed_end >= end_offset or FETCH_ACKS_UNFLUSHED in bugs


def end_made_durable(end_at_begin: int, kept: int, bugs: Collection[str] = ()) -> int:
    """Return the offset below which a completed flush has made the log durable.

    end_at_begin: log end offset when the flush began
    kept: minimum log end offset since the flush began, because the flush covers no entry that was appended after a
        truncation
    """
    return end_at_begin if FLUSH_OF_CUT_TAIL in bugs else min(end_at_begin, kept)


def committed_end(own_flushed_end: int | None, other_ends: Sequence[int], bugs: Collection[str] = ()) -> int:
    """Return the offset up to which a majority holds the leader's log.  The epoch rule (`leadership.commit`) decides
    whether this offset becomes the high watermark.

    own_flushed_end: None for a leader that is no longer a voter
    """
    if own_flushed_end is None:
        return held_by_majority(other_ends)
    if MINORITY_COMMIT in bugs:
        return own_flushed_end
    return held_by_majority([own_flushed_end, *other_ends])


def leader_counts_itself(*, is_voter: bool, bugs: Collection[str] = ()) -> bool:
    """Return whether the leader's own log counts for the high watermark.  It does not count while a removed leader
    waits for the commit of its removal (KAFKA-16530).
    """
    return is_voter or REMOVED_LEADER_COUNTS_ITSELF in bugs


def voters_in_force(history: VoterHistory, high_watermark: int | None, bugs: Collection[str] = ()) -> VoterSet:
    """Return the voters in force for a replica: the last set that its log names, committed or not (KIP-853)."""
    if VOTERS_AT_COMMIT in bugs:
        return history.before(high_watermark or 0)[1]
    return history.latest


def takes_voters_back(bugs: Collection[str] = ()) -> bool:
    """Return whether a truncation that removes a record of voters restores the previous voters.  It must, because the
    new leader's log does not contain the removed record.
    """
    return VOTERS_NOT_TRUNCATED not in bugs


def may_change_voters(mark: int | None, bugs: Collection[str] = ()) -> bool:
    """Return whether a leader may change the voters: only after a record of its epoch is committed.

    mark: the leader's high watermark; None before that

    An earlier leader may have appended another change of the same voters.  Both changes could be committed, by
    majorities that do not overlap (Ongaro's erratum of 2015).
    """
    return mark is not None or CHANGE_BEFORE_EPOCH_COMMITS in bugs


def may_change_again(last_change_offset: int, mark: int | None, bugs: Collection[str] = ()) -> bool:
    """Return whether the voters may change once more: only if the last change is committed.

    Otherwise two changes would be uncommitted at once, and a majority of the set before them need not overlap a
    majority of the set after them.
    """
    return (mark is not None and last_change_offset < mark) or TWO_CHANGES_AT_ONCE in bugs


def snapshot_instead(log: messages.LogView, request: messages.FetchRequest) -> messages.SnapshotId | None:
    """Return the snapshot that a follower must fetch because our log cannot continue the follower's log; None if our
    log can.

    Our log begins after a snapshot, and contains no earlier offset or epoch.  A follower with an empty log gets the
    newest snapshot even if our log begins at 0, because a snapshot is faster to fetch (KAFKA-15078).
    """
    if request.fetch_offset == 0:
        return log.snapshot
    if request.fetch_offset < log.start.end_offset or request.last_fetched_epoch < log.start.epoch:
        return log.snapshot
    return None


def counts_for_commit(*, is_voter: bool, bugs: Collection[str] = ()) -> bool:
    """Return whether the log end of a fetching replica counts for the high watermark.  Only a voter's log end does."""
    return is_voter or OBSERVER_COUNTS in bugs


def divergence(
    log: messages.LogView, request: messages.FetchRequest, bugs: Collection[str] = ()
) -> messages.EpochEnd | None:
    """Return the point at which the follower's log diverges from ours, or None if it is a prefix of ours.

    Epoch and offset of its end identify a log, because a leader writes each offset of its epoch only once (log
    matching).  So the follower's log is a prefix of ours if and only if our log contains the follower's last epoch, and
    this epoch ends in our log at or after the follower's log end.
    """
    if DIVERGENCE_BY_OFFSET in bugs:
        too_long = request.fetch_offset > log.end_offset
        return messages.EpochEnd(request.last_fetched_epoch, log.end_offset) if too_long else None
    ours = log.end_offset_for_epoch(request.last_fetched_epoch)
    if ours.epoch == request.last_fetched_epoch and request.fetch_offset <= ours.end_offset:
        return None
    return ours


def must_confirm(bugs: Collection[str] = ()) -> bool:
    """Return whether a leader has to prove that it still leads before it answers a read."""
    return STALE_READ not in bugs


def must_confirm_no_op(bugs: Collection[str] = ()) -> bool:
    """Return whether a leader has to prove that it still leads before it acknowledges a write that needs no record.

    For a write with records, the commit is the proof.  A write without records depends on the leader's state, as a read
    does.
    """
    return NO_OP_UNCONFIRMED not in bugs


def must_check_batches(bugs: Collection[str] = ()) -> bool:
    """Return whether a batch from a disk or a peer is verified against its CRC (KAFKA-14104)."""
    return ACCEPTS_CORRUPT_BATCH not in bugs


def must_fsync(bugs: Collection[str] = ()) -> bool:
    """Return whether the log is fsynced before its entries count as durable (KAFKA-10533)."""
    return NO_FSYNC not in bugs


def must_stop_on(disk_error: int | None, bugs: Collection[str] = ()) -> bool:
    """Return whether a node must stop after an append failed with this errno.  It must stop after any error."""
    return not (disk_error == errno.ENOSPC and FORGETS_ON_FULL_DISK in bugs)


def durable_state(state: messages.QuorumState, bugs: Collection[str] = ()) -> messages.QuorumState:
    """Return the part of `state` that the quorum-state file must contain before a voter acts on it: all of it (Raft,
    figure 2: persistent state).
    """
    return replace(state, voted=None) if VOTE_NOT_PERSISTED in bugs else state


def end_kept_by_new_follower(end_offset: int, high_watermark: int | None, bugs: Collection[str] = ()) -> int:
    """Return the offset up to which a voter keeps its log when it begins to follow a leader: its log end.

    Only the leader's answer shows where the two logs diverge.  The voter's own high watermark may lag behind entries
    that are committed (KIP-101).
    """
    if TRUNCATES_TO_HIGH_WATERMARK in bugs and high_watermark is not None:
        return min(end_offset, high_watermark)
    return end_offset


def keeps_lease(bugs: Collection[str] = ()) -> bool:
    """Return whether a leader keeps a lease, during which no other voter campaigns.  It does only if leases may answer
    reads.
    """
    return LEASE_BY_WALL_CLOCK in bugs


def may_answer_by_lease(lease_end_ms: int, wall_ms: int, bugs: Collection[str] = ()) -> bool:
    """Return whether a leader may answer a read without confirmation because its lease has not expired.

    It never may, because a lease depends on clocks, and a wall clock can even be set.
    """
    return keeps_lease(bugs) and wall_ms < lease_end_ms


def resigns_without_majority(bugs: Collection[str] = ()) -> bool:
    """Return whether a leader resigns if no majority has fetched from it for a while (KIP-595, check quorum)."""
    return not keeps_lease(bugs)


def is_answered(end_offset: int, applied_offset: int, bugs: Collection[str] = ()) -> bool:
    """Return whether a write whose records end at `end_offset` is acknowledged: once the records are committed and
    applied.  Until then a later leader may still overwrite them.
    """
    return end_offset <= applied_offset or ACKS_BEFORE_COMMIT in bugs


def drops_what_it_decided(bugs: Collection[str] = ()) -> bool:
    """Return whether a node that ceases to lead discards its speculative state, because parts of this state may never
    commit.
    """
    return RENOUNCE_KEEPS_SPECULATIVE not in bugs


def snapshot_entries(entries: Iterable[T], bugs: Collection[str] = ()) -> Iterator[T]:
    """Return the entries of a state that go into its snapshot: all of them."""
    waiting = iter(entries)
    entry = next(waiting, None)
    while entry is not None:
        following = next(waiting, None)
        if following is not None or SNAPSHOT_FORGETS_TAIL not in bugs:
            yield entry
        entry = following


def may_snapshot_uncommitted(bugs: Collection[str] = ()) -> bool:
    """Return whether a snapshot may contain uncommitted entries.  It never may, because a snapshot cannot be truncated
    (KIP-630).
    """
    return SNAPSHOT_OF_UNCOMMITTED in bugs


def snapshot_end(end_offset: int, bugs: Collection[str] = ()) -> int:
    """Return the offset that names a snapshot of everything below `end_offset`: the first offset that the snapshot does
    not contain (KAFKA-14618).
    """
    return end_offset - (SNAPSHOT_ID_INCLUSIVE in bugs)


def must_fsync_snapshot(bugs: Collection[str] = ()) -> bool:
    """Return whether the bytes of a snapshot must be durable before its file gets the name of a complete snapshot."""
    return RENAME_BEFORE_FSYNC not in bugs


def next_log_start(
    snapshots: Sequence[messages.SnapshotId], high_watermark: int, bugs: Collection[str] = ()
) -> messages.NewStart | None:
    """Return the new start of a log that has grown too large: the end of its second newest snapshot.  None keeps the
    current start.

    The start never passes the end of a snapshot, because entries before the start exist only in snapshots
    (KAFKA-14238).
    """
    if CLEANS_PAST_SNAPSHOT in bugs:
        return messages.NewStart(snapshots[-1], high_watermark) if snapshots else None
    return messages.NewStart(snapshots[1], snapshots[1].end_offset) if len(snapshots) > 1 else None


def keeps_state_under_snapshot(bugs: Collection[str] = ()) -> bool:
    """Return whether a node that loads a snapshot keeps its previous entries.

    It must not, because entries that the snapshot lacks were removed.
    """
    return APPLIES_DELTA_AFTER_SNAPSHOT in bugs


def same_key(wanted: messages.ReplicaKey, actual: messages.ReplicaKey) -> bool:
    """Return whether `actual` is the replica that `wanted` names.  A key without a directory matches any directory
    (KIP-853).
    """
    return wanted.id == actual.id and wanted.directory in (None, actual.directory)
