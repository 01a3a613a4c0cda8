"""What every kind of fault promises, and what the kinds on processes resolve to."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.record.faults import Fault
from nemesis.kind import LeaderNow, Scene
from nemesis.kinds import KINDS, kind_named, kinds_of, summaries
from nemesis.kinds.processes import process_fault

SERVERS = ("n1", "n2", "n3", "n4", "n5")
ON_PROCESSES = sorted(name for name, kind in KINDS.items() if "all" in kind.targets)


def scene(
    seed: int = 0, leader: str | None = "n2", running: tuple[str, ...] = SERVERS, **more: frozenset[str]
) -> Scene:
    return Scene(SERVERS, ("c1", "c2"), running, LeaderNow(leader, 9) if leader else None, Random(seed), **more)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_kind_deals_only_what_it_has(name: str) -> None:
    kind = KINDS[name]
    dealt = {n for n, _ in kind.deck.opening} | set(kind.deck.rest)
    assert dealt <= set(kind.targets) | set(kind.deck.figures)
    assert set(kind.deck.figures) <= dealt, "a figure that is never dealt tests nothing"
    for figure in kind.deck.figures.values():
        for servers in (3, 5, 7):
            steps = figure.steps(Random(1), servers)
            assert all(step.target in KINDS[step.kind or name].targets for step in steps)
            assert {step.kind or name for step in steps} <= {*kind.parts, name}
            assert all(0 <= step.until_step <= len(steps) for step in steps)
            assert not steps[0].again and all(step.hold_s > 0 and step.after_s >= 0 for step in steps)


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32))
def test_every_target_resolves_the_same_twice_and_names_the_leader_it_is_aimed_at(name: str, seed: int) -> None:
    kind = KINDS[name]
    for target, described in kind.targets.items():
        if described.servers_min > len(SERVERS):
            continue
        first, second = (kind.resolve(target, scene(seed)) for _ in range(2))
        assert first == second and first is not None
        assert first.kind == name and first.words and (first.cut or first.nodes)
        if described.against_leader:
            assert "n2" in first.words
        orders = kind.orders(first)
        assert first.cut or orders.held.states or orders.held.values, "what cannot be measured cannot be proven"


@pytest.mark.parametrize("name", ON_PROCESSES)
@pytest.mark.parametrize(("target", "count"), [("leader", 1), ("one", 1), ("minority", 2), ("majority", 3), ("all", 5)])
def test_faults_on_processes_hit_running_servers_only(name: str, target: str, count: int) -> None:
    kind = KINDS[name]
    fault = kind.resolve(target, scene(3))
    assert isinstance(fault, Fault) and len(fault.nodes) == count and set(fault.nodes) <= set(SERVERS)
    few = kind.resolve(target, scene(3, running=("n2", "n3")))
    assert few is None if count > 2 else set(few.nodes) <= {"n2", "n3"}  # type: ignore[union-attr]


def test_a_leader_that_does_not_run_is_not_hit() -> None:
    assert KINDS["kill"].resolve("leader", scene(leader="n2", running=("n1", "n3"))) is None


def test_nodes_that_another_fault_of_the_kind_hits_are_avoided() -> None:
    for seed in range(30):
        fault = KINDS["pause"].resolve("minority", scene(seed, avoid=frozenset({"n1", "n2"})))
        assert fault is not None and not set(fault.nodes) & {"n1", "n2"}
        grudge = KINDS["partition"].resolve("one-node", scene(seed, avoid=frozenset({"n3", "n4"})))
        assert grudge is not None and grudge.words.split()[0] in ("n1", "n2", "n5")


def test_several_kinds_are_named_with_commas_and_an_unknown_one_is_refused() -> None:
    assert [kind.name for kind in kinds_of("kill,partition,kill")] == ["kill", "partition"]
    assert kinds_of("none") == []
    assert set(summaries()) == {"none", "all", *KINDS}
    with pytest.raises(ValueError, match="there is no nemesis 'flood'; there are none, partition"):
        kinds_of("kill,flood")
    with pytest.raises(ValueError, match="cannot be combined"):
        kinds_of("none,kill")
    with pytest.raises(ValueError, match="there is no kind of fault 'flood'; there are partition"):
        kind_named("flood")
    with pytest.raises(ValueError, match="there is no pause 'cat'; there are leader, one"):
        KINDS["pause"].check("cat")


def test_the_words_of_a_fault_name_its_servers_as_a_sentence_does() -> None:
    faults = [process_fault("kill", target, nodes, "killed") for target, nodes in (("one", ["n2"]), ("leader", ["n1"]))]
    assert [fault and fault.words for fault in faults] == ["n2 killed", "leader n1 killed"]
