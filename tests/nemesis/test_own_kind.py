"""A kind of fault that comes in as one file and one entry: dealt, played, measured, judged, replayed and reported."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from random import Random

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, card, played, played_while
from records_of_runs import fault_of
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from checkers.record.files import as_json
from checkers.run_quality.faults_installed import achieved
from harness.cli.machine import known_names
from harness.registry import check_names
from harness.run.refused_before_start import capabilities_of
from harness.spec import Spec
from nemesis.deck import as_executed, parse_schedule
from nemesis.kinds import KINDS
from nemesis.resolve import PlayOptions

FILE = '''
"""Heat: a server gets so hot that its fan is heard.  It loses what it had fsynced."""

from checkers.record.faults import Condition, Fault, Ordered
from nemesis.kind import Deck, Kind, Target


def _resolve(target, scene):
    server = scene.leader.node if target == "leader" else sorted(scene.running)[0]
    return Fault("heat", f"{server} heated by 40 degrees", (server,), settings={"degrees": 40})


async def _inject(field, fault):
    for server in fault.nodes:
        field.cluster.temperatures[server] = 20 + fault.settings["degrees"]


async def _heal(field, fault):
    for server in fault.nodes:
        field.cluster.temperatures[server] = 20


def _orders(fault):
    hot = {f"temperature of {n}": (50, 70) for n in fault.nodes}
    return Ordered(Condition(values=hot), Condition(values={name: (15, 25) for name in hot}))


async def _measure(cluster, fault):
    return {f"temperature of {n}": cluster.temperatures[n] for n in fault.nodes}


KIND = Kind(
    name="heat",
    summary="servers get hot",
    targets={"leader": Target("who leads", against_leader=True), "one": Target("the first")},
    deck=Deck(opening=(("leader", 8.0),), rest=("one",)),
    needs=frozenset({"heating"}),
    resolve=_resolve,
    inject=_inject,
    heal=_heal,
    orders=_orders,
    measure=_measure,
    costs=lambda fault: frozenset(fault.nodes),
)
'''


class WarmCluster(FakeCluster):
    def __init__(self, servers: int = 5) -> None:
        super().__init__(servers)
        self.temperatures = dict.fromkeys(self.servers, 20)


@pytest.fixture(autouse=True)
def heat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, and the entry in the catalog."""
    file = tmp_path / "heat.py"
    file.write_text(FILE)
    spec = importlib.util.spec_from_file_location("heat", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(KINDS, "heat", module.KIND)


def test_it_is_listed_accepted_and_dealt_alone_and_with_others() -> None:
    assert known_names()["nemeses"]["heat"] == "servers get hot"
    check_names(Spec(nemesis="partition,heat"))
    assert capabilities_of(Spec(nemesis="heat")) == {"heating"}
    assert [c.name for c in deal("heat", ("n1", "n2", "n3"), 60.0, Random(1))][:2] == ["leader", "one"]
    assert {c.kind for c in deal("partition,heat", ("n1", "n2", "n3"), 60.0, Random(1))} == {"partition", "heat"}


def test_it_is_played_measured_judged_and_replayed() -> None:
    (record,), _ = in_no_time(played(WarmCluster(), card("heat", "leader")))
    assert (record.achieved, record.reason, record.nodes) == (Achieved.INSTALLED, "", ("n1",))
    stored = json.loads(json.dumps(as_json(record)))
    assert stored["kind"] == "heat" and achieved(fault_of(stored)).word == "installed"
    schedule = parse_schedule(as_executed([record], 0))
    cluster = WarmCluster()
    cluster.leader = "n4"
    (again,), _ = in_no_time(played(cluster, *schedule.cards, options=PlayOptions(schedule.faults)))
    assert (again.nodes, again.settings, again.achieved) == (("n4",), {"degrees": 40}, Achieved.INSTALLED)


def test_its_probe_says_no_when_it_lapses_and_when_it_does_not_heal() -> None:
    class CoolsDown(WarmCluster):
        async def mark(self):  # type: ignore[no-untyped-def]
            raise AssertionError("a fault without links measures none")

    cools = CoolsDown()
    (lapsed,) = played_while(cools, card("heat", "leader"), acts={5.0: lambda: cools.temperatures.update(n1=20)})
    assert lapsed.achieved is Achieved.NOT_ACHIEVED
    assert "temperature of n1 ordered 50 to 70: it is 20" in lapsed.reason and 5e9 < lapsed.lapsed_ns < 6e9
    stays = WarmCluster()
    stays.temperatures = _Sticky(stays.temperatures)
    (record,), _ = in_no_time(played(stays, card("heat", "leader")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert record.reason == "after heal: temperature of n1 ordered 15 to 25: it is 60"


class _Sticky(dict):  # type: ignore[type-arg]
    """A thermometer that keeps the highest reading."""

    def __setitem__(self, name: str, degrees: int) -> None:
        super().__setitem__(name, max(degrees, self[name]))


def test_data_is_given_to_a_minority_at_most_unless_the_budget_is_broken_on_purpose() -> None:
    cards = [card("heat", "one", 1, 2.0, 3.0), card("kill", "one", 2, 8.0, 20.0), card("heat", "one", 3, 12.0, 3.0)]

    def run(options: PlayOptions, servers: int, *voters: str):  # type: ignore[no-untyped-def]
        return in_no_time(played(WarmCluster(servers), *cards, seed=4, options=options, voters=voters))[0]

    first, killed, second = run(PlayOptions(), 3)
    assert killed.nodes == ("n1",), "so the second heat hits n2"
    assert first.achieved is Achieved.INSTALLED and not first.over_budget
    assert (second.achieved, second.over_budget) == (Achieved.SKIPPED, False)
    assert second.reason.startswith("it would cost more than 1 servers what they had fsynced")
    second = run(PlayOptions(over_budget=True), 3)[2]
    assert (second.achieved, second.over_budget) == (Achieved.INSTALLED, True)
    assert run(PlayOptions(), 5)[2].achieved is Achieved.INSTALLED, "two of five are a minority"
    assert run(PlayOptions(), 3, "n3")[2].achieved is Achieved.INSTALLED, "neither n1 nor n2 votes"
    hit = [node for record in (run(PlayOptions(), 5)[0], run(PlayOptions(), 5)[2]) for node in record.nodes]
    third = next(node for node in ("n1", "n2", "n3") if node not in hit)
    assert run(PlayOptions(), 5, *hit, third)[2].achieved is Achieved.SKIPPED, "two of three voters are no minority"
