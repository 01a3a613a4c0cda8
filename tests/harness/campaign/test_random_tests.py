"""Random tests: decided by the seed, dealt without replacement, and only what this place can run."""

from __future__ import annotations

import pytest

from harness.backends.agent_cluster import AgentCluster
from harness.backends.docker.backend import DockerBackend
from harness.campaign.plans import (
    Choices,
    choices,
    dealt,
    draw,
)
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from nemesis.catalog import KINDS

DOCKER = Spec(backend="docker", time_limit_s=30.0, nemesis="none")


def all_of_kraft() -> Choices:
    return choices(DOCKER, (), (), (3, 5), (0.0, 60.0))


def test_the_seed_and_the_number_decide_a_test() -> None:
    drawn = all_of_kraft()
    assert [draw(drawn, 7, n) for n in range(20)] == [draw(drawn, 7, n) for n in range(20)]
    assert [draw(drawn, 7, n) for n in range(20)] != [draw(drawn, 8, n) for n in range(20)]


def test_every_name_has_its_turn_before_one_comes_again() -> None:
    names = ("a", "b", "c", "d")
    cards = [dealt(names, 3, "x", number) for number in range(40)]
    assert all(sorted(cards[turn : turn + 4]) == list(names) for turn in range(0, 40, 4))
    assert len({tuple(cards[turn : turn + 4]) for turn in range(0, 40, 4)}) > 1


def test_every_test_that_is_drawn_can_be_run() -> None:
    drawn = all_of_kraft()
    seen = [draw(drawn, 1, number) for number in range(60)]
    for spec in seen:
        check_spec(spec)
    assert {spec.workload for spec in seen} == set(drawn.workloads)
    assert {kind for spec in seen for kind in spec.nemesis.split(",")} == set(drawn.kinds)
    assert max(spec.nemesis.count(",") for spec in seen) == 2


def test_a_kind_of_fault_that_the_backend_lacks_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DockerBackend, "lacks", AgentCluster.lacks)
    drawn = all_of_kraft()
    left_out = dict(drawn.left_out)
    assert set(drawn.kinds) | set(left_out) == {"none", *KINDS} and "none" in drawn.kinds
    assert left_out["packets"].startswith("backend docker cannot impair packets")
    with pytest.raises(WrongSpec, match="nemesis packets cannot be used here: backend docker cannot impair packets"):
        choices(DOCKER, (), ("packets",), (3,), (60.0,))


def test_a_subject_without_nodes_is_hunted_without_faults() -> None:
    drawn = choices(Spec(subject="canary", backend="in-process", nemesis="none"), (), (), (3,), (60.0,))
    assert drawn.kinds == ("none",) and "set" in drawn.workloads


def test_a_planted_bug_chooses_the_workloads_that_can_show_it() -> None:
    base = Spec(subject="canary", backend="in-process", nemesis="none", bug="lose-element")
    assert choices(base, (), (), (3,), (60.0,)).workloads == ("set", "large-set")
    with pytest.raises(WrongSpec, match="no workload with which canary can be hunted"):
        choices(base, ("register",), (), (3,), (60.0,))
