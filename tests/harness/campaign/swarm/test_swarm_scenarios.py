"""A scenario decides everything, a clean system keeps every rule, and each planted bug breaks one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from harness.campaign.swarm.scenario import CLASSES, FAULTS, MOMENTS, Scenario, StormCard, load
from harness.campaign.swarm.storm_of_seed import draw, lost_again, lost_while_slow
from harness.campaign.swarm.world import play
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.segment import Segment

SECONDS = 15.0


@pytest.mark.parametrize("seed", range(20))
def test_a_scenario_survives_its_file(seed: int, tmp_path: Path) -> None:
    scenario = draw(seed)
    (tmp_path / "scenario.json").write_text(json.dumps(scenario.to_json()))
    assert load(tmp_path / "scenario.json") == scenario


def test_storms_draw_every_class_every_fault_and_every_moment() -> None:
    drawn = [draw(seed) for seed in range(300)]
    assert {name for scenario in drawn for name in scenario.classes} == set(CLASSES)
    assert {card.fault for scenario in drawn for card in scenario.cards} == set(FAULTS)
    assert {card.moment for scenario in drawn for card in scenario.cards} == {"", *MOMENTS}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "format"),
        ({"speed": 3}, "speed"),
        ({"cards": [{"fault": "earthquake"}]}, "earthquake"),
        ({"cards": [{"fault": "kill", "moment": "lunch"}]}, "lunch"),
        ({"cards": [{"fault": "kill", "colour": 1}]}, "colour"),
        ({"brokers": "cake"}, "brokers"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_in_words(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scenario.from_json({**Scenario(1).to_json(), **change})


def test_another_process_with_other_hashes_plays_the_same(tmp_path: Path) -> None:
    scenarios = [draw(3, 8.0), draw(4, 8.0)]
    assert [scenario.brokers for scenario in scenarios] == ["", "combined"]
    paths = [tmp_path / str(number) for number in range(2)]
    for path, scenario in zip(paths, scenarios, strict=True):
        path.write_text(json.dumps(scenario.to_json()))
    words = "import sys; from pathlib import Path; from harness.campaign.swarm.scenario import load; "
    words += "from harness.campaign.swarm.world import play; print(*(play(load(Path(p))).digest for p in sys.argv[1:]))"
    command = [sys.executable, "-c", words, *map(str, paths)]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=1000)
    digests = [play(scenario).digest for scenario in scenarios]
    assert digests == there.stdout.split()
    assert digests[1] != play(replace(scenarios[1], seed=5)).digest


def test_what_was_played_before_changes_nothing() -> None:
    scenario = draw(3, 5.0)
    first = play(scenario).digest
    play(draw(4, 5.0))
    assert play(scenario).digest == first


AT_NIGHT = (pytest.param(seed, marks=pytest.mark.nightly) for seed in (*range(3, 6), *range(7, 30)))


@pytest.mark.parametrize("seed", [0, 1, 2, 6, *AT_NIGHT])  # of 6, a leader loses office with a write that survives
def test_a_clean_system_keeps_every_rule_and_recovers(seed: int) -> None:
    played = play(draw(seed, SECONDS))
    assert played.found == []
    assert played.calm_s >= 0
    assert played.ok >= 10
    assert played.faults


def test_without_faults_nearly_everything_is_answered() -> None:
    played = play(Scenario(1, seconds=SECONDS))
    assert played.found == []
    assert played.operations - played.ok < 200, "only what was asked before the first leader was elected failed"


OF_SNAPSHOTS = (
    "snapshot-forgets-tail",
    "snapshot-of-uncommitted",
    "snapshot-id-inclusive",
    "rename-before-fsync",
    "cleans-past-snapshot",
    "applies-delta-after-snapshot",
)


def with_snapshots(count: int, bug: str = "") -> Iterator[Scenario]:
    """The first scenarios of half a minute whose nodes take snapshots."""
    drawn = (draw(seed, 30.0, bug=bug) for seed in range(100))
    return islice((scenario for scenario in drawn if scenario.snapshot_bytes), count)


@pytest.mark.parametrize("bug", OF_SNAPSHOTS)
def test_a_bug_of_snapshots_breaks_a_rule(bug: str) -> None:
    assert any(play(scenario).found for scenario in with_snapshots(8, bug))


def test_a_clean_system_that_takes_snapshots_keeps_every_rule() -> None:
    played = [play(scenario) for scenario in with_snapshots(2)]
    assert [each.found for each in played] == [[]] * 2
    assert all(each.moments["snapshot"] > 5 for each in played)


CUT_OFF = StormCard("cut", "leader", 3.0, 6.0, how="voters")
"""The leader is cut off from the other voters; both clients reach all of them."""


@pytest.mark.parametrize(
    ("bug", "workload"), [("lease-by-wall-clock", "register"), ("no-op-unconfirmed", "repeated"), ("", "repeated")]
)
def test_a_leader_that_has_a_successor_is_asked_in_that_moment(bug: str, workload: str) -> None:
    """Its clock is set back then, too, so that a lease by the wall clock would last."""
    back = StormCard("wall-clock", "it", 0.0, 5.0, moment="succeeded", size=-5.0)
    for seed in range(1, 6):
        cards = (CUT_OFF, back)
        played = play(Scenario(seed, 3, bug, workload, seconds=10.0, cards=cards, keys=2, values=1))
        assert played.moments["succeeded"] > 0
        if bug and played.found:
            break
    assert [found.rule for found in played.found][:1] == (["stale read"] if bug else [])


@pytest.mark.parametrize("bug", ["", "campaigns-unflushed"])
def test_the_leader_is_lost_while_disks_are_slow(bug: str) -> None:
    scenario = Scenario(1, seconds=20.0, bug=bug)
    played = [play(replace(scenario, cards=tuple(lost_while_slow(Random(n), scenario)))) for n in range(3)]
    found = {found.rule for each in played for found in each.found}
    assert found == ({"a candidate whose log is not durable"} if bug else set())


def test_a_leader_whose_handlers_are_slow_is_deposed() -> None:
    """A Fetch takes the leader 2 s of computing, so its followers hear nothing for as long as they wait for it."""
    slow = StormCard("slow", "leader", 5.0, 8.0, size=10_000.0)
    scenario = Scenario(1, seconds=20.0, cpu_factor=1.0, cards=(slow,))
    played = play(scenario)
    assert played.epochs > 1
    assert played.transitions["leader", "resigned"] == 1
    assert played.found == []
    assert play(replace(scenario, cards=())).epochs == 1
    assert play(replace(scenario, cpu_factor=0.0)).epochs == 1, "nothing costs processor time there"


def recovers_without_an_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left in the page cache is believed to be durable."""
    recover = Log._recover

    def without(log: Log) -> None:
        with monkeypatch.context() as during:
            during.setattr(Segment, "flush", lambda segment: None)
            recover(log)

    monkeypatch.setattr(Log, "_recover", without)


