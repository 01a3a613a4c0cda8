"""What every kind of fault promises, what the kinds on processes resolve to, and who leads now.

Cards on one named process go from the name to the proof.  Cards against the leader are aimed at the leader of all,
and at the leader of a key, in turn.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, Witness, card, now_ns, played
from hypothesis import given
from hypothesis import strategies as st

from checkers.record.faults import Achieved, Fault
from nemesis.cluster import Cluster, ProcessNow
from nemesis.coverage import leader_now
from nemesis.kind import LeaderNow, Scene
from nemesis.kinds import KINDS, kind_named, kinds_of, summaries
from nemesis.kinds.processes import process_fault
from nemesis.play import play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeStatus

pytestmark = pytest.mark.virtual_time


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


SIGNALS = {"kill": "KILL", "pause": "STOP", "stop": "TERM"}


class WithAgents(FakeCluster):
    """Each server has a process `agent`.  deaf: on these the order does nothing."""

    deaf: frozenset[str] = frozenset()

    def __init__(self, **lies: Any) -> None:
        super().__init__(**lies)
        self.now = dict.fromkeys(self.servers, ProcessNow(lives=True))

    async def signal_process(self, server: str, process: str, name: str) -> None:
        self._ordered(f"{name} {process}", server)
        if server not in self.deaf:
            self.now[server] = {
                "STOP": ProcessNow(lives=True, stopped=True),
                "RELEASE": ProcessNow(lives=True, ended=False),
            }.get(name, ProcessNow(held=True, ended=True))

    async def process_now(self, server: str, process: str) -> ProcessNow:
        assert process == "agent"
        return self.now[server]


@pytest.mark.parametrize("kind", SIGNALS)
async def test_a_card_hits_the_process_of_the_leader_and_is_proven(kind: str) -> None:
    cluster = WithAgents()
    (record,), _ = await played(cluster, card(f"{kind}:agent", "leader"))
    assert (record.achieved, record.nodes) == (Achieved.INSTALLED, ("n1",)), record.reason
    assert record.words.startswith("leader n1 process agent ")
    assert cluster.orders[:2] == [f"{SIGNALS[kind]} agent n1", "RELEASE agent n1"]
    assert cluster.states["n1"] == "running"


@pytest.mark.parametrize("kind", SIGNALS)
async def test_a_process_that_does_not_obey_is_a_fault_that_was_not_achieved(kind: str) -> None:
    (record,), _ = await played(WithAgents(deaf={"n1"}), card(f"{kind}:agent", "leader"))
    assert record.achieved is Achieved.NOT_ACHIEVED


def test_a_nemesis_may_name_processes_and_other_kinds() -> None:
    assert [kind.name for kind in kinds_of("kill:agent,partition,pause:db")] == ["kill:agent", "partition", "pause:db"]
    cards = deal("kill:agent", ("n1", "n2", "n3"), 60.0, Random(1))
    assert {each.kind for each in cards} == {"kill:agent"}
    assert (cards[0].name, len(cards) >= 4) == ("leader", True)


@pytest.mark.parametrize("name", ["partition:agent", "kill:", "clock:agent", "kil:agent"])
def test_other_kinds_meet_no_single_process(name: str) -> None:
    with pytest.raises(ValueError, match="kill:PROCESS, pause:PROCESS, stop:PROCESS for one process of a server"):
        kind_named(name)


def status(node, epoch, role="follower", leader=None):
    return NodeStatus(node, epoch, role, leader)


@pytest.mark.parametrize(
    ("statuses", "running", "leader"),
    [
        ([], SERVERS, None),
        ([status("n1", 5, "leader", "n1")], SERVERS, LeaderNow("n1", 5)),
        ([status("n1", 5, "leader", "n1"), status("n2", 6)], SERVERS, None),
        ([status("n2", 6, leader="n3")], SERVERS, LeaderNow("n3", 6)),
        ([status("n2", 6, leader="n3")], ("n2",), None),
        ([status("n1", 6, leader="n2"), status("n3", 6, "leader", "n3")], SERVERS, LeaderNow("n3", 6)),
        ([status("n4", 6, "leader"), status("n3", 6, "leader")], SERVERS, LeaderNow("n3", 6)),
    ],
)
def test_the_leader_is_the_one_of_the_highest_epoch_reported(statuses, running, leader):
    assert leader_now(statuses, running) == leader


async def struck(cluster: FakeCluster, leader_of_key: str | None) -> list[tuple[str | None, int]]:
    async def leader_of(key: str) -> str | None:
        assert key in ("k0", "k1")
        return leader_of_key

    main = MainPhase(
        cast(Cluster, cluster), cluster.statuses, now_ns, now_ns(), asyncio.Event(), (), ("k0", "k1"), leader_of
    )
    cards = [card("kill", "leader", number=number, at_s=20.0 * number, hold_s=5.0) for number in (1, 2, 3)]
    records = await play(cards, main, Random(7), Witness(cluster).hooks)
    return [(record.leader, record.epoch) for record in records]


async def test_every_second_card_strikes_the_leader_of_a_key() -> None:
    assert [leader for leader, _ in await struck(FakeCluster(), "n4")][1] == "n4"


async def test_without_a_leader_of_all_each_card_strikes_that_of_a_key() -> None:
    cluster = FakeCluster(leader=None)
    assert await struck(cluster, "n4") == [("n4", -1)] * 3


async def test_an_unknown_leader_of_a_key_leaves_the_leader_of_all() -> None:
    assert -1 not in [epoch for _, epoch in await struck(FakeCluster(), None)]
