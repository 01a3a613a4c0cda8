"""Changes of the voters, one at a time, each after a commit of the leader's epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.verdict import Validity, Verdict

NAME = "quorum-intersection"


@pytest.fixture
def evidence() -> Evidence:
    """n1 leads epoch 1 and commits five entries, from offset 1 on, one after another."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    for _ in range(5):
        quorum.write()
    quorum.read_all()
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def name_voters(evidence: Evidence, node: str, offset: int, names: str, *, before_mark: int | None = None) -> None:
    """A row that the log names voters at an offset: behind the append of that offset, or before a mark."""
    rows = evidence.traces[node]
    if before_mark is None:
        at = 1 + next(i for i, row in enumerate(rows) if row["event"] == "append" and row["offset"] == offset + 1)
    else:
        at = next(i for i, row in enumerate(rows) if row["event"] == "high-watermark" and row["offset"] >= before_mark)
    blank: Row = dict.fromkeys(rows[at - 1])
    kept = {name: rows[at - 1][name] for name in ("node", "incarnation", "time_ns", "epoch") if name in blank}
    rows.insert(at, {**blank, **kept, "event": "voters", "offset": offset, "detail": names})
    for seq, row in enumerate(rows):
        row["seq"] = seq


def test_static_voters_are_not_judged(evidence: Evidence, tmp_path: Path) -> None:
    assert judged(evidence, tmp_path).validity is Validity.NOT_APPLICABLE


def test_changes_one_after_another_are_no_violation(evidence: Evidence, tmp_path: Path) -> None:
    for node in evidence.traces:
        name_voters(evidence, node, 1, "n1 n2 n3")
        name_voters(evidence, node, 3, "n1 n2")
        name_voters(evidence, node, 4, "n1 n2 n3")
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.looked_at["committed sets of voters"] == 3
    assert verdict.looked_at["changes by leaders"] == 2


def test_a_change_before_the_last_one_is_committed_is_found(evidence: Evidence, tmp_path: Path) -> None:
    name_voters(evidence, "n1", 3, "n1 n2")
    name_voters(evidence, "n1", 4, "n1", before_mark=4)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    assert [witness.kind for witness in verdict.witnesses] == ["voters changed before the last change was committed"]


def test_the_same_voters_reported_again_are_no_change(evidence: Evidence, tmp_path: Path) -> None:
    name_voters(evidence, "n1", 3, "n1 n2")
    name_voters(evidence, "n1", 3, "n1 n2", before_mark=4)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.looked_at["changes by leaders"] == 0


def test_a_change_before_the_epoch_has_committed_is_found(evidence: Evidence, tmp_path: Path) -> None:
    name_voters(evidence, "n1", 0, "n1 n2 n3", before_mark=0)
    name_voters(evidence, "n1", 1, "n1 n2", before_mark=0)
    rows = evidence.traces["n1"]
    assert [row["event"] for row in rows].index("voters") < [row["event"] for row in rows].index("high-watermark")
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    assert [witness.kind for witness in verdict.witnesses] == ["voters changed before the epoch had committed"]


def test_committed_sets_that_differ_by_two_are_found(evidence: Evidence, tmp_path: Path) -> None:
    name_voters(evidence, "n2", 1, "n1 n2 n3")
    name_voters(evidence, "n2", 3, "n1")
    verdict = judged(evidence, tmp_path)
    assert [witness.kind for witness in verdict.witnesses] == ["sets of voters differ by more than one"]


def test_two_sets_at_one_offset_are_found(evidence: Evidence, tmp_path: Path) -> None:
    name_voters(evidence, "n2", 2, "n1 n2 n3")
    name_voters(evidence, "n3", 2, "n1 n2")
    verdict = judged(evidence, tmp_path)
    assert [witness.kind for witness in verdict.witnesses] == ["one offset names two sets of voters"]
