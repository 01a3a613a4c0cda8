"""A system whose servers run, and in which nothing can be read any more that was read before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum

from checkers.base.history import Type
from checkers.base.verdict import Validity, Verdict

S = 1_000_000_000
LIMIT_S = 60.0
GONE = dict.fromkeys(("k0", "k1"), 'UndefinedTable: relation "kept" does not exist')


@pytest.fixture
def evidence() -> Evidence:
    """Both keys are written and read; after the heal every read is an error for a minute."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.write("k1")
    quorum.read_all()
    quorum.cut({"n5"})
    quorum.heal()
    made = quorum.evidence()
    last_ns = max(row["time_ns"] for row in made.history)
    reading = {"name": "final reads", "start_ns": last_ns + 1, "end_ns": last_ns + 1 + int(60.1 * S)}
    made.outcome["phases"] = [p for p in made.outcome["phases"] if p["name"] != "final reads"] + [reading]
    made.outcome["recovery"] |= {"recovered": True, "seconds": 1.0, "limit_s": LIMIT_S}
    made.outcome["final_reads"] = dict(GONE)
    return made


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, "recovery")["recovery"]


def test_a_system_in_which_nothing_can_be_read_any_more_has_not_come_back(evidence: Evidence, tmp_path: Path) -> None:
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].kind == "not readable any more"
    assert "no key could be read for 60 s after recovery" in verdict.witnesses[0].summary
    assert "UndefinedTable" in verdict.witnesses[0].summary


def one_key_is_read(evidence: Evidence) -> None:
    evidence.outcome["final_reads"]["k1"] = "ok"


def no_server_answered(evidence: Evidence) -> None:
    evidence.outcome["final_reads"]["k1"] = "not sent: the client is still starting"


def a_time_ran_out(evidence: Evidence) -> None:
    evidence.outcome["final_reads"]["k1"] = "timeout"


def too_short(evidence: Evidence) -> None:
    evidence.outcome["phases"][-1]["end_ns"] -= 10 * S


def not_healed(evidence: Evidence) -> None:
    evidence.outcome["recovery"]["proof"] = {"verdict": "indeterminate"}


def beyond_the_budget(evidence: Evidence) -> None:
    evidence.faults[0]["over_budget"] = True


def damaged(evidence: Evidence) -> None:
    evidence.faults[0] |= {"settings": {"damages_data": True}, "nodes": ["n5"]}


def never_read_before(evidence: Evidence) -> None:
    for row in evidence.history:
        if (row["f"], row["key"], row["type"]) == ("read", "k1", Type.OK):
            row["type"] = Type.INFO


@pytest.mark.parametrize(
    "otherwise",
    [
        one_key_is_read,
        no_server_answered,
        a_time_ran_out,
        too_short,
        not_healed,
        beyond_the_budget,
        damaged,
        never_read_before,
    ],
)
def test_nothing_is_claimed_where_something_else_may_be_the_cause(
    otherwise: Callable[[Any], None], evidence: Evidence, tmp_path: Path
) -> None:
    otherwise(evidence)
    assert judged(evidence, tmp_path).validity is not Validity.INVALID


def every_read_is_refused(evidence: Evidence, error: str = "stream not found") -> None:
    """k1 is read by two clients in the final phase, and k0 is ok."""
    evidence.outcome["final_reads"] |= {"k0": "ok", "k1": error}
    began_ns = evidence.outcome["phases"][-1]["start_ns"]
    (blank, *_) = (row for row in evidence.history if (row["f"], row["key"]) == ("read", "k1"))
    for number, type_ in enumerate((Type.INVOKE, Type.FAIL) * 2):
        row = {"index": len(evidence.history), "time_ns": began_ns + number, "type": type_, "value": None}
        row |= {"error": error if type_ is Type.FAIL else None, "process": 1}
        evidence.history.append(blank | row)


def test_one_object_that_is_gone_is_named_with_its_error(evidence: Evidence, tmp_path: Path) -> None:
    every_read_is_refused(evidence)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].summary == (
        "k1 could not be read for 60 s after recovery: every read was answered with stream not found"
    )


@pytest.mark.parametrize("error", ["timeout", "ConnectionResetError: reset", "not leader", ""])
def test_an_error_that_is_no_answer_about_the_object_shows_no_loss(
    evidence: Evidence, tmp_path: Path, error: str
) -> None:
    every_read_is_refused(evidence, error)
    assert judged(evidence, tmp_path).validity is not Validity.INVALID


def test_an_object_that_was_answered_once_is_not_gone(evidence: Evidence, tmp_path: Path) -> None:
    every_read_is_refused(evidence)
    evidence.history[-1] |= {"type": Type.INFO}
    assert judged(evidence, tmp_path).validity is not Validity.INVALID
