"""All checkers of logs and traces: no false alarm on runs that are correct by construction, a finding if one relevant
row is falsified, and no verdict without evidence."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from injected_violations import correct_run, invalid
from toy_quorum import OF_LOGS_AND_TRACES, Evidence, Quorum, random_run

from checkers import judging
from checkers.base.verdict import Validity
from checkers.catalog import of_logs_and_traces

ALL_BUT_VACUITY = ["system-entries", *(name for name in OF_LOGS_AND_TRACES if name != "vacuity")]
EXPECTED = dict.fromkeys(ALL_BUT_VACUITY, Validity.VALID) | {"snapshot-equals-prefix": Validity.NOT_APPLICABLE}
SOUND = {Validity.VALID, Validity.NOT_APPLICABLE}


@pytest.mark.parametrize("seed", range(5))
def test_random_correct_runs_are_valid(seed: int, tmp_path: Path) -> None:
    verdicts = random_run(seed).evidence().judge(tmp_path, *ALL_BUT_VACUITY)
    assert {name: v.validity for name, v in verdicts.items()} == EXPECTED, {n: v.reason for n, v in verdicts.items()}


def test_the_run_that_other_tests_falsify_is_valid(tmp_path: Path) -> None:
    assert invalid(correct_run(), tmp_path) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(60))
def test_many_random_correct_runs_are_valid(part: int, night: Random, tmp_path: Path) -> None:
    first = night.randrange(2**31)
    for seed in range(first, first + 100):
        verdicts = random_run(seed, steps=seed % 80).evidence().judge(tmp_path / str(seed), *ALL_BUT_VACUITY)
        assert {name: v.validity for name, v in verdicts.items()} == EXPECTED, seed
        shutil.rmtree(tmp_path / str(seed))


def test_a_stale_tail_before_the_heal_and_its_truncation_are_no_violation(tmp_path: Path) -> None:
    quorum = isolated_leader_with_a_tail()
    quorum.heal()
    quorum.write()
    quorum.read_all()
    evidence = quorum.evidence()
    assert any(r["event"] == "truncate" for r in evidence.traces["n1"])
    assert len([r for r in evidence.logs["n1"] if r["copy"] == 0]) > len(
        [r for r in evidence.logs["n2"] if r["copy"] == 0]
    )
    verdicts = evidence.judge(tmp_path)
    assert {v.validity for v in verdicts.values()} == SOUND, {n: v.reason for n, v in verdicts.items()}


def test_a_node_cut_off_to_the_end_may_keep_a_longer_tail_of_an_older_epoch(tmp_path: Path) -> None:
    evidence = isolated_leader_with_a_tail().evidence()
    ends = {c["node"]: c["log_end"] for c in evidence.copies}
    assert ends["n1"] > ends["n2"]
    verdicts = evidence.judge(tmp_path, "committed-never-lost", "history-against-log", "log-matching")
    assert {v.validity for v in verdicts.values()} == {Validity.VALID}
    assert verdicts["history-against-log"].looked_at["logs caught up at the end"] == 4


def test_an_entry_truncated_before_it_was_committed_was_not_lost(tmp_path: Path) -> None:
    """n2 holds an entry of n1's, truncates it under n3, and gets it back when n1 is elected again and commits it."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    assert quorum.write(followers={"n2"}) == "info"
    quorum.elect("n3", {"n3", "n4", "n5"})
    n3, n2 = quorum.nodes["n3"], quorum.nodes["n2"]
    quorum._fetch(n3, n2)
    del n2.log[1:]  # n3 never received its LeaderChange
    n2.trace.pop(), n2.trace.pop()
    assert n2.trace[-1]["event"] == "truncate"
    quorum.copy("in between")
    assert quorum.elect("n1", {"n1", "n2", "n4", "n5"})
    quorum.replicate()
    quorum.leader, quorum.group = "n1", set(quorum.nodes)
    assert quorum.write() == "ok"
    verdict = quorum.evidence().judge(tmp_path, "committed-never-lost")["committed-never-lost"]
    assert verdict.validity is Validity.VALID, verdict.witnesses


