"""The core in the storms of the swarm: it keeps every rule, its traces are explained, and mistakes of it are found.

A mistake is a planted bug or a mutant.  Storms of a few seeds show each one, most of them the first seed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers.base.columns import TRACE
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import CATALOG
from checkers.judging import judge_run
from checkers.raft.rules import TraceRow
from checkers.raft.trace_validation import Replayed, replay
from harness.campaign.swarm.node_voter import NodeVoter
from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.watch import Watch, WatchedRow
from harness.campaign.swarm.world import Played, play
from system_under_test.kraft.raft import core, decisions, election, leadership, states
from system_under_test.kraft.raft.messages import QuorumState
from system_under_test.kraft.raft.states import Follower, Leader, Reads, Role
from system_under_test.kraft.raft.voter_memory import Voter

SECONDS = 8.0
Traces = dict[str, list[TraceRow]]


def storm(seed: int, bug: str = "") -> Scenario:
    return draw(seed, SECONDS, bug=bug)


def traceable(seed: int, bug: str = "") -> Scenario:
    """Return a storm with snapshots in which applying takes no time, as the model of traces demands."""
    return replace(storm(seed, bug), snapshot_bytes=8192, apply_s=0.0)


def traced(scenario: Scenario) -> tuple[Played, Traces]:
    """Play a scenario, and keep the rows of all servers."""
    traces: Traces = defaultdict(list)
    watched = Watch.row

    def keep(watch: Watch, voter: NodeVoter, row: WatchedRow) -> None:
        rows = traces[voter.name]
        life = (rows[-1].incarnation if rows else -1) + (row.event == "start")
        rows.append(TraceRow(len(rows), life, *row, node=voter.name))
        watched(watch, voter, row)

    with patch.object(Watch, "row", keep):
        return play(scenario), traces


def replayed(traces: Traces) -> Replayed:
    return replay({name: iter(rows) for name, rows in traces.items()}, dict.fromkeys(traces, 1 << 40))


def judged(traces: Traces, folder: Path) -> dict[str, Verdict]:
    run = StoredRun(folder, Demands(servers=tuple(traces), nodes=True, traces=True, elections=True))
    run.trace.mkdir(parents=True)
    for name, rows in traces.items():
        table = pa.Table.from_pylist([row._asdict() for row in rows], TRACE)
        pq.write_table(table, run.trace / f"{name}.parquet")
    return judge_run(run, [CATALOG[name] for name in ("vote-up-to-date", "commit-own-epoch", "vote-once")])


def assert_clean(seed: int, folder: Path) -> int:
    """Return the number of votes that were compared."""
    scenario = traceable(seed)
    played, traces = traced(scenario)
    assert played.found == [] and played.calm_s >= 0, seed
    if scenario.dynamic:
        return 0
    of_voters = {name: traces[name] for name in (f"n{number}" for number in range(1, scenario.nodes + 1))}
    found, verdicts = replayed(of_voters), judged(of_voters, folder / str(seed))
    assert (found.stops, found.unknown, found.model.lost()) == ((), (), None), seed
    assert not [v.witnesses for v in verdicts.values() if v.validity is Validity.INVALID], seed
    return int(verdicts["vote-up-to-date"].looked_at.get("votes compared", 0))


def test_no_storm_makes_the_core_break_a_rule_or_leaves_a_trace_that_is_accused(tmp_path: Path) -> None:
    assert sum(assert_clean(seed, tmp_path) for seed in range(12)) > 25


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_no_storm_of_many_does(part: int, night: Random, tmp_path: Path) -> None:
    for _ in range(25):
        assert_clean(night.randrange(1 << 31), tmp_path)


def hunted(rule: str, bug: str = "", first: int = 0) -> int:
    """Return a seed whose storm breaks a rule.  first: one shortly before that which shows it today."""
    for seed in range(first, first + 40):
        if rule in (broken := {found.rule for found in play(storm(seed, bug)).found}):
            return seed
    raise AssertionError(f"not broken within 40 seeds: {rule}; the last one broke {broken}")


PLANTED = {  # the rule that a bug breaks, and the first seed to play
    "stale-read": ("stale read", 8),
    "minority-commit": ("high watermark without a majority", 2),
    "divergence-by-offset": ("logs differ below an equal epoch", 3),
    "lone-vote": ("elected without a majority", 3),
    "double-vote": ("voted twice in one epoch", 3),
    "no-fsync": ("what is reported as durable is not", 2),
    "counts-unflushed-self": ("high watermark without a majority", 2),
    "fetch-acks-unflushed": ("high watermark without a majority", 2),
    "vote-not-persisted": ("vote not kept", 2),
    "truncates-to-high-watermark": ("committed entry lost", 8),
    "observer-counts": ("high watermark without a majority", 7),
    "voters-at-commit": ("elected without a majority", 8),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found_by_the_rule_they_break(bug: str) -> None:
    rule, first = PLANTED[bug]
    assert play(storm(hunted(rule, bug, first))).found == [], "without the bug"


# Mutants: mistakes other than planted bugs


def forget_vote(voter, now, epoch, leader_id):
    """The voted key is lost on a transition within the epoch."""
    voter.enter(Follower(epoch, leader_id, voter.fetch_timeout(now)), QuorumState(epoch, leader_id, None))


def lead_again(voter, now, start=core._start):
    """A restarted leader goes on in its epoch."""
    start(voter, now)
    if voter.role == Role.RESIGNED:
        followers = {other: states.FollowerProgress() for other in voter.others}
        deadline = election.quorum_deadline(voter, now)
        voter.state = states.Leader(voter.epoch, voter.end_offset, followers, deadline, Reads(voter.others))
        voter.announce()


def ignore_epochs(voter, now, request, vote=election.on_vote_request):
    """Votes go to the longer log, without regard to its epoch."""
    claimed = min(voter.end_epoch, request.epoch - (not request.pre_vote))
    return vote(voter, now, replace(request, last_epoch=claimed))


def take_old_mark(voter, leader):
    """A new leader takes the mark it knew as a follower for its own."""
    return voter.high_watermark


def never_campaign(voter, now):
    """A voter that should campaign waits on."""
    voter.state.election_deadline = now + 1


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "rule", "first"),
    [
        pytest.param(election, "become_follower", forget_vote, "vote not kept", 2, id="vote forgotten"),
        pytest.param(core, "_start", lead_again, "leader again after a restart", 2, id="leads again after a restart"),
        pytest.param(election, "on_vote_request", ignore_epochs, "committed entry lost", 98, id="votes by length"),
        pytest.param(leadership, "announced_mark", take_old_mark, "stale read", 59, id="predecessor's mark announced"),
        pytest.param(decisions, "majority", lambda n: n // 2, "elected without a majority", 2, id="half is a majority"),
        pytest.param(decisions, "held_by_majority", max, "high watermark without a majority", 2, id="every end"),
        pytest.param(states, "LEGAL", {}, "a voter stops", 0, id="no transition is legal"),
        pytest.param(election, "become_prospective", never_campaign, "no progress", 0, id="no voter campaigns"),
    ],
)
def test_mutants_are_found(owner, name, mutant, rule, first):
    with patch.object(owner, name, mutant):
        hunted(rule, first=first)


def test_fetches_that_are_older_than_a_read_confirm_it_where_the_leader_hears_late() -> None:
    def confirm_at_once(reads: Reads, voter: int, connection: int) -> None:
        if voter in reads._confirmed:
            reads._confirmed[voter] = reads._clock

    scenario = Scenario(1, seconds=12.0, cards=(StormCard("lag", "leader", 2.0, 9.0, size=2.5),))
    assert play(scenario).found == []
    with patch.object(Reads, "fetched", confirm_at_once):
        assert {found.rule for found in play(scenario).found} == {"answered numbers go back", "stale read"}


# What the traces show


@pytest.mark.parametrize("bug", ["minority-commit", "divergence-by-offset", "lone-vote", "double-vote"])
def test_a_planted_bug_that_breaks_a_rule_is_seen_in_the_traces(bug: str) -> None:
    """The watch knows all disks, and sees some violations that leave no trace."""
    harmed = seen = 0
    for seed in (seed for seed in range(5) if not storm(seed).dynamic):
        played, traces = traced(traceable(seed, bug))
        if played.found:
            harmed += 1
            seen += bool(replayed(traces).stops)
    assert harmed > 0
    assert seen >= 0.8 * harmed


def vote_for_any_log(role, decide=decisions.grants_vote, **facts):
    return decide(role, **facts | {"up_to_date": True})


def forget_own_vote(voter: Voter, now: float, campaign=election.become_prospective) -> None:
    """Few vote a second time: the forgotten vote itself is the violation."""
    voter.persist(replace(voter.persisted, voted=None))
    campaign(voter, now)


def commit_by_counting(voter: Voter, leader: Leader) -> None:
    """Entries of older epochs commit, too."""
    ends = [progress.end_offset for progress in leader.followers.values()]
    voter.advance(decisions.committed_end(voter.end_offset, ends, voter.bugs))


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "checker", "kind"),
    [
        (decisions, "grants_vote", vote_for_any_log, "vote-up-to-date", "vote for a log that is behind"),
        (election, "become_prospective", forget_own_vote, "vote-once", "vote not kept"),
        (leadership, "commit", commit_by_counting, "commit-own-epoch", "mark without an entry of its epoch"),
    ],
)
def test_votes_and_commits_that_break_a_rule_are_found_in_the_traces(owner, name, mutant, checker, kind, tmp_path):
    with patch.object(owner, name, mutant):
        verdicts = [judged(traced(traceable(seed))[1], tmp_path / str(seed))[checker] for seed in (2, 3, 6, 7, 9, 16)]
    witnesses = [witness for verdict in verdicts for witness in verdict.witnesses]
    assert {witness.kind for witness in witnesses} == {kind}
    for witness in witnesses:
        if checker == "vote-up-to-date":
            assert len(witness.rows) == 2 and witness.facts["why"] and witness.facts["expected"]
        if checker == "commit-own-epoch":
            office, mark = witness.rows
            assert (office["event"], mark["event"]) == ("role", "high-watermark")
            assert mark["offset"] <= office["offset"]
