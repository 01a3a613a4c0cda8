"""Committed entries that no log may lack, and that every leader has from its first moment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from injected_violations import final, invalid, last_own, only, rows_of
from toy_quorum import Evidence, Quorum, unfair_leader

from checkers.base.verdict import Validity, Verdict
from checkers.raft.committed import shared_prefix


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
    assert "Copy 0 of n4 (before heal 1) still contains this entry" in " ".join(witness.facts["why"])


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


# Leader completeness


NAME = "leader-completeness"
KIND = "leader without a committed entry"


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=12), st.data())
def test_two_moments_share_what_was_never_cut_between_them(drawn: list[tuple[bool, int]], data: st.DataObject) -> None:
    """(append or truncation, size): every entry ever written is its own, so what is shared can be read off."""
    log: list[int] = []
    logs, cuts = [()], []
    for seq, (adds, size) in enumerate(drawn, 1):
        if adds:
            log += [seq * 10 + i for i in range(size)]
        else:
            del log[max(0, len(log) - size) :]
            cuts.append((seq, len(log)))
        logs.append(tuple(log))
    one, other = (data.draw(st.integers(0, len(drawn))) for _ in range(2))
    shared = 0
    while shared < min(len(logs[one]), len(logs[other])) and logs[one][shared] == logs[other][shared]:
        shared += 1
    seqs, offsets = (np.array([c[i] for c in cuts], np.int64) for i in (0, 1))
    assert shared_prefix(seqs, offsets, (one, len(logs[one])), (other, len(logs[other]))) == shared


def test_a_leader_whose_log_ends_below_a_mark_of_an_earlier_epoch(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.write(followers={"n2", "n3"})
    quorum.elect("n4", fair=False)
    quorum.replicate()
    witness = judged(quorum.evidence(), tmp_path).witnesses[0]
    assert witness.kind == KIND and witness.facts["nodes"][0] == "n4" and witness.facts["epoch"] == 2
    assert witness.facts["offset"] == 2 and witness.facts["committed_below"] == 3
    assert [(r["event"], r["epoch"]) for r in witness.rows] == [("high-watermark", 1), ("role", 2)]


def led_by_a_tail_of_an_older_epoch(copied: str) -> Quorum:
    """n2 takes a tail of n1's that no leader commits; n3 is elected and commits less; then n2 is elected all the same,
    and overwrites that.  Its log is copied before it takes office, after, or never until it was truncated."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    for _ in range(4):
        quorum.write(followers={"n2"})
    quorum.nodes["n2"].trace[:] = [r for r in quorum.nodes["n2"].trace if r["event"] != "high-watermark"]
    quorum.elect("n3", {"n3", "n4", "n5"})
    quorum.replicate()
    assert quorum.write() == "ok"
    if copied == "before":
        quorum.copy("before it leads")
    assert quorum.elect("n2", fair=False)
    if copied == "after":
        quorum.copy("while it leads")
    quorum.elect("n3", fair=False)
    quorum.replicate()
    return quorum


@pytest.mark.parametrize("copied", ["before", "after"])
def test_a_log_that_is_long_enough_and_holds_something_else(copied: str, tmp_path: Path) -> None:
    verdict = judged(led_by_a_tail_of_an_older_epoch(copied).evidence(), tmp_path)
    witness = verdict.witnesses[0]
    assert witness.kind == KIND and witness.facts["nodes"][0] == "n2" and witness.facts["epoch"] == 3
    assert witness.facts["copies"] == [0] and witness.facts["offset"] == 2
    shown = {r["node"]: r["epoch"] for r in witness.rows if r["table"] == "log"}
    assert shown.pop("n2") == 1 and list(shown.values()) == [2]  # entries of n2 at that offset, and the committed ones


def test_what_no_copy_shows_is_not_held_against_a_leader(tmp_path: Path) -> None:
    """Between its term of office and its copy, what it held was truncated: nothing is known of it."""
    verdict = judged(led_by_a_tail_of_an_older_epoch("never").evidence(), tmp_path)
    assert verdict.validity is Validity.VALID, verdict.witnesses


def test_a_mark_of_the_leaders_own_epoch_or_a_later_one_is_not_demanded(tmp_path: Path) -> None:
    """n1 learns in epoch 2 that something was committed beyond where its own log ended when it led epoch 1."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    quorum.elect("n2")
    quorum.write()
    verdict = judged(quorum.evidence(), tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["terms of office"] == 2
    # n1's log was empty at its election
    assert verdict.looked_at["copies compared with the log a leader began with"] == 1


@pytest.mark.parametrize("seed", range(8))
def test_an_unfairly_elected_leader_is_found(seed: int, tmp_path: Path) -> None:
    found(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(30))
def test_every_unfairly_elected_leader_is_found(part: int, night: Random, tmp_path: Path) -> None:
    first = night.randrange(2**31)
    for seed in range(first, first + 100):
        found(seed, tmp_path / str(seed))


def found(seed: int, folder: Path) -> None:
    """By what it lacks, and by the votes for it."""
    quorum, epoch = unfair_leader(seed)
    verdicts = quorum.evidence().judge(folder, NAME, "vote-up-to-date")
    assert epoch in {w.facts["epoch"] for w in verdicts[NAME].witnesses}
    first = verdicts["vote-up-to-date"].witnesses[0]
    leader_of = {elected["epoch"]: elected["node"] for elected in quorum.elected}
    assert first.facts["nodes"][1] == leader_of[first.facts["epoch"]] == leader_of[epoch]
    assert [row["event"] for row in first.rows] == ["vote", "role"]