def test_what_was_not_flushed_may_be_gone_after_a_crash(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    n1 = quorum.nodes["n1"]
    quorum.write(followers={"n2", "n3", "n4", "n5"})
    end = len(n1.log)
    n1.trace[:] = [r for r in n1.trace if not (r["event"] == "flush" and r["offset"] == end)]
    for seq, row in enumerate(n1.trace):
        row["seq"] = seq
    quorum.crash("n1", keep=end - 1)
    quorum.elect("n2")
    quorum.replicate()
    verdict = quorum.evidence().judge(tmp_path, "committed-never-lost")["committed-never-lost"]
    assert verdict.validity is Validity.VALID, verdict.witnesses


def test_the_same_vote_granted_again_is_one_vote(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    vote = next(r for r in quorum.nodes["n2"].trace if r["event"] == "vote")
    quorum._say(quorum.nodes["n2"], "vote", peer=vote["peer"])
    assert quorum.evidence().judge(tmp_path, "vote-once")["vote-once"].validity is Validity.VALID


def test_a_new_leaders_mark_is_unknown_and_does_not_go_back(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.elect("n2")
    quorum._say(quorum.nodes["n2"], "high-watermark", offset=None)
    quorum.write()
    assert quorum.evidence().judge(tmp_path, "monotonicity")["monotonicity"].validity is Validity.VALID


def isolated_leader_with_a_tail() -> Quorum:
    """n1 led, was cut off and went on appending; the others elected n2 and committed less than that."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.write("k1")
    quorum.cut({"n1"})
    for _ in range(6):
        assert quorum.write("k0") == "info"
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    quorum.replicate()
    assert quorum.write("k1") == "ok"
    return quorum


# One verdict-relevant row of a clean run is falsified, as `krucible mutate` falsifies those of a stored run

SOME = ("history-against-log", "committed-never-lost", "log-matching", "election-safety", "vote-once", "monotonicity")
OF_ANSWERS = {"answer_never_written", "answer_from_the_past", "leader_that_began_with_nothing"}
"""Other checkers find these: answers of clients, and what a leader began with."""


@pytest.mark.parametrize("name", [name for name in judging.MUTATIONS if name not in OF_ANSWERS])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 30))])
def test_a_relevant_row_flipped_is_noticed(name: str, seed: int, tmp_path: Path) -> None:
    evidence = random_run(seed).evidence()
    rows = judging.Evidence(evidence.history, evidence.logs, evidence.traces, evidence.copies)
    if judging.MUTATIONS[name](rows, Random(seed)) is None:
        pytest.skip("one node led all epochs")
    verdicts = evidence.judge(tmp_path, *SOME, "state-machine-safety")
    assert Validity.INVALID in {v.validity for v in verdicts.values()}


# Evidence that is missing or unreadable makes a verdict unknown, and the reason names it


@pytest.mark.parametrize(
    ("event", "name", "nothing"),
    [
        ("role", "election-safety", "epochs with a leader"),
        ("vote", "vote-once", "votes"),
        ("applied", "state-machine-safety", "applied states"),
        ("high-watermark", "monotonicity", "high watermarks"),
        ("high-watermark", "high-watermark-majority", "high watermarks"),
        ("high-watermark", "committed-never-lost", "high watermarks"),
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


PAGE = Path(__file__).parents[3] / "docs" / "raft-checkers.md"


def test_every_checker_of_logs_and_traces_is_explained_in_docs() -> None:
    _, explained = PAGE.read_text().split("## What violates each checker", 1)
    assert set(re.findall(r"^\| `([\w-]+)` \|", explained, re.MULTILINE)) == {c.name for c in of_logs_and_traces()}
