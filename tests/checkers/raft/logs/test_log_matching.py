"""One violation of log matching in a correct run: the right checker finds it, and its witness shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_violations import final, invalid, only, rehash, rows_of
from toy_quorum import Evidence

from checkers.base.verdict import Validity
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
