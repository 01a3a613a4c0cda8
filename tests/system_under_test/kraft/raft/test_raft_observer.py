"""A replica that is no voter: it follows the log, and no majority counts it."""

from __future__ import annotations

import pytest
from raft_voter import EPOCH, LOG, ME, PEER, THIRD, Bench, begin, end, leader_speaks, vote

from system_under_test.kraft.raft.decisions import OBSERVER_COUNTS
from system_under_test.kraft.raft.effects import HighWatermark, NotAccepted, Send
from system_under_test.kraft.raft.messages import Batch, Error, FetchRequest, FetchResponse, QuorumState

FOURTH, FIFTH = 4, 5
VOTERS = (PEER, THIRD, FOURTH)


def observer(state: QuorumState | None = None) -> Bench:
    return Bench(state, voters=VOTERS, observer=True)


def test_an_observer_is_none_of_the_voters() -> None:
    with pytest.raises(ValueError, match="an observer must be none of the voters"):
        Bench(observer=True)


def test_it_asks_one_voter_after_another_until_one_says_who_leads() -> None:
    bench = observer()
    asked = []
    for _ in range(4):
        [send] = [effect for effect in bench.expire() if isinstance(effect, Send)]
        assert isinstance(send.request, FetchRequest) and bench.core.role == "unattached"
        asked.append(send.peer)
        bench.respond(send.peer, send.request, None)
    assert asked == [PEER, THIRD, FOURTH, PEER]
    [send] = [effect for effect in bench.expire() if isinstance(effect, Send)]
    answer = FetchResponse(Error.NOT_LEADER_OR_FOLLOWER, FOURTH, EPOCH)
    bench.respond(send.peer, send.request, answer)
    assert (bench.core.role, bench.core.leader_id) == ("follower", FOURTH)


def test_it_appends_what_the_leader_has_and_learns_what_is_committed() -> None:
    bench = observer(QuorumState(EPOCH, PEER))
    leader_speaks(bench, batches=(Batch(4, EPOCH, 1, "new"),), high_watermark=5)
    assert (bench.disk.end_offset, bench.core.high_watermark) == (5, 5)
    assert bench.disk.flushed_end == 5


def test_it_never_campaigns_and_looks_for_another_leader_when_its_own_is_silent() -> None:
    bench = observer(QuorumState(EPOCH, PEER))
    bench.respond(PEER, bench.sent(FetchRequest)[0], None)
    asked = set()
    for _ in range(400):  # its own leader is asked again after each back-off
        for effect in bench.expire():
            if isinstance(effect, Send):
                asked.add(effect.peer)
                assert isinstance(effect.request, FetchRequest)
                bench.respond(effect.peer, effect.request, None)
        assert bench.core.role == "follower" and bench.core.epoch == EPOCH
    assert asked == set(VOTERS)


def test_it_gives_no_votes_and_leads_nothing() -> None:
    bench = observer()
    for pre_vote in (False, True):
        answer = bench.ask(vote(EPOCH + 3, pre_vote=pre_vote))
        assert (answer.error, answer.granted, bench.core.epoch) == (Error.INCONSISTENT_VOTER_SET, False, EPOCH)
    bench.do(bench.core.propose(bench.now, 77, [("body", 1)]))
    assert bench.all(NotAccepted)
    bench.ask(begin(EPOCH, PEER, voter=ME))
    bench.ask(end(EPOCH, PEER))
    assert bench.core.role == "unattached"


def commits(bench: Bench) -> list[int]:
    """High watermarks after two replicas that are no voters have fetched up to the leader's log end."""
    end_offset = bench.disk.end_offset
    for replica in (FOURTH, FIFTH):
        bench.ask(bench.fetch(replica, offset=end_offset, last_epoch=EPOCH, max_wait_ms=0))
    return [effect.offset for effect in bench.all(HighWatermark)]


def test_a_leader_serves_observers_and_counts_only_voters() -> None:
    bench = Bench.in_role("leader")
    assert commits(bench) == [] and bench.core.high_watermark is None
    answer = bench.ask(bench.fetch(FOURTH, offset=2, last_epoch=LOG[0][0], max_wait_ms=0))
    assert [batch.base_offset for batch in answer.batches] == [2, 4]
    bench.ask(bench.fetch(PEER, offset=bench.disk.end_offset, last_epoch=EPOCH, max_wait_ms=0))
    assert bench.core.high_watermark == bench.disk.end_offset


def test_with_the_planted_bug_observers_commit_what_no_other_voter_holds() -> None:
    bench = Bench.in_role("leader", bugs=[OBSERVER_COUNTS])
    assert commits(bench) == [bench.disk.end_offset]
