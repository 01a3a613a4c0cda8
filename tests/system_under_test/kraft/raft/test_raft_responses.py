"""What a response may change: a follower appends, cuts or stops; a candidate wins, loses or waits.

An fsync of the log holds up what must wait for it, and nothing else.
"""

from dataclasses import replace

import pytest
from raft_voter import EPOCH, ME, PEER, THIRD, Bench, begin, fetch_of, leader_speaks

from system_under_test.kraft.raft import decisions, messages
from system_under_test.kraft.raft.effects import Append, BeginFlush, Fatal, Flush, HighWatermark, Persist, Truncate
from system_under_test.kraft.raft.messages import Batch, EpochEnd, FetchRequest


def test_a_follower_appends_commits_what_it_has_not_flushed_and_asks_for_more():
    bench = Bench.in_role("follower")
    effects = leader_speaks(bench, high_watermark=5, batches=(Batch(4, 5, 1, b"x"),))
    assert effects[:3] == [Append((Batch(4, 5, 1, b"x"),)), BeginFlush(), HighWatermark(5)]
    assert [
        (fetch.fetch_offset, fetch.last_fetched_epoch, fetch.high_watermark) for fetch in bench.sent(FetchRequest)
    ] == [(5, 5, 5)]


@pytest.mark.parametrize(("mark", "committed"), [(99, 4), (None, None)])
def test_a_follower_commits_no_more_than_it_has(mark, committed):
    bench = Bench.in_role("follower")
    leader_speaks(bench, high_watermark=mark)
    assert bench.core.high_watermark == committed


@pytest.mark.parametrize(
    ("diverging", "end_offset"),
    [
        (EpochEnd(4, 3), 2),  # inside our second batch: batches are never split
        (EpochEnd(3, 4), 2),  # the leader has an epoch that we lack: our epoch 2 ends at 2
        (EpochEnd(2, 2), 2),
        (EpochEnd(2, 1), 0),
        (EpochEnd(0, 0), 0),
    ],
)
def test_a_divergent_tail_is_cut_and_the_rest_fetched(diverging, end_offset):
    bench = Bench.in_role("follower")
    leader_speaks(bench, diverging=diverging, high_watermark=4)
    assert bench.all(Truncate) == [Truncate(end_offset)]
    assert bench.all(HighWatermark) == [], "no mark is taken before the log is known to fit"
    assert bench.sent(FetchRequest)[0].fetch_offset == end_offset


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"diverging": EpochEnd(2, 2)}, "below the high watermark 4"),
        ({"high_watermark": 3}, "below our own 4"),
    ],
)
def test_what_falls_below_the_own_high_watermark_is_fatal(fields, words):
    bench = Bench.in_role("follower")
    leader_speaks(bench, high_watermark=4)
    leader_speaks(bench, **fields)
    assert words in bench.all(Fatal)[0].reason
    assert bench.disk.end_offset == 4


@pytest.mark.parametrize(
    "batches",
    [
        (Batch(5, 5, 1, b"hole"),),
        (Batch(3, 5, 1, b"overlap"),),
        (Batch(4, 3, 1, b"old"),),
        (Batch(4, 6, 1, b"new"),),
    ],
)
def test_batches_that_do_not_continue_the_log_are_fatal(batches):
    bench = Bench.in_role("follower")
    leader_speaks(bench, batches=batches)
    assert "the leader continues a log that ends at 4 in epoch 4" in bench.all(Fatal)[0].reason
    assert bench.disk.end_offset == 4


@pytest.mark.parametrize("response_epoch", [4, 5])
def test_a_response_of_a_lower_epoch_or_75_is_ignored(response_epoch):
    bench = Bench.in_role("follower")
    error = messages.Error.NONE if response_epoch < EPOCH else messages.Error.UNKNOWN_LEADER_EPOCH
    bench.respond(
        PEER,
        fetch_of(bench),
        messages.FetchResponse(error, THIRD, response_epoch, batches=(Batch(4, 4, 1, b"x"),)),
    )
    assert bench.effects == []
    assert bench.core.deadline == pytest.approx(bench.now + bench.timing.retry_backoff_s)


