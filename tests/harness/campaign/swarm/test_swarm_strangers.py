"""Strangers ask voters for what only voters may ask: they are refused, and what they say is not believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.campaign.swarm.scenario import (
    ANOTHER_CLUSTER,
    FALSE_LEADER,
    LAYERS,
    OF_STRANGERS,
    Layer,
    Scenario,
    StormCard,
)
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.world import play
from system_under_test.kraft.raft import core, election, leadership
from system_under_test.kraft.raft.messages import BeginQuorumEpochRequest, EpochResponse, RaftRequest
from system_under_test.kraft.raft.voter_memory import Voter

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


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (takes_any_cluster_for_its_own, "another cluster is answered"),
        (believes_at_once, "follows who does not lead"),
    ],
)
def test_a_voter_that_believes_a_stranger_is_found(
    plant: Plant, rule: str, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert rule in {found.rule for found in play(Scenario(1, layer, seconds=6.0, cards=ASKED)).found}


@pytest.mark.parametrize("layer", LAYERS)
def test_strangers_do_a_clean_cluster_no_harm(layer: Layer) -> None:
    played = play(Scenario(1, layer, seconds=6.0, cards=ASKED))
    assert sum(count for (fault, _, _), count in played.faults.items() if fault == "stranger") == len(ASKED)
    assert (played.found, played.moments["elected"]) == ([], 1)


def test_storms_of_both_layers_draw_both_kinds() -> None:
    for layer in LAYERS:
        drawn = [draw(seed, layer) for seed in range(40)]
        assert 5 < sum(set(OF_STRANGERS) <= set(each.classes) for each in drawn) < 20
        asked = {card.how for each in drawn for card in each.cards if card.fault == "stranger"}
        assert asked == {ANOTHER_CLUSTER, FALSE_LEADER}
