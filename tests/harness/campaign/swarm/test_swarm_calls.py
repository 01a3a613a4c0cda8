"""What a leader owes to those who ask it: each rule is broken on purpose, and what only looks like it is not blamed.

Numbers that clients were answered: each rule is broken on purpose; reads that see too little are found by storms.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
from test_swarm_rules import Log

from checkers.base.history import Type
from harness.campaign.swarm import operators, watch_calls
from harness.campaign.swarm.operators import CHANGE_SETTINGS, PRODUCER_IDS
from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.watch_brokers import BrokerWatch
from harness.campaign.swarm.world import StormWorld, play
from simulation.network import Link, SimulatedNetwork
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import allocate_producer_ids
from system_under_test.kraft.node.snapshotting import Replay
from system_under_test.kraft.raft.messages import (
    Error,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    ReplicaKey,
    SnapshotId,
)
from system_under_test.kraft.records.metadata import Record


class Server:
    name, key, lives, may_stop, may_forget = "n1", "n1", 1, False, False
    flushed = durable_end = log_start = snapshot_end = 0
    end = (1, 0)

    def prefix(self, offset: int) -> int | None:
        return offset


class Office:
    """n1 leads epoch 1 from 0 s on, and others vote, too."""

    def __init__(self, *others: str) -> None:
        self.now = 0.0
        self.broken: list[str] = []
        self.voters = {"n1", *others}
        self.server = Server()
        self.calls = watch_calls.CallWatch(
            lambda: self.now, lambda server: self.voters, lambda rule, server, what: self.broken.append(rule)
        )
        self.calls.started(self.server)
        self.calls.took_office(self.server, 1)

    def called_at(self, *times_s: float) -> list[str]:
        for self.now in times_s:
            self.calls.called(self.server)
        return self.broken

    def fetch(self, at_s: float, replica: str, epoch: int = 1) -> None:
        self.called_at(at_s)
        self.calls.fetched(self.server, replica, epoch)


END_S = 2 * watch_calls.QUORUM_S + watch_calls.MARGIN_S
ALONE = ["a leader without a majority leads on"]
LATE = ["a request is not answered"]


def test_a_leader_from_which_nobody_fetches() -> None:
    assert Office("n2", "n3").called_at(END_S - 0.01, END_S + 0.01, END_S + 0.02) == ALONE


def test_a_leader_that_was_not_called_meanwhile_may_resign_in_that_call() -> None:
    office = Office("n2", "n3")
    assert office.called_at(30.0, 30.0) == []
    office.calls.left_office(office.server)
    assert office.called_at(31.0, 32.0) == []


@pytest.mark.parametrize(
    ("replica", "epoch", "broken"), [("n2", 1, []), ("n9", 1, ALONE), ("n2", 0, ALONE), ("n2/other disk", 1, ALONE)]
)
def test_only_a_voter_with_its_disk_and_of_this_epoch_is_heard(replica: str, epoch: int, broken: list[str]) -> None:
    office = Office("n2", "n3")
    office.fetch(5.0, replica, epoch)
    assert office.called_at(END_S + 0.01, END_S + 0.02) == broken


def test_a_majority_of_five_needs_two_others() -> None:
    office = Office("n2", "n3", "n4", "n5")
    office.fetch(5.0, "n2")
    assert office.called_at(END_S + 0.01, END_S + 0.02) == ALONE


def test_a_voter_alone_hears_itself_and_a_second_one_has_a_period_to_fetch() -> None:
    office = Office()
    assert office.called_at(100.0, 101.0) == []
    office.voters.add("n2")
    office.calls.voters_changed(office.server)
    assert office.called_at(101.0 + END_S - 0.01) == []


def test_a_request_that_waits_for_too_long() -> None:
    office = Office()
    office.calls.asked(office.server, 7, wait_s=0.5)
    assert office.called_at(0.4, 0.8, 0.8) == [], "it may be answered in this very call"
    assert office.called_at(0.9) == LATE


def test_a_request_that_was_answered_and_one_whose_connection_is_closed() -> None:
    office = Office()
    office.calls.answered(office.server, office.calls.asked(office.server, 7, wait_s=0.5))
    office.calls.asked(office.server, 8, wait_s=0.5)
    office.calls.gone(office.server, 8)
    assert office.called_at(5.0, 6.0) == []


@pytest.mark.parametrize(("answers", "broken"), [(True, []), (False, LATE)])
def test_a_leader_that_leaves_office_answers_all_that_waits(answers: bool, broken: list[str]) -> None:
    office = Office("n2")
    number = office.calls.asked(office.server, 7, wait_s=float("inf"))
    office.called_at(1.0)
    office.calls.left_office(office.server)
    if answers:
        office.calls.answered(office.server, number)
    assert office.called_at(1.0, 1.1, 1.2) == broken


def test_another_life_owes_nothing() -> None:
    office = Office("n2")
    office.calls.asked(office.server, 7, wait_s=0.5)
    office.calls.started(office.server)
    assert office.called_at(100.0, 101.0) == []


# Parts of snapshots

WANTED, OTHER = SnapshotId(5, 1), SnapshotId(9, 1)


def part_of(snapshot: SnapshotId, position: int, epoch: int = 1) -> FetchSnapshotRequest:
    return FetchSnapshotRequest("c", ReplicaKey(2), epoch, snapshot, position)


@pytest.mark.parametrize(
    ("asked", "in_turn"),
    [
        (part_of(WANTED, 0), True),
        (part_of(WANTED, 10), True),
        (part_of(OTHER, 0), True),
        (part_of(WANTED, 10, epoch=7), True),  # it is refused
        (part_of(WANTED, 20), False),
        (part_of(OTHER, 10), False),
    ],
)
def test_a_part_of_a_snapshot_is_asked_for_behind_one_that_this_leader_has_sent(
    asked: FetchSnapshotRequest, in_turn: bool
) -> None:
    office = Office("n2", "n3")
    office.calls.part_asked(office.server, "n2", part_of(WANTED, 0))
    office.calls.part_sent(office.server, "n2", FetchSnapshotResponse(Error.NONE, 1, 1, WANTED, 30, 0, b"0123456789"))
    office.calls.part_asked(office.server, "n2", asked)
    assert office.broken == ([] if in_turn else ["a part of a snapshot is asked for out of turn"])


def row(kind: str, began: int, ended: int, number: int, type_: Type = Type.OK) -> watch_calls.NumberAnswered:
    return watch_calls.NumberAnswered(kind, began, "n1", ended, type_, number)


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        ([(watch_calls.PRODUCER_ID, 0, 1, 0), (watch_calls.PRODUCER_ID, 2, 3, 1000)], set()),
        ([(watch_calls.PRODUCER_ID, 0, 3, 1000), (watch_calls.PRODUCER_ID, 1, 2, 0)], set()),  # beside each other
        ([(watch_calls.PRODUCER_ID, 0, 1, 0), (watch_calls.PRODUCER_ID, 2, 3, 0)], {watch_calls.ANSWERED_TWICE}),
        ([(watch_calls.PRODUCER_ID, 0, 1, 1000), (watch_calls.PRODUCER_ID, 2, 3, 0)], {watch_calls.WENT_BACK}),
        ([(watch_calls.PRODUCER_ID, 0, 1, 0), (watch_calls.PRODUCER_ID, 2, 3, 2000)], {watch_calls.LEFT_OUT}),
        (
            [
                (watch_calls.PRODUCER_ID, 0, 1, 0),
                (watch_calls.PRODUCER_ID, 2, -1, 0, Type.INFO),
                (watch_calls.PRODUCER_ID, 3, 4, 2000),
            ],
            set(),
        ),
        (
            [
                (watch_calls.PRODUCER_ID, 0, 1, 0),
                (watch_calls.PRODUCER_ID, 2, 3, 0, Type.FAIL),
                (watch_calls.PRODUCER_ID, 4, 5, 2000),
            ],
            {watch_calls.LEFT_OUT},
        ),
        ([(watch_calls.EPOCH, 0, 1, 4), (watch_calls.EPOCH, 2, 3, 4), (watch_calls.EPOCH, 4, 5, 7)], set()),
        ([(watch_calls.EPOCH, 0, 1, 4), (watch_calls.EPOCH, 2, 3, 3)], {watch_calls.WENT_BACK}),
    ],
)
def test_what_each_kind_of_number_demands(rows: list[tuple[str, int, int, int]], rules: set[str]) -> None:
    assert {rule for rule, _ in watch_calls.wrong_numbers([row(*each) for each in rows])} == rules


TWICE = tuple(StormCard("registry", f"broker:{number}", 1.0 + number, how=PRODUCER_IDS) for number in range(2))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_block_of_producer_ids_that_is_handed_out_twice_is_found(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are right: nothing but the answers shows the mistake."""

    def as_before(image: Image, broker: int, epoch: int) -> tuple[list[Record], int]:
        records, first = allocate_producer_ids(image, broker, epoch)
        return records, max(0, first - 1000)

    if wrong:
        monkeypatch.setattr(operators, "allocate_producer_ids", as_before)
    played = play(Scenario(2, brokers="apart", observers=2, seconds=4.0, cards=TWICE))
    assert {each.rule for each in played.found} == ({watch_calls.ANSWERED_TWICE} if wrong else set())


