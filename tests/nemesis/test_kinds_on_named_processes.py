"""`kill:agent`, `pause:agent`, `stop:agent`: cards on one named process, from the name to the proof."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, card, played

from checkers.record.faults import Achieved
from nemesis.cluster import ProcessNow
from nemesis.kinds import kind_named, kinds_of

pytestmark = pytest.mark.virtual_time

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
