"""What is dealt for a subject, and what a run asks of its backend."""

from __future__ import annotations

import pytest

from harness.run.schedule_to_play import capabilities_of, dealt
from harness.run.session import lacking
from harness.spec import Spec
from nemesis.cluster import CLIENT_PROCESSES
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


def test_a_run_that_may_stop_clients_asks_for_clients_in_processes_of_their_own() -> None:
    assert CLIENT_PROCESSES in capabilities_of(Spec(nemesis="pause"))
    assert CLIENT_PROCESSES not in capabilities_of(Spec(nemesis="partition,damage"))


def test_only_a_system_that_can_change_its_members_runs_with_that_nemesis() -> None:
    assert lacking(Spec(subject="etcd", nemesis="membership"), "namespaces") == ""
    assert "cannot change while it runs" in lacking(Spec(subject="kraft", nemesis="membership"), "namespaces")
