"""An election is won under a fault only by a server that the fault leaves with a majority, and only while it lasts."""

from __future__ import annotations

from typing import Any

from fault_records import fault_of

from checkers.record.faults import FaultRecord
from checkers.run_quality.leadership import Leader, under_faults

SERVERS = ("n1", "n2", "n3")
SECOND = 1_000_000_000
LED_BEFORE: Leader = (1 * SECOND, "n1", 1)


def fault(*, cut_off: str = "", states: dict[str, str] | None = None, **more: Any) -> FaultRecord:
    """A fault from second 10 to second 20, while n1 leads; the last node is free again at second 21."""
    links = [link for other in SERVERS if other != cut_off for link in ([cut_off, other], [other, cut_off])]
    raw = {
        "leader": "n1",
        "nodes": sorted(states or ()),
        "cut": links if cut_off else [],
        "injected_ns": 10 * SECOND,
        "apply_ms": 0.0,
        "heal_ordered_ns": 20 * SECOND,
        "healed_ns": 21 * SECOND,
        "ordered": {"held": {"states": states or {}}, "healed": {}},
    }
    return fault_of(raw | more)


def won(struck: FaultRecord, *led: Leader) -> tuple[int, int]:
    found = under_faults([struck], [LED_BEFORE, *led], SERVERS)
    return found.calling, found.won


def test_a_server_that_keeps_a_majority_wins_the_election() -> None:
    assert won(fault(cut_off="n1"), (12 * SECOND, "n2", 2)) == (1, 1)
    assert won(fault(states={"n1": "dead"}), (12 * SECOND, "n2", 2)) == (1, 1)


def test_a_leader_that_is_cut_off_and_counts_on_has_won_nothing() -> None:
    """Its status shows a number that grows with every write or with the clock."""
    alone = [(at * SECOND, "n1", 1 + at) for at in range(10, 20)]
    assert won(fault(cut_off="n1"), *alone) == (1, 0)


def test_a_killed_leader_that_leads_again_before_the_heal_has_won_nothing() -> None:
    assert won(fault(states={"n1": "dead"}), (19 * SECOND, "n1", 2)) == (1, 0)


def test_an_election_after_the_order_to_heal_was_not_won_under_the_fault() -> None:
    assert won(fault(cut_off="n1"), (20 * SECOND, "n2", 2)) == (1, 0)
    assert won(fault(cut_off="n1"), (20 * SECOND - 1, "n2", 2)) == (1, 1)


def test_under_a_fault_that_is_never_healed_an_election_counts_up_to_the_end() -> None:
    endless = fault(cut_off="n1", heal_ordered_ns=-1, healed_ns=-1)
    assert won(endless, (99 * SECOND, "n2", 2)) == (1, 1)


def test_no_election_is_called_for_where_the_fault_leaves_a_majority_to_nobody() -> None:
    assert won(fault(states={"n1": "dead", "n2": "dead"}), (12 * SECOND, "n3", 2)) == (0, 0)
    assert won(fault(cut_off="n3")) == (0, 0)


def test_an_election_that_came_too_late_says_how_long_it_took_and_how_long_the_fault_lasted() -> None:
    led = [LED_BEFORE, (34 * SECOND, "n2", 2), (60 * SECOND, "n3", 3)]
    assert under_faults([fault(cut_off="n1")], led, SERVERS).late == ((24.0, 10.0),)
    assert under_faults([fault(cut_off="n1")], [LED_BEFORE, (12 * SECOND, "n2", 2)], SERVERS).late == ()
    assert under_faults([fault(cut_off="n1")], [LED_BEFORE], SERVERS).late == ()


def test_a_fault_that_is_shorter_than_an_election_needs_demands_none() -> None:
    """A schedule that restarts the leader in 0.4 s is no weak test for want of an election."""
    restart = fault(states={"n1": "dead"}, heal_ordered_ns=10 * SECOND + 4 * SECOND // 10)
    found = under_faults([restart, fault(cut_off="n1")], [LED_BEFORE], SERVERS, long_ns=2 * SECOND)
    assert (found.calling, found.long) == (2, 1)
    several = [fault(cut_off="n1"), restart, fault(states={"n1": "dead"}), restart]
    found = under_faults(several, [LED_BEFORE], SERVERS, long_ns=2 * SECOND)
    assert (found.calling, found.long) == (4, 2)
    assert under_faults([restart], [LED_BEFORE], SERVERS, long_ns=2 * SECOND).long == 0
