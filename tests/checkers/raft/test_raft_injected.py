"""One violation at a time, put into a run that is correct by construction: the right checker finds it, and shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import OF_LOGS_AND_TRACES, Evidence, Quorum, Row, extend

from checkers.base.verdict import Validity, Verdict, Witness


@pytest.fixture
def evidence() -> Evidence:
    """n1 leads and is cut off with a tail; n2 leads on; heal; n1 is restarted; writes before, during and after."""
    quorum = Quorum()
    quorum.elect("n1")
    for i in range(4):
        quorum.write(f"k{i % 2}")
    quorum.refuse("k0")
    quorum.cut({"n1"})
    for _ in range(3):
        quorum.write("k0")
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    quorum.replicate()
    for i in range(4):
        quorum.write(f"k{i % 2}")
    quorum.heal()
    quorum.write("k1")
    quorum.crash("n1")
    quorum.replicate()
    quorum.write("k0")
    quorum.read_all()
    return quorum.evidence()


def invalid(evidence: Evidence, folder: Path) -> dict[str, Verdict]:
    verdicts = evidence.judge(folder)
    unknown = {n: v.reason for n, v in verdicts.items() if v.validity is Validity.UNKNOWN}
    assert not unknown
    return {name: verdict for name, verdict in verdicts.items() if verdict.validity is Validity.INVALID}


def only(found: dict[str, Verdict], name: str, kind: str) -> Witness:
    """The first witness of the one checker that found something."""
    assert list(found) == [name]
    witness = found[name].witnesses[0]
    assert witness.kind == kind
    assert witness.facts["why"] and witness.facts["expected"] and witness.facts["nodes"]
    return witness


def rows_of(rows: list[Row], **columns: Any) -> list[Row]:
    return [r for r in rows if all(r[name] == value for name, value in columns.items())]


def rehash(rows: list[Row], copy: int) -> None:
    """Prefix hashes as the independent reader would have computed them (one batch per record)."""
    value = 0
    for r in rows_of(rows, copy=copy):
        value = extend(value, r["offset"], r["epoch"], r["checksum"] >> 31)
        r["batch_hash"] = value


def final(evidence: Evidence) -> int:
    return max(c["copy"] for c in evidence.copies)


def last_own(evidence: Evidence, node: str, event: str) -> Row:
    return rows_of(evidence.traces[node], event=event)[-1]


def test_the_run_is_valid_as_it_is(evidence: Evidence, tmp_path: Path) -> None:
    assert invalid(evidence, tmp_path) == {}


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


def test_two_leaders_in_one_epoch(evidence: Evidence, tmp_path: Path) -> None:
    claim = last_own(evidence, "n5", "role")
    claim |= {"role": "leader", "peer": "n5"}
    witness = only(invalid(evidence, tmp_path), "election-safety", "two leaders in one epoch")
    assert witness.facts["nodes"] == ["n2", "n5"] and witness.facts["epoch"] == 2
    assert {(r["node"], r["role"]) for r in witness.rows if r["event"] == "role"} == {
        ("n2", "leader"),
        ("n5", "leader"),
    }
    assert witness.facts["votes"] == {"n2": ["n2", "n3", "n4", "n5"]}


def test_a_leader_that_only_its_followers_named(evidence: Evidence, tmp_path: Path) -> None:
    last_own(evidence, "n5", "role")["peer"] = "n3"
    witness = only(invalid(evidence, tmp_path), "election-safety", "two leaders in one epoch")
    assert witness.facts["nodes"] == ["n2", "n3"]


def test_a_leader_that_leads_the_same_epoch_after_a_restart(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n2"]
    again = dict(rows_of(rows, event="role", role="leader")[0])
    again |= {"seq": rows[-1]["seq"] + 1, "incarnation": 1}
    rows.append(again)
    witness = only(invalid(evidence, tmp_path), "election-safety", "leader again after a restart")
    assert again["seq"] in {r["seq"] for r in witness.rows}


def test_two_votes_in_one_epoch_with_a_restart_in_between(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n1"]
    restart = rows_of(rows, event="start")[-1]
    first = dict(rows_of(rows, event="vote")[0])
    restart |= {"event": "vote", "epoch": 2, "peer": "n4"}
    rows.insert(rows.index(restart), first | {"epoch": 2, "peer": "n1", "seq": restart["seq"] - 0.5, "incarnation": 0})
    for seq, r in enumerate(rows):
        r["seq"] = seq
    for c in evidence.copies:
        if c["node"] == "n1":
            c["voted_for"] = "n4" if c["copy"] == final(evidence) else None
            c["trace_seq"] = len(rows) - 1 if c["copy"] == final(evidence) else -1
    witness = only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")
    assert {r["peer"] for r in witness.rows} == {"n1", "n4"}
    assert "restarted in between" in witness.summary


def test_a_vote_that_the_quorum_state_no_longer_holds(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n3", copy=final(evidence))[0]["voted_for"] = None
    witness = only(invalid(evidence, tmp_path), "vote-once", "vote not kept")
    assert [r["table"] for r in witness.rows] == ["trace", "copies"]


def test_a_quorum_state_with_another_vote_than_the_trace(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n3", copy=final(evidence))[0]["voted_for"] = "n5"
    only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")


def test_two_copies_of_one_epoch_with_different_votes(evidence: Evidence, tmp_path: Path) -> None:
    evidence.traces["n4"] = [r for r in evidence.traces["n4"] if r["event"] != "vote"]
    assert {c["quorum_epoch"] for c in evidence.copies if c["node"] == "n4"} == {2}
    rows_of(evidence.copies, node="n4", copy=final(evidence))[0]["voted_for"] = "n5"
    witness = only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")
    assert [r["table"] for r in witness.rows] == ["copies", "copies"]


def test_an_epoch_that_goes_back_across_a_restart(evidence: Evidence, tmp_path: Path) -> None:
    restart = rows_of(evidence.traces["n1"], event="start")[-1]
    restart["epoch"] = 1
    witness = only(invalid(evidence, tmp_path), "monotonicity", "epoch went back")
    assert witness.rows[1]["seq"] == restart["seq"]


def test_a_high_watermark_that_goes_back(evidence: Evidence, tmp_path: Path) -> None:
    last = last_own(evidence, "n3", "high-watermark")
    earlier = rows_of(evidence.traces["n3"], event="high-watermark")[-3]
    last |= {"offset": earlier["offset"] - 1, "hash": None}
    evidence.traces["n3"] = [r for r in evidence.traces["n3"] if r["event"] != "applied"]
    witness = only(invalid(evidence, tmp_path), "monotonicity", "high watermark went back")
    assert last["seq"] in {r["seq"] for r in witness.rows}


def test_a_quorum_state_behind_what_the_node_had_said(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n4", copy=0)[0] |= {"quorum_epoch": 1, "voted_for": "n1"}
    witness = only(invalid(evidence, tmp_path), "monotonicity", "epoch went back")
    assert witness.rows[1]["copy"] == 0


def test_a_quorum_state_behind_the_log(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n4", copy=final(evidence))[0] |= {"quorum_epoch": 1, "trace_seq": -1}
    witness = only(invalid(evidence, tmp_path), "monotonicity", "epoch went back")
    assert witness.rows[0]["table"] == "log"


def test_a_quorum_state_that_is_missing_is_unknown_and_named(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n4", copy=final(evidence))[0] |= {"quorum_epoch": -1, "voted_for": None}
    verdict = evidence.judge(tmp_path, "monotonicity")["monotonicity"]
    assert verdict.validity is Validity.UNKNOWN
    assert f"copy {final(evidence)} of n4 (final) holds no quorum-state file" in verdict.reason


@pytest.mark.parametrize(
    ("event", "name", "nothing"),
    [
        ("role", "election-safety", "epochs with a leader"),
        ("vote", "vote-once", "votes"),
        ("applied", "state-machine-safety", "applied states"),
        ("high-watermark", "monotonicity", "high watermarks"),
        ("high-watermark", "high-watermark-majority", "high watermarks"),
        ("high-watermark", "committed-never-lost", "committed marks"),
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


def test_logs_that_share_no_offset_or_are_empty_are_not_valid(evidence: Evidence, tmp_path: Path) -> None:
    for node in evidence.logs:
        evidence.logs[node] = []
    verdict = evidence.judge(tmp_path, "log-matching")["log-matching"]
    assert verdict.validity is Validity.UNKNOWN
    assert "no logs of two nodes have an offset in common" in verdict.reason
    assert "no copy of the log of n3 holds an entry" in verdict.reason


def test_states_that_differ(evidence: Evidence, tmp_path: Path) -> None:
    applied = last_own(evidence, "n4", "applied")
    applied["hash"] ^= 1
    witness = only(invalid(evidence, tmp_path), "state-machine-safety", "applied states differ")
    assert witness.facts["offset"] == applied["offset"]
    assert {"n4"} < {r["node"] for r in witness.rows}


def test_something_applied_beyond_the_mark(evidence: Evidence, tmp_path: Path) -> None:
    applied = last_own(evidence, "n4", "applied")
    applied["offset"] += 1
    witness = only(invalid(evidence, tmp_path), "state-machine-safety", "applied beyond the high watermark")
    assert witness.rows[-1]["offset"] == applied["offset"]


def test_something_applied_after_a_restart_before_any_mark_is_known(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n1"]
    restart = rows_of(rows, event="start")[-1]
    at = rows.index(restart)
    next_mark = next(r for r in rows[at:] if r["event"] == "high-watermark")
    applied = rows[rows.index(next_mark) + 1]
    assert applied["event"] == "applied"
    applied["seq"], next_mark["seq"] = next_mark["seq"], applied["seq"]
    witness = only(invalid(evidence, tmp_path), "state-machine-safety", "applied beyond the high watermark")
    assert "not known yet" in witness.summary


def test_something_applied_backwards(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n4"]
    applied = rows_of(rows, event="applied")
    applied[-1] |= {"offset": applied[-3]["offset"], "hash": applied[-3]["hash"]}
    only(invalid(evidence, tmp_path), "state-machine-safety", "applied offset went back")


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
    assert "committed prefixes differ" in kinds  # n2 committed something else up to the same offset
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


def test_states_are_compared_over_ranges_of_offsets(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small ranges say what one says."""
    monkeypatch.setattr("checkers.raft.nodes.monotonicity.ROWS_PER_RANGE", 60)
    whole = evidence.judge(tmp_path / "clean", "state-machine-safety")["state-machine-safety"]
    assert whole.validity is Validity.VALID and whole.looked_at["offsets compared"] == 12
    applied = last_own(evidence, "n4", "applied")
    applied["hash"] ^= 1
    witness = only(invalid(evidence, tmp_path / "wrong"), "state-machine-safety", "applied states differ")
    assert witness.facts["offset"] == applied["offset"]


def test_a_leader_in_every_second_epoch_of_many_twice(tmp_path: Path) -> None:
    """Hundreds of violations: ten are told, all are counted."""
    quorum = Quorum()
    for i in range(400):
        quorum.elect("n1" if i % 2 else "n2")
    evidence = quorum.evidence()
    for r in rows_of(evidence.traces["n3"], event="role"):
        if r["epoch"] % 2:
            r["peer"] = "n4"
    verdict = evidence.judge(tmp_path, "election-safety")["election-safety"]
    assert len(verdict.witnesses) == 10 and verdict.looked_at["epochs with a violation"] == 200
    assert verdict.witnesses[0].facts["nodes"] == ["n2", "n4"] and verdict.witnesses[0].facts["epoch"] == 1
