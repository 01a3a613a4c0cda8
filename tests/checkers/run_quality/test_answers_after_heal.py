"""Recovery needs evidence: what the system says of each server, or an answer that a client got through it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_health import evidence, recovery
from toy_quorum import Evidence, Row

from checkers.base.history import Type
from checkers.base.verdict import Validity

__all__ = ["evidence"]
HEALED_NS = 10**15


def fault(healed_ns: int = HEALED_NS) -> Row:
    return {"card": {"number": 1}, "nodes": [], "injected_ns": 1, "healed_ns": healed_ns, "measured": []}


@pytest.fixture
def unseen(evidence: Evidence) -> Evidence:
    """A run of two servers, of which recovery saw only the process of n4."""
    evidence.demands = replace(evidence.demands, servers=("n1", "n4"))
    evidence.faults[:] = [fault()]
    evidence.outcome["phases"].append({"name": "recovery", "start_ns": HEALED_NS + 10, "end_ns": HEALED_NS + 20})
    evidence.outcome["recovery"] |= {
        "looked_at": {"n1": ["process running", "caught_up()"], "n4": ["process running"]},
        "without_evidence": ["n4"],
    }
    return evidence


def test_a_server_of_which_only_the_process_was_seen_makes_it_unknown(unseen: Evidence, tmp_path: Path) -> None:
    unseen.answer("n4", HEALED_NS - 1)
    unseen.answer("n1", HEALED_NS + 1)
    unseen.answer("n4", HEALED_NS + 2, Type.FAIL)
    verdict = recovery(unseen, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert "n4 came back" in verdict.reason and "`caught_up`" in verdict.reason
    assert verdict.looked_at["evidence"] == "process running: n1, n4; caught_up(): n1"


def test_an_answer_after_the_last_heal_is_evidence(unseen: Evidence, tmp_path: Path) -> None:
    unseen.answer("n4", HEALED_NS)
    verdict = recovery(unseen, tmp_path)
    assert verdict.validity is Validity.VALID
    assert str(verdict.looked_at["evidence"]).endswith("a client's answer after the last heal: n4")


@pytest.mark.parametrize(("time_ns", "expected"), [(9, Validity.UNKNOWN), (10, Validity.VALID)])
def test_a_fault_that_only_recovery_healed_is_healed_when_recovery_begins(
    unseen: Evidence, tmp_path: Path, time_ns: int, expected: Validity
) -> None:
    unseen.faults.append(fault(healed_ns=-1))
    unseen.answer("n4", HEALED_NS + time_ns)
    assert recovery(unseen, tmp_path).validity is expected


def test_without_faults_every_answer_is_evidence(unseen: Evidence, tmp_path: Path) -> None:
    unseen.faults.clear()
    assert recovery(unseen, tmp_path / "none").validity is Validity.UNKNOWN
    unseen.answer("n4", HEALED_NS - 1)
    assert recovery(unseen, tmp_path / "one").validity is Validity.VALID


def test_an_answer_before_the_server_s_own_last_death_is_no_evidence(unseen: Evidence, tmp_path: Path) -> None:
    unseen.outcome["deaths"] = [{"node": "n4", "time_ns": HEALED_NS + 5, "ordered": True}]
    unseen.answer("n4", HEALED_NS + 4)
    assert recovery(unseen, tmp_path / "before").validity is Validity.UNKNOWN
    unseen.outcome["deaths"][0]["time_ns"] = HEALED_NS + 21  # the harness stops the server at the end
    assert recovery(unseen, tmp_path / "at the end").validity is Validity.VALID


def test_what_did_not_recover_is_invalid_whatever_was_looked_at(unseen: Evidence, tmp_path: Path) -> None:
    unseen.outcome["recovery"] |= {"recovered": False, "waiting_for": "n4 gives no status"}
    assert recovery(unseen, tmp_path).validity is Validity.INVALID


@pytest.fixture
def locks(unseen: Evidence) -> Evidence:
    """A run of a workload without final reads, whose system states of each server that it came back."""
    unseen.demands = replace(unseen.demands, concurrency=2, final_reads=())
    unseen.outcome["recovery"] |= {
        "looked_at": {node: ["process running", "caught_up()"] for node in ("n1", "n4")},
        "without_evidence": [],
    }
    return unseen


def test_without_final_reads_the_word_of_the_system_alone_shows_nothing(locks: Evidence, tmp_path: Path) -> None:
    locks.answer("n1", HEALED_NS - 1)
    locks.answer("n1", HEALED_NS + 1, Type.FAIL)
    verdict = recovery(locks, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "no client got an answer after the last heal" in verdict.reason


def test_one_answer_of_any_server_after_the_last_heal_is_enough(locks: Evidence, tmp_path: Path) -> None:
    locks.answer("n4", HEALED_NS + 1)
    assert recovery(locks, tmp_path).validity is Validity.VALID


def test_final_reads_show_that_a_system_serves_again(locks: Evidence, tmp_path: Path) -> None:
    locks.demands = replace(locks.demands, final_reads=(("read", "k0"),))
    assert recovery(locks, tmp_path).validity is Validity.VALID


def test_without_faults_there_was_nothing_after_which_to_answer(locks: Evidence, tmp_path: Path) -> None:
    locks.faults.clear()
    assert recovery(locks, tmp_path).validity is Validity.VALID
