"""Decks on the small world: a planted bug that hides from single faults shows, and the clean quorum stays quiet."""

from __future__ import annotations

import pytest
from simulated_quorum.dealt_storm import storms
from simulated_quorum.invariants import AGREEMENT

from system_under_test.kraft.raft.decisions import TRUNCATES_TO_HIGH_WATERMARK


@pytest.mark.parametrize("seed", [1, 2])
def test_slow_disks_and_a_second_term_show_what_a_new_follower_may_not_cut(seed):
    """Only the first leader knows that its entries are committed; the followers of the second one cut them off."""
    (storm,) = storms("disk,partition", [seed], [TRUNCATES_TO_HIGH_WATERMARK], seconds=40.0)
    assert AGREEMENT in {violation.invariant for violation in storm.world.watch.violations}
    (clean,) = storms("disk,partition", [seed], seconds=40.0)
    assert clean.world.watch.violations == []
    assert [card.name for card, _, _ in clean.began] == [card.name for card in clean.cards]


@pytest.mark.parametrize("nemesis", ["partition", "partition,kill", "packets,kill", "pause,power"])
def test_the_quorum_as_it_is_keeps_its_word_in_every_storm(nemesis):
    for storm in storms(nemesis, [7], seconds=45.0):
        assert storm.world.watch.violations == []
        assert len(storm.began) >= 3
        assert len(storm.world.watch.leaders) >= 3, "the storm brought elections"
