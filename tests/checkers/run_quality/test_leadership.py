"""What nodes report of themselves, and elections that are won under a fault."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from journals import write_header, write_journal
from records_of_runs import fault_of

from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.record.faults import DAMAGES_DATA, WIPES_DISKS, FaultRecord
from checkers.run_quality.leadership import EPOCH_WENT_BACK, LEADERSHIP, TWO_LEADERS, Leader, under_faults

S = 1_000_000_000
SERVERS = ("n1", "n2", "n3")


def report(node: str, epoch: int, at_s: float, role: str = "follower", looks: int = 4, **more: Any) -> dict[str, Any]:
    until_s = at_s + 0.25 * (looks - 1)
    times = {"time_ns": int(at_s * S), "until_ns": int(until_s * S), "looks": looks}
    return {"node": node, "epoch": epoch, "role": role, "leader": node if role == "leader" else None} | times | more


def judged(folder: Path, reports: list[dict[str, Any]] | None, *, elections: bool = True, **outcome: Any) -> Verdict:
    kept = {} if reports is None else {"reports": reports}
    faults = outcome.pop("faults", [])
    write_header(folder, spec={"backend": "docker"})
    write_journal(folder, outcome={**kept, **outcome}, faults=faults)
    run = StoredRun(folder, Demands(servers=SERVERS, elections=elections, nodes=True))
    return LEADERSHIP.combine(run, [])


def test_an_ordinary_run_is_valid(tmp_path: Path) -> None:
    """n1 leads epoch 1 and does not hear that n2 leads epoch 2: it may believe so for as long as it is cut off."""
    reports = [report("n1", 1, 1, "leader", 80), report("n2", 1, 1), report("n2", 2, 9, "leader"), report("n1", 2, 20)]
    verdict = judged(tmp_path, reports)
    assert (verdict.validity, verdict.looked_at["epochs led"]) == (Validity.VALID, 2), verdict.reason


def test_two_nodes_that_both_report_that_they_lead_one_epoch_violate_it_also_one_after_the_other(
    tmp_path: Path,
) -> None:
    for second_s in (1.5, 60.0):
        verdict = judged(tmp_path, [report("n1", 4, 1, "leader"), report("n3", 4, second_s, "leader")])
        assert verdict.validity is Validity.INVALID
        (witness,) = verdict.witnesses
        assert (witness.kind, witness.facts["nodes"], witness.facts["epoch"]) == (TWO_LEADERS, ["n1", "n3"], 4)
        assert witness.facts["why"] == [
            "n1: it leads epoch 4, from 1.0 to 1.8 s",
            f"n3: it leads epoch 4, from {second_s:.1f} to {second_s + 0.75:.1f} s",
        ]


def test_an_epoch_that_goes_back_in_one_life_is_a_violation(tmp_path: Path) -> None:
    reports = [report("n2", 5, 1), report("n2", 3, 9)]
    (witness,) = judged(tmp_path, reports).witnesses
    assert witness.kind == EPOCH_WENT_BACK
    assert witness.summary == "n2 reported epoch 5, and then epoch 3"


def wiping(node: str, injected_s: float, healed_s: float, setting: str = WIPES_DISKS) -> dict[str, Any]:
    times = {"injected_ns": int(injected_s * S), "healed_ns": int(healed_s * S), "apply_ms": 0.0}
    return {"kind": "membership", "nodes": [node], "settings": {setting: True}, "measured": [], **times}


def test_with_another_disk_a_node_is_another_replica_and_begins_anew(tmp_path: Path) -> None:
    reports = [report("n2", 5, 1, disk="a"), report("n2", 0, 9, disk="b"), report("n2", 5, 12, disk="b")]
    assert judged(tmp_path, reports, faults=[wiping("n2", 4, 10)]).validity is Validity.VALID
    assert judged(tmp_path, reports, faults=[wiping("n2", 4, 6, DAMAGES_DATA)]).validity is Validity.VALID
    reports[2]["epoch"], reports[1]["epoch"] = 0, 5
    (witness,) = judged(tmp_path, reports, faults=[wiping("n2", 4, 10)]).witnesses
    assert witness.kind == EPOCH_WENT_BACK


def test_another_disk_excuses_nothing_where_no_fault_took_the_one_before(tmp_path: Path) -> None:
    reports = [report("n2", 5, 1, disk="a"), report("n2", 0, 9, disk="b")]
    for faults in (
        [],
        [wiping("n1", 4, 10)],
        [wiping("n2", 10, 12)],
        [wiping("n2", 0.1, 0.9)],
        [wiping("n2", 4, 10, "killed")],
        [wiping("n2", 10, 12, DAMAGES_DATA)],
    ):
        (witness,) = judged(tmp_path, reports, faults=faults).witnesses
        assert witness.kind == EPOCH_WENT_BACK


@pytest.mark.parametrize(("before", "after"), [("a", ""), ("", "b")])
def test_a_disk_that_is_not_named_excuses_nothing(tmp_path: Path, before: str, after: str) -> None:
    (witness,) = judged(tmp_path, [report("n2", 5, 1, disk=before), report("n2", 3, 9, disk=after)]).witnesses
    assert witness.kind == EPOCH_WENT_BACK


def test_after_a_new_start_a_lower_epoch_is_unknown(tmp_path: Path) -> None:
    verdict = judged(tmp_path, [report("n2", 5, 1), report("n2", 0, 9)], deaths=[{"node": "n2", "time_ns": 5 * S}])
    assert verdict.validity is Validity.UNKNOWN
    assert "return None until the node knows its epoch" in verdict.reason
    others = [{"node": "n1", "time_ns": 5 * S}, {"node": "n2", "time_ns": 10 * S}]
    assert judged(tmp_path, [report("n2", 5, 1), report("n2", 0, 9)], deaths=others).validity is Validity.INVALID


@pytest.mark.parametrize("looks", [(1, 4), (4, 1)])
def test_what_stood_for_a_single_look_is_unknown(tmp_path: Path, looks: tuple[int, int]) -> None:
    """A status may be put together of two readings, and an election may come between them."""
    one, other = looks
    for reports in (
        [report("n1", 4, 1, "leader", one), report("n3", 4, 9, "leader", other)],
        [report("n1", 4, 1, looks=one), report("n1", 3, 9, looks=other)],
    ):
        verdict = judged(tmp_path, reports)
        assert (verdict.validity, verdict.witnesses) == (Validity.UNKNOWN, ())
        assert "seen only once" in verdict.reason


def test_where_epochs_count_no_elections_nothing_is_judged(tmp_path: Path) -> None:
    reports = [report("n1", 1, 1, "leader"), report("n3", 1, 9, "leader")]
    assert judged(tmp_path, reports, elections=False).validity is Validity.NOT_APPLICABLE
    assert judged(tmp_path, None).validity is Validity.NOT_APPLICABLE


def test_no_report_at_all_proves_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, []).validity is Validity.UNKNOWN


def test_a_status_that_never_changes_although_the_leader_is_taken_away_is_named(tmp_path: Path) -> None:
    reports = [report("n1", 1, 1, "leader", 200), report("n2", 1, 1, looks=200), report("n3", 1, 1, looks=200)]
    assert judged(tmp_path, reports).validity is Validity.VALID
    dead = {"held": {"states": {"n1": "dead"}}, "healed": {"states": {"n1": "running"}}}
    phases = [("inject", 20, "dead"), *(("hold", at, "dead") for at in range(21, 30)), ("before heal", 30, "dead")]
    measured = [
        {"phase": phase, "from_ns": at * S, "to_ns": at * S, "states": {"n1": state}}
        for phase, at, state in [*phases, ("heal", 30, "running")]
    ]
    fault = {"card": {"number": 1, "kind": "kill"}, "nodes": ["n1"], "cut": [], "ordered": dead, "measured": measured}
    fault |= {"injected_ns": 20 * S, "heal_ordered_ns": 30 * S, "healed_ns": 30 * S, "apply_ms": 1.0, "leader": "n1"}
    verdict = judged(tmp_path, reports, faults=[fault])
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason == "no status changed in the whole run, although 1 fault took the leader from its majority"


@pytest.mark.parametrize("seed", range(30))
def test_reports_against_brute_force(tmp_path: Path, seed: int) -> None:
    """Every pair of reports is compared: a pair of leaders of one epoch, or of two reports of one node in order."""
    rng = Random(seed)
    reports = [
        report(rng.choice(SERVERS), rng.randint(1, 4), at, rng.choice(("leader", "follower"))) for at in range(1, 8)
    ]
    two = any(
        a["role"] == b["role"] == "leader" and a["epoch"] == b["epoch"] and a["node"] != b["node"]
        for a, b in permutations(reports, 2)
    )
    back = any(
        a["node"] == b["node"] and a["time_ns"] < b["time_ns"] and a["epoch"] > b["epoch"]
        for a, b in permutations(reports, 2)
    )
    found = {witness.kind for witness in judged(tmp_path, reports).witnesses}
    assert found == {kind for kind, there in ((TWO_LEADERS, two), (EPOCH_WENT_BACK, back)) if there}


# An election is won under a fault only by a server that the fault leaves with a majority, and only while it lasts


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
