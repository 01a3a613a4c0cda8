"""Decisions with their bugs off and on, transitions between states, and a voter that starts from its files."""

from itertools import product
from types import SimpleNamespace
from uuid import UUID

import pytest
from raft_voter import EPOCH, ME, PEER, THIRD, Bench
from simulated_quorum.disk import Disk

from system_under_test.kraft.raft import decisions, messages
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import Append, HighWatermark, Persist, RoleChanged
from system_under_test.kraft.raft.messages import Batch, EpochEnd, FetchRequest, ReplicaKey, SnapshotId
from system_under_test.kraft.raft.states import IllegalTransition, Role, Votes, check_transition

A, B = ReplicaKey(2), ReplicaKey(3)


def grants(role, *, pre_vote, up_to_date=True, voted=None, leader_known=False, has_fetched=False, bugs=()):
    return decisions.grants_vote(
        role,
        pre_vote=pre_vote,
        up_to_date=up_to_date,
        candidate=A,
        voted=voted,
        leader_known=leader_known,
        has_fetched=has_fetched,
        bugs=bugs,
    )


@pytest.mark.parametrize(
    ("role", "circumstances", "pre_vote", "standard"),
    [
        # role           circumstances                                  pre-vote standard
        ("unattached", {}, True, True),
        ("unattached", {"up_to_date": False}, False, False),
        ("unattached", {"voted": A}, True, True),
        ("unattached", {"voted": A, "up_to_date": False}, False, True),  # the same vote, sent again
        ("unattached", {"voted": B}, True, False),
        ("prospective", {}, True, True),
        ("prospective", {"up_to_date": False}, False, False),
        ("prospective", {"voted": A}, True, True),
        ("prospective", {"voted": B}, True, False),
        ("prospective", {"leader_known": True}, True, False),
        ("follower", {"leader_known": True}, True, False),
        ("follower", {"leader_known": True, "up_to_date": False}, False, False),
        ("follower", {"leader_known": True, "has_fetched": True}, False, False),
        ("candidate", {"voted": B}, True, False),
        ("candidate", {"voted": B, "up_to_date": False}, False, False),
        ("resigned", {}, True, False),
        ("resigned", {"up_to_date": False}, False, False),
        ("leader", {"leader_known": True}, False, False),
        ("leader", {"leader_known": True, "up_to_date": False}, False, False),
    ],
)
def test_the_table_of_votes(role, circumstances, pre_vote, standard):
    assert grants(role, pre_vote=True, **circumstances) == pre_vote
    assert grants(role, pre_vote=False, **circumstances) == standard


def test_a_vote_names_the_directory_too():
    old, new = (ReplicaKey(2, UUID(int=number)) for number in (1, 2))
    assert decisions.same_key(old, old)
    assert not decisions.same_key(old, new), "a wiped disk does not inherit the votes given to the old one"
    assert decisions.same_key(ReplicaKey(2), new)
    assert not decisions.same_key(ReplicaKey(3), new)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging", "by_offset"),
    [
        # ours: epoch 2 up to offset 4, epoch 5 up to offset 6
        (0, 0, None, None),
        (3, 2, None, None),
        (4, 2, None, None),
        (6, 5, None, None),
        (6, 2, EpochEnd(2, 4), None),  # epoch 2 ends earlier here: the bug mistakes another node's tail for our own
        (6, 3, EpochEnd(2, 4), None),  # epoch 3 never existed here
        (9, 4, EpochEnd(2, 4), EpochEnd(4, 6)),  # the bug truncates by length
        (7, 5, EpochEnd(5, 6), EpochEnd(5, 6)),
        (2, 1, EpochEnd(0, 0), None),  # nothing in common
    ],
)
def test_divergence_compares_epochs_and_the_bug_offsets_alone(offset, last_epoch, diverging, by_offset):
    log = Disk()
    log.append([Batch(0, 2, 4, "a"), Batch(4, 5, 2, "b")])
    request = FetchRequest("c", A, 6, offset, last_epoch, None, 0)
    assert decisions.divergence(log, request) == diverging
    assert decisions.divergence(log, request, {decisions.DIVERGENCE_BY_OFFSET}) == by_offset


@pytest.mark.parametrize(("offset", "last_epoch", "fetches"), [(0, 0, True), (3, 2, True), (5, 1, True), (4, 2, False)])
def test_a_follower_that_a_log_cannot_continue_fetches_a_snapshot(offset, last_epoch, fetches):
    log = Disk()
    log.start = log.snapshot = SnapshotId(4, 2)
    request = FetchRequest("c", A, 6, offset, last_epoch, None, 0)
    assert decisions.snapshot_instead(log, request) == (log.start if fetches else None)


def test_a_replica_joins_once_it_has_caught_up_and_with_the_bug_at_once():
    assert decisions.may_join(5.0, 5.0) and not decisions.may_join(5.1, 5.0)
    assert not decisions.may_join(float("inf"), 5.0)
    assert decisions.may_join(float("inf"), 5.0, {decisions.JOINS_WITHOUT_CATCHING_UP})


def test_an_empty_disk_has_an_id_of_its_own_and_with_the_bug_that_of_the_disk_before():
    drawn, old = UUID(int=1), UUID(int=2)
    assert decisions.id_of_new_disk(drawn, old) == drawn
    assert decisions.id_of_new_disk(drawn, old, {decisions.WIPED_DISK_KEEPS_ID}) == old
    assert decisions.id_of_new_disk(drawn, None, {decisions.WIPED_DISK_KEEPS_ID}) == drawn, "the first disk"


