"""Requests and responses: the error codes, their order, and what a response may change."""

from dataclasses import replace
from itertools import product

import pytest
from raft_voter import CLUSTER, EPOCH, ME, PEER, THIRD, Bench

from system_under_test.kraft.raft.effects import (
    Append,
    Fatal,
    Flush,
    HighWatermark,
    Persist,
    Refused,
    Reply,
    Send,
    Truncate,
)
from system_under_test.kraft.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEnd,
    EpochResponse,
    Error,
    FetchRequest,
    FetchResponse,
    LeaderChange,
    QuorumState,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)

ROLES = ["unattached", "prospective", "candidate", "leader", "follower", "resigned"]


def vote(epoch=EPOCH, *, candidate=PEER, last=(4, 4), pre_vote=False, cluster=CLUSTER, voter=ME):
    return VoteRequest(cluster, epoch, ReplicaKey(candidate), ReplicaKey(voter), *last, pre_vote)


def begin(epoch=EPOCH, leader=PEER, *, cluster=CLUSTER, voter=ME):
    return BeginQuorumEpochRequest(cluster, leader, epoch, ReplicaKey(voter))


def end(epoch=EPOCH, leader=PEER, *preferred, cluster=CLUSTER):
    return EndQuorumEpochRequest(cluster, leader, epoch, tuple(ReplicaKey(id) for id in preferred))


# Requests


@pytest.mark.parametrize("role", ROLES)
def test_a_foreign_cluster_gets_104_and_learns_nothing(role):
    bench = Bench.in_role(role)
    for request in (vote(9, cluster="other"), begin(9, cluster="other"), end(9, cluster="other")):
        response = bench.ask(request)
        assert (response.error, response.leader_epoch, response.leader_id) == (Error.INCONSISTENT_CLUSTER_ID, 0, None)
    fetch = replace(bench.fetch(offset=0, last_epoch=0), cluster_id="other")
    assert bench.ask(fetch).error == Error.INCONSISTENT_CLUSTER_ID
    assert (bench.core.role, bench.core.epoch) == (role, EPOCH), "nor does it change anything"


@pytest.mark.parametrize("role", ROLES)
def test_an_old_epoch_is_fenced(role):
    bench = Bench.in_role(role)
    for request in (vote(4, last=(3, 9)), begin(4), end(4), bench.fetch(offset=4, last_epoch=4, epoch=4)):
        assert bench.ask(request).error == Error.FENCED_LEADER_EPOCH
    assert bench.core.epoch == EPOCH


@pytest.mark.parametrize("role", ROLES)
def test_a_fetch_of_a_later_epoch_is_unknown_and_changes_nothing(role):
    bench = Bench.in_role(role)
    response = bench.ask(bench.fetch(offset=4, last_epoch=4, epoch=6))
    assert (response.error, response.leader_epoch) == (Error.UNKNOWN_LEADER_EPOCH, EPOCH)
    assert bench.core.role == role


@pytest.mark.parametrize("role", [role for role in ROLES if role != "leader"])
def test_only_a_leader_answers_fetches(role):
    bench = Bench.in_role(role)
    response = bench.ask(bench.fetch(offset=4, last_epoch=4))
    assert (response.error, response.leader_id) == (Error.NOT_LEADER_OR_FOLLOWER, bench.core.leader_id)


@pytest.mark.parametrize(
    ("role", "request_"), list(product(ROLES, [vote(6), vote(6, pre_vote=True), begin(6), end(6)]))
)
def test_a_higher_epoch_is_always_entered(role, request_):
    bench = Bench.in_role(role)
    response = bench.ask(request_)
    assert (response.error, response.leader_epoch) == (Error.NONE, 6)
    assert bench.core.epoch == 6
    assert bench.disk.quorum_state.epoch == 6
    expected = ("unattached", None) if isinstance(request_, VoteRequest) else ("follower", PEER)
    assert (bench.core.role, bench.core.leader_id) == expected


@pytest.mark.parametrize("request_", [vote(6, voter=THIRD), begin(6, voter=THIRD)])
def test_a_wrong_voter_key_is_noticed_after_the_epoch_was_entered(request_):
    bench = Bench.in_role("unattached")
    assert bench.ask(request_).error == Error.INVALID_VOTER_KEY
    assert bench.core.epoch == 6
    assert bench.disk.quorum_state.voted is None


