"""The arithmetic of majorities, proved by enumeration."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.raft.voters import (
    held_by_majority,
    is_lost,
    majority,
)


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_majority(voters, needed):
    assert majority(voters) == needed


@pytest.mark.parametrize("voters", range(1, 8))
def test_two_majorities_share_a_voter_and_fewer_would_not(voters):
    everybody = range(voters)
    big = [set(group) for group in combinations(everybody, majority(voters))]
    assert all(a & b for a in big for b in big)
    small = [set(group) for group in combinations(everybody, majority(voters) - 1)]
    assert any(not a & b for a in small for b in small)


@pytest.mark.parametrize(
    ("log_ends", "mark"),
    [
        ([7], 7),
        ([7, 3], 3),
        ([7, 3, 5], 5),
        ([9, -1, -1], -1),
        ([9, 8, -1, -1], -1),
        ([9, 8, 1, -1], 1),
        ([4, 4, 4, 9, 9], 4),
        ([1, 2, 3, 4, 5], 3),
    ],
)
def test_the_mark_is_the_offset_a_majority_has_reached(log_ends, mark):
    assert held_by_majority(log_ends) == mark


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=9))
def test_the_mark_is_the_largest_offset_that_a_majority_has_reached(log_ends):
    def reached(offset):
        return sum(end >= offset for end in log_ends) >= majority(len(log_ends))

    mark = held_by_majority(log_ends)
    assert reached(mark)
    assert not any(reached(offset) for offset in log_ends if offset > mark)


@given(st.integers(1, 9), st.integers(0, 9))
def test_a_campaign_is_lost_once_the_others_are_no_majority(voters, refused):
    refused = min(refused, voters)
    assert is_lost(voters, refused) == (voters - refused < majority(voters))
