"""What a response may change: a follower appends, cuts or stops; a candidate wins, loses or waits."""

from dataclasses import replace

import pytest
from raft_voter import EPOCH, ME, PEER, THIRD, Bench, fetch_of, leader_speaks

from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.effects import Append, BeginFlush, Fatal, HighWatermark, Truncate


def test_a_follower_appends_flushes_and_asks_for_more():
    bench = Bench.in_role("follower")
    effects = leader_speaks(bench, high_watermark=3, batches=(messages.Batch(4, 5, 1, b"x"),))
    assert effects[:3] == [Append((messages.Batch(4, 5, 1, b"x"),)), BeginFlush(), HighWatermark(3)]
    assert [
        (fetch.fetch_offset, fetch.last_fetched_epoch, fetch.high_watermark)
        for fetch in bench.sent(messages.FetchRequest)
    ] == [(5, 5, 3)]


def test_a_follower_commits_no_more_than_it_has():
    bench = Bench.in_role("follower")
    leader_speaks(bench, high_watermark=99)
    assert bench.all(HighWatermark) == [HighWatermark(4)]


def test_an_unknown_mark_commits_nothing():
    bench = Bench.in_role("follower")
    leader_speaks(bench, high_watermark=None)
    assert bench.core.high_watermark is None


@pytest.mark.parametrize(
    ("diverging", "end_offset"),
    [
        (messages.EpochEnd(4, 3), 2),  # inside our second batch: batches are never split
        (messages.EpochEnd(3, 4), 2),  # the leader has an epoch that we lack: our epoch 2 ends at 2
        (messages.EpochEnd(2, 2), 2),
        (messages.EpochEnd(2, 1), 0),
        (messages.EpochEnd(0, 0), 0),
    ],
)
def test_a_divergent_tail_is_cut_and_the_rest_fetched(diverging, end_offset):
    bench = Bench.in_role("follower")
    leader_speaks(bench, diverging=diverging, high_watermark=4)
    assert bench.all(Truncate) == [Truncate(end_offset)]
    assert bench.all(HighWatermark) == [], "no mark is taken before the log is known to fit"
    assert bench.sent(messages.FetchRequest)[0].fetch_offset == end_offset


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"diverging": messages.EpochEnd(2, 2)}, "below the high watermark 4"),
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
        (messages.Batch(5, 5, 1, b"hole"),),
        (messages.Batch(3, 5, 1, b"overlap"),),
        (messages.Batch(4, 3, 1, b"old"),),
        (messages.Batch(4, 6, 1, b"new"),),
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
        messages.FetchResponse(error, THIRD, response_epoch, batches=(messages.Batch(4, 4, 1, b"x"),)),
    )
    assert bench.effects == []
    assert bench.core.deadline == pytest.approx(bench.now + bench.timing.retry_backoff_s)


@pytest.mark.parametrize(
    "error", [messages.Error.NONE, messages.Error.FENCED_LEADER_EPOCH, messages.Error.NOT_LEADER_OR_FOLLOWER]
)
@pytest.mark.parametrize(("leader", "role"), [(None, "unattached"), (THIRD, "follower")])
def test_a_response_of_a_higher_epoch_moves_the_voter(error, leader, role):
    bench = Bench.in_role("follower")
    bench.respond(
        PEER, fetch_of(bench), messages.FetchResponse(error, leader, 7, 4, batches=(messages.Batch(4, 5, 1, b"x"),))
    )
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