@pytest.mark.parametrize(
    "request_",
    [
        vote(EPOCH, last=(5, 9)),  # a candidate of epoch 5 raised it to 5: its log cannot hold epoch 5
        vote(EPOCH, last=(6, 9), pre_vote=True),
        vote(EPOCH, last=(-1, 9)),
        vote(EPOCH, last=(4, -1)),
        vote(EPOCH, candidate=ME),
        begin(EPOCH, leader=ME),
        end(EPOCH, ME),
    ],
)
def test_impossible_requests_are_invalid(request_):
    bench = Bench.in_role("unattached")
    assert bench.ask(request_).error == Error.INVALID_REQUEST


def test_a_pre_vote_may_hold_entries_of_its_own_epoch():
    assert Bench.in_role("unattached").ask(vote(EPOCH, last=(5, 9), pre_vote=True)).granted


@pytest.mark.parametrize(
    ("last", "granted"), [((4, 4), True), ((4, 5), True), ((4, 3), False), ((3, 99), False), ((2, 4), False)]
)
def test_a_vote_goes_to_logs_at_least_as_complete(last, granted):
    """Last epoch first, then length: a long log of an old epoch is the worse one."""
    bench = Bench.in_role("unattached")
    assert bench.ask(vote(last=last)).granted == granted
    assert bench.ask(vote(last=last, candidate=THIRD, pre_vote=True)).granted == granted


def test_a_vote_is_durable_before_it_is_told():
    bench = Bench.in_role("unattached")
    bench.ask(vote())
    assert [type(effect).__name__ for effect in bench.effects] == ["Persist", "Reply"]
    assert bench.all(Persist) == [Persist(QuorumState(EPOCH, None, ReplicaKey(PEER)), voted_now=True)]


def test_a_vote_told_again_is_no_second_vote():
    bench = Bench.in_role("unattached")
    bench.ask(vote())
    assert bench.ask(vote()).granted
    assert bench.all(Persist) == []
    assert not bench.ask(vote(candidate=THIRD)).granted


def test_pre_votes_bind_nobody():
    bench = Bench.in_role("unattached")
    assert bench.ask(vote(pre_vote=True)).granted
    assert bench.ask(vote(candidate=THIRD, pre_vote=True)).granted
    assert bench.all(Persist) == []
    assert bench.disk.quorum_state == QuorumState(EPOCH)


def test_a_vote_postpones_the_own_campaign():
    bench = Bench.in_role("unattached")
    bench.now += 0.9
    bench.ask(vote())
    assert bench.core.deadline() >= bench.now + bench.timing.election_timeout_s


def test_two_leaders_in_one_epoch_stop_the_voter():
    bench = Bench.in_role("follower")
    bench.respond(PEER, fetch_of(bench), FetchResponse(Error.NOT_LEADER_OR_FOLLOWER, THIRD, EPOCH))
    assert bench.all(Fatal) == [Fatal(f"epoch {EPOCH} has two leaders: n{PEER} and n{THIRD}")]
    assert bench.core.halted
    assert bench.core.tick(bench.now + 99) == []
    assert bench.core.deadline() == float("inf")


def test_a_leader_that_hears_of_another_one_in_its_epoch_stops():
    bench = Bench.in_role("leader")
    announced = BeginQuorumEpochRequest(CLUSTER, ME, EPOCH, ReplicaKey(PEER))
    bench.respond(PEER, announced, EpochResponse(Error.NONE, THIRD, EPOCH))
    assert bench.all(Fatal)


@pytest.mark.parametrize("role", ["leader", "follower", "prospective", "resigned"])
def test_a_request_that_contradicts_the_known_leader_is_only_refused(role):
    """A request may come from any program; a response comes from the address of a voter."""
    bench = Bench.in_role(role)
    for request in (begin(EPOCH, leader=THIRD), end(EPOCH, THIRD)):
        assert bench.ask(request).error == Error.INVALID_REQUEST
        assert (bench.core.role, bench.all(Fatal), bench.all(Persist)) == (role, [], [])


def test_a_prospective_goes_back_to_the_leader_that_speaks_up():
    bench = Bench.in_role("prospective")
    assert bench.ask(begin()).error == Error.NONE
    assert (bench.core.role, bench.core.leader_id) == ("follower", PEER)


