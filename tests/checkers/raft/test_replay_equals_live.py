"""States that a node reported, against a replay of its own log."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from injected_violations import correct_run, rows_of
from toy_quorum import Evidence

from checkers.base.columns import REPLAYED
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import CATALOG
from checkers.judging import judge_run
from checkers.raft.replay_equals_live import KIND

NAME = "replay-equals-live"


def replays(evidence: Evidence) -> dict[str, list[dict[str, int]]]:
    """node -> what a replay of its log leads to, by construction: the states that the toy reports."""
    found = {}
    for node, rows in evidence.traces.items():
        states = {row["offset"]: row["hash"] for row in rows if row["event"] == "applied"}
        last = max(copy["copy"] for copy in evidence.copies)
        found[node] = [{"copy": last, "offset": end, "hash": states[end]} for end in sorted(states)]
    return found


def judged(evidence: Evidence, replayed: dict[str, list[dict[str, int]]], folder: Path) -> Verdict:
    run: StoredRun = evidence.write(folder)
    run.replayed.mkdir()
    for node, states in replayed.items():
        rows = [{"node": node, **state} for state in states]
        pq.write_table(pa.Table.from_pylist(rows, REPLAYED), run.replayed / f"{node}.parquet")
    return judge_run(run, [CATALOG[NAME]])[NAME]


def test_equal_states_are_valid_in_every_life_of_a_process(tmp_path: Path) -> None:
    evidence = correct_run()
    verdict = judged(evidence, replays(evidence), tmp_path)
    assert verdict.validity is Validity.VALID, verdict
    applied = sum(len(rows_of(rows, event="applied")) for rows in evidence.traces.values())
    assert verdict.looked_at == {"applied states": applied, "states compared": applied}


@pytest.mark.parametrize("seed", range(6))
def test_one_other_state_on_one_node_is_found_and_named(seed: int, tmp_path: Path) -> None:
    """Also in the life of a process before the last one."""
    evidence, rng = correct_run(), Random(seed)
    expected = replays(evidence)
    node = rng.choice(sorted(evidence.traces))
    row = rng.choice(rows_of(evidence.traces[node], event="applied"))
    row["hash"] ^= 1 << rng.randrange(60)
    verdict = judged(evidence, expected, tmp_path)
    (witness,) = verdict.witnesses
    assert (witness.kind, witness.facts["nodes"], witness.facts["offset"]) == (KIND, [node], row["offset"])
    assert witness.rows[0]["seq"] == row["seq"]


def test_what_is_wrong_on_all_nodes_alike_is_found(tmp_path: Path) -> None:
    """State machine safety compares nodes with each other, and sees nothing."""
    evidence = correct_run()
    expected = replays(evidence)
    last = max(state["offset"] for states in expected.values() for state in states)
    for rows in evidence.traces.values():
        for row in rows_of(rows, event="applied", offset=last):
            row["hash"] ^= 1
    verdict = judged(evidence, expected, tmp_path / "replayed")
    assert {witness.facts["offset"] for witness in verdict.witnesses} == {last}
    safety = evidence.judge(tmp_path / "compared", "state-machine-safety")["state-machine-safety"]
    assert safety.validity is Validity.VALID


def test_a_log_that_was_not_replayed_is_unknown_and_named(tmp_path: Path) -> None:
    evidence = correct_run()
    expected = replays(evidence)
    del expected["n3"]
    verdict = judged(evidence, expected, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "the log of n3 was not replayed" in verdict.reason


def test_logs_behind_snapshots_are_not_judged(tmp_path: Path) -> None:
    evidence = correct_run()
    verdict = judged(evidence, {node: [] for node in evidence.traces}, tmp_path)
    assert verdict.validity is Validity.NOT_APPLICABLE


def test_states_that_no_replay_shows_are_not_compared(tmp_path: Path) -> None:
    evidence = correct_run()
    some = {node: states[:2] for node, states in replays(evidence).items()}
    rows_of(evidence.traces["n2"], event="applied")[-1]["hash"] ^= 1
    verdict = judged(evidence, some, tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["states compared"] < 15


def test_a_tail_that_was_not_committed_when_the_log_was_copied_is_not_compared(tmp_path: Path) -> None:
    """A paused leader is copied with entries that others never got; they are replaced when it goes on."""
    evidence = correct_run()
    expected = replays(evidence)
    applied = rows_of(evidence.traces["n2"], event="applied")
    (copy,) = (c for c in evidence.copies if c["node"] == "n2" and c["copy"] == expected["n2"][0]["copy"])
    copy["trace_seq"] = applied[-2]["seq"]
    expected["n2"][-1]["hash"] ^= 1
    verdict = judged(evidence, expected, tmp_path / "tail")
    assert verdict.validity is Validity.VALID, verdict
    copy["trace_seq"] = applied[-1]["seq"]
    assert judged(evidence, expected, tmp_path / "committed").validity is Validity.INVALID


def test_what_was_applied_from_another_disk_says_nothing_of_a_copy(tmp_path: Path) -> None:
    """A replaced disk may hold other entries than those that the node applied before."""
    evidence = correct_run()
    expected = replays(evidence)
    rows = evidence.traces["n2"]
    last = rows_of(rows, event="applied")[-1]
    disk = dict(rows[0]) | {"event": "disk", "offset": None, "hash": None}
    rows.insert(0, disk | {"seq": rows[0]["seq"] - 1, "detail": "lost"})
    rows.insert(rows.index(last) + 1, disk | {"seq": last["seq"], "detail": "new"})
    for later, row in enumerate(rows[rows.index(last) + 1 :], 1):
        row["seq"] = last["seq"] + later
    (copy,) = (c for c in evidence.copies if c["node"] == "n2" and c["copy"] == expected["n2"][0]["copy"])
    copy.update(trace_seq=rows[-1]["seq"], disk="new")
    expected["n2"][-1]["hash"] ^= 1
    assert judged(evidence, expected, tmp_path / "new").validity is Validity.VALID
    copy["disk"] = "lost"
    assert judged(evidence, expected, tmp_path / "lost").validity is Validity.INVALID