def is_legal(old: Role, new: Role, change: int) -> bool:
    try:
        check_transition(SimpleNamespace(role=old, epoch=10), SimpleNamespace(role=new, epoch=10 + change))
    except IllegalTransition:
        return False
    return True


def test_epochs_never_go_back():
    assert not any(is_legal(old, new, -1) for old, new in product(Role, Role))


def test_only_a_prospective_becomes_candidate_and_only_of_the_next_epoch():
    assert {old for old in Role if any(is_legal(old, Role.CANDIDATE, change) for change in (0, 1, 2))} == {
        Role.PROSPECTIVE
    }
    assert [is_legal(Role.PROSPECTIVE, Role.CANDIDATE, change) for change in (0, 1, 2)] == [False, True, False]


def test_only_a_candidate_becomes_leader_and_keeps_its_epoch():
    assert {old for old in Role if is_legal(old, Role.LEADER, 0)} == {Role.CANDIDATE}
    assert not any(is_legal(old, Role.LEADER, 1) for old in Role)


def test_a_leader_leaves_its_epoch_for_ever():
    for former, new in product((Role.LEADER, Role.RESIGNED), Role):
        if new != Role.RESIGNED:
            assert not is_legal(former, new, 0), f"{former} -> {new} within the epoch"


def test_no_voter_follows_a_second_leader_in_one_epoch():
    assert not is_legal(Role.FOLLOWER, Role.FOLLOWER, 0)


def test_the_last_word_of_a_voter_counts():
    votes = Votes({1})
    votes.record(2, granted=False)
    votes.record(2, granted=True)
    assert votes == Votes({1, 2}, set())


@pytest.mark.parametrize(
    ("file", "log", "role", "epoch", "leader"),
    [
        (messages.QuorumState(), [], "unattached", 0, None),
        (messages.QuorumState(5), [(4, 2)], "unattached", 5, None),
        (messages.QuorumState(5, None, ReplicaKey(PEER)), [(4, 2)], "unattached", 5, None),
        (messages.QuorumState(5, None, ReplicaKey(ME)), [(4, 2)], "candidate", 5, None),
        (messages.QuorumState(5, PEER), [(4, 2)], "follower", 5, PEER),
        (
            messages.QuorumState(5, PEER, ReplicaKey(ME)),
            [(4, 2)],
            "follower",
            5,
            PEER,
        ),  # it was a candidate, and another won
        (
            messages.QuorumState(5, ME, ReplicaKey(ME)),
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
    assert bench.sent(FetchRequest)[0].fetch_offset == 4


def test_a_restarted_candidate_asks_again_in_the_same_epoch():
    bench = Bench(messages.QuorumState(EPOCH, None, ReplicaKey(ME)))
    assert [(vote.epoch, vote.pre_vote, vote.voter.id) for vote in bench.sent(messages.VoteRequest)] == [
        (EPOCH, False, PEER),
        (EPOCH, False, THIRD),
    ]
    assert bench.all(Persist) == [], "its vote is on disk already"


def test_a_restarted_leader_tells_the_others_that_it_has_resigned():
    bench = Bench(messages.QuorumState(EPOCH, ME, ReplicaKey(ME)))
    assert [(end.epoch, end.leader_id) for end in bench.sent(messages.EndQuorumEpochRequest)] == [(EPOCH, ME)] * 2


@pytest.mark.parametrize(
    ("file", "epoch"),
    [
        (messages.QuorumState(), 1),
        (messages.QuorumState(5), 6),
        (messages.QuorumState(5, None, ReplicaKey(ME)), 5),
        # it must leave epoch 5, and raise its epoch once more to become a candidate
        (messages.QuorumState(5, ME, ReplicaKey(ME)), 7),
    ],
)
def test_a_sole_voter_elects_itself_at_once(file, epoch):
    bench = Bench(file, [], voters=(ME,))
    assert (bench.core.role, bench.core.epoch) == ("leader", epoch)
    assert bench.all(Append) == [Append((Batch(0, epoch, 1, messages.LeaderChange(ME, (ME,), (ME,))),))]
    assert bench.all(HighWatermark) == [HighWatermark(1)]
    assert bench.do(bench.core.tick(bench.now + 1e6)) == [], "it has no follower to lose"


def test_bad_identities_are_refused_in_one_sentence():
    def voter(identity):
        return Core(identity, Bench().disk, messages.QuorumState(), Bench().core.random, 0.0)

    with pytest.raises(ValueError, match="voter 9 must be one of the voters"):
        voter(messages.Identity("c", ReplicaKey(9), (1, 2, 3)))
    with pytest.raises(ValueError, match="an observer must not be one of the voters"):
        voter(messages.Identity("c", ReplicaKey(1), (1, 2, 3), observer=True))
    with pytest.raises(ValueError, match="and no id may occur twice"):
        voter(messages.Identity("c", ReplicaKey(1), (1, 1, 2)))
    with pytest.raises(ValueError, match="unknown planted bug: gremlin; known are stale-read, "):
        voter(messages.Identity("c", ReplicaKey(1), (1, 2, 3), bugs=frozenset({"gremlin"})))


def test_a_caller_that_leaves_out_an_effect_gets_an_error():
    bench = Bench.in_role("leader")
    bench.core.propose(bench.now, 1, [("never appended", 1)])
    with pytest.raises(RuntimeError, match="carry out every effect before the next call"):
        bench.core.tick(bench.now)