# EndQuorumEpoch


def test_the_first_in_line_campaigns_at_once():
    bench = Bench.in_role("follower")
    bench.ask(end(EPOCH, PEER, ME, THIRD))
    assert bench.core.role == "prospective"
    assert len(bench.sent(VoteRequest)) == 2


@pytest.mark.parametrize(
    ("line", "delay_s"),
    [((THIRD, ME), 1.0), ((THIRD, ME, 4), 0.5), ((THIRD, 4, ME), 1.0), ((THIRD, ME, 4, 5), 0.25)],
)
def test_the_others_in_line_wait_growing_delays(line, delay_s):
    bench = Bench.in_role("follower", voters=(ME, PEER, THIRD, 4, 5))
    bench.ask(end(EPOCH, PEER, *line))
    assert bench.core.role == "follower"
    assert bench.core._voter.state.fetch_deadline == pytest.approx(bench.now + delay_s)


def test_followers_of_a_resigned_leader_grant_pre_votes():
    bench = Bench.in_role("follower")
    leader_speaks(bench)
    assert not bench.ask(vote(candidate=THIRD, pre_vote=True)).granted
    bench.ask(end(EPOCH, PEER, THIRD, ME))
    assert bench.ask(vote(candidate=THIRD, pre_vote=True)).granted


def test_a_shut_down_leader_names_successors_by_descending_log_end():
    bench = Bench.in_role("leader", voters=(1, 2, 3, 4))
    for peer, offset in ((2, 4), (3, 5), (4, 2)):
        bench.ask(bench.fetch(peer, offset=offset, last_epoch=5 if offset == 5 else 4 if offset == 4 else 2))
    bench.do(bench.core.shutdown(bench.now))
    assert bench.core.role == "resigned"
    ends = bench.sent(EndQuorumEpochRequest)
    assert len(ends) == 3
    assert [key.id for key in ends[0].preferred_candidates] == [3, 2, 4]


def test_a_voter_that_shuts_down_seeks_no_office():
    bench = Bench.in_role("follower")
    bench.do(bench.core.shutdown(bench.now))
    bench.now += 100
    bench.do(bench.core.tick(bench.now))
    assert bench.core.role == "follower"


@pytest.mark.parametrize("role", ["follower", "unattached"])
def test_a_voter_that_still_replays_lets_others_campaign(role):
    bench = Bench.in_role(role)
    if role == "follower":
        leader_speaks(bench)
    bench.core.seek_office(False)
    epoch = bench.core.epoch
    for _ in range(3):
        bench.expire()
        assert (bench.core.role, bench.core.epoch) == (role, epoch)
        assert bench.core.deadline() > bench.now
    assert bench.ask(vote(candidate=THIRD, pre_vote=True)).granted, "its leader is silent"
    if role == "follower":
        bench.ask(end(EPOCH, PEER, ME, THIRD))
        assert bench.core.role == "follower", "though it is the first in line"
    bench.core.seek_office(True)
    bench.expire()
    assert bench.core.role == "prospective"


def test_a_resigned_leader_leaves_its_epoch_after_an_election_timeout():
    bench = Bench.in_role("resigned")
    bench.now += 2.0
    bench.do(bench.core.tick(bench.now))
    assert (bench.core.role, bench.core.epoch) == ("unattached", EPOCH + 1)
    assert bench.disk.quorum_state == QuorumState(EPOCH + 1)


def test_a_resigned_leader_repeats_itself_until_everybody_has_heard():
    bench = Bench.in_role("resigned")
    for send in bench.all(Send):
        bench.respond(send.peer, send.request, None if send.peer == PEER else EpochResponse(Error.NONE, ME, EPOCH))
    bench.expire()
    assert [send.peer for send in bench.all(Send)] == [PEER]


# Responses


def fetch_of(bench):
    """The Fetch that this follower has on its way."""
    return bench.core._voter.log and FetchRequest(
        CLUSTER, ReplicaKey(ME), bench.core.epoch, bench.disk.end_offset, bench.disk.last_epoch, None, 500
    )


def leader_speaks(bench, **fields):
    return bench.respond(PEER, fetch_of(bench), FetchResponse(Error.NONE, PEER, bench.core.epoch, **fields))


