"""Entries that a leader may call committed, and the answers that depend on it: fetches that wait for news, and
reads."""

from __future__ import annotations

import math

from system_under_test.kraft.raft.decisions import (
    committed_end,
    leader_counts_itself,
    must_confirm,
    own_end_that_counts,
)
from system_under_test.kraft.raft.effects import NotAccepted, ReadReady
from system_under_test.kraft.raft.messages import Error, FetchResponse
from system_under_test.kraft.raft.states import Leader, Parked
from system_under_test.kraft.raft.voter_memory import NOT_LEADER, Voter

FETCH_MAX_BYTES = 1 << 20
"""A response holds no more than this, or one batch: it must fit into a frame, even if the request asks for more."""


def commit(voter: Voter, leader: Leader) -> None:
    """Advance the high watermark.

    The epoch rule: only a mark beyond the start of this epoch counts.  What a majority holds of an older epoch may
    still be overwritten by a leader that never saw it (Raft, figure 8).  Once a majority holds a record of *this*
    epoch, no voter without it can be elected.
    """
    ends = [progress.end_offset for progress in leader.followers.values()]
    own = None
    if leader_counts_itself(is_voter=not voter.observes, bugs=voter.bugs):
        own = own_end_that_counts(voter.flushed_end, voter.end_offset, voter.bugs)
    mark = committed_end(own, ends, voter.bugs)
    if mark <= leader.epoch_start_offset:
        return
    voter.advance(mark)
    for token in leader.reads.take_held():
        note_read(voter, leader, token)


def announced_mark(voter: Voter, leader: Leader) -> int | None:
    """The high watermark as this leader reports it: unknown until its own epoch has committed."""
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
    if not must_confirm(voter.bugs):
        voter.emit(ReadReady(token, mark))
        return
    leader.reads.note(token, mark)
    answer_proved_reads(voter, leader)
    for parked in list(leader.parked):  # their answers start the proof
        if leader.reads.needs(parked.request.replica.id):
            release(voter, leader, parked)


def answer_proved_reads(voter: Voter, leader: Leader) -> None:
    for token, mark in leader.reads.take_proved():
        voter.emit(ReadReady(token, mark))


# Answering fetches


def answer_fetch(voter: Voter, leader: Leader, token: int, connection: int, response: FetchResponse) -> None:
    leader.reads.answered(connection)
    voter.reply(token, response)


def answer_parked(voter: Voter, now: float, leader: Leader) -> None:
    """Answer every parked Fetch for which there is news or whose time is up.

    News are records, any high watermark for a sender that knows none, and an answer that is to prove a read.  The high
    watermark alone (KIP-1166) is no news for the first `mark_wait_s`.  Under load the next records come sooner and
    carry it, which saves each follower half of its fetches.  No commit and no read waits for a follower to learn the
    mark."""
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
    """Answer a parked Fetch with the batches that are there, which may be none.

    While it waited the log may have been cut behind a snapshot."""
    leader.parked.remove(parked)
    request = parked.request
    mark = announced_mark(voter, leader)
    if request.fetch_offset < voter.log.start.end_offset:
        response = FetchResponse(Error.NONE, voter.me, voter.epoch, mark, snapshot=voter.log.snapshot)
    else:
        batches = tuple(voter.log.read(request.fetch_offset, min(request.max_size_bytes, FETCH_MAX_BYTES)))
        response = FetchResponse(Error.NONE, voter.me, voter.epoch, mark, None, batches)
    answer_fetch(voter, leader, parked.token, parked.connection, response)
