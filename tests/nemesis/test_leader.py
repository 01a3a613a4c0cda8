"""Who leads now, out of what the nodes report."""

from __future__ import annotations

import pytest

from nemesis.coverage import leader_now
from nemesis.kind import LeaderNow
from system_under_test.subject import NodeStatus

SERVERS = ("n1", "n2", "n3", "n4", "n5")


def status(node, epoch, role="follower", leader=None):
    return NodeStatus(node, epoch, role, leader)


@pytest.mark.parametrize(
    ("statuses", "running", "leader"),
    [
        ([], SERVERS, None),
        ([status("n1", 5, "leader", "n1")], SERVERS, LeaderNow("n1", 5)),
        ([status("n1", 5, "leader", "n1"), status("n2", 6)], SERVERS, None),
        ([status("n2", 6, leader="n3")], SERVERS, LeaderNow("n3", 6)),
        ([status("n2", 6, leader="n3")], ("n2",), None),
        ([status("n1", 6, leader="n2"), status("n3", 6, "leader", "n3")], SERVERS, LeaderNow("n3", 6)),
        ([status("n4", 6, "leader"), status("n3", 6, "leader")], SERVERS, LeaderNow("n3", 6)),
    ],
)
def test_the_leader_is_the_one_of_the_highest_epoch_reported(statuses, running, leader):
    assert leader_now(statuses, running) == leader