def test_a_follower_appends_flushes_and_asks_for_more():
    bench = Bench.in_role("follower")
    effects = leader_speaks(bench, high_watermark=3, batches=(Batch(4, 5, 1, b"x"),))
    assert effects[:3] == [Append((Batch(4, 5, 1, b"x"),)), Flush(), HighWatermark(3)]
    assert [
        (fetch.fetch_offset, fetch.last_fetched_epoch, fetch.high_watermark) for fetch in bench.sent(FetchRequest)
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
        (EpochEnd(4, 3), 2),  # inside our second batch: batches are not torn
        (EpochEnd(3, 4), 2),  # the leader has an epoch we never had: our epoch 2 ends at 2
        (EpochEnd(2, 2), 2),
        (EpochEnd(2, 1), 0),
        (EpochEnd(0, 0), 0),
    ],
)
def test_a_divergent_tail_is_cut_and_the_rest_asked_about(diverging, end_offset):
    bench = Bench.in_role("follower")
    leader_speaks(bench, diverging=diverging, high_watermark=4)
    assert bench.all(Truncate) == [Truncate(end_offset)]
    assert bench.all(HighWatermark) == [], "no mark is taken before the log is known to fit"
    assert bench.sent(FetchRequest)[0].fetch_offset == end_offset


def test_a_cut_below_the_own_high_watermark_is_fatal():
    bench = Bench.in_role("follower")
    leader_speaks(bench, high_watermark=4)
    request = replace(fetch_of(bench), high_watermark=4)
    bench.respond(PEER, request, FetchResponse(Error.NONE, PEER, EPOCH, None, EpochEnd(2, 2)))
    assert "below the high watermark 4" in bench.all(Fatal)[0].reason
    assert bench.disk.end_offset == 4


def test_a_falling_high_watermark_is_fatal():
    bench = Bench.in_role("follower")
    leader_speaks(bench, high_watermark=4)
    bench.respond(PEER, fetch_of(bench), FetchResponse(Error.NONE, PEER, EPOCH, 3))
    assert "below our own 4" in bench.all(Fatal)[0].reason


@pytest.mark.parametrize(
    "batches",
    [(Batch(5, 5, 1, b"hole"),), (Batch(3, 5, 1, b"overlap"),), (Batch(4, 3, 1, b"old"),), (Batch(4, 6, 1, b"new"),)],
)
def test_batches_that_do_not_continue_the_log_are_fatal(batches):
    bench = Bench.in_role("follower")
    leader_speaks(bench, batches=batches)
    assert "the leader continues a log that ends at 4 in epoch 4" in bench.all(Fatal)[0].reason
    assert bench.disk.end_offset == 4


@pytest.mark.parametrize("response_epoch", [4, 5])
def test_a_response_of_a_lower_epoch_or_75_is_ignored(response_epoch):
    bench = Bench.in_role("follower")
    error = Error.NONE if response_epoch < EPOCH else Error.UNKNOWN_LEADER_EPOCH
    bench.respond(PEER, fetch_of(bench), FetchResponse(error, THIRD, response_epoch, batches=(Batch(4, 4, 1, b"x"),)))
    assert bench.effects == []
    assert bench.core.deadline() == pytest.approx(bench.now + bench.timing.retry_backoff_s)


@pytest.mark.parametrize("error", [Error.NONE, Error.FENCED_LEADER_EPOCH, Error.NOT_LEADER_OR_FOLLOWER])
@pytest.mark.parametrize(("leader", "role"), [(None, "unattached"), (THIRD, "follower")])
def test_a_response_of_a_higher_epoch_moves_the_voter(error, leader, role):
    bench = Bench.in_role("follower")
    bench.respond(PEER, fetch_of(bench), FetchResponse(error, leader, 7, 4, batches=(Batch(4, 5, 1, b"x"),)))
    assert (bench.core.role, bench.core.epoch, bench.core.leader_id) == (role, 7, leader)
    assert bench.disk.end_offset == 4, "and its content is of an epoch that is over"


def test_a_candidate_that_hears_of_the_winner_follows_it():
    bench = Bench.in_role("candidate")
    request = bench.sent(VoteRequest)[0]
    bench.respond(PEER, request, VoteResponse(Error.NONE, THIRD, EPOCH, False, False))
    assert (bench.core.role, bench.core.leader_id) == ("follower", THIRD)


