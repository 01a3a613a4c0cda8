"""What a leader owes to those who ask it: each rule is broken on purpose, and what only looks like it is not blamed."""

from __future__ import annotations

import pytest

from harness.campaign.swarm.watch_calls import MARGIN_S, QUORUM_S, CallWatch
from system_under_test.kraft.raft.messages import (
    Error,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    ReplicaKey,
    SnapshotId,
)


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
        self.calls = CallWatch(
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


END_S = 2 * QUORUM_S + MARGIN_S
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


def test_a_download_that_goes_on_under_the_next_leader_is_out_of_turn() -> None:
    office = Office("n2", "n3")
    office.calls.part_sent(office.server, "n2", FetchSnapshotResponse(Error.NONE, 1, 1, WANTED, 30, 0, b"0123456789"))
    office.calls.took_office(office.server, 2)
    office.calls.part_asked(office.server, "n2", part_of(WANTED, 10, epoch=2))
    assert office.broken == ["a part of a snapshot is asked for out of turn"]
