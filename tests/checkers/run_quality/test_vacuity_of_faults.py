"""Were the faults in force, and did each kind of them reach the system?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records_of_runs import fault_of
from test_vacuity import figure, judged, run
from toy_quorum import Quorum

from checkers.base.stored_run import Demands
from checkers.base.verdict import Validity
from checkers.run_quality import minimums


def test_a_fault_that_leaves_the_leader_its_majority_calls_for_no_election(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.cut({"n4", "n5"})
    quorum.write("k0")
    quorum.heal()
    quorum.read_all()
    verdict = judged(quorum.evidence(), tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert figure(verdict, "elections won under a fault")["least"] == 0


@pytest.mark.parametrize("kind", ["pause", "kill"])
def test_a_leader_paused_or_killed_calls_for_an_election(kind: str, tmp_path: Path) -> None:
    evidence = run()
    evidence.faults[0] |= {"cut": [], "nodes": ["n1"], "card": dict(evidence.faults[0]["card"]) | {"kind": kind}}
    assert figure(judged(evidence, tmp_path), "elections won under a fault")["value"] == 1


def test_an_election_counts_from_the_order_on_for_it_may_have_its_effect_at_once(tmp_path: Path) -> None:
    evidence = run()
    fault = evidence.faults[0]
    elected_ns = next(row["time_ns"] for row in evidence.traces["n2"] if row["role"] == "leader")
    took_ns = elected_ns + 1 - fault["injected_ns"]
    fault |= {"injected_ns": elected_ns + 1, "apply_ms": 0.0}
    assert figure(judged(evidence, tmp_path / "late"), "elections won under a fault")["value"] == 0
    fault |= {"apply_ms": took_ns / 1e6}
    assert figure(judged(evidence, tmp_path / "ordered"), "elections won under a fault")["value"] == 1


def test_a_disk_that_a_fault_damaged_owes_no_log(tmp_path: Path) -> None:
    evidence = run()
    evidence.logs["n5"] = []
    evidence.copies = [c | {"error": "no batch begins here"} if c["node"] == "n5" else c for c in evidence.copies]
    names = ("vacuity", "log-matching", "committed-never-lost")
    verdicts = evidence.judge(tmp_path / "unexplained", *names)
    assert {v.validity for v in verdicts.values()} == {Validity.UNKNOWN}
    damage = {"cut": [], "nodes": ["n5"], "settings": {"damages_data": True}, "leader": None}
    began_ns = evidence.faults[0]["heal_ordered_ns"] - 1
    times = {"injected_ns": began_ns, "heal_ordered_ns": began_ns + 2, "healed_ns": began_ns + 2}
    evidence.faults.append(evidence.faults[0] | damage | times | {"card": {"number": 7, "kind": "damage"}})
    verdicts = evidence.judge(tmp_path / "damaged", *names)
    assert {name: v.reason for name, v in verdicts.items() if v.validity is not Validity.VALID} == {}


@pytest.mark.parametrize(
    ("nemesis", "validity"), [("partition", Validity.UNKNOWN), ("schedule", Validity.UNKNOWN), ("none", Validity.VALID)]
)
def test_a_run_that_was_to_break_nothing_needs_no_fault(nemesis: str, validity: Validity, tmp_path: Path) -> None:
    evidence = run()
    evidence.faults = []
    evidence.demands = replace(evidence.demands, nemesis=nemesis)
    assert judged(evidence, tmp_path).validity is validity


def test_elections_are_seen_without_traces_too(tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = replace(evidence.demands, logs=False, traces=False)
    evidence.traces, evidence.logs, evidence.copies = {}, {}, []
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert figure(verdict, "elections won under a fault")["value"] == 1


def test_a_run_over_its_data_budget_says_so(tmp_path: Path) -> None:
    evidence = run()
    evidence.faults[0]["over_budget"] = True
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert not figure(verdict, "data budget kept")["met"]
    assert "excused" in figure(verdict, "data budget kept")["words"]


@pytest.mark.parametrize(("servers", "demanded"), [(1, False), (3, True)])
def test_nothing_can_be_answered_while_a_fault_strikes_the_only_server(
    servers: int, demanded: bool, tmp_path: Path
) -> None:
    evidence = run()
    names = evidence.demands.servers[:servers]
    evidence.demands = replace(evidence.demands, servers=names, elections=False)
    evidence.faults[0] |= {"nodes": [names[0]], "cut": []}
    shown = [criterion["name"] for criterion in judged(evidence, tmp_path).details["criteria"]]
    assert ("share of ok operations in faults" in shown) == ("ok writes in faults" in shown) == demanded


def test_a_server_that_some_client_reaches_is_not_struck() -> None:
    demands = Demands(servers=("n1",), client_nodes=("c1", "c2"))
    one, both = [["c1", "n1"]], [["c1", "n1"], ["n1", "c2"]]
    assert not minimums.strikes_the_only_server(fault_of({"nodes": [], "cut": one}), demands)
    assert minimums.strikes_the_only_server(fault_of({"nodes": [], "cut": both}), demands)
    assert minimums.strikes_the_only_server(fault_of({"nodes": ["n1"], "cut": []}), demands)
    assert not minimums.strikes_the_only_server(
        fault_of({"nodes": ["n1"], "cut": []}), replace(demands, servers=("n1", "n2"))
    )


@pytest.mark.parametrize(
    ("kind", "skips", "impossible", "nemesis", "validity", "words"),
    [
        ("partition", 1, False, "", Validity.VALID, ""),  # skipped for a stated reason
        ("clock", 1, False, "", Validity.VALID, ""),
        ("clock", 2, False, "", Validity.UNKNOWN, "never in force: clock"),
        ("clock", 1, True, "", Validity.UNKNOWN, "impossible here: clock"),
        ("clock", 0, False, "partition,clock,disk", Validity.VALID, "the time was too short for: clock, disk"),
    ],
)
def test_a_kind_of_fault_that_never_reached_the_system_was_not_tested(
    kind: str, skips: int, impossible: bool, nemesis: str, validity: Validity, words: str, tmp_path: Path
) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "no node led for 5 s", "injected_ns": -1, "impossible": impossible}
    card = {"card": evidence.faults[0]["card"] | {"kind": kind}}
    evidence.faults += [evidence.faults[0] | skipped | card for _ in range(skips)]
    evidence.demands = replace(evidence.demands, nemesis=nemesis or evidence.demands.nemesis)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is validity, verdict.reason
    assert words in figure(verdict, "kinds of fault installed")["words"]


def test_a_kind_of_fault_that_was_never_in_force_is_recorded_with_the_reason(tmp_path: Path) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "n2 fsynced nothing for 4 s", "injected_ns": -1}
    power = {"card": evidence.faults[0]["card"] | {"kind": "power"}}
    evidence.faults.append(evidence.faults[0] | skipped | power)
    evidence.demands = replace(evidence.demands, nemesis="partition, power, disk")
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.details["never_in_force"] == [
        {"kind": "disk", "dealt": 0, "reasons": []},
        {"kind": "power", "dealt": 1, "reasons": ["n2 fsynced nothing for 4 s"]},
    ]


@pytest.mark.parametrize("nemesis", ["partition", "schedule", ""])
def test_no_kind_is_missed_that_was_in_force_or_not_ordered(nemesis: str, tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = replace(evidence.demands, nemesis=nemesis)
    assert judged(evidence, tmp_path).details["never_in_force"] == []
