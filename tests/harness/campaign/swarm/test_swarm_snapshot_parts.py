"""Snapshots that are fetched in parts: mistakes of those who fetch and who send are found, and a clean node keeps every
rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.world import play
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.snapshot_file import PART, Snapshots
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft import replication
from system_under_test.kraft.raft.messages import FetchSnapshotRequest, FetchSnapshotResponse, SnapshotId
from system_under_test.kraft.raft.states import Download, Follower
from system_under_test.kraft.raft.voter_memory import Voter

Plant = Callable[[pytest.MonkeyPatch], None]

AWAY = StormCard("kill", "follower:0", 2.0, 6.0)
LOST = StormCard("cut", "leader", 2.0, 4.0, moment="part", nth=3, how="both")
FETCHED = Scenario(1, seconds=14.0, segment_bytes=1 << 11, snapshot_bytes=1 << 11, part_bytes=100, cards=(AWAY,))
"""A server that was away fetches a snapshot of ten parts or more."""
BROKEN_OFF = replace(FETCHED, cards=(AWAY, LOST))
"""The same, and its leader is lost meanwhile."""
KILLED = replace(FETCHED, cards=(AWAY, replace(LOST, fault="kill", who="it", for_s=0.1)))
"""The same, and it is killed meanwhile."""


def written_at_the_beginning(patch: pytest.MonkeyPatch) -> None:
    write = Snapshots.write_part
    patch.setattr(Snapshots, "write_part", lambda self, snapshot, position, data: write(self, snapshot, 0, data))


def sent_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    read = Log.read_snapshot
    patch.setattr(
        Log, "read_snapshot", lambda self, snapshot, position, size_bytes: read(self, snapshot, 0, size_bytes)
    )


def last_part_left_out(patch: pytest.MonkeyPatch) -> None:
    on_response = replication.on_response

    def ends_early(
        voter: Voter, now: float, peer: int, request: FetchSnapshotRequest, response: FetchSnapshotResponse
    ) -> None:
        end = response.position + len(response.data)
        left = response.size_bytes - end
        if 0 < left <= len(response.data):
            response = replace(response, size_bytes=end)
        on_response(voter, now, peer, request, response)

    patch.setattr(replication, "on_response", ends_early)


def goes_on_where_it_was_with_another(patch: pytest.MonkeyPatch) -> None:
    begin = replication.begin
    reached: dict[int, Download] = {}

    def at_the_former_position(voter: Voter, follower: Follower, snapshot: SnapshotId) -> None:
        begin(voter, follower, snapshot)
        assert follower.download is not None
        if voter.me in reached:
            follower.download.position = reached[voter.me].position
        reached[voter.me] = follower.download

    patch.setattr(replication, "begin", at_the_former_position)


def takes_a_stale_part_for_a_whole(patch: pytest.MonkeyPatch) -> None:
    make = Snapshots.__init__

    def renames(self: Any, disk: Disk, folder: str) -> None:
        for name in disk.names(folder):
            if name.endswith(f".checkpoint{PART}"):
                disk.rename(f"{folder}/{name}", f"{folder}/{name.removesuffix(PART)}")
        make(self, disk, folder)

    patch.setattr(Snapshots, "__init__", renames)


OUT_OF_TURN = "a part of a snapshot is asked for out of turn"


@pytest.mark.parametrize(
    ("scenario", "plant", "rule"),
    [
        (FETCHED, written_at_the_beginning, "a voter stops"),
        (FETCHED, sent_from_the_beginning, "no progress"),
        (FETCHED, last_part_left_out, "a voter stops"),
        (BROKEN_OFF, goes_on_where_it_was_with_another, OUT_OF_TURN),
        (KILLED, takes_a_stale_part_for_a_whole, "a voter cannot start"),
    ],
)
def test_a_mistake_with_the_parts_of_a_snapshot_breaks_a_rule(
    scenario: Scenario, plant: Plant, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert [found.rule for found in play(scenario).found[:1]] == [rule]


@pytest.mark.parametrize("scenario", [FETCHED, BROKEN_OFF, KILLED])
def test_a_clean_node_fetches_its_snapshot_in_parts_and_begins_anew_when_it_is_broken_off(scenario: Scenario) -> None:
    played = play(scenario)
    assert played.moments["part"] >= 8
    assert played.found == []


def test_storms_draw_small_parts_and_lose_servers_between_them() -> None:
    drawn = [scenario for seed in range(60) if (scenario := draw(seed)).snapshot_bytes]
    assert {scenario.part_bytes for scenario in drawn} == {0, 100, 300, 600}
    aimed = {card.who for scenario in drawn for card in scenario.cards if card.moment == "part"}
    assert {"it", "leader"} <= aimed