@pytest.mark.parametrize(
    "error", [messages.Error.NONE, messages.Error.FENCED_LEADER_EPOCH, messages.Error.NOT_LEADER_OR_FOLLOWER]
)
@pytest.mark.parametrize(("leader", "role"), [(None, "unattached"), (THIRD, "follower")])
def test_a_response_of_a_higher_epoch_moves_the_voter(error, leader, role):
    bench = Bench.in_role("follower")
    bench.respond(PEER, fetch_of(bench), messages.FetchResponse(error, leader, 7, 4, batches=(Batch(4, 5, 1, b"x"),)))
    assert (bench.core.role, bench.core.epoch, bench.core.leader_id) == (role, 7, leader)
    assert bench.disk.end_offset == 4, "and its content is of an epoch that is over"


def test_a_candidate_that_hears_of_the_winner_follows_it():
    bench = Bench.in_role("candidate")
    request = bench.sent(messages.VoteRequest)[0]
    bench.respond(PEER, request, messages.VoteResponse(messages.Error.NONE, THIRD, EPOCH, False, False))
    assert (bench.core.role, bench.core.leader_id) == ("follower", THIRD)


def test_a_late_pre_vote_elects_no_leader():
    bench = Bench.in_role("candidate")
    request = replace(bench.sent(messages.VoteRequest)[0], pre_vote=True)
    bench.respond(PEER, request, messages.VoteResponse(messages.Error.NONE, None, EPOCH, True, True))
    assert bench.core.role == "candidate"


def test_a_voter_too_old_for_pre_votes_gets_a_real_request():
    bench = Bench.in_role("prospective")
    request = bench.sent(messages.VoteRequest)[0]
    bench.respond(PEER, request, messages.VoteResponse(messages.Error.UNSUPPORTED_VERSION, None, 0, False, True))
    assert (bench.core.role, bench.core.epoch) == ("candidate", EPOCH + 1)


def test_a_lost_pre_vote_leads_back_to_the_known_leader():
    bench = Bench.in_role("prospective")
    for request in bench.sent(messages.VoteRequest):
        bench.respond(request.voter.id, request, messages.VoteResponse(messages.Error.NONE, PEER, EPOCH, False, True))
    assert (bench.core.role, bench.core.leader_id) == ("follower", PEER)


def test_a_lost_pre_vote_without_a_leader_waits():
    bench = Bench.in_role("unattached")
    bench.expire()
    for request in bench.sent(messages.VoteRequest):
        bench.respond(request.voter.id, request, messages.VoteResponse(messages.Error.NONE, None, EPOCH, False, True))
    assert bench.core.role == "unattached"
    assert bench.core.deadline >= bench.now + bench.timing.election_timeout_s


def test_a_lost_election_waits_out_its_time_and_begins_with_a_pre_vote_again():
    bench = Bench.in_role("candidate")
    for request in bench.sent(messages.VoteRequest):
        bench.respond(request.voter.id, request, messages.VoteResponse(messages.Error.NONE, None, EPOCH, False, False))
    assert bench.core.role == "candidate"
    bench.expire()
    assert (bench.core.role, bench.core.epoch) == ("prospective", EPOCH)
    assert bench.disk.quorum_state.voted == messages.ReplicaKey(ME), "it keeps its vote"


def test_an_unanswered_vote_is_repeated_after_the_backoff():
    bench = Bench.in_role("candidate")
    request = bench.sent(messages.VoteRequest)[0]
    bench.respond(PEER, request, None)
    assert bench.effects == []
    bench.expire()
    assert bench.now == pytest.approx(100.0 + bench.timing.retry_backoff_s)
    assert bench.sent(messages.VoteRequest) == [request]


def leader_of_slow_disk(**kwargs):
    """Its LeaderChange ends at offset 5, and the flush of it goes on."""
    return Bench.in_role("leader", slow_disk=True, **kwargs)


def follower_of_slow_disk(**kwargs):
    return Bench.in_role("follower", slow_disk=True, **kwargs)


def append(bench, count=1):
    base = bench.disk.end_offset
    leader_speaks(bench, batches=(Batch(base, EPOCH, count, f"at {base}"),))


