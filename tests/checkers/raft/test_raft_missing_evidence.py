"""Evidence that is missing or unreadable makes a verdict unknown, and the reason names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_quorum import OF_LOGS_AND_TRACES, Evidence

from checkers.base.verdict import Validity


@pytest.mark.parametrize(
    ("event", "name", "nothing"),
    [
        ("role", "election-safety", "epochs with a leader"),
        ("vote", "vote-once", "votes"),
        ("applied", "state-machine-safety", "applied states"),
        ("high-watermark", "monotonicity", "high watermarks"),
        ("high-watermark", "high-watermark-majority", "high watermarks"),
        ("high-watermark", "committed-never-lost", "high watermarks"),
        ("role", "leader-completeness", "terms of office"),
    ],
)
def test_what_had_nothing_to_look_at_is_not_valid(
    evidence: Evidence, tmp_path: Path, event: str, name: str, nothing: str
) -> None:
    for node, rows in evidence.traces.items():
        evidence.traces[node] = [r for r in rows if r["event"] != event]
    verdict = evidence.judge(tmp_path, name)[name]
    assert verdict.validity is not Validity.VALID
    assert f"there were no {nothing} to look at" in verdict.reason


def test_a_missing_trace_or_an_unreadable_copy_is_unknown(evidence: Evidence, tmp_path: Path) -> None:
    del evidence.traces["n2"]
    evidence.copies[3]["error"] = "byte 17: the CRC does not match"
    verdicts = evidence.judge(tmp_path)
    assert verdicts["election-safety"].validity is Validity.UNKNOWN
    assert "n2 delivered no traces" in verdicts["election-safety"].reason
    assert verdicts["log-matching"].validity is Validity.UNKNOWN
    assert "byte 17" in verdicts["log-matching"].reason


@pytest.mark.parametrize(
    ("declared", "expected"), [(True, Validity.UNKNOWN), (False, Validity.NOT_APPLICABLE)], ids=["declared", "not"]
)
def test_nothing_delivered(evidence: Evidence, tmp_path: Path, declared: bool, expected: Validity) -> None:
    evidence.logs, evidence.traces, evidence.copies = {}, {}, []
    evidence.demands = replace(evidence.demands, logs=declared, traces=declared)
    verdicts = evidence.judge(tmp_path)
    of_logs = [n for n in OF_LOGS_AND_TRACES if n not in ("nodes-stay-up", "recovery", "vacuity")]
    assert {verdicts[name].validity for name in of_logs} == {expected}
    assert verdicts["vacuity"].validity is (Validity.UNKNOWN if declared else Validity.VALID)
