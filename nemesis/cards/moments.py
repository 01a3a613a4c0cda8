"""Moments that a card can wait for: what an earlier fault has set off, as the nodes report it.

A clock cannot hit an election: it begins when a timeout that was drawn at random ends.  So a card may wait until the
nodes report the moment itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nemesis.leader import leader_now
from system_under_test.subject import NodeStatus

ELECTION = "election"
NEW_LEADER = "new leader"
MOMENTS = (ELECTION, NEW_LEADER)

MOMENT_WAIT_S = 6.0
"""How long a card waits for its moment; then it is skipped."""
LOOK_EVERY_S = 0.05
"""A new leader is hit within this time and the time that the nodes need to report."""

_CAMPAIGNING = ("prospective", "candidate")


def has_come(moment: str, since_epoch: int, statuses: Sequence[NodeStatus], running: Collection[str]) -> bool:
    """Whether the moment has come since that epoch.

    NEW_LEADER: a running node leads a later epoch.  ELECTION: a running node campaigns, or a later epoch has begun.
    """
    if moment == NEW_LEADER:
        leader = leader_now(statuses, running)
        return leader is not None and leader.epoch > since_epoch
    return any(s.epoch > since_epoch or s.role in _CAMPAIGNING for s in statuses if s.node in running)


def newest_epoch(statuses: Sequence[NodeStatus]) -> int:
    """The highest epoch that any node reports; -1 if none reports one."""
    return max((s.epoch for s in statuses), default=-1)
