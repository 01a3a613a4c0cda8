"""How an epoch ends in order: a leader resigns, names successors, and others campaign in their turn."""

import pytest
from raft_voter import EPOCH, ME, PEER, THIRD, Bench, end, leader_speaks, vote

from system_under_test.kraft.raft.effects import Send
from system_under_test.kraft.raft.messages import EndQuorumEpochRequest, EpochResponse, Error, QuorumState, VoteRequest


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
