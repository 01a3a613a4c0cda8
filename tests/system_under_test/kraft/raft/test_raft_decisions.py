"""The five decisions, each with its bug off and on."""

from uuid import UUID

import pytest
from simulated_quorum.disk import Disk

from system_under_test.kraft.raft import decisions
from system_under_test.kraft.raft.messages import Batch, EpochEnd, FetchRequest, ReplicaKey, SnapshotId

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


def test_every_bug_is_described():
    names = {value for name, value in vars(decisions).items() if name.isupper() and isinstance(value, str)}
    assert set(decisions.BUGS) == names
    assert all(decisions.BUGS.values())
