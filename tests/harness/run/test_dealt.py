"""A subject that does not say who leads gets no fault that names the leader."""

from __future__ import annotations

import pytest

from harness.run.dealt import dealt
from harness.spec import Spec
from system_under_test.subject import Declares

WITHOUT = Declares(elections=False, leaders=False)


@pytest.mark.parametrize("nemesis", ["partition", "pause", "kill"])
@pytest.mark.parametrize("seed", range(5))
def test_no_card_names_the_leader_where_none_is_known(nemesis: str, seed: int) -> None:
    spec = Spec(nemesis=nemesis, seed=seed, time_limit_s=60)
    assert any("leader" in card.name for card in dealt(spec, Declares()))
    cards = dealt(spec, WITHOUT)
    assert len(cards) >= 4
    assert [card.number for card in cards] == list(range(1, len(cards) + 1))
    assert not any("leader" in card.name for card in cards)
    assert cards[-1].heal_s < 60
    assert cards == dealt(spec, WITHOUT)


def test_a_subject_with_nothing_to_break_is_dealt_nothing() -> None:
    assert dealt(Spec(), Declares(faults=False)) == []
