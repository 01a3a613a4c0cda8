"""Deaths: what is a violation, what is unknown, and what was ordered or is excused by a fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.verdict import Validity, Verdict
from checkers.run_quality.faults_installed import ENDING_NS, LAST_LINES, LATE_ENDING_NS


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


def test_a_death_that_was_ordered_is_none(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2", ordered=True)]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["processes that ended"] == 1


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


def test_one_witness_for_a_death_its_last_words_and_its_traceback(evidence: Evidence, tmp_path: Path) -> None:
    evidence.traces["n3"][-1] |= {"event": "fatal", "detail": "two leaders in epoch 4"}
    assert up(evidence, tmp_path / "fatal").validity is Validity.INVALID
    evidence.outcome["deaths"] = [death("n3"), {"node": "n3", "ordered": False, "reason": "a traceback"}]
    verdict = up(evidence, tmp_path)
    assert len(verdict.witnesses) == 1
    assert (
        verdict.witnesses[0].summary == "n3 died unexpectedly: two leaders in epoch 4; killed by signal 9; a traceback"
    )
    assert verdict.witnesses[0].rows[0]["event"] == "fatal"


@pytest.mark.parametrize(
    ("printed", "end"),
    [
        ("recovery start\nrolled back during recovery", "its output ends: rolled back during recovery"),
        (
            "thread 'main' panicked at src/main.rs:3:5:\nno quorum\nnote: run with `RUST_BACKTRACE=1`",
            "it printed: thread 'main' panicked at src/main.rs:3:5: no quorum",
        ),
    ],
)
def test_a_death_shows_what_the_server_printed_last(evidence: Evidence, tmp_path: Path, printed: str, end: str) -> None:
    evidence.outcome["deaths"] = [death("n3", status=70, reason="exited with status 70", excerpt=printed)]
    (witness,) = up(evidence, tmp_path).witnesses
    assert witness.kind == "node died" and witness.facts["nodes"] == ["n3"]
    assert "exited with status 70" in witness.summary and witness.summary.endswith(f"; {end}")
    assert printed in witness.facts["why"][-1] and witness.facts["excerpt"] == printed


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


BOTH = {"may_die": True, "may_stay_down": True}


@pytest.mark.parametrize(
    ("s_after_heal", "stopped", "settings", "expected"),
    [
        (30, False, BOTH, Validity.VALID),
        (30, False, {"may_die": True}, Validity.INVALID),
        (1, True, BOTH, Validity.VALID),
        (20, True, BOTH, Validity.INVALID),
        (1, True, {"may_die": True}, Validity.INVALID),
    ],
)
def test_a_server_with_damaged_files_may_refuse_to_start(
    s_after_heal: int, stopped: bool, settings: dict[str, Any], expected: Validity, evidence: Evidence, tmp_path: Path
) -> None:
    """It ends by itself until the end of the run, or the next fault stops it before it has ended."""
    evidence.faults[:] = [failing_disk("n2", settings=settings)]
    at_ns = evidence.faults[0]["healed_ns"] + s_after_heal * 1_000_000_000
    refusal = {"node": "n2", "time_ns": -1, "status": 0, "ordered": False, "reason": "cannot start: CRC"}
    ends = [death("n2", time_ns=at_ns, ordered=True, status=-15), refusal] if stopped else [death("n2", time_ns=at_ns)]
    evidence.outcome["deaths"] = ends
    assert up(evidence, tmp_path).validity is expected


def test_who_has_no_nodes_cannot_lose_one(evidence: Evidence, tmp_path: Path) -> None:
    evidence.demands = replace(evidence.demands, nodes=False)
    verdicts = evidence.judge(tmp_path, "nodes-stay-up", "recovery")
    assert {v.validity for v in verdicts.values()} == {Validity.NOT_APPLICABLE}


def test_a_run_without_its_outcome_is_unknown(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome = {}
    verdicts = evidence.judge(tmp_path, "nodes-stay-up", "recovery")
    assert {v.validity for v in verdicts.values()} == {Validity.UNKNOWN}


def test_a_server_without_a_trace_that_ends_before_it_was_ever_ready_violates_nothing(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome |= {"set_up_failure": "the server of n2 is dead", "deaths": [death("n2")]}
    assert up(evidence, tmp_path / "traced").validity is Validity.INVALID
    evidence.demands = replace(evidence.demands, traces=False)
    verdict = up(evidence, tmp_path / "plain")
    assert verdict.validity is Validity.UNKNOWN
    assert "n2 died unexpectedly: killed by signal 9, before the system was ever ready" in verdict.reason


# Complaints


def complaint(reason: str, pid: int, lines_before_end: int = 0) -> Row:
    return death("n2", time_ns=-1, status=0, reason=reason, pid=pid, lines_before_end=lines_before_end)


@pytest.mark.parametrize(
    ("proven", "complaints", "expected"),
    [
        (True, [complaint("panic: write: EIO", 7)], Validity.VALID),
        (True, [complaint("panic: write: EIO", 7), complaint("goroutine 1", 7)], Validity.VALID),
        (True, [complaint("panic: write: EIO", 7, LAST_LINES)], Validity.VALID),
        (True, [complaint("data corrupted", 7, LAST_LINES + 1)], Validity.INVALID),
        (True, [complaint("data corrupted", 6)], Validity.INVALID),
        (True, [complaint("panic: write: EIO", 7), complaint("data corrupted", 8)], Validity.INVALID),
        (True, [complaint("data corrupted", -1)], Validity.UNKNOWN),
        (False, [], Validity.UNKNOWN),
        (False, [complaint("panic: write: EIO", 7)], Validity.UNKNOWN),
        (False, [complaint("data corrupted", 7, LAST_LINES + 1)], Validity.INVALID),
        (False, [complaint("data corrupted", 6)], Validity.INVALID),
    ],
)
def test_only_the_last_words_of_an_excused_death_are_excused(
    evidence: Evidence, tmp_path: Path, proven: bool, complaints: list[Row], expected: Validity
) -> None:
    """A fault that is not proven leaves open whether it excuses a death: a measurement may have come too late."""
    evidence.faults[:] = [failing_disk("n2")] if proven else [failing_disk("n2", measured=[])]
    evidence.outcome["deaths"] = [death("n2", pid=7), death("n2", pid=8, ordered=True), *complaints]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is expected
    if expected is Validity.INVALID:
        assert verdict.witnesses[0].summary == "n2 complained in its log: data corrupted"
    if expected is Validity.UNKNOWN:
        assert ("data corrupted" if proven else "it is not proven to have held") in verdict.reason


def test_a_complaint_of_an_unknown_process_is_a_violation_where_no_death_is_excused(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome["deaths"] = [complaint("data corrupted", -1)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_another_node_s_excused_death_excuses_nothing(evidence: Evidence, tmp_path: Path) -> None:
    evidence.faults[:] = [failing_disk("n1")]
    evidence.outcome["deaths"] = [death("n1", pid=7), complaint("panic: write: EIO", 7)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_a_sentence_names_a_few_reasons_and_counts_the_others(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [complaint(f"corrupted: {words}", 7) for words in ("a", "b", "c", "d", "e")]
    summary = up(evidence, tmp_path).witnesses[0].summary
    assert summary == "n2 complained in its log: corrupted: a; corrupted: b; corrupted: c; and 2 more"
