"""Answers after their commits, and answers that reflect all that was committed before, on one clock."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from toy_quorum import Evidence, random_run

from checkers.base.columns import HISTORY
from checkers.base.verdict import Validity, Verdict
from checkers.raft.answered_from_commits import judge_answers, other_pace_of_recorder
from checkers.sealing.sealed_history import history_tables

NAME, PAST = "answers-after-commit", "answers-from-commits"


@pytest.fixture
def evidence() -> Evidence:
    evidence = random_run(4).evidence()
    evidence.test["spec"]["backend"] = "namespaces"
    return evidence


def judged(evidence: Evidence, folder: Path, name: str = NAME) -> Verdict:
    return evidence.judge(folder, name)[name]


@pytest.mark.parametrize("name", [NAME, PAST])
def test_a_clean_run_is_valid_and_its_answers_are_counted(evidence: Evidence, tmp_path: Path, name: str) -> None:
    verdict = judged(evidence, tmp_path, name)
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


@pytest.mark.parametrize("name", [NAME, PAST])
def test_it_is_not_applicable_without_a_common_clock(evidence: Evidence, tmp_path: Path, name: str) -> None:
    remote, foreign = deepcopy(evidence), deepcopy(evidence)
    remote.test["spec"]["backend"] = "ssh"
    foreign.test["spec"]["backend"] = "docker"  # its engine may run in a virtual machine
    for rows in foreign.traces.values():
        for row in rows:
            row["time_ns"] += 10**15
    for number, some in enumerate((remote, foreign)):
        verdict = judged(some, tmp_path / str(number), name)
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


# Answers that reflect all that was committed before, on one clock; and where that rule must not be applied


END = 6


def stale_in(evidence: Evidence, folder: Path) -> Verdict:
    return judged(evidence, folder, PAST)


def with_read(evidence: Evidence, value: int, key: str, invoked_ns: int, answered_ns: int) -> Evidence:
    changed = deepcopy(evidence)
    some = next(r for r in changed.history if r["type"] == 1 and r["f"] == "write")
    for kind, time_ns, read in ((0, invoked_ns, None), (1, answered_ns, value)):
        row = {"index": len(changed.history), "time_ns": time_ns, "type": kind, "value": read, "key": key}
        changed.history.append(some | row | {"f": "read", "process": 10**6})
    return changed


def overwritten(evidence: Evidence) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first two acknowledged writes of one key."""
    acknowledged: dict[str, dict[str, Any]] = {}
    for row in evidence.history:
        if row["type"] == 1 and row["f"] == "write":
            if row["key"] in acknowledged:
                return acknowledged[row["key"]], row
            acknowledged[row["key"]] = row
    raise AssertionError("no key was written twice")


def test_a_read_of_an_overwritten_value(evidence: Evidence, tmp_path: Path) -> None:
    old, new = overwritten(evidence)
    after = new["time_ns"] + 1
    verdict = stale_in(with_read(evidence, old["value"], old["key"], after, after + 1), tmp_path / "stale")
    assert [w.kind for w in verdict.witnesses] == ["answer from the past"]
    witness = verdict.witnesses[0]
    assert [event["type"] for event in witness.events] == [0, 1, 0, 1]
    assert [event["value"] for event in witness.events[:2]] == [new["value"]] * 2, "the write that was missed is named"
    assert f"that {new['value']} is committed" in witness.summary and witness.facts["culprit"] == "B"
    assert [row["value"] for row in witness.rows] == [new["value"]]
    early = with_read(evidence, old["value"], old["key"], old["time_ns"] + 1, after + 1)
    assert stale_in(early, tmp_path / "early").validity is Validity.VALID


def test_two_leaders_of_one_epoch_show_nothing_of_the_recorder(evidence: Evidence, tmp_path: Path) -> None:
    for row in evidence.history:
        row["time_ns"] += 10_000_000_000
    assert "the clock of the recorder runs ahead" in stale_in(evidence, tmp_path / "ahead").reason
    role = next(row for rows in evidence.traces.values() for row in rows if row["role"] == "leader")
    other = next(name for name in evidence.traces if name != role["node"])
    evidence.traces[other].append(role | {"node": other, "seq": 10**6})
    assert "the clock" not in stale_in(evidence, tmp_path / "two").reason


def test_it_is_not_applicable_where_no_single_value_is_read_or_written(evidence: Evidence, tmp_path: Path) -> None:
    for row in evidence.history:
        row["f"] = "add" if row["f"] == "write" else "members"
    assert stale_in(evidence, tmp_path).validity is Validity.NOT_APPLICABLE