def test_a_late_pre_vote_elects_nobody():
    bench = Bench.in_role("candidate")
    request = replace(bench.sent(VoteRequest)[0], pre_vote=True)
    bench.respond(PEER, request, VoteResponse(Error.NONE, None, EPOCH, True, True))
    assert bench.core.role == "candidate"


def test_a_voter_too_old_for_pre_votes_is_asked_in_earnest():
    bench = Bench.in_role("prospective")
    request = bench.sent(VoteRequest)[0]
    bench.respond(PEER, request, VoteResponse(Error.UNSUPPORTED_VERSION, None, 0, False, True))
    assert (bench.core.role, bench.core.epoch) == ("candidate", EPOCH + 1)


def test_a_lost_pre_vote_leads_back_to_the_known_leader():
    bench = Bench.in_role("prospective")
    for request in bench.sent(VoteRequest):
        bench.respond(request.voter.id, request, VoteResponse(Error.NONE, PEER, EPOCH, False, True))
    assert (bench.core.role, bench.core.leader_id) == ("follower", PEER)


def test_a_lost_pre_vote_without_a_leader_waits():
    bench = Bench.in_role("unattached")
    bench.expire()
    for request in bench.sent(VoteRequest):
        bench.respond(request.voter.id, request, VoteResponse(Error.NONE, None, EPOCH, False, True))
    assert bench.core.role == "unattached"
    assert bench.core.deadline() >= bench.now + bench.timing.election_timeout_s


def test_a_lost_election_waits_out_its_time_and_begins_with_a_pre_vote_again():
    bench = Bench.in_role("candidate")
    for request in bench.sent(VoteRequest):
        bench.respond(request.voter.id, request, VoteResponse(Error.NONE, None, EPOCH, False, False))
    assert bench.core.role == "candidate"
    bench.expire()
    assert (bench.core.role, bench.core.epoch) == ("prospective", EPOCH)
    assert bench.disk.quorum_state.voted == ReplicaKey(ME), "it keeps its vote"


def test_an_unanswered_vote_is_repeated_after_the_backoff():
    bench = Bench.in_role("candidate")
    request = bench.sent(VoteRequest)[0]
    bench.respond(PEER, request, None)
    assert bench.effects == []
    bench.expire()
    assert bench.now == pytest.approx(100.0 + bench.timing.retry_backoff_s)
    assert bench.sent(VoteRequest) == [request]


# Leaders


def test_a_new_leader_opens_its_epoch_in_the_log_and_announces_itself():
    bench = Bench.in_role("leader")
    assert bench.disk.batches[-1] == Batch(4, EPOCH, 1, LeaderChange(ME, (1, 2, 3), (1, 2)))
    assert bench.disk.quorum_state == QuorumState(EPOCH, ME, ReplicaKey(ME))
    kinds = [type(effect).__name__ for effect in bench.effects]
    assert kinds == ["Persist", "RoleChanged", "Append", "Flush", "Send", "Send"]


def test_begin_is_repeated_every_half_fetch_timeout_to_who_does_not_fetch():
    bench = Bench.in_role("leader")
    for peer in (PEER, THIRD):
        bench.respond(peer, begin(EPOCH, ME, voter=peer), EpochResponse(Error.NONE, ME, EPOCH))
    bench.now += 0.7
    bench.ask(bench.fetch(PEER, offset=4, last_epoch=4, max_wait_ms=0))
    bench.now += 0.3
    bench.do(bench.core.tick(bench.now))
    assert [send.peer for send in bench.all(Send)] == [THIRD]
    bench.now += 0.7
    bench.do(bench.core.tick(bench.now))
    assert [send.peer for send in bench.all(Send)] == [PEER]


def test_a_leader_without_a_majority_resigns_after_one_and_a_half_fetch_timeouts():
    bench = Bench.in_role("leader", voters=(1, 2, 3, 4, 5))
    bench.now += 2.9
    bench.ask(bench.fetch(2, offset=4, last_epoch=4))
    bench.now += 0.05
    bench.ask(bench.fetch(2, offset=4, last_epoch=4))
    bench.do(bench.core.tick(bench.now))
    assert bench.core.role == "leader"
    bench.now += 0.06
    bench.do(bench.core.tick(bench.now))
    assert bench.core.role == "resigned", "one voter, however often it fetches, is no majority of five"


