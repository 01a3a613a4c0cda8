"""Logs that match each other, and snapshots that are the state of their prefix."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_violations import final, invalid, only, rehash, rows_of
from toy_quorum import Evidence, Quorum

from checkers.base.verdict import Validity, Verdict
from checkers.raft.log_matching import fork


@pytest.mark.parametrize("copy", [0, 1])
def test_an_entry_of_another_content_in_one_log(evidence: Evidence, tmp_path: Path, copy: int) -> None:
    entry = rows_of(evidence.logs["n4"], copy=copy, offset=3)[0]
    entry["checksum"] ^= 1 << 31
    witness = only(invalid(evidence, tmp_path), "log-matching", "logs differ below an equal epoch")
    assert witness.facts["offset"] == 3
    assert any(r["node"] == "n4" and r["checksum"] == entry["checksum"] for r in witness.rows)


def test_a_wrong_tail_with_right_entries_appended_behind_it(evidence: Evidence, tmp_path: Path) -> None:
    """What a follower gets from a leader that compares offsets alone: it keeps an old leader's entry at 5, and all
    that stands behind it is right."""
    old = rows_of(evidence.logs["n1"], copy=0, offset=5)[0]
    new = rows_of(evidence.logs["n5"], copy=final(evidence), offset=5)[0]
    assert (old["epoch"], new["epoch"]) == (1, 2)
    new |= {name: old[name] for name in ("epoch", "checksum", "key", "value")}
    rehash(evidence.logs["n5"], final(evidence))
    found = invalid(evidence, tmp_path)
    assert set(found) == {"log-matching", "committed-never-lost"}
    fork = found["log-matching"].witnesses[0]
    assert (fork.facts["offset"], fork.facts["equal_epoch_at"]) == (5, 6)
    lost = found["committed-never-lost"].witnesses[0]
    assert lost.kind == "committed entry lost" and lost.facts["nodes"][0] == "n5" and lost.facts["offset"] == 5
    assert any(r["table"] == "log" and r["node"] == "n5" and r["offset"] == 5 for r in lost.rows)


def test_an_epoch_that_falls_along_a_log(evidence: Evidence, tmp_path: Path) -> None:
    for node in evidence.logs:
        for r in rows_of(evidence.logs[node], offset=2):
            r["epoch"] = 0
    witness = only(invalid(evidence, tmp_path), "log-matching", "epoch went back")
    assert witness.facts["offset"] == 2


def test_a_hole_in_a_log(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.logs["n3"]
    rows.remove(rows_of(rows, copy=final(evidence), offset=0)[0])
    rows.remove(rows_of(rows, copy=final(evidence), offset=5)[0])
    found = invalid(evidence, tmp_path)
    witness = found["log-matching"].witnesses[0]
    assert witness.kind == "log has a hole" and witness.facts["offset"] == 6


def test_logs_that_share_no_offset_or_are_empty_are_not_valid(evidence: Evidence, tmp_path: Path) -> None:
    for node in evidence.logs:
        evidence.logs[node] = []
    verdict = evidence.judge(tmp_path, "log-matching")["log-matching"]
    assert verdict.validity is Validity.UNKNOWN
    assert "no logs of two nodes have an offset in common" in verdict.reason
    assert "no copy of the log of n3 holds an entry" in verdict.reason


def test_two_copies_of_one_node_that_differ_are_both_named() -> None:
    facts = fork(("n1", 0), ("n1", 2), 5, 6, 3).facts
    assert list(zip(facts["nodes"], facts["copies"], strict=True)) == [("n1", 0), ("n1", 2)]


# Snapshots


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


def test_snapshots_and_the_logs_behind_them(quorum: Quorum, tmp_path: Path) -> None:
    """Other checkers go on with a log that begins above 0."""
    quorum.snapshot("n2")
    quorum.write()
    quorum.snapshot("n3")
    assert len(quorum.nodes["n3"].log) == quorum.nodes["n3"].snapshot_end
    names = (NAME, "log-matching", "committed-never-lost", "leader-completeness", "high-watermark-majority")
    verdicts = quorum.evidence().judge(tmp_path, *names, "history-against-log")
    matching = verdicts.pop("log-matching")
    assert matching.validity is Validity.UNKNOWN and matching.reason == "no copy of the log of n3 holds an entry"
    assert {v.validity for v in verdicts.values()} == {Validity.VALID}
    assert verdicts["history-against-log"].looked_at["logs caught up at the end"] == 3
    looked_at = verdicts[NAME].looked_at
    assert looked_at["snapshots"] == 2 and looked_at["ends at which states were compared"] == 2
    assert looked_at["logs that begin above 0"] == 1  # that of n3 is empty


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


def with_file(quorum: Quorum, **fields: object) -> Evidence:
    """The run, with the file of a snapshot in a copy of n2 that is the state at the end of the log's third entry."""
    evidence = quorum.evidence()
    end = 3
    applied = next(r for r in evidence.traces["n3"] if r["event"] == "applied" and r["offset"] == end)
    file = {"end_offset": end, "epoch": 1, "records": 3, "state_hash": applied["hash"], "error": None} | fields
    for copy in evidence.copies:
        copy["snapshots"] = [file] if copy["node"] == "n2" else []
    return evidence


