"""The runs that a campaign makes: plans are values.

Random tests: decided by the seed, dealt without replacement, and only what this place can run.
"""

from __future__ import annotations

import itertools

import pytest

from harness.backends.agent_cluster import AgentCluster
from harness.backends.docker_backend import DockerBackend
from harness.campaign.plans import PARTS, Choices, choices, dealt, draw, findings, hunt, hunt_for_bugs, night
from harness.real_systems import CLEAN_RUNS
from harness.registry import load_subject, offered_workloads
from harness.run.refused_before_start import check_spec, lacking
from harness.spec import Spec, WrongSpec
from nemesis.kinds import KINDS

BASE = Spec(backend="namespaces", time_limit_s=30.0, stop_on_violation=True)


def test_a_planted_bug_is_planted_with_a_fault_and_a_workload_that_can_show_it() -> None:
    bugs = load_subject("kraft").bugs
    for plan in (night([1], ["bugs"], BASE), hunt_for_bugs((), [1], BASE)):
        assert {spec.bug for spec in plan.tests} == {name for name, bug in bugs.items() if bug.in_containers}
        for spec in plan.tests:
            assert spec.bug is not None
            assert spec.nemesis in bugs[spec.bug].shown_by
            assert spec.workload in bugs[spec.bug].workloads
            assert (spec.time_limit_s, spec.stop_on_violation) == (30.0, True)


def test_clean_systems_meet_every_kind_of_fault_that_fits_alone_and_all_at_once() -> None:
    specs = list(night(range(3), ["clean", "peer"], BASE).tests)
    for spec in specs[: len(specs) // 3]:
        check_spec(spec)
        assert lacking(spec, "namespaces") == ""
    met = {system: {spec.nemesis for spec in specs if spec.subject == system} for system in ("kraft", "etcd")}
    assert set(KINDS) - met["kraft"] == {"membership", "version", "upgrade"}
    assert set(KINDS) - met["etcd"] == {"clock", "version", "upgrade"}
    assert ",".join(kind for kind in KINDS if kind not in ("clock", "version", "upgrade")) in met["etcd"]
    assert {spec.nodes for spec in specs} == {3, 4, 5}


def test_clean_systems_run_every_workload_that_they_serve_and_each_meets_another_kind_with_another_seed() -> None:
    specs = list(night(range(2), ["clean", "peer"], BASE).tests)
    for system in ("kraft", "etcd"):
        mine = [spec for spec in specs if spec.subject == system]
        assert {spec.workload for spec in mine} == set(offered_workloads(load_subject(system)))
        first, second = ({s.workload: s.nemesis for s in mine if s.seed == seed} for seed in range(2))
        assert all(first[name] != second[name] for name in first if name != "register")


def test_the_canary_runs_clean_and_with_each_of_its_bugs_and_is_short() -> None:
    specs = list(night([4], ["canary"], BASE).tests)
    bugs = load_subject("canary").bugs
    assert [spec.bug for spec in specs] == [None, *bugs]
    assert all(spec.workload in bugs[spec.bug].workloads for spec in specs if spec.bug)
    assert {(spec.backend, spec.nemesis, spec.time_limit_s) for spec in specs} == {("auto", "none", 5.0)}
    assert set(PARTS) == {"canary", "clean", "peer", "bugs"}


def test_a_short_night_runs_the_canary_and_only_the_kinds_and_bugs_that_were_chosen() -> None:
    specs = list(night([4], PARTS, BASE, ("kill", "pause"), ("no-fsync",)).tests)
    others = [spec for spec in specs if spec.subject != "canary"]
    assert len(specs) > len(others)
    assert {spec.nemesis for spec in others if not spec.bug} == {"kill", "pause"}
    assert {spec.bug for spec in others if spec.bug} == {"no-fsync"}
    assert {spec.subject for spec in others} == {"kraft", "etcd"}


def test_one_bug_and_another_nemesis_can_be_chosen() -> None:
    (spec,) = hunt_for_bugs(("no-fsync",), [4], BASE, "power,kill").tests
    assert (spec.bug, spec.nemesis, spec.workload, spec.seed) == ("no-fsync", "power,kill", "register", 4)
    specs = list(hunt_for_bugs((), [1, 2], BASE).tests)
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs), "a part of it has seen every bug"
    with pytest.raises(WrongSpec, match="no planted bug 'no-such' that a run on nodes can show"):
        hunt_for_bugs(("no-such",), [1], BASE)


def test_a_hunt_has_no_end_of_its_own_and_draws_the_same_tests_each_time() -> None:
    choices = Choices(Spec(backend="docker"), ("register", "set"), ("none", "kill"), (3,), (60.0,))
    plan = hunt(choices, 7, 60, 5, keeps_on=False)
    for _ in range(2):
        assert list(itertools.islice(plan.tests, 9)) == [draw(choices, 7, number) for number in range(9)]
    assert list(itertools.islice(plan.tests, 9)) != [draw(choices, 8, number) for number in range(9)]


def test_a_clean_run_is_run_clean_and_a_finding_both_ways() -> None:
    specs = list(findings(["mariadb", "redis", "etcd-set"], [5, 6], "docker").tests)
    ways = [(spec.finding, spec.clean) for spec in specs if spec.seed == 5]
    assert ways == [("mariadb", False), ("mariadb", True), ("redis", False), ("etcd-set", True)]
    assert len(specs) == 8 and "etcd-set" in CLEAN_RUNS


DOCKER = Spec(backend="docker", time_limit_s=30.0, nemesis="none")


def all_of_kraft() -> Choices:
    return choices(DOCKER, (), (), (3, 5), (0.0, 60.0))


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
