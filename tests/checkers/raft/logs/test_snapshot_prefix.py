"""Snapshots: their state, what they may cover, and where a log may begin."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_quorum import Quorum

from checkers.base.verdict import Validity, Verdict

NAME = "snapshot-equals-prefix"


@pytest.fixture
def quorum() -> Quorum:
    """Five nodes that have committed and applied everything."""
    quorum = Quorum()
    quorum.elect("n1")
    for i in range(6):
        quorum.write(f"k{i % 2}")
    return quorum


def judged(quorum: Quorum, folder: Path) -> Verdict:
    return quorum.evidence().judge(folder, NAME)[NAME]


def test_without_snapshots_there_is_nothing_to_look_at(quorum: Quorum, tmp_path: Path) -> None:
    verdict = judged(quorum, tmp_path)
    assert verdict.validity is Validity.NOT_APPLICABLE and "no node took a snapshot" in verdict.reason


def test_a_snapshot_and_the_log_behind_it(quorum: Quorum, tmp_path: Path) -> None:
    quorum.snapshot("n2")
    quorum.write()
    quorum.snapshot("n3")
    verdict = judged(quorum, tmp_path)
    assert verdict.validity is Validity.VALID, verdict.witnesses
    assert verdict.looked_at["snapshots"] == 2 and verdict.looked_at["ends at which states were compared"] == 2
    assert verdict.looked_at["logs that begin above 0"] == 1  # that of n3 is empty


def test_other_checkers_go_on_with_a_log_that_begins_above_0(quorum: Quorum, tmp_path: Path) -> None:
    quorum.snapshot("n2")
    quorum.write()
    quorum.snapshot("n3")
    assert len(quorum.nodes["n3"].log) == quorum.nodes["n3"].snapshot_end
    names = ("log-matching", "committed-never-lost", "leader-completeness", "high-watermark-majority")
    verdicts = quorum.evidence().judge(tmp_path, *names, "history-against-log")
    matching = verdicts.pop("log-matching")
    assert matching.validity is Validity.UNKNOWN and matching.reason == "no copy of the log of n3 holds an entry"
    assert {v.validity for v in verdicts.values()} == {Validity.VALID}
    assert verdicts["history-against-log"].looked_at["logs caught up at the end"] == 3


def test_a_snapshot_of_another_state(quorum: Quorum, tmp_path: Path) -> None:
    snapshot = quorum.snapshot("n2")
    snapshot["hash"] ^= 1
    witness = judged(quorum, tmp_path).witnesses[0]
    assert witness.kind == "snapshot differs from its prefix" and witness.facts["offset"] == snapshot["offset"]
    assert witness.rows[0]["node"] == "n2" and witness.rows[1]["hash"] != snapshot["hash"]


def test_two_snapshots_of_one_end_that_differ(quorum: Quorum, tmp_path: Path) -> None:
    for node in quorum.nodes.values():
        node.trace[:] = [r for r in node.trace if r["event"] != "applied"]
        for seq, row in enumerate(node.trace):
            row["seq"] = seq
    quorum.snapshot("n2")
    quorum.snapshot("n3")["hash"] ^= 1
    witness = judged(quorum, tmp_path).witnesses[0]
    assert {r["event"] for r in witness.rows} == {"snapshot"} and set(witness.facts["nodes"]) == {"n2", "n3"}


def test_a_snapshot_beyond_the_nodes_own_mark(quorum: Quorum, tmp_path: Path) -> None:
    quorum.write(replicate=False)
    quorum.snapshot("n1", end=len(quorum.nodes["n1"].log))
    witness = judged(quorum, tmp_path).witnesses[0]
    assert witness.kind == "snapshot beyond the high watermark"
    assert [r["event"] for r in witness.rows] == ["high-watermark", "snapshot"]


def test_a_fetched_snapshot_may_be_ahead_of_the_nodes_own_mark_but_not_of_all_marks(
    quorum: Quorum, tmp_path: Path
) -> None:
    quorum.write(followers={"n2", "n3"})
    end = quorum.nodes["n1"].mark
    snapshot = quorum.snapshot("n4", peer="n1", end=end)
    snapshot["hash"] = None
    assert judged(quorum, tmp_path / "sound").validity is Validity.VALID
    snapshot["offset"] += 1
    witness = judged(quorum, tmp_path / "beyond").witnesses[0]
    assert witness.kind == "snapshot beyond the high watermark" and witness.facts["nodes"] == ["n4"]


@pytest.mark.parametrize("traced", [False, True])
def test_a_log_that_begins_behind_its_snapshot(quorum: Quorum, tmp_path: Path, traced: bool) -> None:
    """Bug of the kind that deletes segments past the snapshot: entries are nowhere."""
    if traced:
        quorum.snapshot("n2", end=3)
    quorum.nodes["n2"].snapshot_end = 5
    witness = judged(quorum, tmp_path).witnesses[0]
    assert witness.kind == "log begins behind its snapshot" and witness.facts["offset"] == 5
    assert f"Entries {3 if traced else 0} to 4 are in no snapshot" in witness.facts["why"][0]
