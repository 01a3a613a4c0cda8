"""Who leads now, and whom a card therefore means."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemesis.faults import Card, Kill, Partition, Pause
from nemesis.resolve import Leader, leader_now, resolve
from system_under_test.subject import NodeStatus

SERVERS = ("n1", "n2", "n3", "n4", "n5")
CLIENTS = ("c1", "c2")


def status(node, epoch, role="follower", leader=None):
    return NodeStatus(node, epoch, role, leader)


@pytest.mark.parametrize(
    ("statuses", "running", "leader"),
    [
        ([], SERVERS, None),
        ([status("n1", 5, "leader", "n1")], SERVERS, Leader("n1", 5)),
        ([status("n1", 5, "leader", "n1"), status("n2", 6)], SERVERS, None),
        ([status("n2", 6, leader="n3")], SERVERS, Leader("n3", 6)),
        ([status("n2", 6, leader="n3")], ("n2",), None),
        ([status("n1", 6, leader="n2"), status("n3", 6, "leader", "n3")], SERVERS, Leader("n3", 6)),
        ([status("n4", 6, "leader"), status("n3", 6, "leader")], SERVERS, Leader("n3", 6)),
    ],
)
def test_the_leader_is_the_one_of_the_highest_epoch_reported(statuses, running, leader):
    assert leader_now(statuses, running) == leader


@given(st.sampled_from(["pause", "kill"]), st.sampled_from(["one", "minority", "majority", "all"]), st.integers(0, 999))
def test_pause_and_kill_hit_running_servers_and_never_a_client(kind, name, seed):
    resolved = resolve(Card(1, kind, name, 0, 1), SERVERS, CLIENTS, SERVERS, None, Random(seed))
    assert isinstance(resolved.fault, Pause if kind == "pause" else Kill)
    assert set(resolved.fault.nodes) <= set(SERVERS)
    assert len(resolved.fault.nodes) == {"one": 1, "minority": 2, "majority": 3, "all": 5}[name]
    assert resolved.leader is None


def test_a_card_against_the_leader_waits_for_one():
    for kind, name in (("partition", "leader-with-c1"), ("pause", "leader"), ("kill", "leader")):
        card = Card(1, kind, name, 0, 1)
        assert resolve(card, SERVERS, CLIENTS, SERVERS, None, Random(0)) is None
        resolved = resolve(card, SERVERS, CLIENTS, SERVERS, Leader("n2", 9), Random(0))
        assert resolved.leader == Leader("n2", 9)
        assert "n2" in resolved.fault.words


def test_a_card_that_names_no_leader_records_none():
    resolved = resolve(Card(1, "partition", "halves", 0, 1), SERVERS, CLIENTS, SERVERS, Leader("n2", 9), Random(0))
    assert isinstance(resolved.fault, Partition) and resolved.leader is None


def test_a_card_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="there is no pause 'client'; there are leader, one"):
        resolve(Card(1, "pause", "client", 0, 1), SERVERS, CLIENTS, SERVERS, None, Random(0))
