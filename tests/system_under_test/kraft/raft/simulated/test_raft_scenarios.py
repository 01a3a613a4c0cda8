"""Scenarios: what happens to a quorum, as a script; and for every planted bug the story that exposes it.

The world is kind unless the script says otherwise: messages take 1-5 ms.  Which voter is elected is drawn, so the
scripts give the voters their names as they go.  Everything the invariants of `simulated_quorum` forbid is watched.
"""

import pytest
from simulated_quorum.invariants import DURABLE_FIRST, ON_A_MAJORITY
from simulated_quorum.world import World

from system_under_test.kraft.raft.messages import (
    FetchRequest,
    LeaderChange,
    VoteRequest,
)

SEEDS = range(5)


# Peace


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5, 7])
def test_a_quorum_elects_commits_and_reads(voters):
    world = World(voters, seed=voters)
    leader = world.elect()
    proposal = world.propose(leader, "hello")
    assert world.wait_for(lambda: proposal.outcome == "acknowledged", 0.1), "two round trips"
    read = world.read(leader)
    assert world.wait_for(lambda: read.outcome == "answered", 0.1), "a read does not wait for a parked fetch to expire"
    assert read.mark >= proposal.end_offset
    world.elapse(1.0)
    assert all(world.bodies(id) == ["hello"] for id in world.nodes)
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_is_stable_without_faults(seed):
    world = World(5, seed=seed)
    leader = world.elect()
    epoch = world.core(leader).epoch
    world.elapse(60.0)
    assert world.leader() == leader
    assert {world.core(id).epoch for id in world.nodes} == {epoch}


def test_many_reads_share_the_rounds_of_confirmation():
    world = World(3)
    leader = world.elect()
    world.elapse(1.0)
    sent = world.effects
    reads = [world.read(leader) for _ in range(100)]
    assert world.wait_for(lambda: all(read.outcome == "answered" for read in reads), 0.1)
    assert world.effects - sent < 100 + 30


# Losing the leader


@pytest.mark.parametrize("seed", SEEDS)
def test_a_voter_that_hears_nothing_but_is_heard_does_not_unseat_the_leader(seed):
    world = World(3, seed=seed)
    leader = world.elect()
    deaf = world.others(leader)[0]
    world.blocked = {(id, deaf) for id in world.others(deaf)}
    world.elapse(20.0)
    assert world.leader() == leader


def test_a_minority_commits_nothing():
    world = World(5)
    leader = world.elect()
    friend, *majority = world.others(leader)
    world.cut([leader, friend], majority)
    proposal, read = world.propose(leader, "alone"), world.read(leader)
    world.elapse(2.0)
    assert proposal.outcome == "accepted"
    assert read.outcome == "pending"
    world.elapse(3.0)
    assert (proposal.outcome, read.outcome) == ("unknown", "refused"), "the leader gave up"


# Reads


def test_a_new_leader_waits_for_its_own_leader_change_before_it_notes_the_mark():
    world = World(3)
    old = world.elect()
    write = world.propose(old, "w")
    assert world.wait_for(lambda: write.outcome == "acknowledged")
    world.crash(old)
    assert world.wait_for(lambda: world.leader() is not None, 8.0)
    new = world.leader()
    change = world.nodes[new].disk.batches[-1]
    assert isinstance(change.body, LeaderChange)
    assert (world.core(new).high_watermark or 0) < change.end_offset
    read = world.read(new)
    assert read.outcome == "pending"
    assert world.wait_for(lambda: read.outcome == "answered", 1.0)
    assert read.mark >= change.end_offset > write.end_offset


# Votes


# Damage


def test_a_voter_whose_log_was_wiped_is_filled_again():
    """Its quorum-state survived, so that it cannot vote twice."""
    world = World(3)
    leader = world.elect()
    write = world.propose(leader, "w")
    assert world.wait_for(lambda: write.outcome == "acknowledged")
    world.elapse(1.0)
    wiped = world.others(leader)[0]
    world.crash(wiped)
    disk = world.nodes[wiped].disk
    disk.truncate(0)
    disk.flush()
    world.restart(wiped)
    world.elapse(3.0)
    assert world.bodies(wiped) == ["w"]


def test_requests_that_come_twice_change_nothing():
    """A connection breaks after the request was taken and before it is answered; the client asks again."""
    world = World(3)
    leader = world.elect()
    write = world.propose(leader, "once")
    for _ in range(20):
        for connection in world.connections():
            if connection.busy is not None and isinstance(connection.busy.request, FetchRequest | VoteRequest):
                world.break_connection(connection)
        world.elapse(0.03)
    world.elapse(1.0)
    assert write.outcome == "acknowledged"
    assert all(world.bodies(id) == ["once"] for id in world.nodes)
    assert not world.watch.violations


# Slow disks


@pytest.mark.parametrize("whose", ["leader", "follower"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_voter_with_a_slow_disk_holds_nobody_up_and_unseats_nobody(seed, whose):
    """A leader with one commits by the disks of the others."""
    world = World(3, seed=seed)
    leader = world.elect()
    slow = leader if whose == "leader" else world.others(leader)[0]
    epoch = world.core(leader).epoch
    world.fsync_s[slow] = 2.5
    for number in range(40):
        proposal = world.propose(leader, f"p{number}")
        assert world.wait_for(lambda proposal=proposal: proposal.outcome == "acknowledged", 0.1)
        world.elapse(0.2)
    assert (world.leader(), world.core(leader).epoch) == (leader, epoch)
    assert world.wait_for(lambda: len(world.bodies(slow)) == 40, 10.0)
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_loss_before_the_flush_takes_only_what_nobody_was_promised(seed):
    world = World(3, seed=seed)
    leader = world.elect()
    world.elapse(1.0)
    world.fsync_s = dict.fromkeys(world.nodes, 1.0)
    proposal = world.propose(leader, "p")
    world.elapse(0.5)
    assert all(world.bodies(id) == ["p"] for id in world.nodes), "it stands in every log, and on no disk"
    assert proposal.outcome == "accepted"
    for id in world.nodes:
        world.crash(id, power_loss=True)
    world.fsync_s = {}
    for id in world.nodes:
        world.restart(id)
    world.elect()
    assert not world.watch.violations


@pytest.mark.parametrize(
    ("bug", "slow_voters", "broken"),
    [
        ("counts-unflushed-self", "leader", {ON_A_MAJORITY}),
        ("fetch-acks-unflushed", "followers", {ON_A_MAJORITY, DURABLE_FIRST}),
    ],
)
def test_a_voter_that_counts_before_its_disk_does_commits_on_a_minority(bug, slow_voters, broken):
    for bugs in ((), (bug,)):
        world = World(3, bugs=bugs)
        leader = world.elect()
        world.elapse(1.0)
        followers = world.others(leader)
        if slow_voters == "leader":
            world.crash(followers[1])
        world.fsync_s = dict.fromkeys([leader] if slow_voters == "leader" else followers, 1.0)
        proposal = world.propose(leader, "p")
        world.elapse(0.5)
        assert proposal.outcome == ("acknowledged" if bugs else "accepted")
        assert world.violated() == (broken if bugs else set())
