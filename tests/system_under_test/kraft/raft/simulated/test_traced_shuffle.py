"""Shuffled runs through trace validation: no clean one is accused, and a planted bug is seen where it does harm."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from simulated_quorum.shuffler import Outcome, shuffle
from simulated_quorum.traced_world import TracedWorld

from checkers.raft.trace_validation import Replayed, replay
from system_under_test.kraft.raft.decisions import DIVERGENCE_BY_OFFSET, DOUBLE_VOTE, LONE_VOTE, MINORITY_COMMIT


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


@pytest.mark.parametrize("seed", [*range(12), 1060])  # 1060: a leader dies before it can report that it leads
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
