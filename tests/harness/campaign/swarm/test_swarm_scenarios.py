"""A scenario decides everything, and each planted bug breaks a rule; a clean system keeps all, also after the storm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from harness.campaign.swarm import operators
from harness.campaign.swarm.acts import FLIPS
from harness.campaign.swarm.judging import CHANGES_MAX, REFUSED_RIGHT
from harness.campaign.swarm.operators import ELIGIBLE
from harness.campaign.swarm.scenario import (
    ANOTHER_CLUSTER,
    CLASSES,
    FALSE_LEADER,
    FAULTS,
    MOMENTS,
    Scenario,
    StormCard,
    load,
)
from harness.campaign.swarm.storm_of_seed import draw, lost_again, lost_while_slow
from harness.campaign.swarm.world import StormWorld, play
from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.segment import Segment
from system_under_test.kraft.raft import changes, core, election, leadership
from system_under_test.kraft.raft.messages import BeginQuorumEpochRequest, EpochResponse, Error, RaftRequest
from system_under_test.kraft.raft.voter_memory import Voter

SECONDS = 15.0


@pytest.mark.parametrize("seed", range(20))
def test_a_scenario_survives_its_file(seed: int, tmp_path: Path) -> None:
    scenario = draw(seed)
    (tmp_path / "scenario.json").write_text(json.dumps(scenario.to_json()))
    assert load(tmp_path / "scenario.json") == scenario


def test_storms_draw_every_class_every_fault_and_every_moment() -> None:
    drawn = [draw(seed) for seed in range(300)]
    cards = [card for scenario in drawn for card in scenario.cards]
    assert {name for scenario in drawn for name in scenario.classes} == set(CLASSES)
    assert {card.fault for card in cards} == set(FAULTS)
    assert {card.moment for card in cards} == {"", *MOMENTS}
    assert {card.how for card in cards if card.fault == "flip"} == set(FLIPS)
    assert {card.how for card in cards if card.fault == "stranger"} == {ANOTHER_CLUSTER, FALSE_LEADER}
    assert {card.size for card in cards if card.how == ELIGIBLE} == set(range(8))
    assert {scenario.part_bytes for scenario in drawn if scenario.snapshot_bytes} == {0, 100, 300, 600}
    assert {"it", "leader"} <= {card.who for card in cards if card.moment == "part"}
    assert any({"c1", "c2"} < set(card.with_) and len(card.with_) == 3 for card in cards), "one follower, all clients"
    assert any(card.until for card in cards)
    assert any(card.how == "slow" and card.who == "leader" and card.for_s == 3 for card in cards), "rolls while slow"


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


AT_NIGHT = (pytest.param(seed, marks=pytest.mark.nightly) for seed in (*range(1, 6), *range(7, 30)))


@pytest.mark.parametrize("seed", [0, 6, *AT_NIGHT])  # of 6, a leader loses office with a write that survives
def test_a_clean_system_keeps_every_rule_and_recovers(seed: int) -> None:
    played = play(draw(seed, SECONDS))
    assert played.found == []
    assert played.calm_s >= 0
    assert played.ok >= 10
    assert played.faults


OF_SNAPSHOTS = (
    "snapshot-forgets-tail",
    "snapshot-of-uncommitted",
    "snapshot-id-inclusive",
    "rename-before-fsync",
    "cleans-past-snapshot",
    "applies-delta-after-snapshot",
)


def with_snapshots(count: int, bug: str = "") -> Iterator[Scenario]:
    """Storms whose nodes take snapshots."""
    drawn = (draw(seed, SECONDS, bug=bug) for seed in range(3, 103))
    return islice((scenario for scenario in drawn if scenario.snapshot_bytes), count)


@pytest.mark.parametrize("bug", OF_SNAPSHOTS)
def test_a_bug_of_snapshots_breaks_a_rule(bug: str) -> None:
    assert any(play(scenario).found for scenario in with_snapshots(8, bug))


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
    played = [play(replace(scenario, cards=tuple(lost_while_slow(Random(n), scenario)))) for n in range(2)]
    found = {found.rule for each in played for found in each.found}
    assert found == ({"a candidate whose log is not durable"} if bug else set())


def test_a_leader_whose_handlers_are_slow_is_deposed() -> None:
    """A Fetch takes the leader 2 s of computing, so its followers hear nothing for as long as they wait for it."""
    slow = StormCard("slow", "leader", 2.0, 7.0, size=10_000.0)
    scenario = Scenario(1, seconds=11.0, cpu_factor=1.0, cards=(slow,))
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


BROKERS = Scenario(1, brokers="combined", seconds=2.0)


def refusing(decide: Callable[..., Any]) -> Callable[..., Any]:
    """The decision with an error in each result, and without a record."""

    def refused(*arguments: Any, **named: Any) -> Any:
        _, results = decide(*arguments, **named)
        return [], [replace(each, error=ErrorCode.invalid_request) for each in results]

    return refused


def found_by(scenario: Scenario) -> dict[str, str]:
    """Rule -> what broke it first."""
    found: dict[str, str] = {}
    for broken in play(scenario).found:
        found.setdefault(broken.rule, broken.what)
    return found


def test_leaders_that_resign_again_and_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "heard", lambda *_: None)
    found = found_by(Scenario(1, seconds=2.0))
    assert found["no controller stays in office"].startswith(f"{CHANGES_MAX + 1} changes of the controller")


def test_a_controller_that_never_changes_voters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(1, spares=1, seconds=2.0)
    assert play(scenario).found == []
    monkeypatch.setattr(changes, "_too_early", lambda *_: (Error.REQUEST_TIMED_OUT, "never"))
    assert found_by(scenario)[REFUSED_RIGHT].startswith("to update voter n1")


@pytest.mark.parametrize(("decision", "what"), [("delete_topics", "to delete t2"), ("create_partitions", "to grow t2")])
def test_a_controller_that_never_changes_a_topic_is_found(
    decision: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StormCard("topics", "leader", 0.5, how="create", size=2)
    monkeypatch.setattr(operators, decision, refusing(getattr(operators, decision)))
    assert found_by(replace(BROKERS, cards=(made,)))[REFUSED_RIGHT].startswith(what)


def test_a_controller_that_never_gives_producer_ids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise Refused(ErrorCode.invalid_request, "never")

    monkeypatch.setattr(operators, "allocate_producer_ids", refuse)
    assert found_by(BROKERS)[REFUSED_RIGHT].startswith("to give producer ids to broker 1")


def test_a_change_whose_answer_is_lost_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic is changed by a request without an answer; the next request finds it done."""
    world = StormWorld(BROKERS)
    administrators, lost = world.administrators, set[str]()
    whole = administrators.ask

    def ask(operation: Any, done: Any) -> bool:
        first = repr(operation) not in lost
        lost.add(repr(operation))
        return whole(operation, (lambda _: done(Type.INFO)) if first else done)

    monkeypatch.setattr(administrators, "ask", ask)
    world.loop.run(world.main())
    assert world.watch.found == []
    assert len(lost) >= 3


