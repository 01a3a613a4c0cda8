"""Scenarios in which logs diverge: which tails are cut, what a planted bug commits, and figure 8 of the Raft paper."""

import pytest
from simulated_quorum.invariants import (
    COMMITTED_LOST,
    LOG_MATCHING,
    NO_FATAL,
    ON_A_MAJORITY,
)
from simulated_quorum.world import World

from system_under_test.kraft.raft import leadership, replication

SEEDS = range(5)


def part(seed, bugs=(), voters=5):
    """An isolated leader appends what no voter fetches; the others elect another and go on.

    Returns the world after the heal, the old leader and the new one.
    """
    world = World(voters, seed=seed, bugs=bugs)
    old = world.elect()
    world.propose(old, "common")
    world.elapse(1.0)
    world.cut(world.others(old))
    for number in range(8):
        world.propose(old, f"orphan{number}")
    assert world.wait_for(lambda: world.leader() not in (None, old), 8.0)
    new = world.leader()
    for number in range(3):
        world.propose(new, f"kept{number}")
    world.elapse(3.0)
    world.heal()
    world.wait_for(lambda: world.nodes[old].core is None or world.core(old).leader_id == world.leader(), 5.0)
    world.elapse(1.0)
    world.propose(world.leader(), "afterwards")
    world.elapse(3.0)
    return world, old, new


@pytest.mark.parametrize("seed", SEEDS)
def test_a_divergent_tail_is_cut_and_replaced(seed):
    world, old, _ = part(seed)
    assert world.bodies(old) == ["common", "kept0", "kept1", "kept2", "afterwards"]
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_divergence_by_offset_leaves_a_wrong_tail_below_right_entries(seed):
    world, old, _ = part(seed, ["divergence-by-offset"])
    assert LOG_MATCHING in world.violated()
    tail = world.bodies(old)
    assert "orphan0" in tail, "the wrong tail is still there"
    assert tail[-1] == "afterwards", "and right entries stand behind it"


@pytest.mark.parametrize("seed", SEEDS)
def test_minority_commit_acknowledges_what_the_others_never_saw(seed):
    world, old, _ = part(seed, ["minority-commit"])
    assert {ON_A_MAJORITY, COMMITTED_LOST, NO_FATAL} <= world.violated()
    assert "below the high watermark" in world.nodes[old].died_of, "it dies rather than forget what it acknowledged"


def figure_8(seed):
    """Raft, figure 8: an entry of an old epoch, held by a majority, and still overwritten.

    With one batch to a fetch the new leader's old entries reach a majority before its LeaderChange does.
    """
    world = World(5, seed=seed, batches_per_read=1)
    a = world.elect()
    world.elapse(1.0)

    # a appends x, and b alone fetches it.
    b, *rest = world.others(a)
    world.cut([a, b], rest)
    world.propose(a, "x")
    assert world.wait_for(lambda: world.bodies(b) == ["x"], 1.0)
    world.crash(a)
    world.crash(b)

    # One of the rest is elected, appends y, and crashes before any voter fetches an entry of its epoch.
    assert world.wait_for(lambda: world.leader() in rest, 15.0)
    e = world.leader()
    world.propose(e, "y")
    world.crash(e)
    c, d = (id for id in rest if id != e)
    assert "x" not in world.bodies(c) + world.bodies(d) + world.bodies(e)

    # a, b and c without d: a or b is elected.  It replicates x to c: now a majority holds x.  Then all three fall
    # before c has the LeaderChange that follows.
    world.crash(d)
    world.restart(a)
    world.restart(b)
    world.heal()

    def x_is_known_to_stand_on_a_majority():
        for id in (a, b):
            core = world.nodes[id].core
            if core is not None and core.role == "leader":
                ends = [progress.end_offset for progress in core._voter.state.followers.values()]
                x_end = next(batch.end_offset for batch in world.nodes[id].disk.batches if batch.body == "x")
                return sum(end >= x_end for end in ends) >= 2
        return False

    assert world.wait_for(x_is_known_to_stand_on_a_majority, 20.0)
    for id in (a, b, c):
        world.crash(id)

    # e returns; its y is of a later epoch than x, so that c and d elect it, and x is overwritten.
    assert world.nodes[c].disk.batches[-1].body == "x"
    for id in (c, d, e):
        world.restart(id)
    assert world.wait_for(lambda: world.leader() == e, 20.0)
    world.elapse(2.0)
    assert "x" not in world.bodies(c)
    assert "y" in world.bodies(c)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_figure_8_commits_nothing_of_an_older_epoch_by_counting(seed):
    world = figure_8(seed)
    assert not world.watch.violations


def test_figure_8_without_the_epoch_rule_loses_a_committed_entry(monkeypatch):
    def commit_by_counting(voter, leader):
        mark = sorted([voter.end_offset, *(p.end_offset for p in leader.followers.values())])[len(voter.voters) // 2]
        if mark > 0:
            voter.advance(mark)

    for module in (leadership, replication):
        monkeypatch.setattr(module, "commit", commit_by_counting)
    world = figure_8(0)
    assert COMMITTED_LOST in world.violated()