def found(
    answer: tuple[int, int, int], marks: list[tuple[int, int]], entries: list[tuple[int, int | None]]
) -> tuple[bool, bool]:
    """Whether an answer (value, when it was invoked and answered) is judged, and whether it is stale.

    marks: time and offset.  entries: offset and value; None removes it."""
    value, invoked, answered = answer
    columns = {"key": "k", "value": value, "invoked_ns": invoked, "answered_ns": answered, "row": 1, "invoke_row": 0}
    schema = pa.schema([("key", pa.string()), ("value", pa.int64()), ("offset", pa.int64())])
    with history_tables(HISTORY.empty_table()) as sql:
        sql.register("answers", pa.Table.from_pylist([columns]))
        sql.register("largest", pa.Table.from_pylist([{"time_ns": at, "mark": mark} for at, mark in marks]))
        rows = [{"key": "k", "value": each, "offset": offset} for offset, each in entries]
        sql.register("entries", pa.Table.from_pylist(rows, schema))
        judge_answers(sql, END)
        explained = [row[0] for row in sql.execute("SELECT explained FROM judged").fetchall()]
    return bool(explained), explained == [False]


AGAIN = [(1, 1), (3, 2), (5, 1)]
"""A register holds 1 from offset 1, 2 from offset 3, 1 again from offset 5."""


@pytest.mark.parametrize(
    ("entries", "answer", "judged", "stale"),
    [
        (AGAIN, (1, 0, 5), True, False),  # nothing was known to be committed
        (AGAIN, (1, 30, 40), True, True),  # 2 at offset 3 was known by time 30
        (AGAIN, (2, 30, 40), True, False),
        (AGAIN, (1, 30, 50), True, False),  # 1 was written again, and committed by time 50
        (AGAIN, (1, 50, 60), True, False),
        (AGAIN, (2, 50, 60), True, True),
        (AGAIN, (9, 30, 90), False, False),  # this log lacks what was committed by time 90
        (AGAIN, (9, 30, 40), True, True),
        ([(1, 1), (3, None)], (1, 30, 40), True, True),  # the value was removed
        ([(1, 1)], (1, 30, 40), True, False),
        ([], (1, 30, 40), True, True),
    ],
)
def test_an_answer_is_stale_if_the_log_held_something_else_all_the_time(
    entries: list[tuple[int, int | None]], answer: tuple[int, int, int], judged: bool, stale: bool
) -> None:
    assert found(answer, [(5, 2), (30, 4), (50, END), (90, END + 4)], entries) == (judged, stale)


def at_pace(percent: int, ack_ns: int = 5_000_000) -> str:
    """Return what the checker says of a recorder's clock: a write each 100 ms for 20 s takes 2 ms to commit, and is
    acknowledged `ack_ns` after its invoke."""
    invoked = [at * 100_000_000 for at in range(1, 200)]
    recorded = [[(at + later) * percent // 100 for at in invoked] for later in (0, ack_ns)]
    return other_pace_of_recorder(*map(np.array, ([at + 2_000_000 for at in invoked], *recorded)))


def test_the_pace_of_the_recorder() -> None:
    assert at_pace(100) == ""
    assert "before they were invoked" in at_pace(101)
    assert "runs slower" in at_pace(99)
    assert at_pace(100, ack_ns=500_000) == "", "a system that acknowledges before it commits is no slow clock"


def test_all_stale_answers_are_counted(evidence: Evidence, tmp_path: Path) -> None:
    old, new = overwritten(evidence)
    for number in range(12):
        after = new["time_ns"] + 2 * number
        evidence = with_read(evidence, old["value"], old["key"], after + 1, after + 2)
    verdict = stale_in(evidence, tmp_path)
    assert (verdict.looked_at["violations"], len(verdict.witnesses)) == (12, 10)
    assert verdict.details["violations_by_kind"] == {"answer from the past": 12}


def test_a_write_without_an_answer_is_shown_to_its_end(evidence: Evidence, tmp_path: Path) -> None:
    old, new = overwritten(evidence)
    new["type"] = 3
    after = new["time_ns"] + 1
    witness = stale_in(with_read(evidence, old["value"], old["key"], after, after + 1), tmp_path).witnesses[0]
    assert [(event["type"], event["value"]) for event in witness.events[:2]] == [(0, new["value"]), (3, new["value"])]