def test_a_majority_that_fetches_keeps_the_leader():
    bench = Bench.in_role("leader", voters=(1, 2, 3, 4, 5))
    for _ in range(5):
        bench.now += 2.9
        bench.ask(bench.fetch(2, offset=4, last_epoch=4, max_wait_ms=0))
        bench.ask(bench.fetch(3, offset=4, last_epoch=4, max_wait_ms=0))
        bench.do(bench.core.tick(bench.now))
    assert bench.core.role == "leader"


def test_the_mark_is_published_only_beyond_the_start_of_the_epoch():
    bench = Bench.in_role("leader")
    response = bench.ask(bench.fetch(offset=2, last_epoch=2))
    assert (response.high_watermark, bench.core.high_watermark) == (None, None)
    bench.ask(bench.fetch(offset=4, last_epoch=4))
    assert bench.core.high_watermark is None, "a majority holds all before this epoch; that is not committed yet"
    bench.ask(bench.fetch(offset=5, last_epoch=5))
    assert bench.all(HighWatermark) == [HighWatermark(5)]


def test_a_fetch_waits_for_news_and_no_longer_than_it_wants():
    bench = Bench.in_role("leader")
    assert bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5)) is None
    assert bench.core.deadline() <= bench.now + 0.5
    bench.now += 0.5
    bench.do(bench.core.tick(bench.now))
    assert [type(effect).__name__ for effect in bench.effects if not isinstance(effect, Send)] == ["Reply"]


def test_a_parked_fetch_is_answered_when_there_is_data():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5))
    bench.do(bench.core.propose(bench.now, 99, [("news", 1)]))
    bench.expire()
    assert bench.now == 100.0, "at once, as soon as the log shows it"
    (reply,) = bench.all(Reply)
    assert reply.response.batches == (Batch(5, 5, 1, "news"),)


def test_a_fetch_that_does_not_know_the_mark_is_answered_at_once():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5, high_watermark=5))
    response = bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5, high_watermark=None))
    assert (response.high_watermark, response.batches) == (5, ())


def test_a_deposed_leader_lets_no_fetch_wait():
    bench = Bench.in_role("leader")
    assert bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5)) is None
    parked = bench.tokens
    bench.ask(begin(6, THIRD))
    (reply,) = [reply for reply in bench.all(Reply) if reply.token == parked]
    assert (reply.response.error, reply.response.leader_epoch) == (Error.NOT_LEADER_OR_FOLLOWER, 6)
    assert isinstance(bench.effects[0], Persist), "the new epoch is durable before anybody hears of it"


def test_a_deposed_leader_lets_no_read_wait():
    bench = Bench.in_role("leader")
    bench.do(bench.core.read(bench.now, 77))
    assert bench.effects == [], "nothing of this epoch is committed yet"
    bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5))
    bench.do(bench.core.read(bench.now, 78))
    bench.ask(begin(6, THIRD))
    assert bench.all(Refused) == [Refused(77, "not the leader"), Refused(78, "not the leader")]


def test_proposals_and_reads_are_refused_elsewhere():
    for role in ROLES:
        if role != "leader":
            bench = Bench.in_role(role)
            assert bench.do(bench.core.propose(bench.now, 1, [("x", 1)])) == [Refused(1, "not the leader")]
            assert bench.do(bench.core.read(bench.now, 2)) == [Refused(2, "not the leader")]


def test_a_proposal_prepared_in_another_epoch_is_refused():
    bench = Bench.in_role("leader")
    (refused,) = bench.do(bench.core.propose(bench.now, 1, [("x", 1)], expected_epoch=4))
    assert refused == Refused(1, "prepared in epoch 4, but this is epoch 5")
    with pytest.raises(ValueError, match="at least one batch"):
        bench.core.propose(bench.now, 1, [])


@pytest.mark.parametrize(("offset", "last_epoch"), [(-1, 0), (4, -1), (4, 6)])
def test_an_impossible_fetch_is_invalid(offset, last_epoch):
    bench = Bench.in_role("leader")
    assert bench.ask(bench.fetch(offset=offset, last_epoch=last_epoch)).error == Error.INVALID_REQUEST
