"""A replica's own place among the voters: it reports who it is, and it may make itself a voter (KIP-853).

Report.  A voter sends UpdateRaftVoter to the leader.  While `kraft.version` is 0, it does so once for each leader.  The
leader keeps the report in memory, and needs it for an upgrade (`raft/changes.py`).  Afterwards a voter does so only
while its entry in the log differs from what it is.  So does the leader itself: nobody else can say where it is reached.

Join.  A controller with `controller.quorum.auto.join.enable` that follows a leader and is no voter sends AddRaftVoter.
The leader refuses until the controller has caught up, so the controller sends it again.  Where the log names its id
with the directory of another disk, that disk was replaced: the controller first has the voter removed that it was with
the old disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from kio.schema.add_raft_voter.v1 import request as adding
from kio.schema.remove_raft_voter.v0 import request as removing
from kio.schema.update_raft_voter.v0 import request as updating

from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.changes import KRAFT_VERSIONS, AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.states import Role
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, VoterSet
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.quorum_service import NotQueued

EVERY_S = 2.0
"""The fetch timeout, as in Kafka."""
PATIENCE_S = 5.0

Send = Callable[[Entity, float], Awaitable[Entity]]
"""Sends a request to the active controller.  Raises NotQueued, TimeoutError or OSError if there is no answer."""


def joining(me: VoterEntry, role: str, voters: VoterSet) -> AddVoter | RemoveVoter | None:
    """The change that makes this replica a voter, or one that must come before it; None if there is none now.

    voters: those that its log names last."""
    if role != Role.FOLLOWER or voters.holds(me.key):
        return None
    known = voters.entry(me.key.id)
    return AddVoter(me) if known is None else RemoveVoter(known.key)


def must_report(me: VoterEntry, role: str, voters: VoterSet, kraft_version: int, *, reported: bool) -> bool:
    """Whether this voter reports to its leader who it is.  reported: it has done so to this leader."""
    if role not in (Role.FOLLOWER, Role.LEADER) or not voters.holds(me.key):
        return False
    if kraft_version == 0:
        return role == Role.FOLLOWER and not reported
    return voters.entry(me.key.id) != me


class OwnVoter:
    """at: where the other voters reach this node.  joins: it makes itself a voter if it is none.  every_s: how often it
    looks; None: EVERY_S."""

    def __init__(
        self,
        quorum: QuorumNode,
        at: VoterEndpoint,
        send: Send,
        say: Callable[[str], None],
        *,
        joins: bool,
        every_s: float | None = None,
    ) -> None:
        self._quorum = quorum
        self._me = VoterEntry(
            ReplicaKey(quorum.node_id, quorum.directory), (at,), (KRAFT_VERSIONS[0], KRAFT_VERSIONS[-1])
        )
        self._send = send
        self._say = say
        self._joins = joins
        self._every_s = EVERY_S if every_s is None else every_s
        self._reported_epoch = -1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look(), name="own voter")
        self._task.add_done_callback(self._ended)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        quorum = self._quorum
        while not quorum.ended.done():
            await asyncio.sleep(self._every_s)
            epoch, role, voters = quorum.epoch, quorum.role, quorum.voters
            reported = epoch == self._reported_epoch
            if must_report(self._me, role, voters, quorum.kraft_version, reported=reported):
                if await self._succeeds(UpdateVoter(self._me)):
                    self._reported_epoch = epoch
                continue
            change = joining(self._me, role, voters) if self._joins else None
            if change is not None and await self._succeeds(change):
                what = "added" if isinstance(change, AddVoter) else "removed the voter before it"
                self._say(f"auto-join: {what}")

    async def _succeeds(self, change: AddVoter | RemoveVoter | UpdateVoter) -> bool:
        try:
            answer = await self._send(_request(change, self._quorum.epoch), PATIENCE_S)
        except (NotQueued, MalformedFrame, OSError):  # a TimeoutError is an OSError
            return False  # the log shows whether it was carried out
        return bool(answer.error_code == 0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._quorum.collapse(problem)


def _request(change: AddVoter | RemoveVoter | UpdateVoter, epoch: int) -> Entity:
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
        case UpdateVoter(entry):
            least, most = entry.kraft_versions
            return updating.UpdateRaftVoterRequest(
                cluster_id=None,
                current_leader_epoch=epoch,
                voter_id=entry.key.id,
                voter_directory_id=entry.key.directory,
                listeners=tuple(updating.Listener(name=e.listener, host=e.host, port=e.port) for e in entry.endpoints),
                k_raft_version_feature=updating.KRaftVersionFeature(
                    min_supported_version=least, max_supported_version=most
                ),
            )
