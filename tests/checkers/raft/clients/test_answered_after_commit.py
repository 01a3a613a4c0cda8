"""Answers after commits, on one clock; and where that rule must not be applied."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from toy_quorum import Evidence, random_run

from checkers.base.verdict import Validity, Verdict

NAME = "answers-after-commit"


@pytest.fixture
def evidence() -> Evidence:
    evidence = random_run(4).evidence()
    evidence.test["spec"]["backend"] = "namespaces"
    return evidence


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def test_a_clean_run_is_valid_and_its_answers_are_counted(evidence: Evidence, tmp_path: Path) -> None:
    verdict = judged(evidence, tmp_path)
    ok = sum(r["type"] == 1 and r["f"] == "write" for r in evidence.history)
    assert (verdict.validity, verdict.looked_at["answers"]) == (Validity.VALID, ok)


def test_an_acknowledgement_before_the_nodes_own_mark(evidence: Evidence, tmp_path: Path) -> None:
    answer = [r for r in evidence.history if r["type"] == 1 and r["f"] == "write"][-1]
    invoke = next(r for r in evidence.history if r["type"] == 0 and r["value"] == answer["value"])
    answer["time_ns"] = invoke["time_ns"]
    verdict = judged(evidence, tmp_path)
    assert [w.kind for w in verdict.witnesses] == ["acknowledged before it was committed"]
    assert verdict.witnesses[0].facts["value"] == answer["value"]
    assert verdict.witnesses[0].facts["nodes"] == [answer["node"]]


def test_a_read_of_what_its_node_does_not_know_to_be_committed(evidence: Evidence, tmp_path: Path) -> None:
    """The same value is read before the write was committed, and after it."""
    write = [r for r in evidence.history if r["type"] == 1 and r["f"] == "write"][-1]
    invoke = next(r for r in evidence.history if r["type"] == 0 and r["value"] == write["value"])
    read = write | {"f": "read", "process": 10**6}
    for time_ns, validity in ((write["time_ns"] + 1, Validity.VALID), (invoke["time_ns"] + 1, Validity.INVALID)):
        changed = deepcopy(evidence)
        changed.history.append(read | {"index": len(changed.history), "time_ns": time_ns})
        verdict = judged(changed, tmp_path / str(validity))
        assert verdict.validity is validity
    assert [w.kind for w in verdict.witnesses] == ["read of an uncommitted value"]


def test_it_is_not_applicable_without_a_common_clock(evidence: Evidence, tmp_path: Path) -> None:
    remote, foreign = deepcopy(evidence), deepcopy(evidence)
    remote.test["spec"]["backend"] = "ssh"
    foreign.test["spec"]["backend"] = "docker"  # its engine may run in a virtual machine
    for rows in foreign.traces.values():
        for row in rows:
            row["time_ns"] += 10**15
    for name, some in (("remote", remote), ("foreign", foreign)):
        verdict = judged(some, tmp_path / name)
        assert verdict.validity is Validity.NOT_APPLICABLE
        assert "monotonic clock" in verdict.reason


@pytest.mark.parametrize("shift_ns", [10**15, -(10**15)])
@pytest.mark.parametrize("backend", ["namespaces", "in-process"])
def test_times_outside_of_the_test_are_unknown_where_there_is_only_one_clock(
    evidence: Evidence, tmp_path: Path, backend: str, shift_ns: int
) -> None:
    evidence.test["spec"]["backend"] = backend
    for row in evidence.traces["n1"]:
        row["time_ns"] += shift_ns
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert "the trace of n1 lie outside of the test" in verdict.reason


def test_all_early_answers_are_counted_by_their_kind(evidence: Evidence, tmp_path: Path) -> None:
    invoked = {r["value"]: r["time_ns"] for r in evidence.history if r["type"] == 0 and r["f"] == "write"}
    early = [r for r in evidence.history if r["type"] == 1 and r["f"] == "write"]
    for answer in early:
        answer["time_ns"] = invoked[answer["value"]]
    verdict = judged(evidence, tmp_path)
    assert len(early) > len(verdict.witnesses)
    assert verdict.details["violations_by_kind"] == {"acknowledged before it was committed": len(early)}
