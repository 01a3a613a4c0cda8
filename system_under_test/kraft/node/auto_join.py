"""A controller that is no voter makes itself one (`controller.quorum.auto.join.enable`, KIP-853).

While this node follows a leader and its log does not name it, it asks the leader to add it.  The leader refuses until
the node has caught up, so the node asks again.  Where the log names its id with the directory of another disk, that
disk was replaced: the node first has the voter removed that it was with the old disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from kio.schema.add_raft_voter.v1 import request as adding
from kio.schema.remove_raft_voter.v0 import request as removing

from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.states import Role
from system_under_test.kraft.raft.voters import Endpoint, VoterEntry, VoterSet
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.quorum_service import NotQueued

EVERY_S = 2.0
"""The fetch timeout, as in Kafka."""
PATIENCE_S = 5.0

Send = Callable[[Entity, float], Awaitable[Entity]]
"""Sends a request to the active controller.  Raises NotQueued, TimeoutError or OSError if there is no answer."""


def wanted(me: VoterEntry, role: str, voters: VoterSet) -> AddVoter | RemoveVoter | None:
    """The change that makes this replica a voter, or one that must come before it; None if there is none now.

    voters: those that its log names last."""
    if role != Role.FOLLOWER or voters.holds(me.key):
        return None
    known = voters.entry(me.key.id)
    return AddVoter(me) if known is None else RemoveVoter(known.key)


class AutoJoin:
    """at: where the other voters reach this node.  every_s: it looks so often whether it is a voter; None: EVERY_S."""

    def __init__(
        self, quorum: QuorumNode, at: Endpoint, send: Send, say: Callable[[str], None], every_s: float | None = None
    ) -> None:
        self._quorum = quorum
        self._me = VoterEntry(ReplicaKey(quorum.node_id, quorum.directory), (at,))
        self._send = send
        self._say = say
        self._every_s = EVERY_S if every_s is None else every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._join(), name="auto-join")
        self._task.add_done_callback(self._ended)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _join(self) -> None:
        while not self._quorum.ended.done():
            await asyncio.sleep(self._every_s)
            change = wanted(self._me, self._quorum.role, self._quorum.voters)
            if change is None:
                continue
            try:
                answer = await self._send(_request(change), PATIENCE_S)
            except (NotQueued, MalformedFrame, OSError):  # a TimeoutError is an OSError
                continue  # the log shows whether it was carried out
            if answer.error_code == 0:
                self._say(f"auto-join: {'added' if isinstance(change, AddVoter) else 'removed the voter before it'}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._quorum.collapse(problem)


def _request(change: AddVoter | RemoveVoter) -> Entity:
    match change:
        case AddVoter(entry):
            return adding.AddRaftVoterRequest(
                cluster_id=None,
                timeout=timedelta(seconds=PATIENCE_S),
                voter_id=entry.key.id,
                voter_directory_id=entry.key.directory,
                listeners=tuple(adding.Listener(name=e.listener, host=e.host, port=e.port) for e in entry.endpoints),
            )
        case RemoveVoter(key):
            return removing.RemoveRaftVoterRequest(cluster_id=None, voter_id=key.id, voter_directory_id=key.directory)
