"""Decks on the small world: a planted bug that hides from single faults shows, and the clean quorum stays quiet."""

from __future__ import annotations

from random import Random

import pytest
from simulated_quorum.dealt_storm import DealtStorm, storms
from simulated_quorum.invariants import COMMITTED_LOST

from nemesis.faults import Card
from nemesis.kinds.partition import FIGURES
from system_under_test.kraft.raft import election
from system_under_test.kraft.raft.decisions import TRUNCATES_TO_HIGH_WATERMARK


@pytest.mark.parametrize("seed", [1, 2])
def test_slow_disks_and_a_second_term_show_what_a_new_follower_may_not_cut(seed):
    """Only the first leader knows that its entries are committed; the followers of the second one cut them off."""
    (storm,) = storms("disk,partition", [seed], [TRUNCATES_TO_HIGH_WATERMARK], seconds=40.0)
    assert COMMITTED_LOST in storm.world.violated()
    (clean,) = storms("disk,partition", [seed], seconds=40.0)
    assert clean.world.watch.violations == []
    assert [card.name for card, _, _ in clean.began] == [card.name for card in clean.cards]


@pytest.mark.parametrize("nemesis", ["partition", "partition,kill", "packets,kill", "pause,power"])
def test_the_quorum_as_it_is_keeps_its_word_in_every_storm(nemesis):
    for storm in storms(nemesis, [7], seconds=45.0):
        assert storm.world.watch.violations == []
        assert len(storm.began) >= 3
        assert len(storm.world.watch.leaders) >= 3, "the storm brought elections"


def minority_again(seed: int) -> DealtStorm:
    steps = FIGURES["minority-again"].steps(Random(seed), 5)
    times = [(2.0 + step.after_s, 2.0 + step.after_s + step.hold_s) for step in steps]
    cards = [Card(i, "partition", steps[i - 1].target, *times[i - 1]) for i in range(1, len(steps) + 1)]
    return DealtStorm(cards, seed, seconds=26.0).play()


def test_leaders_cut_off_with_all_clients_show_votes_by_length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their logs are the longest then, but the others have committed in a later epoch."""
    assert not [seed for seed in range(4) if minority_again(seed).world.watch.violations]
    grants, on_request = election.grants_vote, election.on_vote_request
    longer = False

    def on_vote_request(voter, now, request):
        nonlocal longer
        longer = (request.last_offset, request.last_epoch) >= (voter.end_offset, voter.end_epoch)
        return on_request(voter, now, request)

    monkeypatch.setattr(election, "on_vote_request", on_vote_request)
    monkeypatch.setattr(election, "grants_vote", lambda role, **facts: grants(role, **facts | {"up_to_date": longer}))
    assert any(COMMITTED_LOST in minority_again(seed).world.violated() for seed in range(4))