@pytest.mark.parametrize("wrong", [False, True])
def test_power_is_lost_after_a_kill_and_before_the_next_fsync(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong:
        recovers_without_an_fsync(monkeypatch)
    scenario = Scenario(1, seconds=12.0)
    played = [play(replace(scenario, cards=tuple(lost_again(Random(n), scenario)))) for n in range(3)]
    found = {found.rule for each in played for found in each.found}
    assert all(each.faults for each in played)
    assert "committed entry lost" in found if wrong else not found


def test_a_server_whose_disk_fails_while_it_starts_refuses_and_is_started_again() -> None:
    kill = StormCard("kill", "any:0", 3.0, 0.5)
    fails = StormCard("disk", "it", 3.0, 1.0, moment="started", how="open")
    played = play(Scenario(1, seconds=10.0, cards=(kill, fails)))
    assert played.faults["disk", "dead", "steady"] == 1
    assert played.moments["started"] >= 5, "three, the one that refused, and the one after the disk was mended"
    assert played.found == []


def test_a_card_that_is_aimed_strikes_at_its_moment_and_inside_it() -> None:
    """The first leader is killed in the very effect that makes it leader: another one must be elected."""
    kill = StormCard("kill", "it", 0.0, 2.0, moment="elected")
    first = StormCard("kill", "leader", 1.0, 0.5)
    played = play(Scenario(5, seconds=10.0, cards=(kill, first)))
    assert played.faults[("kill", "leader", "new leader")] == 1
    assert played.moments["elected"] >= 3
    assert played.found == []
