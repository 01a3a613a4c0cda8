"""One committed entry lost in a correct run: the right checker finds it, and its witness shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_violations import final, invalid, last_own, only, rows_of
from toy_quorum import Evidence


def test_a_committed_tail_lost_by_every_log(evidence: Evidence, tmp_path: Path) -> None:
    """What a leader does that commits alone: its mark covers entries that the others overwrite in a later epoch."""
    tail = rows_of(evidence.logs["n1"], copy=0)[-1]
    rows = evidence.traces["n1"]
    at = next(i for i, r in enumerate(rows) if r["event"] == "append" and r["offset"] == tail["offset"] + 1) + 1
    rows[at]["event"] = "high-watermark"  # in place of its flush
    rows[at]["hash"] = tail["batch_hash"]
    found = invalid(evidence, tmp_path)
    assert set(found) == {"committed-never-lost", "high-watermark-majority", "leader-completeness"}
    kinds = [w.kind for w in found["committed-never-lost"].witnesses]
    assert kinds.count("committed entry lost") == 5 and "truncation below the high watermark" in kinds
    assert "committed prefixes differ" in kinds  # n2 committed other entries up to the same offset
    lost = found["committed-never-lost"].witnesses[0]
    assert lost.rows[0]["event"] == "high-watermark" and lost.rows[0]["node"] == "n1"
    assert lost.facts["offset"] == 5 and lost.facts["committed_below"] == tail["offset"] + 1


def test_two_hashes_for_one_mark(evidence: Evidence, tmp_path: Path) -> None:
    mark = last_own(evidence, "n5", "high-watermark")
    mark["hash"] ^= 1
    found = invalid(evidence, tmp_path)
    assert set(found) == {"committed-never-lost"}
    differ = [w for w in found["committed-never-lost"].witnesses if w.kind == "committed prefixes differ"]
    assert any({"n5"} < {r["node"] for r in w.rows} for w in differ)


def test_a_truncation_below_the_nodes_own_mark(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n3"]
    mark = last_own(evidence, "n3", "high-watermark")
    rows.append(
        dict(mark) | {"event": "truncate", "offset": mark["offset"] - 1, "hash": None, "seq": rows[-1]["seq"] + 1}
    )
    witness = only(invalid(evidence, tmp_path), "committed-never-lost", "truncation below the high watermark")
    assert [r["event"] for r in witness.rows] == ["high-watermark", "truncate"]


def test_a_node_that_refuses_to_truncate_below_its_mark(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n3"]
    rows[-1] |= {"event": "fatal", "detail": "truncation to 3 below the high watermark 9"}
    found = invalid(evidence, tmp_path)
    assert set(found) == {"committed-never-lost", "nodes-stay-up"}
    assert found["committed-never-lost"].witnesses[0].kind == "truncation below the high watermark"
    assert "truncation to 3" in found["nodes-stay-up"].witnesses[0].summary


def test_a_truncation_of_a_committed_entry_before_the_node_knew_that_it_was_committed(
    evidence: Evidence, tmp_path: Path
) -> None:
    """Its append in the mark's own epoch ended at the mark, so it counted towards the majority."""
    rows = evidence.traces["n3"]
    at = max(i for i, r in enumerate(rows) if r["event"] == "append")
    cut = dict(rows[at]) | {"event": "truncate", "offset": rows[at]["offset"] - 1, "hash": None}
    rows[at + 1 :] = [cut | {"seq": rows[at]["seq"] + 1}]
    rows_of(evidence.copies, node="n3", copy=final(evidence))[0]["trace_seq"] = rows[-1]["seq"]
    witness = only(invalid(evidence, tmp_path), "committed-never-lost", "committed entry lost")
    assert [r["event"] for r in witness.rows] == ["append", "truncate"]


def test_a_restart_without_what_had_been_flushed(evidence: Evidence, tmp_path: Path) -> None:
    restart = rows_of(evidence.traces["n1"], event="start")[-1]
    restart["offset"] -= 1
    witness = only(invalid(evidence, tmp_path), "committed-never-lost", "committed entry lost")
    assert witness.rows[1]["event"] == "start"


def test_a_log_shorter_than_what_its_own_trace_had_committed(evidence: Evidence, tmp_path: Path) -> None:
    evidence.logs["n4"].remove(rows_of(evidence.logs["n4"], copy=final(evidence))[-1])
    witness = only(invalid(evidence, tmp_path), "committed-never-lost", "committed entry lost")
    assert witness.facts["nodes"][0] == "n4"


@pytest.mark.parametrize("flushed", [True, False])
def test_a_copy_of_a_process_that_ends_because_its_fsync_failed(
    evidence: Evidence, tmp_path: Path, flushed: bool
) -> None:
    """The copy falls between the loss and the last trace row.  What an earlier fsync made durable must be there."""
    rows = evidence.traces["n3"]
    at = max(i for i, r in enumerate(rows) if r["event"] == "append") + flushed
    rows[at + 1 :] = [dict(rows[at]) | {"event": "fatal", "offset": None, "hash": None, "detail": "the disk failed"}]
    rows[-1]["seq"] = rows[at]["seq"] + 1
    assert rows[at]["event"] == ("flush" if flushed else "append")
    copy = rows_of(evidence.copies, node="n3", copy=final(evidence))[0]
    copy["trace_seq"] = rows[at]["seq"]
    copy["log_end"] -= 1
    evidence.logs["n3"].remove(rows_of(evidence.logs["n3"], copy=final(evidence))[-1])
    found = invalid(evidence, tmp_path)
    assert set(found) == {"nodes-stay-up"} | ({"committed-never-lost"} if flushed else set())


def test_a_log_that_lacks_what_an_earlier_copy_of_it_held(evidence: Evidence, tmp_path: Path) -> None:
    """The node's own trace is silent, its log ends early and in the same epoch: only the earlier copy tells."""
    last = final(evidence)
    evidence.logs["n4"] = [r for r in evidence.logs["n4"] if r["copy"] != last or r["offset"] < 8]
    evidence.traces["n4"] = [
        r for r in evidence.traces["n4"] if r["event"] not in ("high-watermark", "append", "applied")
    ]
    witness = only(invalid(evidence, tmp_path), "committed-never-lost", "committed entry lost")
    assert "Copy 0 of n4 (before heal 1) still held it" in " ".join(witness.facts["why"])


def test_a_write_acknowledged_without_ever_being_committed(evidence: Evidence, tmp_path: Path) -> None:
    """n1 answered ok although its tail was never committed: no mark covers it, the client's word does."""
    unknown = next(r for r in evidence.history if r["type"] == 3)
    unknown["type"], unknown["error"] = 1, None
    found = invalid(evidence, tmp_path)
    assert set(found) == {"committed-never-lost", "history-against-log"}
    lost = found["committed-never-lost"].witnesses[0]
    assert lost.kind == "committed entry lost" and "acknowledged to a client" in lost.summary
    assert lost.rows[0]["value"] == unknown["value"]
    missing = found["history-against-log"].witnesses[0]
    assert missing.kind == "acknowledged write missing from a log"
    assert unknown["index"] in {e["index"] for e in missing.events}
