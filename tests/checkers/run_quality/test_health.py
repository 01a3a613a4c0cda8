"""Deaths and recovery: what is a violation, what is unknown, what was ordered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.verdict import Validity, Verdict
from checkers.run_quality.faults_installed import ENDING_NS, LATE_ENDING_NS


@pytest.fixture
def evidence() -> Evidence:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    return quorum.evidence()


def death(node: str, **more: object) -> Row:
    return {"node": node, "time_ns": 5000, "status": -9, "ordered": False, "reason": "killed by signal 9"} | more


def up(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, "nodes-stay-up")["nodes-stay-up"]


def recovery(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, "recovery")["recovery"]


def test_a_death_that_was_ordered_is_none(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2", ordered=True)]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["processes that ended"] == 1


def test_an_unexpected_death(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2", status=70, reason="exited with status 70", excerpt="KeyError: 7")]
    witness = up(evidence, tmp_path).witnesses[0]
    assert witness.kind == "node died" and witness.facts["nodes"] == ["n2"]
    assert "exited with status 70" in witness.summary and witness.facts["excerpt"] == "KeyError: 7"


@pytest.mark.parametrize("status", [-9, 137])
def test_a_death_while_the_kernel_killed_for_want_of_memory_is_unknown(
    evidence: Evidence, tmp_path: Path, status: int
) -> None:
    evidence.outcome["deaths"] = [death("n3", status=status, oom_kills=1)]
    verdict = up(evidence, tmp_path / "alone")
    assert verdict.validity is Validity.UNKNOWN
    assert "the kernel's out-of-memory killer ended the server of n3" in verdict.reason
    assert "more memory or the run fewer nodes" in verdict.reason
    assert verdict.looked_at["of them unexpected"] == verdict.looked_at["excused by a fault"] == 0
    evidence.outcome["deaths"] += [death("n2")]
    assert [witness.facts["nodes"] for witness in up(evidence, tmp_path / "and another").witnesses] == [["n2"]]


@pytest.mark.parametrize("facts", [{"status": 70, "oom_kills": 1}, {"oom_kills": 0}, {}])
def test_a_death_that_the_kernel_did_not_cause_is_a_violation(
    evidence: Evidence, tmp_path: Path, facts: dict[str, int]
) -> None:
    evidence.outcome["deaths"] = [death("n3", **facts)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_servers_that_the_kernel_killed_for_want_of_memory_do_not_show_that_the_system_cannot_recover(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome["recovery"] |= {"recovered": False, "seconds": 60.0, "limit_s": 60.0, "waiting_for": "n3"}
    evidence.outcome["deaths"] = [death("n3", oom_kills=1)]
    verdict = recovery(evidence, tmp_path / "killed")
    assert verdict.validity is Validity.UNKNOWN and "out-of-memory killer" in verdict.reason
    evidence.outcome["deaths"] = [death("n3")]
    assert recovery(evidence, tmp_path / "died").validity is Validity.INVALID


def test_one_witness_for_a_death_its_last_words_and_its_traceback(evidence: Evidence, tmp_path: Path) -> None:
    evidence.traces["n3"][-1] |= {"event": "fatal", "detail": "two leaders in epoch 4"}
    evidence.outcome["deaths"] = [death("n3"), {"node": "n3", "ordered": False, "reason": "a traceback"}]
    verdict = up(evidence, tmp_path)
    assert len(verdict.witnesses) == 1
    assert (
        verdict.witnesses[0].summary == "n3 died unexpectedly: two leaders in epoch 4; killed by signal 9; a traceback"
    )
    assert verdict.witnesses[0].rows[0]["event"] == "fatal"


def test_a_death_shows_what_the_server_printed_last(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n3") | {"excerpt": "recovery start\nrolled back during recovery"}]
    witness = up(evidence, tmp_path / "died").witnesses[0]
    assert witness.summary.endswith("; its output ends: rolled back during recovery")
    assert "recovery start\nrolled back during recovery" in witness.facts["why"][-1]
    complaint = {"node": "n3", "time_ns": -1, "ordered": False, "reason": "a panic", "excerpt": "a panic\nand more"}
    evidence.outcome["deaths"] = [complaint]
    assert up(evidence, tmp_path / "complained").witnesses[0].summary == "n3 complained in its log: a panic"


def failing_disk(node: str, **more: object) -> Row:
    """The record of a fault that held from 1,000 to 9,000 ns, and was measured to do so."""
    ordered = {
        "held": {"states": {}, "values": {"works": [0, 0]}},
        "healed": {"states": {}, "values": {"works": [1, 1]}},
    }
    measured = [
        {"phase": "inject", "from_ns": 1000, "to_ns": 2000, "values": {"works": 0}},
        {"phase": "before heal", "from_ns": 8000, "to_ns": 8500, "values": {"works": 0}},
        {"phase": "heal", "from_ns": 9000, "to_ns": 9500, "values": {"works": 1}},
    ]
    times = {"injected_ns": 1000, "heal_ordered_ns": 8800, "healed_ns": 9000}
    card = {"number": 1, "kind": "disk", "name": "one-full", "at_s": 0, "heal_s": 1}
    settings = {"may_die": True}
    return (
        {"card": card, "nodes": [node], "settings": settings, "ordered": ordered, "measured": measured} | times | more
    )


def test_a_server_may_die_of_its_failing_disk_and_of_nothing_else(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2"), {"node": "n2", "ordered": False, "reason": "FATAL: EIO", "time_ns": -1}]
    cases = {
        "its disk failed then": ([failing_disk("n2")], Validity.VALID),
        "no fault": ([], Validity.INVALID),
        "another disk failed": ([failing_disk("n1")], Validity.INVALID),
        "that fault kills no process": ([failing_disk("n2", settings={})], Validity.INVALID),
        "the fault was never measured": ([failing_disk("n2", measured=[])], Validity.UNKNOWN),
        "its order failed": ([failing_disk("n2", measured=[], injected_ns=-1)], Validity.UNKNOWN),
        "its heal is not proven": ([failing_disk("n2", measured=failing_disk("n2")["measured"][:2])], Validity.UNKNOWN),
        "it was skipped": ([failing_disk("n2", achieved="skipped", injected_ns=-1, reason="no")], Validity.INVALID),
        "it had met the error before the heal": ([failing_disk("n2", healed_ns=4000)], Validity.VALID),
    }
    for case, (records, expected) in cases.items():
        evidence.faults[:] = records
        assert up(evidence, tmp_path / case).validity is expected, case


@pytest.mark.parametrize(
    ("after_heal_ns", "expected"),
    [
        (ENDING_NS, Validity.VALID),
        (ENDING_NS + 1, Validity.UNKNOWN),
        (LATE_ENDING_NS, Validity.UNKNOWN),
        (LATE_ENDING_NS + 1, Validity.INVALID),
    ],
)
def test_a_server_that_met_an_error_may_take_a_moment_to_end(
    after_heal_ns: int, expected: Validity, evidence: Evidence, tmp_path: Path
) -> None:
    fault = failing_disk("n2")
    evidence.faults[:] = [fault]
    evidence.outcome["deaths"] = [death("n2", time_ns=fault["healed_ns"] + after_heal_ns)]
    assert up(evidence, tmp_path).validity is expected


def test_an_excuse_is_wider_by_the_error_of_the_nodes_clock(evidence: Evidence, tmp_path: Path) -> None:
    """A node that is another machine: its death may seem to lie beside the fault that caused it."""
    evidence.faults[:] = [failing_disk("n2")]
    evidence.outcome["deaths"] = [death("n2", time_ns=9_400 + LATE_ENDING_NS)]
    cases = {
        "one clock": ("docker", {}, Validity.INVALID),
        "measured well": ("ssh", {"n2": {"ahead_ns": 10**12, "error_ns": 399}}, Validity.INVALID),
        "measured roughly": ("ssh", {"n2": {"ahead_ns": 10**12, "error_ns": 400}}, Validity.UNKNOWN),
        "one machine, and no offset counts": ("docker", {"n2": {"ahead_ns": 0, "error_ns": 400}}, Validity.INVALID),
        "never measured": ("ssh", {"n1": {"ahead_ns": 0, "error_ns": 0}}, Validity.VALID),
    }
    for case, (backend, clocks, expected) in cases.items():
        evidence.test["spec"]["backend"] = backend
        evidence.test["clocks"] = clocks
        assert up(evidence, tmp_path / case).validity is expected, case


def test_a_server_with_damaged_files_may_refuse_to_start_until_the_end(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2", time_ns=20_000 + LATE_ENDING_NS)]
    cases = {
        "it may stay down": ({"may_die": True, "may_stay_down": True}, Validity.VALID),
        "it may only die": ({"may_die": True}, Validity.INVALID),
    }
    for case, (settings, expected) in cases.items():
        evidence.faults[:] = [failing_disk("n2", settings=settings)]
        assert up(evidence, tmp_path / case).validity is expected, case


@pytest.mark.parametrize(
    ("stopped_s_after_heal", "settings", "expected"),
    [
        (1, {"may_die": True, "may_stay_down": True}, Validity.VALID),
        (20, {"may_die": True, "may_stay_down": True}, Validity.INVALID),
        (1, {"may_die": True}, Validity.INVALID),
    ],
)
def test_a_server_that_refuses_to_start_may_be_stopped_by_the_next_fault_before_it_has_ended(
    stopped_s_after_heal: int, settings: dict[str, Any], expected: Validity, evidence: Evidence, tmp_path: Path
) -> None:
    fault = failing_disk("n2", settings=settings)
    stopped_ns = fault["healed_ns"] + stopped_s_after_heal * 1_000_000_000
    evidence.faults[:] = [fault]
    refusal = {"node": "n2", "time_ns": -1, "status": 0, "ordered": False, "reason": "cannot start: CRC"}
    evidence.outcome["deaths"] = [death("n2", time_ns=stopped_ns) | {"ordered": True, "status": -15}, refusal]
    assert up(evidence, tmp_path).validity is expected


def test_a_fatal_row_alone_is_enough(evidence: Evidence, tmp_path: Path) -> None:
    evidence.traces["n3"][-1] |= {"event": "fatal", "detail": "two leaders in epoch 4"}
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_who_has_no_nodes_cannot_lose_one(evidence: Evidence, tmp_path: Path) -> None:
    evidence.demands = replace(evidence.demands, nodes=False)
    verdicts = evidence.judge(tmp_path, "nodes-stay-up", "recovery")
    assert {v.validity for v in verdicts.values()} == {Validity.NOT_APPLICABLE}


def test_a_run_without_its_outcome_is_unknown(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome = {}
    verdicts = evidence.judge(tmp_path, "nodes-stay-up", "recovery")
    assert {v.validity for v in verdicts.values()} == {Validity.UNKNOWN}


def test_recovered_in_time(evidence: Evidence, tmp_path: Path) -> None:
    assert recovery(evidence, tmp_path).validity is Validity.VALID


@pytest.mark.parametrize(("seconds", "expected"), [(60.5, Validity.VALID), (412.0, Validity.UNKNOWN)])
def test_recovered_too_late_is_not_recovered_in_time(
    evidence: Evidence, tmp_path: Path, seconds: float, expected: Validity
) -> None:
    evidence.outcome["recovery"] |= {"recovered": True, "seconds": seconds, "limit_s": 60.0}
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is expected
    assert expected is Validity.VALID or "412.0 s" in verdict.reason


def test_not_recovered_after_a_proven_heal(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["recovery"] |= {"recovered": False, "seconds": 60.1, "waiting_for": "n4 is 12 entries behind"}
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].kind == "not recovered" and "n4 is 12 entries behind" in verdict.witnesses[0].summary


@pytest.mark.parametrize(
    ("seconds", "beats", "expected"),
    [
        (60.1, {"n1": 0.97, "n2": 0.6}, Validity.INVALID),
        (60.1, {"n1": 0.97, "n2": 0.1}, Validity.UNKNOWN),
        (3.0, {"n1": 0.97, "n2": 0.1}, Validity.INVALID),  # a majority died: a longer time would not have helped
        (60.1, {}, Validity.INVALID),
    ],
)
def test_a_limit_of_time_says_nothing_about_servers_that_did_not_run(
    evidence: Evidence, tmp_path: Path, seconds: float, beats: dict[str, float], expected: Validity
) -> None:
    late = {"recovered": False, "seconds": seconds, "limit_s": 60.0, "waiting_for": "n4 is behind", "beats_sent": beats}
    evidence.outcome["recovery"] |= late
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is expected
    if expected is Validity.UNKNOWN:
        assert "n2 10%" in verdict.reason and "--recovery-limit" in verdict.reason


def test_not_recovered_after_a_heal_that_was_not_proven(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["recovery"] |= {"recovered": False, "waiting_for": "a leader"}
    evidence.outcome["recovery"]["proof"] |= {"verdict": "not as ordered", "wrong": ["n1>n2 is cut"]}
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "n1>n2 is cut" in verdict.reason


def test_servers_that_end_again_after_the_heal_started_them_did_not_recover(evidence: Evidence, tmp_path: Path) -> None:
    wrong = [f"{node} ordered running: it is dead" for node in ("n1", "n2", "n3")]
    states = dict.fromkeys(("n1", "n2", "n3"), "dead") | {"n4": "running", "n5": "running"}
    evidence.outcome["recovery"] |= {"recovered": False, "waiting_for": "n1 and n2 and n3 died"}
    evidence.outcome["recovery"]["proof"] |= {"verdict": "not as ordered", "wrong": wrong, "states": states}
    assert recovery(evidence, tmp_path / "no deaths are known").validity is Validity.UNKNOWN
    evidence.outcome["deaths"] = [death(node) for node in ("n1", "n2", "n3")]
    verdict = recovery(evidence, tmp_path / "by themselves")
    assert verdict.validity is Validity.INVALID
    assert "n1, n2, n3 ended after a start" in verdict.witnesses[0].facts["why"][0]
    evidence.outcome["recovery"]["proof"]["wrong"] += ["n4>n5 is cut"]
    assert recovery(evidence, tmp_path / "and a link is cut").validity is Validity.UNKNOWN


def test_a_run_that_ended_before_recovery_is_unknown(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome |= {"recovery": {}, "set_up_failure": "no leader within 60 s"}
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "no leader within 60 s" in verdict.reason


def test_whether_it_recovered_is_not_known_where_the_file_of_the_system_was_wrong(
    evidence: Evidence, tmp_path: Path
) -> None:
    words = "mine.py line 9: caught_up raised KeyError: 'n1'"
    evidence.outcome["recovery"] |= {"recovered": False, "waiting_for": words, "not_known": True}
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and words in verdict.reason


def test_a_server_without_a_trace_that_ends_before_it_was_ever_ready_violates_nothing(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome |= {"set_up_failure": "the server of n2 is dead", "deaths": [death("n2")]}
    assert up(evidence, tmp_path / "traced").validity is Validity.INVALID
    evidence.demands = replace(evidence.demands, traces=False)
    verdict = up(evidence, tmp_path / "plain")
    assert verdict.validity is Validity.UNKNOWN
    assert "n2 died unexpectedly: killed by signal 9, before the system was ever ready" in verdict.reason


def test_a_death_is_told_with_its_panic(evidence: Evidence, tmp_path: Path) -> None:
    printed = "thread 'main' panicked at src/main.rs:3:5:\nno quorum\nnote: run with `RUST_BACKTRACE=1`"
    evidence.outcome["deaths"] = [death("n2", excerpt=printed)]
    (witness,) = evidence.judge(tmp_path, "nodes-stay-up")["nodes-stay-up"].witnesses
    assert witness.summary.endswith("; it printed: thread 'main' panicked at src/main.rs:3:5: no quorum")
