"""Voters that change in a swarm: each rule is broken on purpose, each planted bug breaks one, a clean system none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from uuid import UUID

import pytest

from harness.campaign.swarm.acts import MENDED
from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.watch import Watch, WatchedRow
from harness.campaign.swarm.watch_voters import VoterSets, key_of
from harness.campaign.swarm.world import play
from system_under_test.kraft.raft import changes
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import VoterEntry, VoterHistory, VoterSet, voter_set


def named(*ids: int) -> VoterSet:
    return voter_set(VoterEntry(ReplicaKey(id, UUID(int=id))) for id in ids)


class VotingServer:
    """It holds the log that a test says, all of it durably.  sets: offset -> the voters that are named there."""

    log_start = snapshot_end = 0
    may_stop = False
    may_forget = False
    lives = 1
    epoch = 1

    def __init__(self, number: int) -> None:
        self.name = f"n{number}"
        self.key = key_of(ReplicaKey(number, UUID(int=number)))
        self.flushed = self.durable_end = 0
        self.sets: dict[int, VoterSet] = {}
        self.in_snapshot: VoterSet | None = None

    @property
    def end(self) -> tuple[int, int]:
        return 1, self.flushed

    def prefix(self, offset: int) -> int | None:
        return offset if offset <= self.flushed else None

    def snapshot_voters(self) -> VoterSet | None:
        return self.in_snapshot

    def voter_history(self) -> VoterHistory:
        history = VoterHistory(named(1, 2, 3))
        for offset, voters in sorted(self.sets.items()):
            history.append(offset, voters)
        return history


class OfVoters:
    """Voters n1, n2 and n3, and n4 besides.  n1 leads epoch 1 from offset 0 on, and has named the voters at 2."""

    def __init__(self) -> None:
        self.now = 0.0
        self.met: list[str] = []
        self.watch = Watch(lambda: self.now, lambda moment, voter: self.met.append(moment), lambda line: None)
        self.sets = self.watch.sets = VoterSets(lambda: self.now, self.watch.violated_by)
        self.servers = [VotingServer(number) for number in (1, 2, 3, 4)]
        self.watch.voters = self.sets.servers = self.servers
        for server in self.servers:  # in these tests operators have requested all changes
            entry = VoterEntry(ReplicaKey(int(server.name[1:]), UUID(int=int(server.name[1:]))))
            self.sets.asked_for(AddVoter(entry))
            self.sets.asked_for(RemoveVoter(entry.key))
        self.leader, self.second, self.third, self.spare = self.servers
        self.elect(self.leader, 1, 0, self.leader, self.second)
        for server in self.servers:
            self.append(server, 3, {2: named(1, 2, 3)})
        self.mark(3)

    def row(self, server: VotingServer, event: str, offset: int | None = None, epoch: int = 1, **more: str) -> None:
        hash_ = offset if event == "high-watermark" else None
        self.watch.row(server, WatchedRow(event, epoch, offset, hash_, **more))

    def elect(self, leader: VotingServer, epoch: int, offset: int, *voters: VotingServer) -> None:
        for voter in voters:
            self.row(voter, "vote", epoch=epoch, peer=leader.name)
        self.row(leader, "role", offset, epoch, role="leader")

    def append(self, server: VotingServer, end: int, sets: dict[int, VoterSet] | None = None) -> None:
        server.flushed = end
        self.row(server, "append", end)
        for offset, voters in (sets or {}).items():
            server.sets[offset] = voters
            self.row(server, "voters", offset)

    def mark(self, offset: int) -> None:
        self.row(self.leader, "high-watermark", offset)

    @property
    def broken(self) -> list[str]:
        return [found.rule for found in self.watch.found]


def test_a_change_after_another_is_committed_is_right_and_met() -> None:
    cluster = OfVoters()
    for server in (cluster.leader, cluster.second, cluster.spare):
        cluster.append(server, 4, {3: named(1, 2, 3, 4)})
    cluster.mark(4)
    cluster.append(cluster.leader, 5, {4: named(1, 2, 4)})
    assert cluster.broken == []
    assert cluster.met.count("voters") == 2, "what the first leader names is no change"


def test_a_change_that_nobody_asked_for() -> None:
    cluster = OfVoters()
    stranger = VoterEntry(ReplicaKey(5, UUID(int=5)))
    cluster.append(cluster.leader, 4, {3: named(1, 2, 3).with_entry(stranger)})
    assert cluster.broken == ["a change of voters that nobody asked for"]
    asked = OfVoters()
    asked.sets.asked_for(AddVoter(stranger))
    asked.append(asked.leader, 4, {3: named(1, 2, 3).with_entry(stranger)})
    assert asked.broken == []


FOURTH = VoterEntry(ReplicaKey(4, UUID(int=4)))
THIRD = ReplicaKey(3, UUID(int=3))


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (AddVoter(FOURTH), named(1, 2, 3, 4)),
        (RemoveVoter(THIRD), named(1, 2)),
        (UpdateVoter(VoterEntry(THIRD, kraft_versions=(0, 2))), None),
    ],
)
@pytest.mark.parametrize("commits", [True, False])
def test_a_change_is_acknowledged_once_it_is_committed(
    change: VoterChange, after: VoterSet | None, commits: bool
) -> None:
    if after is None and isinstance(change, UpdateVoter):
        after = named(1, 2, 3).with_entry(change.entry)
    assert after is not None
    cluster = OfVoters()
    for server in cluster.servers:
        cluster.append(server, 4, {3: after})
    if commits:
        cluster.mark(4)
    cluster.sets.acknowledged(cluster.leader, change, 3)
    assert cluster.broken == ([] if commits else ["a change of voters is acknowledged and not committed"])


@pytest.mark.parametrize(("reported", "broken"), [("n1 n2 n3", []), ("n1 n2", ["voters are not those of the log"])])
def test_voters_are_reported_as_the_log_names_them(reported: str, broken: list[str]) -> None:
    cluster = OfVoters()
    cluster.row(cluster.second, "voters", 2, detail=reported)
    cluster.append(cluster.second, 4)
    cluster.now = 1.0
    cluster.append(cluster.second, 5)
    assert cluster.broken == broken


@pytest.mark.parametrize(("ids", "broken"), [((1, 2, 3), []), ((1, 2), ["other voters than committed"])])
def test_a_snapshot_leaves_the_voters_that_were_agreed(ids: tuple[int, ...], broken: list[str]) -> None:
    cluster = OfVoters()
    cluster.second.sets = {2: named(*ids)}
    cluster.row(cluster.second, "snapshot", 3)
    assert cluster.broken == broken


def test_sets_that_differ_by_two() -> None:
    cluster = OfVoters()
    cluster.append(cluster.leader, 4, {3: named(1, 2, 4)})
    assert cluster.broken == ["sets of voters differ by more than one"]


def test_a_disk_that_is_lost_still_counts_with_what_it_held() -> None:
    cluster = OfVoters()
    for server in (cluster.leader, cluster.second):
        cluster.append(server, 4)
    cluster.sets.disk_is_lost(cluster.second)
    cluster.second.key, cluster.second.flushed = "n2/new", 0
    cluster.mark(4)
    assert cluster.broken == []
    cluster.append(cluster.leader, 5)
    cluster.mark(5)
    assert cluster.broken == ["high watermark without a majority"]


@pytest.mark.parametrize("resigns", [True, False])
def test_a_removed_leader_resigns_when_that_is_committed(resigns: bool) -> None:
    cluster = OfVoters()
    for server in cluster.servers[:3]:
        cluster.append(server, 4, {3: named(2, 3)})
    assert "removed" in cluster.met
    cluster.mark(4)
    if resigns:
        cluster.row(cluster.leader, "role", role="resigned")
    cluster.now = 1.0
    cluster.append(cluster.leader, 4)
    assert cluster.broken == ([] if resigns else ["a removed leader leads on"])


@pytest.mark.parametrize(
    ("voters", "broken"), [((1, 2, 3), []), ((1, 2), ["a snapshot names other voters"])], ids=["right", "later"]
)
def test_a_snapshot_names_the_voters_below_its_end(voters: tuple[int, ...], broken: list[str]) -> None:
    """A later set stands behind its end."""
    cluster = OfVoters()
    cluster.append(cluster.third, 4, {3: named(1, 2)})
    cluster.third.snapshot_end, cluster.third.in_snapshot = 3, named(*voters)
    cluster.row(cluster.third, "snapshot", 3)
    assert cluster.broken == broken


def test_a_leader_that_is_no_voter() -> None:
    """Not one that the last change has removed: only it may hold that change."""
    cluster = OfVoters()
    cluster.append(cluster.leader, 4, {3: named(1, 2)})
    cluster.mark(3)
    cluster.append(cluster.leader, 5, {4: named(2)})
    before = cluster.broken
    cluster.elect(cluster.leader, 2, 5, cluster.leader, cluster.second)
    assert cluster.broken == before
    cluster.spare.sets = {2: named(1, 2, 3)}
    cluster.elect(cluster.spare, 3, 3, cluster.second, cluster.third)
    assert cluster.broken[len(before) :] == ["a leader that is no voter"]


# Storms


def with_voters(
    first: int, count: int, fault: str = "voters", bug: str = "", seconds: float = 10.0
) -> Iterator[Scenario]:
    """Storms whose voters change.  first: the seed to begin with."""
    drawn = (draw(seed, seconds, bug=bug) for seed in range(first, first + 300))
    return islice((scenario for scenario in drawn if fault in scenario.classes), count)


def test_a_clean_system_keeps_every_rule_while_voters_change() -> None:
    played = [play(scenario) for scenario in with_voters(4, 2)]
    assert [each.found for each in played] == [[]] * 2
    assert sum(each.moments["voters"] for each in played) > 5


def test_disks_are_replaced_one_at_a_time_and_their_voters_with_them() -> None:
    played = [play(scenario) for scenario in with_voters(17, 2, "wipe")]
    assert [each.found for each in played] == [[]] * 2
    assert any(fault == "wipe" for each in played for fault, _, _ in each.faults)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_request_about_a_disk_that_was_replaced_means_no_other_disk(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong:
        monkeypatch.setattr(changes, "_is_exactly", lambda voters, key: voters.entry(key.id) is not None)
    wipe = StormCard("wipe", "follower:0", 3.0, 0.5, size=0.0)
    played = play(Scenario(1, seconds=12.0, spares=1, cards=(wipe,)))
    assert played.faults["wipe", "follower", "steady"] == 1
    rule = "a change of voters that nobody asked for"
    assert [found.rule for found in played.found][:1] == ([rule] if wrong else [])


@pytest.mark.parametrize(
    ("bug", "first", "rule"),
    [
        ("two-voter-changes-at-once", 20, "voters changed before the last change was committed"),
        ("change-before-epoch-commits", 57, "voters changed before the epoch had committed"),
        ("voters-at-commit", 8, "elected without a majority"),
        ("voters-not-truncated", 8, "voters outlive their record"),
        ("removed-leader-counts-itself", 108, "high watermark without a majority"),
        ("joins-without-catching-up", 8, "voter joined before it had caught up"),
        ("wiped-disk-keeps-id", 39, "committed entry lost"),
    ],
)
def test_a_bug_of_voters_breaks_its_rule(bug: str, first: int, rule: str) -> None:
    """first: a seed that shows it soon, as long as storms are drawn as they are now."""
    fault = "wipe" if bug == "wiped-disk-keeps-id" else "voters"
    found = (play(scenario).found for scenario in with_voters(first, 40, fault, bug, 8.0))
    assert rule in {each.rule for each in next(filter(None, found))}


def test_a_leader_removes_itself_adds_another_and_two_operators_disagree() -> None:
    cards = (
        StormCard("voters", "leader", 3.0, 4.0, how="remove"),
        StormCard("voters", "any:0", 8.0, 4.0, how="add"),
        StormCard("voters", "leader", 14.0, 4.0, how="two"),
        StormCard("voters", "any:1", 18.0, 1.0, how="update", size=3),
    )
    played = play(Scenario(3, 3, seconds=22.0, spares=1, cards=cards))
    assert played.found == []
    assert played.moments["removed"] >= 1
    assert played.moments["voters"] >= 4


def test_voters_that_change_leave_other_storms_as_they_are() -> None:
    for seed in range(20):
        scenario = draw(seed)
        if not scenario.dynamic:
            assert not {"voters", "wipe"} & {card.fault for card in scenario.cards}
        else:
            assert all(card.how in MENDED for card in scenario.cards if card.fault == "flip")
            assert replace(scenario, spares=0).dynamic is False
