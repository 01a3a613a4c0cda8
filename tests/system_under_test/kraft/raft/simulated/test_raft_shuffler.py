"""Thousands of shuffled histories keep every invariant; planted bugs, mutants and faulty executors do not.

A seed that once found a mistake belongs into `REMEMBERED`, with a word on what it found.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from simulated_quorum import shuffler
from simulated_quorum.dealt_storm import DealtStorm, storms
from simulated_quorum.invariants import (
    AGREEMENT,
    COMMITTED_LOST,
    DURABLE_FIRST,
    ELECTION_SAFETY,
    EPOCHS,
    HIGH_WATERMARKS,
    LIVENESS,
    LOG_MATCHING,
    NO_EXCEPTION,
    NO_FATAL,
    ON_A_MAJORITY,
    READS,
    VOTE_ONCE,
)
from simulated_quorum.shuffler import Outcome, shuffle
from simulated_quorum.traced_world import TracedWorld
from simulated_quorum.world import World

from checkers.raft.trace_validation import Replayed, replay
from checkers.record.faults import Card
from nemesis.kinds.packets import LEADER_HEARS_LATE, RIVALS_LATE
from system_under_test.kraft.raft import core, decisions, election, leadership, replication, states
from system_under_test.kraft.raft.decisions import (
    DIVERGENCE_BY_OFFSET,
    DOUBLE_VOTE,
    LONE_VOTE,
    MINORITY_COMMIT,
    TRUNCATES_TO_HIGH_WATERMARK,
)
from system_under_test.kraft.raft.effects import Persist, Reply
from system_under_test.kraft.raft.messages import QuorumState
from system_under_test.kraft.raft.states import Follower, Reads, Role

CHUNK = 50
CHUNKS = 4
NIGHTLY_CHUNKS = 240

REMEMBERED = {
    67: "the simulated network sent two requests at once on one connection; one voter never fetched again",
}


def assert_sound(outcome):
    assert not outcome.violations, f"seed {outcome.seed}: {outcome.violations[0]}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_shuffled_histories_keep_every_promise(chunk):
    """Elections, commits and reads really happen under the storms, else the rest proves nothing."""
    outcomes = [shuffle(seed) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
    for outcome in outcomes:
        assert_sound(outcome)
    assert sum(outcome.elections for outcome in outcomes) > 2 * CHUNK
    assert sum(outcome.acknowledged for outcome in outcomes) > 5 * CHUNK
    assert sum(outcome.reads for outcome in outcomes) > 5 * CHUNK
    assert max(outcome.calm_s for outcome in outcomes) < shuffler.CALM_LIMIT_S / 2


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS, CHUNKS + NIGHTLY_CHUNKS))
def test_many_more_shuffled_histories_keep_every_promise(chunk):
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert_sound(shuffle(seed))


@pytest.mark.parametrize("seed", REMEMBERED)
def test_remembered_seeds(seed):
    assert_sound(shuffle(seed))


@pytest.mark.parametrize("chunk", range(3))
def test_shuffled_histories_with_snapshots_keep_every_promise(chunk, monkeypatch):
    """Voters cut their logs behind snapshots; those that lag behind fetch one, in parts and through the storm."""
    monkeypatch.setattr(replication, "PART_MAX_BYTES", (1 << 20, 700, 100)[chunk])
    outcomes = [shuffle(seed, snapshots=True) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
    for outcome in outcomes:
        assert_sound(outcome)
    assert sum(outcome.installed for outcome in outcomes) > 20


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS, CHUNKS + NIGHTLY_CHUNKS // 2))
def test_many_more_histories_with_snapshots_keep_every_promise(chunk, monkeypatch):
    monkeypatch.setattr(replication, "PART_MAX_BYTES", (1 << 20, 700, 100)[chunk % 3])
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert_sound(shuffle(seed, snapshots=True))


def test_a_seed_decides_everything():
    first: list[str] = []
    second: list[str] = []
    assert shuffle(5, story=first) == shuffle(5, story=second)
    assert first == second
    assert len(first) > 100


# Planted bugs

FOUND_BY = {
    "stale-read": {READS},
    "minority-commit": {ON_A_MAJORITY, COMMITTED_LOST},
    "divergence-by-offset": {LOG_MATCHING},
    "lone-vote": {ELECTION_SAFETY},
    "double-vote": {VOTE_ONCE, ELECTION_SAFETY},
    "no-fsync": {DURABLE_FIRST, ON_A_MAJORITY},
    "fetch-acks-unflushed": {DURABLE_FIRST},
    "vote-not-persisted": {DURABLE_FIRST, VOTE_ONCE},
    "truncates-to-high-watermark": {COMMITTED_LOST},
}
WITHIN_SEEDS = 60


def hunt(wanted, bugs=(), within=WITHIN_SEEDS, first=0):
    """Return the seeds, in order, that exposed something new, until all of `wanted` is found.

    first: a seed shortly before the one that shows it today.
    """
    found, seeds = set(), []
    for seed in range(first, first + within):
        invariants = shuffle(seed, bugs, to_the_end=True).invariants
        if invariants & wanted - found:
            found |= invariants
            seeds.append(seed)
        if wanted <= found:
            return seeds
    raise AssertionError(f"{wanted - found} not found within {within} seeds")


OUTSIDE_THE_CORE = {
    "campaigns-unflushed",
    "counts-unflushed-self",
    "flush-of-cut-tail",
    "no-op-unconfirmed",
    "accepts-corrupt-batch",
    "forgets-on-full-disk",
    "lease-by-wall-clock",
    "snapshot-forgets-tail",
    "snapshot-of-uncommitted",
    "snapshot-id-inclusive",
    "rename-before-fsync",
    "cleans-past-snapshot",
    "applies-delta-after-snapshot",
    "observer-counts",
    "two-voter-changes-at-once",
    "change-before-epoch-commits",
    "voters-at-commit",
    "voters-not-truncated",
    "acks-before-commit",
    "renounce-keeps-speculative",
    "removed-leader-counts-itself",
    "wiped-disk-keeps-id",
    "joins-without-catching-up",
}
"""Their decisions are taken by the node, or for observers and voters that change, which this world has not got.
campaigns-unflushed needs a voter whose disk is slow when its leader is lost, counts-unflushed-self a leader whose disk
is slower than the others, and flush-of-cut-tail a truncation during a flush: other tests bring that about."""


def test_every_planted_bug_of_the_core_is_hunted():
    assert FOUND_BY.keys() == decisions.BUGS.keys() - OUTSIDE_THE_CORE


@pytest.mark.parametrize("bug", FOUND_BY)
def test_planted_bugs_are_found_by_the_invariant_they_break(bug):
    for seed in hunt(FOUND_BY[bug], [bug]):
        assert_sound(shuffle(seed))


@pytest.mark.parametrize("seed", range(10))
def test_stale_read_breaks_nothing_but_reads(seed):
    assert shuffle(seed, ["stale-read"], to_the_end=True).invariants <= {READS}


# Mutants: errors other than planted bugs


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


def confirm_at_once(self, voter, connection):
    """Every Fetch confirms every read, whenever it was sent."""
    if voter in self._confirmed:
        self._confirmed[voter] = self._clock


def take_old_mark(voter, leader):
    """A new leader takes the mark it knew as a follower for its own."""
    return voter.high_watermark


def never_campaign(voter, now):
    """A voter that should campaign waits on."""
    voter.state.election_deadline = now + 1


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "wanted", "first", "within"),
    [
        pytest.param(election, "become_follower", forget_vote, {VOTE_ONCE}, 0, 10, id="vote forgotten"),
        pytest.param(core, "_start", lead_again, {ELECTION_SAFETY}, 0, 20, id="leads again after a restart"),
        pytest.param(election, "on_vote_request", ignore_epochs, {COMMITTED_LOST}, 100, 500, id="votes by length"),
        pytest.param(Reads, "fetched", confirm_at_once, {READS}, 100, 300, id="every fetch confirms"),
        pytest.param(
            leadership, "announced_mark", take_old_mark, {NO_FATAL}, 45, 100, id="predecessor's mark announced"
        ),
        pytest.param(decisions, "majority", lambda n: n // 2, {ELECTION_SAFETY}, 0, 100, id="half is a majority"),
        pytest.param(decisions, "held_by_majority", max, {ON_A_MAJORITY, COMMITTED_LOST}, 0, 60, id="every end"),
        pytest.param(states, "LEGAL", {}, {NO_EXCEPTION}, 0, 1, id="no transition is legal"),
        pytest.param(election, "become_prospective", never_campaign, {LIVENESS}, 0, 5, id="no voter campaigns"),
    ],
)
def test_mutants_are_found(owner, name, mutant, wanted, first, within):
    with patch.object(owner, name, mutant):
        hunt(wanted, within=within, first=first)


# Faulty executors: the contract is the order of effects


def swap(effects, first, second):
    """Every `second` that follows a `first` is carried out before it."""
    ahead = [effect for effect in effects if isinstance(effect, second)]
    late = [effect for effect in effects if not isinstance(effect, second)]
    return ahead + late if any(isinstance(effect, first) for effect in effects) else effects


def without(effects, kind):
    return [effect for effect in effects if not isinstance(effect, kind)]


@pytest.mark.parametrize(
    ("tamper", "wanted", "within"),
    [
        (lambda effects: swap(effects, Persist, Reply), {DURABLE_FIRST}, WITHIN_SEEDS),
        (lambda effects: without(effects, Persist), {DURABLE_FIRST, ELECTION_SAFETY}, 300),
    ],
    ids=["vote sent before it is durable", "votes never written"],
)
def test_faulty_executors_are_found(monkeypatch, tamper, wanted, within):
    build = World.__init__

    def faulty(self, *args, **kwargs):
        build(self, *args, **kwargs)
        self.tamper = tamper

    monkeypatch.setattr(World, "__init__", faulty)
    hunt(wanted, within=within)


@pytest.mark.parametrize("late_s", [1.0, math.inf], ids=["reported before it is done", "never done"])
def test_flushes_that_are_reported_and_not_done_are_found(monkeypatch, late_s):
    def begin_flush(self, node):
        incarnation, log_end, end = node.incarnation, node.disk.end_offset, node.disk.begin_flush()
        if late_s < math.inf:
            self.at(self.now + late_s, lambda: end() if node.incarnation == incarnation else None)
        self.at(self.now, lambda: self._enter(node, lambda core: self._flushed(node, core, log_end), incarnation))

    monkeypatch.setattr(World, "_begin_flush", begin_flush)
    hunt({DURABLE_FIRST, ON_A_MAJORITY})


# The watch itself


def test_the_watch_sees_what_no_bug_of_ours_brings_about():
    world = World(3)
    world.elect()
    watch = world.watch
    watch.persisted(1, QuorumState(5), QuorumState(4), voted_now=False)
    watch.committed(1, 0, None)
    for disk in islice((node.disk for node in world.nodes.values()), 2):
        disk.append([replace(disk.batches[0], base_offset=disk.end_offset, body=id(disk))])
    for voter in (1, 2):
        watch.appended(voter, 1)
        watch.committed(voter, 2, None)
    assert {violation.invariant for violation in watch.violations} == {EPOCHS, HIGH_WATERMARKS, LOG_MATCHING, AGREEMENT}


@pytest.mark.parametrize("seed", [1, 2])
def test_slow_disks_and_a_second_term_show_what_a_new_follower_may_not_cut(seed):
    """Only the first leader knows that its entries are committed; the followers of the second one cut them off."""
    (storm,) = storms("disk,partition", [seed], [TRUNCATES_TO_HIGH_WATERMARK], seconds=40.0)
    found = {violation.invariant for violation in storm.world.watch.violations}
    assert found & {AGREEMENT, COMMITTED_LOST}
    (clean,) = storms("disk,partition", [seed], seconds=40.0)
    assert clean.world.watch.violations == []
    assert [card.name for card, _, _ in clean.began] == [card.name for card in clean.cards]


@pytest.mark.parametrize("nemesis", ["partition", "partition,kill", "packets,kill", "pause,power"])
def test_the_quorum_as_it_is_keeps_its_word_in_every_storm(nemesis):
    for storm in storms(nemesis, [7], seconds=45.0):
        assert storm.world.watch.violations == []
        assert len(storm.began) >= 3
        assert len(storm.world.watch.leaders) >= 3, "the storm brought elections"


def under_late_links(target: str, seed: int) -> DealtStorm:
    """One card of packets, and nothing else."""
    return DealtStorm([Card(1, "packets", target, 2.0, 9.0)], seed, seconds=11.0).play()


def shown_by(target: str, invariant: str, seeds: range) -> int:
    """In how many of these runs the invariant was violated."""
    broken = [{violation.invariant for violation in under_late_links(target, s).world.watch.violations} for s in seeds]
    return sum(invariant in names for names in broken)


def test_fetches_that_are_older_than_a_read_confirm_it_where_the_leader_hears_late(monkeypatch):
    assert shown_by(LEADER_HEARS_LATE, READS, range(2)) == 0

    def confirms_every_read(self, voter, connection):
        self._confirmed[voter] = self._clock

    monkeypatch.setattr(Reads, "fetched", confirms_every_read)
    assert shown_by(LEADER_HEARS_LATE, READS, range(2)) >= 1


def test_a_vote_that_a_change_of_role_forgets_is_asked_for_again_by_a_late_rival(monkeypatch):
    assert shown_by(RIVALS_LATE, VOTE_ONCE, range(3)) == 0
    campaign_again = election.become_prospective

    def forgets(voter, now):
        voter.persisted = replace(voter.persisted, voted=None)
        campaign_again(voter, now)

    monkeypatch.setattr(election, "become_prospective", forgets)
    assert shown_by(RIVALS_LATE, VOTE_ONCE, range(3)) >= 1


def traced(seed: int, *bugs: str) -> tuple[Outcome, Replayed]:
    worlds: list[TracedWorld] = []

    def make_world(*arguments: Any, **options: Any) -> TracedWorld:
        worlds.append(TracedWorld(*arguments, **options))
        return worlds[0]

    outcome = shuffle(seed, bugs, make_world=make_world)
    [world] = worlds
    return outcome, replay(world.rows(), dict.fromkeys(world.traces, 1 << 40))


def assert_clean(seed: int) -> None:
    outcome, found = traced(seed)
    assert outcome.violations == ()
    assert (found.stops, found.unknown, found.model.lost()) == ((), (), None), seed


@pytest.mark.parametrize("seed", [*range(12), 1060])  # 1060: a leader dies before it can report its election
def test_the_traces_of_a_shuffled_quorum_are_explained(seed: int) -> None:
    assert_clean(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(40))
def test_the_traces_of_many_shuffled_quorums_are_explained(part: int, night: Random) -> None:
    for _ in range(50):
        assert_clean(night.randrange(1 << 31))


@pytest.mark.parametrize("bug", [MINORITY_COMMIT, DIVERGENCE_BY_OFFSET, LONE_VOTE, DOUBLE_VOTE])
def test_a_planted_bug_that_violates_an_invariant_is_seen_in_the_traces(bug: str) -> None:
    """The watch knows all disks and stops the run at once, sometimes before the row of that effect is written."""
    harmed = seen = 0
    for seed in range(16):
        outcome, found = traced(seed, bug)
        if outcome.violations:
            harmed += 1
            seen += bool(found.stops)
    assert harmed > 0
    assert seen >= 0.8 * harmed