def test_the_file_of_a_snapshot_is_compared_with_what_nodes_applied(quorum: Quorum, tmp_path: Path) -> None:
    quorum.snapshot("n2", end=3)
    verdict = with_file(quorum).judge(tmp_path, NAME)[NAME]
    assert verdict.validity is Validity.VALID, verdict.witnesses
    assert verdict.looked_at["files of snapshots"] >= 1


def test_a_file_that_holds_another_state_than_its_prefix(quorum: Quorum, tmp_path: Path) -> None:
    """The node reports the state that it should have written."""
    quorum.snapshot("n2", end=3)
    witness = with_file(quorum, state_hash=99).judge(tmp_path, NAME)[NAME].witnesses[0]
    assert witness.kind == "snapshot differs from its prefix" and witness.facts["offset"] == 3
    assert witness.rows[0]["table"] == "snapshots" and witness.rows[0]["node"] == "n2"
    assert "the hash of the state in this file is 0000000000000063" in witness.facts["why"][0]


def test_a_file_that_cannot_be_read_leaves_the_question_open(quorum: Quorum, tmp_path: Path) -> None:
    quorum.snapshot("n2", end=3)
    verdict = with_file(quorum, error="it ends without its footer").judge(tmp_path, NAME)[NAME]
    assert verdict.validity is Validity.UNKNOWN and "it ends without its footer" in verdict.reason


def test_a_log_may_begin_behind_a_snapshot_that_only_the_disk_shows(quorum: Quorum, tmp_path: Path) -> None:
    """The node was killed before it could report the snapshot."""
    evidence = with_file(quorum)
    for copy in evidence.copies:
        copy["log_start"] = 3 if copy["node"] == "n2" else 0
    assert evidence.judge(tmp_path / "held", NAME)[NAME].validity is Validity.VALID
    for copy in evidence.copies:
        copy["log_start"] = 4 if copy["node"] == "n2" else 0
    witness = evidence.judge(tmp_path / "lost", NAME)[NAME].witnesses[0]
    assert witness.kind == "log begins behind its snapshot" and witness.facts["offset"] == 4


def test_a_log_that_nothing_on_the_disk_stands_in_front_of(quorum: Quorum, tmp_path: Path) -> None:
    """The reader can tell nothing of such a log but where it begins."""
    quorum.snapshot("n2", end=3)
    evidence = with_file(quorum)
    for copy in evidence.copies:
        if copy["node"] == "n2":
            copy |= {"log_start": 5, "error": "the log begins at offset 5, and no snapshot ends there or later"}
    evidence.logs = {name: rows for name, rows in evidence.logs.items() if name[1] != "n2"}
    witness = evidence.judge(tmp_path, NAME)[NAME].witnesses[0]
    assert witness.kind == "log begins behind its snapshot"
    assert "Entries 3 to 4 are in no snapshot of n2" in witness.facts["why"][0]
