"""A healed cluster keeps one controller, and its controller does what can be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from harness.campaign.swarm import administrators
from harness.campaign.swarm.after_storm import CHANGES_MAX, REFUSED_RIGHT
from harness.campaign.swarm.scenario import Layer, Scenario, StormCard
from harness.campaign.swarm.world import StormWorld, play
from system_under_test.kraft.controller.refused import Refused
from system_under_test.kraft.raft import changes, replication
from system_under_test.kraft.raft.messages import Error

BROKERS = Scenario(1, "node", brokers="combined", seconds=2.0)


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


@pytest.mark.parametrize("layer", ["core", "node"])
def test_leaders_that_resign_again_and_again_are_found(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "heard", lambda *_: None)
    found = found_by(Scenario(1, layer, seconds=2.0))
    assert found["no controller stays in office"].startswith(f"{CHANGES_MAX + 1} changes of the controller")


@pytest.mark.parametrize("layer", ["core", "node"])
def test_a_controller_that_never_changes_voters_is_found(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(1, layer, spares=1, seconds=2.0)
    assert play(scenario).found == []
    monkeypatch.setattr(changes, "_too_early", lambda *_: (Error.REQUEST_TIMED_OUT, "never"))
    assert found_by(scenario)[REFUSED_RIGHT].startswith("to update voter n1")


@pytest.mark.parametrize(("decision", "what"), [("delete_topics", "to delete t2"), ("create_partitions", "to grow t2")])
def test_a_controller_that_never_changes_a_topic_is_found(
    decision: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StormCard("topics", "leader", 0.5, how="create", size=2)
    monkeypatch.setattr(administrators, decision, refusing(getattr(administrators, decision)))
    assert found_by(replace(BROKERS, cards=(made,)))[REFUSED_RIGHT].startswith(what)


def test_a_controller_that_never_gives_producer_ids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise Refused(ErrorCode.invalid_request, "never")

    monkeypatch.setattr(administrators, "allocate_producer_ids", refuse)
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