CHANGES = tuple(StormCard("registry", "broker:0", 1.0 + number, how=CHANGE_SETTINGS) for number in range(4))


@pytest.mark.parametrize("forgets", ["", "update_features", "alter_configs"])
def test_a_level_or_a_broker_config_that_is_acknowledged_and_not_there_is_found(
    forgets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forgets:
        whole = getattr(operators, forgets)
        monkeypatch.setattr(operators, forgets, lambda *wanted: ([], whole(*wanted)[1]))
    world = StormWorld(Scenario(2, brokers="apart", observers=2, seconds=6.0, cards=CHANGES))
    world.loop.run(world.main())
    types = {row.type for row in world.history.numbers if row.kind == watch_calls.SETTING_SEEN}
    assert types == {Type.OK} or forgets
    rules = {rule for rule, _ in watch_calls.wrong_numbers(world.history.numbers)}
    assert rules == ({watch_calls.WENT_BACK} if forgets else set())


@pytest.mark.parametrize("wrong", [False, True])
def test_a_read_that_ignores_what_is_applied_is_found(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Replay) -> list[int]:
        ready, self._waiting = [token for _, token in self._waiting], []
        return ready

    if wrong:
        monkeypatch.setattr(Replay, "take_ready", at_once)
    played = play(Scenario(2, seconds=10.0, rate_hz=100.0, apply_s=0.004))
    assert {each.rule for each in played.found} == ({"stale read"} if wrong else set())
    if not wrong:
        assert played.ok > 500


def test_a_first_leader_is_healed_when_its_successor_is_elected_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[frozenset[Link]] = []
    cut = SimulatedNetwork.cut

    def noted(self: SimulatedNetwork, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        orders.append(frozenset(links))
        cut(self, links, reject)

    monkeypatch.setattr(SimulatedNetwork, "cut", noted)
    first = StormCard("cut", "leader", 1.0, 8.0, how="voters", until="elected")
    then = StormCard("cut", "it", 1.001, 2.0, moment="elected", how="both")
    world = StormWorld(Scenario(1, seconds=10.0, nodes=5, cards=(first, then)))
    world.loop.run(world.main())
    assert world.watch.found == []
    of_first, between, of_second, *_ = orders
    assert between == frozenset()
    [former] = {name for name, _ in of_first if all(name in link for link in of_first)}
    [successor] = {a for a, _ in of_second if all(a in link for link in of_second)}
    assert successor != former


@pytest.mark.parametrize(
    ("answers", "rules"),
    [
        ([("n1", 4, "a"), ("n2", 6, "b"), ("n1", 9, "c"), ("n2", 6, "b")], []),
        ([("n1", 4, "a"), ("n1", -1, "c"), ("n2", -1, "b")], []),  # late answers are dropped
        ([("n1", 4, "a"), ("n2", 4, "b")], [watch_calls.ANSWERED_TWICE]),
        ([("n1", 4, "a"), ("n1", 4, "c")], [watch_calls.ANSWERED_TWICE]),
        ([("n1", 4, "a"), ("n2", 9, "b"), ("n1", 3, "c")], [watch_calls.WENT_BACK]),
    ],
)
def test_epochs_of_brokers_are_unique_and_grow(answers: list[tuple[str, int, str]], rules: list[str]) -> None:
    broken: list[str] = []
    watch = BrokerWatch(lambda rule, server, what: broken.append(rule), lambda moment, broker: None)
    for name, epoch, incarnation in answers:
        watch.reported(Log(name), f"registered -1 {incarnation}", 0.0, epoch)
    assert broken == rules