Plant = Callable[[pytest.MonkeyPatch], None]

ASKED = tuple(
    StormCard("stranger", f"any:{number}", 1.0 + number / 4, how=how, size=number)
    for number in range(16)
    for how in (ANOTHER_CLUSTER, FALSE_LEADER)
)


def takes_any_cluster_for_its_own(patch: pytest.MonkeyPatch) -> None:
    on_request = core._on_request

    def any_cluster(voter: Voter, now: float, token: int, connection: int, request: RaftRequest) -> None:
        named = {"cluster_id": voter.identity.cluster_id}
        own = request._replace(**named) if isinstance(request, tuple) else replace(request, **named)
        on_request(voter, now, token, connection, own)

    patch.setattr(core, "_on_request", any_cluster)


def believes_at_once(patch: pytest.MonkeyPatch) -> None:
    def believes(voter: Voter, now: float, request: BeginQuorumEpochRequest) -> EpochResponse:
        election.recognise(voter, now, request.leader_id, request.epoch)
        return on_begin_request(voter, now, request)

    on_begin_request = leadership.on_begin_request
    patch.setattr(leadership, "on_begin_request", believes)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [(takes_any_cluster_for_its_own, "another cluster is answered"), (believes_at_once, "follows who does not lead")],
)
def test_a_voter_that_believes_a_stranger_is_found(plant: Plant, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert rule in {found.rule for found in play(Scenario(1, seconds=6.0, cards=ASKED)).found}


def test_strangers_do_a_clean_cluster_no_harm() -> None:
    played = play(Scenario(1, seconds=6.0, cards=ASKED))
    assert sum(count for (fault, _, _), count in played.faults.items() if fault == "stranger") == len(ASKED)
    assert (played.found, played.moments["elected"]) == ([], 1)
