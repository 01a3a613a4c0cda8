"""What a voter makes of its files when it starts."""

import pytest
from raft_voter import EPOCH, ME, PEER, THIRD, Bench

from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import Append, Flush, HighWatermark, Persist, RoleChanged


@pytest.mark.parametrize(
    ("file", "log", "role", "epoch", "leader"),
    [
        (messages.QuorumState(), [], "unattached", 0, None),
        (messages.QuorumState(5), [(4, 2)], "unattached", 5, None),
        (messages.QuorumState(5, None, messages.ReplicaKey(PEER)), [(4, 2)], "unattached", 5, None),
        (messages.QuorumState(5, None, messages.ReplicaKey(ME)), [(4, 2)], "candidate", 5, None),
        (messages.QuorumState(5, PEER), [(4, 2)], "follower", 5, PEER),
        (
            messages.QuorumState(5, PEER, messages.ReplicaKey(ME)),
            [(4, 2)],
            "follower",
            5,
            PEER,
        ),  # it was a candidate, and another won
        (
            messages.QuorumState(5, ME, messages.ReplicaKey(ME)),
            [(5, 2)],
            "resigned",
            5,
            None,
        ),  # never lead an epoch twice
        (messages.QuorumState(5, PEER), [(7, 2)], "unattached", 7, None),  # the log knows a later epoch than the file
        (messages.QuorumState(), [(7, 2)], "unattached", 7, None),  # the file was lost
    ],
)
def test_the_start_up_table(file, log, role, epoch, leader):
    bench = Bench(file, log)
    core = bench.core
    assert (core.role, core.epoch, core.leader_id) == (role, epoch, leader)
    assert core.high_watermark is None, "the mark is not persisted: unknown, not 0"
    assert bench.all(RoleChanged) == [RoleChanged(role, epoch, leader)]


def test_a_lost_file_is_written_anew_before_anything_else():
    bench = Bench(messages.QuorumState(), [(7, 2)])
    assert bench.effects[0] == Persist(messages.QuorumState(7))


def test_a_recovered_log_is_flushed_before_it_is_sent():
    """A killed process finds its unflushed tail in the page cache; a power loss would still take it."""
    bench = Bench(messages.QuorumState(EPOCH, PEER))
    kinds = [type(effect).__name__ for effect in bench.effects]
    assert kinds == ["Flush", "RoleChanged", "VotersChanged", "Send"]
    assert bench.sent(messages.FetchRequest)[0].fetch_offset == 4


def test_an_empty_log_needs_no_flush():
    assert Bench(messages.QuorumState(), []).all(Flush) == []


def test_a_restarted_candidate_asks_again_in_the_same_epoch():
    bench = Bench(messages.QuorumState(EPOCH, None, messages.ReplicaKey(ME)))
    assert [(vote.epoch, vote.pre_vote, vote.voter.id) for vote in bench.sent(messages.VoteRequest)] == [
        (EPOCH, False, PEER),
        (EPOCH, False, THIRD),
    ]
    assert bench.all(Persist) == [], "its vote is on disk already"


def test_a_restarted_leader_tells_the_others_that_it_has_resigned():
    bench = Bench(messages.QuorumState(EPOCH, ME, messages.ReplicaKey(ME)))
    assert [(end.epoch, end.leader_id) for end in bench.sent(messages.EndQuorumEpochRequest)] == [(EPOCH, ME)] * 2


@pytest.mark.parametrize(
    ("file", "epoch"),
    [
        (messages.QuorumState(), 1),
        (messages.QuorumState(5), 6),
        (messages.QuorumState(5, None, messages.ReplicaKey(ME)), 5),
        # it must leave epoch 5, and raise its epoch once more to become a candidate
        (messages.QuorumState(5, ME, messages.ReplicaKey(ME)), 7),
    ],
)
def test_a_sole_voter_elects_itself_at_once(file, epoch):
    bench = Bench(file, [], voters=(ME,))
    assert (bench.core.role, bench.core.epoch) == ("leader", epoch)
    assert bench.all(Append) == [Append((messages.Batch(0, epoch, 1, messages.LeaderChange(ME, (ME,), (ME,))),))]
    assert bench.all(HighWatermark) == [HighWatermark(1)]
    assert bench.do(bench.core.tick(bench.now + 1e6)) == [], "it has no follower to lose"


def test_bad_identities_are_refused_in_one_sentence():
    def voter(identity):
        return Core(identity, Bench().disk, messages.QuorumState(), Bench().core.random, 0.0)

    with pytest.raises(ValueError, match="voter 9 must be one of the voters"):
        voter(messages.Identity("c", messages.ReplicaKey(9), (1, 2, 3)))
    with pytest.raises(ValueError, match="an observer must be none of the voters"):
        voter(messages.Identity("c", messages.ReplicaKey(1), (1, 2, 3), observer=True))
    with pytest.raises(ValueError, match="and no voter may be named twice"):
        voter(messages.Identity("c", messages.ReplicaKey(1), (1, 1, 2)))
    with pytest.raises(ValueError, match="no such planted bug: gremlin; there are stale-read, "):
        voter(messages.Identity("c", messages.ReplicaKey(1), (1, 2, 3), bugs=frozenset({"gremlin"})))


def test_a_caller_that_leaves_out_an_effect_gets_an_error():
    bench = Bench.in_role("leader")
    bench.core.propose(bench.now, 1, [("never appended", 1)])
    with pytest.raises(RuntimeError, match="carry out every effect before the next call"):
        bench.core.tick(bench.now)