def propose(bench, *bodies):
    bench.tokens += 1
    return bench.do(bench.core.propose(bench.now, bench.tokens, [(body, 1) for body in bodies]))


def kinds(bench):
    return [type(effect) for effect in bench.effects]


def test_a_leader_hands_out_what_it_has_not_flushed_and_commits_it_by_the_disks_of_the_others():
    bench = leader_of_slow_disk()
    response = bench.ask(bench.fetch(PEER, offset=4, last_epoch=4))
    assert [batch.base_offset for batch in response.batches] == [4]
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5))
    assert bench.core.high_watermark is None, "one of three disks has it"
    bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5))
    assert bench.all(HighWatermark) == [HighWatermark(5)]
    assert bench.disk.flushed_end == 4


def test_a_leader_counts_itself_once_it_has_flushed():
    bench = leader_of_slow_disk()
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5))
    assert bench.core.high_watermark is None
    assert HighWatermark(5) in bench.end_flush()


def test_appends_gather_for_the_next_flush():
    bench = leader_of_slow_disk()
    for body in "abc":
        propose(bench, body)
        assert BeginFlush not in kinds(bench), "one goes on"
    bench.end_flush()
    assert kinds(bench).count(BeginFlush) == 1
    bench.ask(bench.fetch(PEER, offset=8, last_epoch=5))
    assert bench.core.high_watermark == 5, "of its own log the leader has flushed its LeaderChange"
    bench.end_flush()
    assert bench.core.high_watermark == 8
    assert BeginFlush not in kinds(bench), "nothing is left to flush"


def test_the_only_voter_commits_when_it_has_flushed():
    bench = Bench.in_role("candidate", voters=(ME,), slow_disk=True)
    assert (bench.core.role, bench.core.high_watermark) == ("leader", None)
    bench.end_flush()
    assert bench.core.high_watermark == 5


def test_a_follower_acknowledges_what_it_has_flushed():
    bench = follower_of_slow_disk()
    append(bench)
    assert not bench.sent(FetchRequest)
    bench.do(bench.core.tick(bench.now))
    assert not bench.sent(FetchRequest)
    bench.end_flush()
    assert [request.fetch_offset for request in bench.sent(FetchRequest)] == [5]


def test_a_follower_tells_no_other_leader_of_what_it_has_not_flushed():
    bench = follower_of_slow_disk()
    append(bench)
    bench.ask(begin(EPOCH + 1, THIRD))
    assert not bench.sent(FetchRequest)
    bench.end_flush()
    assert [request.current_leader_epoch for request in bench.sent(FetchRequest)] == [EPOCH + 1, EPOCH]


def test_a_candidate_has_flushed_the_log_that_it_asks_votes_for():
    bench = follower_of_slow_disk()
    append(bench)
    bench.expire()
    assert bench.core.role == "prospective"
    bench.grant(THIRD)
    assert kinds(bench)[:2] == [Flush, Persist]
    assert bench.disk.flushed_end == bench.disk.end_offset == 5
    assert bench.end_flush() == [], "the flush that went on says nothing new"


def test_a_flush_that_nobody_began_is_a_mistake():
    bench = Bench()
    with pytest.raises(RuntimeError, match="none is in progress"):
        bench.core.on_flushed(bench.now, 4)


@pytest.mark.parametrize("bug", [None, decisions.FLUSH_OF_CUT_TAIL])
def test_a_flush_that_ends_after_its_tail_was_cut_off_flushes_nothing_in_its_place(bug):
    bench = follower_of_slow_disk(bugs=[bug] if bug else [])
    append(bench, count=3)  # up to 7
    leader_speaks(bench, diverging=EpochEnd(4, 4))
    assert Truncate(4) in bench.effects
    assert [request.fetch_offset for request in bench.sent(FetchRequest)] == [4], "all of that was flushed before"
    append(bench, count=3)
    bench.end_flush()
    assert bench.disk.flushed_end == 4, "the batch of the second append is not durable"
    assert [request.fetch_offset for request in bench.sent(FetchRequest)] == ([7] if bug else [])
    if not bug:
        bench.end_flush()
        assert [request.fetch_offset for request in bench.sent(FetchRequest)] == [7]
