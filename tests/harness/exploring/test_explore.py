"""Every order of a few steps: planted bugs show in few of them, a clean core in none, and names do not matter."""

from __future__ import annotations

import math

import pytest
from click.testing import CliRunner

from harness.cli.main import cli
from harness.exploring.explore import Broken, Budgets, Explored, Explorer
from harness.exploring.state import World, key, namings
from harness.spec import WrongSpec

CPU_S = 120.0


def explored(budgets: Budgets, bug: str = "", voters: int = 3, *, symmetric: bool = True) -> Explored:
    return Explorer(voters, budgets, bug, symmetric=symmetric).search(CPU_S)


SHORTEST = [
    ("minority-commit", Budgets(epochs=1, timeouts=1), 3, "a mark without a majority"),
    ("lone-vote", Budgets(epochs=1, timeouts=2), 6, "two leaders in one epoch"),
    ("double-vote", Budgets(epochs=1, timeouts=3), 6, "voted twice in one epoch"),
    ("vote-not-persisted", Budgets(epochs=1, timeouts=1, crashes=1), 7, "vote not kept"),
    ("no-fsync", Budgets(epochs=1, timeouts=1, crashes=1), 7, "a mark without a majority"),
    ("divergence-by-offset", Budgets(timeouts=2), 8, "a mark without a majority"),
]


@pytest.mark.parametrize(("bug", "budgets", "steps_max", "rule"), SHORTEST, ids=[row[0] for row in SHORTEST])
def test_a_planted_bug_shows_in_few_steps(bug: str, budgets: Budgets, steps_max: int, rule: str) -> None:
    found = explored(budgets, bug)
    assert found.broken.startswith(rule)
    assert len(found.trace) <= steps_max


def test_the_trace_of_a_bug_breaks_the_same_rule_again_and_not_without_the_bug() -> None:
    budgets = Budgets(epochs=1, timeouts=2)
    trace = explored(budgets, "lone-vote").trace
    planted, clean = Explorer(3, budgets, "lone-vote"), Explorer(3, budgets)
    with pytest.raises(Broken, match="two leaders"):
        follow(planted, trace)
    follow(clean, trace[:2])


def follow(explorer: Explorer, trace: list[tuple[str, object]]) -> World:
    world = explorer.first()
    for step in trace:
        after = explorer.do(world, step)  # type: ignore[arg-type]
        assert after is not None
        world = after
    return world


def test_a_clean_core_breaks_no_rule_within_a_bound_that_is_exhausted() -> None:
    """One election of two voters, a write, a read and a power loss, in every order."""
    found = explored(Budgets(epochs=1, timeouts=1, writes=1, reads=1, crashes=1), voters=2)
    assert (found.broken, found.exhausted) == ("", True)
    assert found.states > 100


@pytest.mark.parametrize("budgets", [Budgets(epochs=1, timeouts=2), Budgets(epochs=1, timeouts=1, cuts=1)])
def test_states_that_differ_by_names_alone_count_as_one(budgets: Budgets) -> None:
    """Each class of three voters stands for six states at most; with the first steps it is nearly that."""
    depth = 5
    whole, classes = (levels(budgets, depth, symmetric=symmetric) for symmetric in (False, True))
    assert len({keyed_anew(world) for world in whole}) == len(classes)
    assert len(classes) < len(whole) <= math.factorial(3) * len(classes)


def keyed_anew(world: World) -> int:
    """The key over all names; what was hashed for one name alone is forgotten."""
    for part in (*world.nodes, *world.calls.values(), *world.late):
        part.hashes = None
    return key(world, namings(3))


def levels(budgets: Budgets, depth: int, *, symmetric: bool) -> list[World]:
    """All states within so many steps."""
    explorer = Explorer(3, budgets, symmetric=symmetric)
    names = namings(3) if symmetric else namings(3)[:1]
    level, known = [explorer.first()], {}
    for _ in range(depth):
        following = []
        for world in level:
            for step in explorer.steps(world):
                after = explorer.do(world, step)
                if after is not None and key(after, names) not in known:
                    known[key(after, names)] = after
                    following.append(after)
        level = following
    return list(known.values())


def test_a_step_leaves_the_world_before_it_as_it_was() -> None:
    explorer, names = Explorer(3, Budgets(timeouts=2, crashes=1, losses=1, splits=1)), namings(3)
    world = explorer.first()
    for _ in range(6):
        before = key(world, names)
        afters = [after for step in explorer.steps(world) if (after := explorer.do(world, step)) is not None]
        assert keyed_anew(world) == before
        world = afters[0]


def test_the_command_shows_the_trace_and_refuses_an_unknown_bug() -> None:
    answer = CliRunner().invoke(cli, ["explore", "--bug", "minority-commit", "--epochs", "1", "--timeouts", "1"])
    assert answer.exit_code == 1
    assert "broken after 3 steps" in answer.output
    refused = CliRunner().invoke(cli, ["explore", "--bug", "lone-wolf"])
    assert isinstance(refused.exception, WrongSpec)
    done = CliRunner().invoke(cli, ["explore", "--voters", "2", "--epochs", "1", "--timeouts", "1"])
    assert done.exit_code == 0
    assert "exhausted" in done.output
