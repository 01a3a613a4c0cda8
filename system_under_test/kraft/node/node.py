"""One voter, controller and metadata-serving broker, with its interface for clients and other voters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from uuid import UUID

from system_under_test.kraft.controller.brokers import Sessions
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.node.executor import Executor
from system_under_test.kraft.node.trace import start_row, vote_row
from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.changes import VoterChange
from system_under_test.kraft.raft.voters import VoterSet
from system_under_test.kraft.wire.quorum_service import NotQueued, QuorumInfo, VoterState


class QuorumNode(Executor):
    """One voter, controller and metadata-serving broker.  Implements `wire.quorum_service.QuorumService`.

    Create the node on a running loop: it loads the newest snapshot, and raises CorruptSnapshot or CorruptRecord.  Call
    `start` once, then pass it events.
    """

    def start(self) -> None:
        """Load the state found on the disk, and join the quorum."""
        self._guarded(self._take_up)
        self._drive(self._core.start)

    def _take_up(self) -> None:
        disk = self.directory if self._parts.identity.dynamic else None
        if torn := start_row(self._trace, self._epoch, self._log, disk):
            self._say(torn)
        vote_row(self._trace, "quorum-state", self._parts.state_file.load(), self._parts.names)
        if self._log.snapshot is not None:
            self._report_snapshot(self._log.snapshot.end_offset, self._loaded_hash, self._name(self.node_id))
            self._report_applied(self._machine.applied_offset, self._machine.committed.state_hash)

    async def stop(self, limit_s: float = 1.0) -> None:
        """Shut down cleanly: resign, announce the resignation to the other voters, and set `ended` to 0.

        limit_s: maximum seconds for the announcement
        """
        self._drive(self._core.shutdown)
        telling = {task for task in self._tasks if task.get_name() == messages.EndQuorumEpochRequest.__name__}
        if telling:
            await asyncio.wait(telling, timeout=limit_s)
        if not self.ended.done():
            self._trace.row("stop", self._epoch)
            self._end(0)

    # From other voters

    def take_raft_request(
        self, connection: int, request: messages.RaftRequest, reply: Callable[[messages.RaftResponse], None]
    ) -> None:
        """Handle a request of another replica.  `reply` is called once with the answer, now or later, or never if this
        node ends.
        """
        if self.ended.done():
            return
        if isinstance(request, messages.FetchRequest):
            self._note_fetch(request)
            if self._lease is not None:
                self._lease.fetched(request.replica.id, connection)
        token = next(self._tokens)
        self._repliers[token] = reply if self._lease is None else partial(self._answer_leased, connection, reply)
        self._drive(lambda now: self._core.on_request(now, token, connection, request))

    def _answer_leased(
        self, connection: int, reply: Callable[[messages.RaftResponse], None], response: messages.RaftResponse
    ) -> None:
        assert self._lease is not None
        self._lease.answered(connection, self._clock.wall_ms())
        reply(response)

    def on_disconnect(self, connection: int) -> None:
        self._drive(lambda now: self._core.on_disconnect(now, connection))

    @property
    def log(self) -> Log:
        """Return the log, for reading only."""
        return self._log

    # wire.quorum_service.QuorumService

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def leader_id(self) -> int | None:
        return self._core.leader_id

    @property
    def high_watermark(self) -> int | None:
        return self._core.high_watermark

    @property
    def applied_offset(self) -> int:
        """Return the offset below which all records are in the committed image."""
        return self._machine.applied_offset

    @property
    def role(self) -> str:
        return self._core.role

    @property
    def incarnation(self) -> int:
        return self._trace.incarnation

    def is_active(self) -> bool:
        """Return whether this node leads, and has committed and applied its own LeaderChange."""
        return self._machine.active and not self.ended.done()

    def committed_image(self) -> Image:
        return self._machine.committed

    @property
    def directory(self) -> UUID | None:
        """Return the id of this node's disk, if it has one."""
        return self._parts.identity.me.directory

    @property
    def voters(self) -> VoterSet:
        """Return the voters that this node's log names last."""
        return self._core.history.latest

    def address_of(self, voter: int) -> tuple[str, int] | None:
        """See `wire.quorum_service.QuorumService`."""
        entry = self.voters.entry(voter)
        if entry is None or not entry.endpoints:
            return self.brokers.get(voter)
        return entry.endpoints[0].host, entry.endpoints[0].port

    @property
    def kraft_version(self) -> int:
        """See `wire.quorum_service.QuorumService`."""
        return int(self._core.history.may_change)

    @property
    def registers_brokers(self) -> bool:
        return self._parts.duties is not None

    @property
    def bugs(self) -> Collection[str]:
        return self._parts.controller_bugs

    @property
    def sessions(self) -> Sessions:
        return self._duties.sessions

    @property
    def next_offset(self) -> int:
        return self._log.end_offset + self._machine.pending_records

    def now_s(self) -> float:
        return self._clock.now()

    async def change_voters(self, change: VoterChange) -> tuple[int, str]:
        """See `wire.quorum_service.QuorumService`."""
        if self.ended.done():
            raise NotQueued("this node has ended")
        self._proposals.now()  # a waiting write may contain the offset at which it expects to be appended
        with self._voter_changes.expect() as (token, done):
            self._drive(lambda now: self._core.change_voters(now, token, change))
            return await done

    def describe(self) -> QuorumInfo:
        in_force = self._core.history.latest
        keys = [entry.key for entry in in_force]
        voters = [self._progress.of(key)._replace(directory=key.directory) for key in keys if key.id != self.node_id]
        mine = in_force.entry(self.node_id)
        if self._epoch_start_offset is not None and mine is not None:
            now_ms = self._clock.wall_ms()
            voters.append(VoterState(self.node_id, self._log.end_offset, now_ms, now_ms, mine.key.directory))
        observers = self._progress.others(in_force.holds, self._clock.wall_ms())
        return QuorumInfo(self._core.leader_id, self._core.epoch, self._core.high_watermark, tuple(voters), observers)

    def _note_fetch(self, request: messages.FetchRequest) -> None:
        """Record the progress of a replica for DescribeQuorum, if its Fetch matches this leader's epoch and log."""
        end, replica = self._log.end_offset, request.replica
        leads = self._epoch_start_offset is not None and request.current_leader_epoch == self._core.epoch
        if leads and 0 <= request.fetch_offset <= end:
            self._progress.fetched(replica, request.fetch_offset, end, self._clock.wall_ms())
