"""Scenarios with two voters that believe they lead: which reads they answer, and which votes elect them."""

import pytest
from simulated_quorum.invariants import (
    ELECTION_SAFETY,
    READS,
    VOTE_ONCE,
)
from simulated_quorum.world import World

from system_under_test.kraft.raft.messages import (
    QuorumState,
    ReplicaKey,
    Timing,
)
from system_under_test.kraft.raft.states import Reads

SEEDS = range(5)


def deposed(seed, bugs=()):
    """Clients that stay with an isolated leader read there while its successor already acknowledges writes."""
    world = World(5, seed=seed, bugs=bugs)
    old = world.elect()
    world.elapse(1.0)
    world.cut(world.others(old))
    assert world.wait_for(lambda: world.leader() not in (None, old), 8.0)
    write = world.propose(world.leader(), "newer")
    assert world.wait_for(lambda: write.outcome == "acknowledged", 1.0)
    assert world.role(old) == "leader", "it does not know yet"
    read = world.read(old)
    world.elapse(5.0)
    return world, read


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_deposed_leader_answers_no_read(seed):
    world, read = deposed(seed)
    assert read.outcome == "refused"
    assert not world.watch.violations


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stale_read_answers_from_the_past(seed):
    world, read = deposed(seed, ["stale-read"])
    assert read.outcome == "answered"
    assert world.violated() == {READS}


def late_fetches():
    """Fetches that were sent before the leader was deposed reach it after a read has: they say nothing of now."""
    world = World(3, timing=Timing(check_quorum_factor=10.0))
    old = world.elect()
    world.elapse(1.0)
    followers = world.others(old)
    for id in followers:  # what they send takes 4 s from now on, among themselves nothing changes
        world.lag_s[id, old] = 4.0
    world.elapse(0.6)  # the fetches parked at the leader are answered; the next ones are on their long way
    world.blocked = {(old, id) for id in followers}
    assert world.wait_for(lambda: world.leader() in followers, 8.0)
    write = world.propose(world.leader(), "newer")
    assert world.wait_for(lambda: write.outcome == "acknowledged", 1.0)
    assert world.role(old) == "leader"
    assert world.core(old).epoch == 1
    read = world.read(old)
    world.elapse(3.0)
    return world, read


def test_a_fetch_sent_before_the_read_confirms_nothing():
    world, _ = late_fetches()
    assert not world.watch.violations


def test_if_every_fetch_confirmed_a_deposed_leader_would_answer(monkeypatch):
    def confirm(self, voter, connection):
        self._confirmed[voter] = self._clock

    monkeypatch.setattr(Reads, "fetched", confirm)
    world, read = late_fetches()
    assert read.outcome == "answered"
    assert world.violated() == {READS}


def two_groups(seed, bugs=()):
    """The leader alone, and the others in two groups that cannot hear each other."""
    world = World(5, seed=seed, bugs=bugs)
    assert world.wait_for(lambda: world.leader() is not None)
    world.elapse(1.0)
    old = world.leader()
    a, b, c, d = world.others(old)
    world.cut([a, b], [c, d])
    world.elapse(8.0)
    return world, old, {a, b}, {c, d}


@pytest.mark.parametrize("seed", SEEDS)
def test_two_groups_without_a_majority_elect_no_leader(seed):
    world, *_ = two_groups(seed)
    assert world.leader() is None
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_lone_vote_elects_in_both_groups(seed):
    world, _, one, other = two_groups(seed, ["lone-vote"])
    assert ELECTION_SAFETY in world.violated()
    leading = set(world.leaders())
    assert leading & one
    assert leading & other


def torn_between_two(bugs=()):
    """Two candidates of one epoch each have their own vote; everything hangs on the third voter, which hears both."""
    world = World(3, bugs=bugs, timing=Timing(retry_backoff_s=0.2))
    a, b, c = world.nodes
    for id in (a, b):  # they voted for themselves, and crashed before they sent a request for votes
        world.crash(id)
        world.nodes[id].disk.quorum_state = QuorumState(1, None, ReplicaKey(id))
    world.blocked = {(a, b), (b, a)}
    world.restart(a)
    world.restart(b)
    world.elapse(0.5)
    return world, (a, b, c)


def test_of_two_candidates_one_is_elected():
    world, (a, b, _) = torn_between_two()
    assert [world.role(a), world.role(b)].count("leader") == 1
    assert not world.watch.violations


def test_double_vote_elects_both():
    world, _ = torn_between_two(["double-vote"])
    assert {VOTE_ONCE, ELECTION_SAFETY} <= world.violated()
