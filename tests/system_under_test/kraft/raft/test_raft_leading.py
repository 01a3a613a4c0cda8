"""A leader opens its epoch, keeps its majority, publishes marks, and answers every waiting client when deposed.

An epoch ends in order: the leader resigns, names successors, and others campaign in their turn.
"""

import pytest
from raft_voter import EPOCH, ME, PEER, ROLES, THIRD, Bench, begin, end, leader_speaks, vote

from system_under_test.kraft.raft.effects import HighWatermark, NotAccepted, Persist, Reply, Send
from system_under_test.kraft.raft.messages import (
    Batch,
    EndQuorumEpochRequest,
    EpochResponse,
    Error,
    LeaderChange,
    QuorumState,
    ReplicaKey,
    VoteRequest,
)
from system_under_test.kraft.raft.states import Reads


def test_a_new_leader_opens_its_epoch_in_the_log_and_announces_itself():
    bench = Bench.in_role("leader")
    assert bench.disk.batches[-1] == Batch(4, EPOCH, 1, LeaderChange(ME, (1, 2, 3), (1, 2)))
    assert bench.disk.quorum_state == QuorumState(EPOCH, ME, ReplicaKey(ME))
    kinds = [type(effect).__name__ for effect in bench.effects]
    assert kinds == ["Persist", "RoleChanged", "Append", "BeginFlush", "Send", "Send"]


def test_begin_is_repeated_every_half_fetch_timeout_to_who_does_not_fetch():
    bench = Bench.in_role("leader")
    for peer in (PEER, THIRD):
        bench.respond(peer, begin(EPOCH, ME, voter=peer), EpochResponse(Error.NONE, ME, EPOCH))
    bench.now += 0.7
    bench.ask(bench.fetch(PEER, offset=4, last_epoch=4, max_wait_ms=0))
    bench.wait(0.3)
    assert [send.peer for send in bench.all(Send)] == [THIRD]
    bench.wait(0.7)
    assert [send.peer for send in bench.all(Send)] == [PEER]


def test_a_leader_without_a_majority_resigns_after_one_and_a_half_fetch_timeouts():
    bench = Bench.in_role("leader", voters=(1, 2, 3, 4, 5))
    bench.now += 2.9
    bench.ask(bench.fetch(2, offset=4, last_epoch=4))
    bench.now += 0.05
    bench.ask(bench.fetch(2, offset=4, last_epoch=4))
    bench.do(bench.core.tick(bench.now))
    assert bench.core.role == "leader"
    bench.wait(0.06)
    assert bench.core.role == "resigned", "one voter, however often it fetches, is no majority of five"


def test_fetches_that_were_queued_behind_an_overdue_deadline_do_not_renew_it():
    """A leader that stood still for longer than the deadline was perhaps replaced meanwhile."""
    bench = Bench.in_role("leader", voters=(1, 2, 3, 4, 5))
    bench.ask(bench.fetch(2, offset=4, last_epoch=4, max_wait_ms=0))
    bench.now += 9.0
    bench.ask(bench.fetch(3, offset=4, last_epoch=4, max_wait_ms=0))
    bench.do(bench.core.tick(bench.now))
    assert bench.core.role == "resigned"


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
    assert bench.core.deadline <= bench.now + 0.5
    bench.wait(0.5)
    assert [type(effect).__name__ for effect in bench.effects if not isinstance(effect, Send)] == ["Reply"]


def test_a_fetch_that_does_not_know_the_mark_is_answered_at_once():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5, high_watermark=5))
    response = bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5, high_watermark=None))
    assert (response.high_watermark, response.batches) == (5, ())


def test_a_higher_mark_alone_waits_a_moment_for_records_to_share_its_answer():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5, high_watermark=5))
    assert bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5, high_watermark=4)) is None
    late = bench.tokens
    bench.expire()
    assert bench.now == 100.0 + bench.timing.mark_wait_s
    assert [(reply.token, reply.response.high_watermark) for reply in bench.all(Reply)] == [(late, 5)]
    assert bench.core.deadline > bench.now + bench.timing.mark_wait_s, "who knows the mark waits on"


