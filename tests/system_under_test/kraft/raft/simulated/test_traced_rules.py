"""The vote rule and figure 8 over the traces of shuffled quorums: clean ones are valid, and planted bugs are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulated_quorum.shuffler import Outcome, shuffle
from simulated_quorum.traced_world import TracedWorld

from checkers.base.columns import TRACE
from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.judging.pipeline import judge_run
from checkers.raft.trace_verdicts import COMMITS_OWN_EPOCH, VOTE_ONCE, VOTE_UP_TO_DATE
from system_under_test.kraft.raft import decisions, election, leadership
from system_under_test.kraft.raft.states import Leader
from system_under_test.kraft.raft.voter_memory import Voter

RULES = (VOTE_UP_TO_DATE, COMMITS_OWN_EPOCH, VOTE_ONCE)


def judged(seed: int, folder: Path) -> tuple[Outcome, dict[str, Verdict]]:
    worlds: list[TracedWorld] = []

    def make_world(*arguments: Any, **options: Any) -> TracedWorld:
        worlds.append(TracedWorld(*arguments, **options))
        return worlds[0]

    outcome = shuffle(seed, make_world=make_world, to_the_end=True)
    run = StoredRun(folder, Demands(servers=tuple(worlds[0].traces), nodes=True, traces=True, elections=True))
    run.trace.mkdir(parents=True)
    for node, rows in worlds[0].traces.items():
        table = pa.Table.from_pylist([row._asdict() | {"node": node} for row in rows], TRACE)
        pq.write_table(table, run.trace / f"{node}.parquet")
    return outcome, judge_run(run, RULES)


def assert_quiet(seed: int, folder: Path) -> int:
    """How many votes were compared."""
    outcome, verdicts = judged(seed, folder)
    assert outcome.violations == ()
    assert not [v.witnesses for v in verdicts.values() if v.validity is Validity.INVALID], seed
    return int(verdicts["vote-up-to-date"].looked_at.get("votes compared", 0))


def test_no_clean_quorum_is_accused(tmp_path: Path) -> None:
    assert sum(assert_quiet(seed, tmp_path / str(seed)) for seed in range(16)) > 50


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_no_clean_quorum_of_many_is_accused(part: int, night: Random, tmp_path: Path) -> None:
    for i in range(50):
        assert_quiet(night.randrange(1 << 31), tmp_path / str(i))


def test_voters_that_ignore_how_far_a_log_reaches_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = decisions.grants_vote
    monkeypatch.setattr(decisions, "grants_vote", lambda role, **facts: honest(role, **facts | {"up_to_date": True}))
    verdicts = [judged(seed, tmp_path / str(seed))[1]["vote-up-to-date"] for seed in range(16)]
    witnesses = [w for verdict in verdicts for w in verdict.witnesses]
    assert witnesses
    assert {w.kind for w in witnesses} == {"vote for a log that is behind"}
    assert all(len(w.rows) == 2 and w.facts["why"] and w.facts["expected"] for w in witnesses)


def test_voters_that_forget_their_vote_when_they_campaign_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of them vote a second time: the forgotten vote itself is the violation."""
    honest = election.become_prospective

    def forget(voter: Voter, now: float) -> None:
        voter.persist(replace(voter.persisted, voted=None))
        honest(voter, now)

    monkeypatch.setattr(election, "become_prospective", forget)
    verdicts = [judged(seed, tmp_path / str(seed))[1]["vote-once"] for seed in range(8)]
    kinds = [w.kind for verdict in verdicts for w in verdict.witnesses]
    assert kinds.count("vote not kept") >= 4


def test_leaders_that_commit_older_entries_by_counting_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(voter: Voter, leader: Leader) -> None:
        ends = [progress.end_offset for progress in leader.followers.values()]
        voter.advance(decisions.committed_end(voter.end_offset, ends, voter.bugs))

    monkeypatch.setattr(leadership, "commit", commit)
    verdicts = [judged(seed, tmp_path / str(seed))[1]["commit-own-epoch"] for seed in range(12)]
    witnesses = [w for verdict in verdicts for w in verdict.witnesses]
    assert witnesses
    for witness in witnesses:
        office, mark = witness.rows
        assert (office["event"], mark["event"]) == ("role", "high-watermark")
        assert mark["offset"] <= office["offset"]
