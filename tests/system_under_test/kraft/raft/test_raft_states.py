"""Transitions between states: the table against the prose of the facts, and the guard that enforces it."""

from itertools import product
from types import SimpleNamespace

from system_under_test.kraft.raft.states import IllegalTransition, Role, Votes, check_transition


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
