"""Decks on the small world: a planted bug that hides from single faults shows, and the clean quorum stays quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_quorum.dealt_storm import DealtStorm, storms
from simulated_quorum.invariants import AGREEMENT, COMMITTED_LOST, READS, VOTE_ONCE

from checkers.record.faults import Card
from nemesis.kinds.packets import LEADER_HEARS_LATE, RIVALS_LATE
from system_under_test.kraft.raft import election
from system_under_test.kraft.raft.decisions import TRUNCATES_TO_HIGH_WATERMARK
from system_under_test.kraft.raft.reads import Reads


@pytest.mark.parametrize("seed", [1, 2])
def test_slow_disks_and_a_second_term_show_what_a_new_follower_may_not_cut(seed):
    """Only the first leader knows that its entries are committed; the followers of the second one cut them off."""
    (storm,) = storms("disk,partition", [seed], [TRUNCATES_TO_HIGH_WATERMARK], seconds=40.0)
    found = {violation.invariant for violation in storm.world.watch.violations}
    assert found & {AGREEMENT, COMMITTED_LOST}
    (clean,) = storms("disk,partition", [seed], seconds=40.0)
    assert clean.world.watch.violations == []
    assert [card.name for card, _, _ in clean.began] == [card.name for card in clean.cards]


@pytest.mark.parametrize("nemesis", ["partition", "partition,kill", "packets,kill", "pause,power"])
def test_the_quorum_as_it_is_keeps_its_word_in_every_storm(nemesis):
    for storm in storms(nemesis, [7], seconds=45.0):
        assert storm.world.watch.violations == []
        assert len(storm.began) >= 3
        assert len(storm.world.watch.leaders) >= 3, "the storm brought elections"


def under_late_links(target: str, seed: int) -> DealtStorm:
    """One card of packets, and nothing else."""
    return DealtStorm([Card(1, "packets", target, 2.0, 9.0)], seed, seconds=11.0).play()


def shown_by(target: str, invariant: str, seeds: range) -> int:
    """In how many of these runs the invariant was violated."""
    broken = [{violation.invariant for violation in under_late_links(target, s).world.watch.violations} for s in seeds]
    return sum(invariant in names for names in broken)


def test_fetches_that_are_older_than_a_read_confirm_it_where_the_leader_hears_late(monkeypatch):
    assert shown_by(LEADER_HEARS_LATE, READS, range(4)) == 0

    def confirms_every_read(self, voter, connection):
        self._confirmed[voter] = self._clock

    monkeypatch.setattr(Reads, "fetched", confirms_every_read)
    assert shown_by(LEADER_HEARS_LATE, READS, range(4)) >= 3


def test_a_vote_that_a_change_of_role_forgets_is_asked_for_again_by_a_late_rival(monkeypatch):
    assert shown_by(RIVALS_LATE, VOTE_ONCE, range(6)) == 0
    campaign_again = election.become_prospective

    def forgets(voter, now):
        voter.persisted = replace(voter.persisted, voted=None)
        campaign_again(voter, now)

    monkeypatch.setattr(election, "become_prospective", forgets)
    assert shown_by(RIVALS_LATE, VOTE_ONCE, range(6)) >= 3
