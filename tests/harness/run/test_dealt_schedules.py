"""What is dealt for a subject, and what a run asks of its backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkers.base.demands import Demands
from checkers.record.faults import Achieved, Card, FaultRecord
from checkers.run_quality import vacuity
from checkers.run_quality.leadership import ElectionsInFaults
from checkers.run_quality.minimums import GRACE_NS, LONG_NS, lets_write, stretches
from harness.run.refused_before_start import capabilities_of, dealt, lacking
from harness.spec import Spec
from nemesis.cluster import CLIENT_PROCESSES
from system_under_test.subject import FAILOVER_S, Declares

S = 1_000_000_000
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


def test_a_system_that_fails_over_slowly_gets_the_same_cards_and_each_takes_as_much_longer() -> None:
    fast = dealt(Spec(time_limit_s=60), Declares())
    slow = dealt(Spec(time_limit_s=300), Declares(failover_s=5 * FAILOVER_S))
    assert [(card.kind, card.name, card.like, card.after) for card in slow] == [
        (card.kind, card.name, card.like, card.after) for card in fast
    ]
    assert [card.at_s for card in slow] == pytest.approx([5 * card.at_s for card in fast], abs=0.01)
    assert [card.heal_s for card in slow] == pytest.approx([5 * card.heal_s for card in fast], abs=0.01)
    assert dealt(Spec(time_limit_s=300, holds=5), Declares()) == slow
    assert Spec(holds=2).lengthened(5 * FAILOVER_S) == 2
    assert Spec().lengthened(FAILOVER_S / 4) == 1


def test_the_minimums_of_a_slow_system_wait_as_much_longer() -> None:
    cut = FaultRecord(Card(1, "pause", "one", 0, 1), Achieved.INSTALLED, "n1 paused", nodes=("n1",))
    servers = tuple(f"n{i}" for i in range(1, 6))
    usual = Demands(servers=servers, client_nodes=("c1",))
    assert lets_write([cut], usual, LONG_NS)
    assert not lets_write([cut], replace(usual, holds=5.0), LONG_NS)
    assert lets_write([cut], replace(usual, holds=5.0), 5 * LONG_NS)
    healed = replace(cut, injected_ns=0, healed_ns=10 * S)
    early, late = (stretches((0, 100 * S), [healed], 2.0, holds) for holds in (1, 5))
    assert early[0].end_ns - early[0].begin_ns == GRACE_NS
    assert late[0].end_ns - late[0].begin_ns == 5 * GRACE_NS


def test_a_subject_with_nothing_to_break_is_dealt_nothing() -> None:
    assert dealt(Spec(), Declares(faults=False)) == []


def test_a_run_that_may_stop_clients_asks_for_clients_in_processes_of_their_own() -> None:
    assert CLIENT_PROCESSES in capabilities_of(Spec(nemesis="pause"))
    assert CLIENT_PROCESSES not in capabilities_of(Spec(nemesis="partition,damage"))


def test_only_a_system_that_can_change_its_members_runs_with_that_nemesis() -> None:
    assert lacking(Spec(subject="etcd", nemesis="membership"), "namespaces") == ""
    assert "cannot change while it runs" in lacking(Spec(subject="kraft", nemesis="membership"), "namespaces")


@pytest.mark.parametrize("kinds", ["pause", "partition,kill,pause,power,clock"])
def test_a_backend_that_lacks_what_one_target_needs_plays_the_others(kinds: str) -> None:
    """The clients of a simulated client node are no process that could be paused; its servers are."""
    spec = Spec(subject="kraft", nemesis=kinds, backend="simulator")
    assert CLIENT_PROCESSES in capabilities_of(spec)
    assert lacking(spec, "simulator") == ""


def test_elections_that_fell_into_no_fault_are_a_matter_of_lengths_and_the_reason_says_so() -> None:
    assert vacuity.FAILOVER_S == FAILOVER_S
    late = ElectionsInFaults(2, 0, ((12.2, 6.0), (31.0, 10.0)))
    assert vacuity.too_short(late) == (
        "the system needed 12 to 31 s to elect another leader, and the faults lasted 6 to 10 s: "
        "state `failover_s = 31` in your System, or give --holds 8"
    )
    assert vacuity.too_short(ElectionsInFaults(2, 0)) == ""
