"""Who leads now, out of what the nodes report.

The leader is the one of the highest epoch any node reports.  A deposed leader that has not noticed yet reports an older
epoch, and never wins against the node that replaced it.  Where the highest epoch has no leader, an election is under
way and the answer is None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nemesis.kind import LeaderNow
from system_under_test.subject import NodeStatus


def leader_now(statuses: Sequence[NodeStatus], running: Collection[str]) -> LeaderNow | None:
    """Who leads in the highest epoch any node reports; None while no node does, or if that node is not running.

    A node that calls itself leader is believed before what others report of it.  If two claim the same epoch (the
    checkers judge that), the first by name is taken, so that equal reports give an equal answer.
    """
    epoch = max((s.epoch for s in statuses), default=-1)
    newest = [s for s in statuses if s.epoch == epoch]
    claimed = sorted(s.node for s in newest if s.role == "leader")
    named = sorted({s.leader for s in newest if s.leader is not None})
    for node in (*claimed, *named):
        if node in running:
            return LeaderNow(node, epoch)
    return None
