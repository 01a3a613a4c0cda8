"""The journal cannot set the measure of recovery: a statement that cannot be right makes the verdict unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum

from checkers.base.verdict import Validity, Verdict

SECOND = 1_000_000_000


@pytest.fixture
def evidence() -> Evidence:
    """A run with a partition, a limit of 60 s in its spec, and a phase of recovery that took 70 s."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.cut({"n5"})
    quorum.write()
    quorum.heal()
    found = quorum.evidence()
    found.demands = replace(found.demands, recovery_limit_s=60.0)
    found.outcome["phases"].append({"name": "recovery", "start_ns": SECOND, "end_ns": 71 * SECOND})
    return found


def recovery(evidence: Evidence, folder: Path, **stated: Any) -> Verdict:
    evidence.outcome["recovery"] |= stated
    return evidence.judge(folder, "recovery")["recovery"]


@pytest.mark.parametrize("stated", [{}, {"seconds": 64.0}, {"seconds": 3}])
def test_what_agrees_is_believed(evidence: Evidence, tmp_path: Path, stated: dict[str, Any]) -> None:
    assert recovery(evidence, tmp_path, **stated).validity is Validity.VALID


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"seconds": 66.0, "limit_s": 60.0}, "the limit is 60 s"),
        ({"seconds": 90.0}, "the phase of recovery 70.0 s"),
        ({"seconds": None}, "not known after how many seconds"),
        ({"seconds": -1.0}, "recovery took -1.0 s"),
    ],
)
def test_what_cannot_be_right_is_unknown(
    evidence: Evidence, tmp_path: Path, stated: dict[str, Any], words: str
) -> None:
    verdict = recovery(evidence, tmp_path, **stated)
    assert verdict.validity is Validity.UNKNOWN and words in verdict.reason


def test_seconds_that_are_left_out_are_not_in_time(evidence: Evidence, tmp_path: Path) -> None:
    del evidence.outcome["recovery"]["seconds"]
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "not known after how many seconds" in verdict.reason


def test_without_faults_an_older_file_may_state_that_nothing_had_to_recover(evidence: Evidence, tmp_path: Path) -> None:
    evidence.faults.clear()
    assert recovery(evidence, tmp_path, needed=False).validity is Validity.NOT_APPLICABLE


SERVERS = ("n1", "n2", "n3", "n4", "n5")


def looked_at(*nodes: str, dead: str = "") -> dict[str, list[str]]:
    return {node: ["process dead" if node == dead else "process running", "caught_up()"] for node in nodes}


@pytest.mark.parametrize(
    ("seen", "proven", "words"),
    [
        (looked_at(*SERVERS), SERVERS, ""),
        (looked_at(*SERVERS, dead="n5"), SERVERS[:4], ""),
        (looked_at(*SERVERS), (), ""),
        ({}, SERVERS, ""),
        (looked_at(*SERVERS[:3]), SERVERS[:3], "did not look at n4, n5"),
    ],
)
def test_recovery_looks_at_every_server_of_the_spec(
    evidence: Evidence, tmp_path: Path, seen: dict[str, list[str]], proven: tuple[str, ...], words: str
) -> None:
    proof = {"verdict": "as ordered", "links": {}, "states": dict.fromkeys(proven, "running"), "wrong": []}
    verdict = recovery(evidence, tmp_path, looked_at=seen, proof=proof)
    assert verdict.validity is (Validity.UNKNOWN if words else Validity.VALID)
    assert words in (verdict.reason or "")


def test_a_run_holds_the_proof_of_its_last_heal(evidence: Evidence, tmp_path: Path) -> None:
    verdict = recovery(evidence, tmp_path, proof=None)
    assert verdict.validity is Validity.UNKNOWN and "no proof of the last heal" in verdict.reason


@pytest.mark.parametrize("verdict", ["as ordered", "not as ordered", "indeterminate"])
def test_a_system_may_recover_from_half_a_heal(evidence: Evidence, tmp_path: Path, verdict: str) -> None:
    assert recovery(evidence, tmp_path, proof={"verdict": verdict}).validity is Validity.VALID


def test_a_server_of_which_only_the_process_was_seen_must_be_stated(evidence: Evidence, tmp_path: Path) -> None:
    seen = looked_at(*SERVERS) | {"n5": ["process running"]}
    verdict = recovery(evidence, tmp_path, looked_at=seen, without_evidence=[])
    assert verdict.validity is Validity.UNKNOWN and "nothing but the process of n5" in verdict.reason