def test_records_are_sent_at_once_and_take_the_mark_along():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5, high_watermark=5))
    bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5, high_watermark=4))
    bench.slow_disk = True
    bench.do(bench.core.propose(bench.now, 99, [("news", 1)]))
    bench.expire()
    assert bench.now == 100.0
    assert {reply.response.high_watermark for reply in bench.all(Reply)} == {5}
    assert {reply.response.batches for reply in bench.all(Reply)} == {(Batch(5, 5, 1, "news"),)}
    assert len(bench.all(Reply)) == 2


def test_a_read_does_not_wait_for_the_mark():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5, high_watermark=5))
    bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5, high_watermark=4))
    bench.do(bench.core.read(bench.now, 99))
    assert len(bench.all(Reply)) == 2, "their next fetches prove the read"


def test_a_commit_by_the_leaders_own_flush_is_announced_too():
    bench = Bench.in_role("leader")
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5, high_watermark=5))
    bench.slow_disk = True
    bench.do(bench.core.propose(bench.now, 99, [("news", 1)]))
    bench.expire()
    bench.ask(bench.fetch(PEER, offset=6, last_epoch=5, high_watermark=5))
    assert bench.core.high_watermark == 5, "the leader's disk does not hold it yet, and the third is silent"
    bench.effects = bench.end_flush()
    assert bench.core.high_watermark == 6
    bench.expire()
    assert bench.now == 100.0 + bench.timing.mark_wait_s
    assert [reply.response.high_watermark for reply in bench.all(Reply)] == [6]


def test_a_deposed_leader_lets_no_fetch_wait():
    bench = Bench.in_role("leader")
    assert bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5)) is None
    parked = bench.tokens
    bench.ask(vote(6, candidate=THIRD))
    (reply,) = [reply for reply in bench.all(Reply) if reply.token == parked]
    assert (reply.response.error, reply.response.leader_epoch) == (Error.NOT_LEADER_OR_FOLLOWER, 6)
    assert isinstance(bench.effects[0], Persist), "the new epoch is durable before it is sent"


def test_a_deposed_leader_lets_no_read_wait():
    bench = Bench.in_role("leader")
    bench.do(bench.core.read(bench.now, 77))
    assert bench.effects == [], "nothing of this epoch is committed yet"
    bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5))
    bench.do(bench.core.read(bench.now, 78))
    bench.ask(vote(6, candidate=THIRD))
    assert bench.all(NotAccepted) == [NotAccepted(77, "not the leader"), NotAccepted(78, "not the leader")]


def test_proposals_and_reads_are_refused_elsewhere():
    for role in ROLES:
        if role != "leader":
            bench = Bench.in_role(role)
            assert bench.do(bench.core.propose(bench.now, 1, [("x", 1)])) == [NotAccepted(1, "not the leader")]
            assert bench.do(bench.core.read(bench.now, 2)) == [NotAccepted(2, "not the leader")]


def test_a_proposal_prepared_in_another_epoch_is_refused():
    bench = Bench.in_role("leader")
    (refused,) = bench.do(bench.core.propose(bench.now, 1, [("x", 1)], expected_epoch=4))
    assert refused == NotAccepted(1, "prepared in epoch 4, but this is epoch 5")
    with pytest.raises(ValueError, match="at least one batch"):
        bench.core.propose(bench.now, 1, [])


FIRST, SECOND = 2, 3  # voters; the leader is 1
WIRE = 20  # a connection of the first


