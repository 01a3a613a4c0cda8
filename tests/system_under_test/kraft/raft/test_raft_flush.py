"""An fsync of the log holds up what must wait for it, and nothing else."""

import pytest
from raft_voter import EPOCH, ME, PEER, THIRD, Bench, begin, leader_speaks

from system_under_test.kraft.raft import decisions
from system_under_test.kraft.raft.effects import Append, BeginFlush, Flush, HighWatermark, Persist, Truncate
from system_under_test.kraft.raft.messages import Batch, EpochEnd, FetchRequest


def leader(**kwargs):
    """Its LeaderChange ends at offset 5, and the flush of it goes on."""
    return Bench.in_role("leader", slow_disk=True, **kwargs)


def follower(**kwargs):
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
    bench = leader()
    response = bench.ask(bench.fetch(PEER, offset=4, last_epoch=4))
    assert [batch.base_offset for batch in response.batches] == [4]
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5))
    assert bench.core.high_watermark is None, "one of three disks has it"
    bench.ask(bench.fetch(THIRD, offset=5, last_epoch=5))
    assert bench.all(HighWatermark) == [HighWatermark(5)]
    assert bench.disk.flushed_end == 4


def test_a_leader_counts_itself_once_it_has_flushed():
    bench = leader()
    bench.ask(bench.fetch(PEER, offset=5, last_epoch=5))
    assert bench.core.high_watermark is None
    assert HighWatermark(5) in bench.end_flush()


def test_appends_gather_for_the_next_flush():
    bench = leader()
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
    bench = follower()
    append(bench)
    assert not bench.sent(FetchRequest)
    bench.do(bench.core.tick(bench.now))
    assert not bench.sent(FetchRequest)
    bench.end_flush()
    assert [request.fetch_offset for request in bench.sent(FetchRequest)] == [5]


def test_a_follower_tells_no_other_leader_of_what_it_has_not_flushed():
    bench = follower()
    append(bench)
    bench.ask(begin(EPOCH + 1, THIRD))
    assert not bench.sent(FetchRequest)
    bench.end_flush()
    assert [request.current_leader_epoch for request in bench.sent(FetchRequest)] == [EPOCH + 1, EPOCH]


def test_a_follower_knows_as_committed_what_it_has_not_flushed_itself():
    bench = follower()
    leader_speaks(bench, batches=(Batch(4, EPOCH, 1, "a"),), high_watermark=5)
    assert kinds(bench)[:3] == [Append, BeginFlush, HighWatermark]


def test_a_candidate_has_flushed_the_log_that_it_asks_votes_for():
    bench = follower()
    append(bench)
    bench.expire()
    assert bench.core.role == "prospective"
    bench.grant(THIRD)
    assert kinds(bench)[:2] == [Flush, Persist]
    assert bench.disk.flushed_end == bench.disk.end_offset == 5
    assert bench.end_flush() == [], "the flush that went on says nothing new"


def test_a_flush_that_nobody_began_is_a_mistake():
    bench = Bench()
    with pytest.raises(RuntimeError, match="none goes on"):
        bench.core.on_flushed(bench.now, 4)


@pytest.mark.parametrize("bug", [None, decisions.FLUSH_OF_CUT_TAIL])
def test_a_flush_that_ends_after_its_tail_was_cut_off_flushes_nothing_in_its_place(bug):
    bench = follower(bugs=[bug] if bug else [])
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
