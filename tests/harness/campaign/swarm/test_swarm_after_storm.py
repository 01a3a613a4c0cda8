"""A healed cluster keeps one controller, and its controller does what can be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from harness.campaign.swarm import operators
from harness.campaign.swarm.judging import CHANGES_MAX, REFUSED_RIGHT
from harness.campaign.swarm.scenario import (
    ANOTHER_CLUSTER,
    FALSE_LEADER,
    OF_STRANGERS,
    Scenario,
    StormCard,
)
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.world import StormWorld, play
from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.raft import changes, core, election, leadership
from system_under_test.kraft.raft.messages import BeginQuorumEpochRequest, EpochResponse, Error, RaftRequest
from system_under_test.kraft.raft.voter_memory import Voter

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


def test_storms_draw_both_kinds() -> None:
    drawn = [draw(seed) for seed in range(40)]
    assert 5 < sum(set(OF_STRANGERS) <= set(each.classes) for each in drawn) < 20
    asked = {card.how for each in drawn for card in each.cards if card.fault == "stranger"}
    assert asked == {ANOTHER_CLUSTER, FALSE_LEADER}