@pytest.mark.parametrize(
    ("story", "proved"),
    [
        ("fetch read answer fetch", True),
        ("read answer", False),
        ("answer read fetch", False),  # in flight since before the read
        ("read fetch", False),  # the first of its connection
        ("read answer break fetch", False),
    ],
)
def test_a_fetch_that_follows_an_answer_after_the_read_proves_it_and_nothing_else_does(story, proved):
    reads = Reads([FIRST, SECOND])
    happens = {
        "read": lambda: reads.note(token=1, mark=7),
        "answer": lambda: reads.answered(WIRE),
        "fetch": lambda: reads.fetched(FIRST, WIRE),
        "break": lambda: reads.forget(WIRE),
    }
    for event in story.split():
        happens[event]()
    assert reads.take_proved() == [(1, 7)] * proved
    assert reads.take_proved() == [], "a read is answered once"


def test_waiting_reads_share_a_round():
    reads = Reads([FIRST, SECOND])
    reads.note(token=1, mark=7)
    reads.note(token=2, mark=8)
    reads.answered(WIRE)
    reads.note(token=3, mark=9)
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == [(1, 7), (2, 8)]
    assert reads.needs(FIRST)
    reads.answered(WIRE)
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == [(3, 9)]
    assert not reads.needs(FIRST)


def test_a_voter_that_proved_all_gets_no_further_request():
    reads = Reads([2, 3, 4, 5])
    assert not reads.needs(2), "no reads, no hurry"
    reads.note(token=1, mark=7)
    assert reads.needs(2)
    reads.answered(20)
    reads.fetched(2, 20)
    assert not reads.needs(2)
    assert reads.needs(3)
    assert not reads.needs(99), "an observer proves nothing"


def test_the_first_in_line_campaigns_at_once():
    bench = Bench.in_role("follower")
    bench.ask(end(EPOCH, PEER, ME, THIRD))
    assert bench.core.role == "prospective"
    assert len(bench.sent(VoteRequest)) == 2


@pytest.mark.parametrize(
    ("line", "delay_s"), [((THIRD, ME), 1.0), ((THIRD, ME, 4), 0.5), ((THIRD, 4, ME), 1.0), ((THIRD, ME, 4, 5), 0.25)]
)
def test_the_others_in_line_wait_growing_delays(line, delay_s):
    bench = Bench.in_role("follower", voters=(ME, PEER, THIRD, 4, 5))
    bench.ask(end(EPOCH, PEER, *line))
    assert bench.core.role == "follower"
    assert bench.core.state.fetch_deadline == pytest.approx(bench.now + delay_s)


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
    bench.wait(100)
    assert bench.core.role == "follower"


@pytest.mark.parametrize("role", ["follower", "unattached"])
def test_a_voter_that_still_replays_lets_others_campaign(role):
    bench = Bench.in_role(role)
    if role == "follower":
        leader_speaks(bench)
    bench.core.seeks_office = False
    epoch = bench.core.epoch
    for _ in range(3):
        bench.expire()
        assert (bench.core.role, bench.core.epoch) == (role, epoch)
        assert bench.core.deadline > bench.now
    assert bench.ask(vote(candidate=THIRD, pre_vote=True)).granted, "its leader is silent"
    if role == "follower":
        bench.ask(end(EPOCH, PEER, ME, THIRD))
        assert bench.core.role == "follower", "though it is the first in line"
    bench.core.seeks_office = True
    bench.expire()
    assert bench.core.role == "prospective"


def test_a_resigned_leader_leaves_its_epoch_after_an_election_timeout():
    bench = Bench.in_role("resigned")
    bench.wait(2.0)
    assert (bench.core.role, bench.core.epoch) == ("unattached", EPOCH + 1)
    assert bench.disk.quorum_state == QuorumState(EPOCH + 1)


def test_a_resigned_leader_repeats_itself_until_every_voter_has_answered():
    bench = Bench.in_role("resigned")
    for send in bench.all(Send):
        bench.respond(send.peer, send.request, None if send.peer == PEER else EpochResponse(Error.NONE, ME, EPOCH))
    bench.expire()
    assert [send.peer for send in bench.all(Send)] == [PEER]
