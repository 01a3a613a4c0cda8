"""Carries out the core's effects, through the ports.

Everything runs on one thread, one call of the core at a time.  A call returns effects.  The executor carries all of
them out, in order, and finishes each before the next.  Only then is the core called again:

    event -> core -> effects -> disk, then trace, then messages -> (the core's own deadline passed?  tick) -> timer

Only the fsync of the log runs concurrently (`effects.BeginFlush`); its end is an event like any other.

Checkers rely on this order: a trace row is written after its effect is durable, and before any message that depends on
the effect.  Answers and requests are later effects of the same list; an answer is written to its socket at once.

Ends.  `ended` becomes the exit status of the process:

    0   `stop` was called
    1   the node must not continue: a Fatal of the core, a failed disk, batches that do not continue the log
    70  an unexpected error (EX_SOFTWARE), with its traceback on stderr

After its end, the node sends neither answers nor requests.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log.batch import CorruptBatch
from system_under_test.kraft.log.log import DamagedLog, LogRefused
from system_under_test.kraft.log.snapshot_file import CorruptSnapshot
from system_under_test.kraft.node.fetch_progress import FetchProgress, Lease, ReceivedBatches
from system_under_test.kraft.node.parts import Awaited, DeadlineTimer, NodeParts, VotersInLog
from system_under_test.kraft.node.snapshotting import Replay, Snapshotting
from system_under_test.kraft.node.state_machine import ControllerDuties, Proposals, StateMachine
from system_under_test.kraft.node.trace import vote_row
from system_under_test.kraft.raft import decisions, messages
from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.voters import CONFIGURED, VoterEntry, VoterSet, voter_set
from system_under_test.kraft.records.metadata import CorruptRecord, Record
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, written

T = TypeVar("T")

_TICKS_MAX = 16
"""Maximum number of ticks in a row before the loop gets its turn again."""


class Executor:
    """Carries out the effects of one replica's core, and passes the results to the core.

    Create it on a running loop: it loads the newest snapshot, and raises CorruptSnapshot or CorruptRecord.
    """

    def __init__(self, parts: NodeParts) -> None:
        self.node_id = parts.identity.me.id
        self.cluster_id = parts.identity.cluster_id
        self.brokers = parts.brokers
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parts = parts
        self._log = parts.log
        self._clock = parts.clock
        self._trace = parts.trace
        state = parts.state_file.load()
        self._core = Core(parts.identity, parts.log, state, parts.random, parts.clock.now(), _voters_in_log(parts))
        self._machine = StateMachine(parts.log.start_offset, parts.identity.bugs | parts.controller_bugs, self.node_id)
        if parts.log.snapshot is not None:
            content = parts.log.snapshots.load(parts.log.snapshot)
            self._machine.load(parts.log.snapshot.end_offset, content.values)
            self._loaded_hash = content.state_hash
        self._replay = Replay(parts.log, self._machine, self._report_applied, self._say)
        self._snapshotting = Snapshotting(
            parts,
            self._machine,
            report=self._report_snapshot,
            guarded=self._guarded,
            high_watermark=lambda: self._core.high_watermark,
            voters_before=self._voters_before,
        )
        # The epoch after the effects carried out so far; the core's epoch is that after the whole list of effects.
        self._epoch = max(state.epoch, parts.log.last_epoch)
        self._epoch_start_offset: int | None = None  # not None while this node leads
        tokens = self._tokens = count(1)
        self._proposals = Proposals(
            parts, self._machine, tokens, self._propose, lambda records: self._duties.decided(records=records)
        )
        self._repliers: dict[int, Callable[[messages.RaftResponse], None]] = {}
        self._reads: Awaited[None] = Awaited(tokens)
        self._voter_changes: Awaited[tuple[int, str]] = Awaited(tokens)
        self._tasks: set[asyncio.Task[None]] = set()
        self._applies_later = False
        self._progress = FetchProgress()
        self._received = ReceivedBatches(self._report_damage)
        self._timer = DeadlineTimer(parts.clock, lambda: self._drive(lambda now: []))
        self._lease = Lease(parts.identity) if decisions.keeps_lease(parts.identity.bugs) else None
        self._duties = ControllerDuties(parts, self._machine, self.write, self.spawn, self._say)

    def submit(
        self,
        decide: Callable[[Image], tuple[list[Record], T]],
        settled: Callable[[T, Exception | None], None],
        *,
        at_once: bool = False,
    ) -> None:
        """See `wire.quorum_service.QuorumService`."""
        if self.ended.done():
            raise NotQueued("this node has ended")
        try:
            write = self._machine.decide(decide, settled)
        except CorruptRecord as problem:
            self.collapse(problem)
            raise
        if not write.records and decisions.must_confirm_no_op(self._parts.identity.bugs):
            # This write has no record whose commit would prove that this node still leads.
            write.done = partial(self._confirm_office, write.done)
        if at_once:
            self._proposals.now()
        else:
            self._proposals.soon(self._core.high_watermark or 0)

    async def write(self, decide: Callable[[Image], tuple[list[Record], T]], *, at_once: bool = False) -> T:
        """Submit a write (see `submit`) and wait for it.  Raises the error that `settled` would receive."""
        return await written(self, decide, at_once=at_once)

    def _confirm_office(self, done: Callable[[Exception | None], None], problem: Exception | None) -> None:
        """Finish a write without records, after a read has proved that this node leads."""
        if problem is not None or self.ended.done():
            done(problem)
            return
        self.spawn(self._confirm(done), "proof of office")

    async def _confirm(self, done: Callable[[Exception | None], None]) -> None:
        try:
            await self.read()
        except (NotQueued, LostLeadership) as problem:
            done(problem)
        else:
            done(None)

    async def read(self) -> Image:
        """See `wire.quorum_service.QuorumService`."""
        if self.ended.done():
            raise NotQueued("this node has ended")
        if self._machine.not_served is not None:
            raise NotQueued(self._machine.not_served)
        leased = self._lease is not None and self._lease.answers(self._clock.wall_ms(), self._core.voters)
        if leased and self._machine.active:
            return self._machine.committed
        with self._reads.expect() as (token, ready):
            self._drive(lambda now: self._core.read(now, token))
            await ready
        if self._machine.not_served is not None:
            raise NotQueued(self._machine.not_served)
        return self._machine.committed

    def _voters_before(self, end_offset: int) -> VoterSet | None:
        offset, voters = self._core.history.before(end_offset)
        return None if offset == CONFIGURED else voters

    # Carrying out

    def _drive(self, event: Callable[[float], list[fx.CoreEffect]]) -> None:
        """Pass the event to the core, carry out all effects, and set the timer."""
        if self.ended.done():
            return
        try:
            now = self._clock.now()
            self._carry_out(event(now))
            deadline = self._core.deadline
            for _ in range(_TICKS_MAX):
                if deadline > now or self.ended.done():
                    break
                self._carry_out(self._core.tick(now))
                deadline = self._core.deadline
            if not self.ended.done():
                self._timer.set(deadline)
        except Exception as problem:  # noqa: BLE001 - the boundary: any error is this node's end
            self._end_by(problem)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action, unless this node has ended.  Any error ends this node."""
        if self.ended.done():
            return
        try:
            action()
        except Exception as problem:  # noqa: BLE001 - the boundary: any error is this node's end
            self._end_by(problem)

    def _end_by(self, problem: Exception) -> None:
        """End this node because of an error, and report the reason."""
        match problem:
            case OSError():
                self._refuse(f"the disk failed: {problem}")
            case DamagedLog():
                self._refuse(f"the log on the disk is corrupt: {problem}")
            case CorruptBatch() | LogRefused():
                self._refuse(f"cannot append the fetched batches: {problem}")
            case _:
                self.collapse(problem)

    def _carry_out(self, effects: list[fx.CoreEffect]) -> None:
        for effect in effects:
            _CARRY_OUT[type(effect)](self, effect)
            if self.ended.done():
                return

    def _persist(self, effect: fx.Persist) -> None:
        stored = decisions.durable_state(effect.state, self._parts.identity.bugs)
        self._parts.state_file.store(stored, voters_in_log=self._core.history.may_change)
        self._epoch = effect.state.epoch
        event, state = ("vote", effect.state) if effect.voted_now else ("quorum-state", stored)
        vote_row(self._trace, event, state, self._parts.names)

    def _append(self, effect: fx.Append) -> None:
        self._log.append(effect.batches, self._clock.wall_ms())
        self._trace.row("append", self._log.last_epoch, offset=self._log.end_offset)

    def _begin_flush(self, effect: fx.BeginFlush) -> None:
        self._log.begin_flush(self._flushed)

    def _flushed(self, log_end_offset: int, problem: Exception | None) -> None:
        def flushed(now: float) -> list[fx.CoreEffect]:
            if problem is not None:
                raise problem
            self._trace.row("flush", self._epoch, offset=self._log.flushed_offset)
            return self._core.on_flushed(now, log_end_offset)

        self._drive(flushed)

    def _flush(self, effect: fx.Flush) -> None:
        self._log.flush()
        self._trace.row("flush", self._epoch, offset=self._log.flushed_offset)

    def _truncate(self, effect: fx.Truncate) -> None:
        self._log.truncate(effect.end_offset)
        self._trace.row("truncate", self._epoch, offset=self._log.end_offset)

    def _write_snapshot(self, effect: fx.WriteSnapshot) -> None:
        self._log.snapshots.write_part(effect.snapshot, effect.position, effect.data)

    def _install_snapshot(self, effect: fx.InstallSnapshot) -> None:
        machine, end_offset = self._machine, effect.snapshot.end_offset
        self._snapshotting.abort()
        content = self._log.install(effect.snapshot)
        onto = machine.committed if decisions.keeps_state_under_snapshot(self._parts.identity.bugs) else None
        machine.load(end_offset, content.values, onto=onto)
        leader = self._core.leader_id
        assert leader is not None, "a snapshot comes from a leader"
        self._report_snapshot(end_offset, content.state_hash, self._name(leader))
        self._report_applied(end_offset, machine.committed.state_hash)

    def _report_snapshot(self, end_offset: int, state_hash: int, peer: str | None = None) -> None:
        """Write the trace row of a snapshot.

        peer: name of the sender; the own name for a snapshot found at the start
        """
        self._trace.row("snapshot", self._epoch, offset=end_offset, hash=state_hash, peer=peer)

    def _send(self, effect: fx.Send) -> None:
        if (calls := self._parts.calls) is not None:
            calls.call(effect.peer, effect.request, partial(self._answered, effect))
            return
        assert self._parts.transport is not None
        if isinstance(effect.request, messages.FetchRequest) and self._parts.transport.send_at_once(
            effect.peer, effect.request, partial(self._answered, effect)
        ):
            return
        self.spawn(self._ask(effect), type(effect.request).__name__)

    async def _ask(self, effect: fx.Send) -> None:
        assert self._parts.transport is not None
        self._answered(effect, await self._parts.transport.request(effect.peer, effect.request))

    def _answered(self, effect: fx.Send, response: messages.RaftResponse | None) -> None:
        checked = decisions.must_check_batches(self._parts.identity.bugs) and not self.ended.done()
        if checked and isinstance(response, messages.FetchResponse):
            response = self._received.undamaged(effect.peer, self._log.end_offset, response)
        if checked and isinstance(response, messages.FetchSnapshotResponse):
            response = self._undamaged_snapshot(effect.peer, response)
        self._drive(lambda now: self._core.on_response(now, effect.peer, effect.request, response))

    def _undamaged_snapshot(
        self, peer: int, response: messages.FetchSnapshotResponse
    ) -> messages.FetchSnapshotResponse:
        """Return the response.  If it completes a corrupt snapshot, return instead a response that reports the snapshot
        as missing.
        """
        if response.error or response.position + len(response.data) != response.size_bytes:
            return response
        try:
            self._log.snapshots.check_part(response.snapshot, response.position, response.data)
        except CorruptSnapshot as problem:
            self._say(f"rejected a corrupt snapshot that {self._name(peer)} sent: {problem}")
            end = response.snapshot.end_offset
            self._trace.row("refused", self._epoch, offset=end, peer=self._name(peer), detail=str(problem))
            return replace(response, error=messages.Error.SNAPSHOT_NOT_FOUND, data=b"")
        return response

    def _report_damage(self, peer: int, offset: int, problem: CorruptBatch) -> None:
        self._say(f"rejected a corrupt batch that {self._name(peer)} sent for offset {offset}: {problem}")
        self._trace.row("refused", self._epoch, offset=offset, peer=self._name(peer), detail=str(problem))

    def _voters_changed(self, effect: fx.VotersChanged) -> None:
        names = " ".join(self._name(voter) for voter in effect.voters.ids)
        offset = None if effect.offset == CONFIGURED else effect.offset
        self._trace.row("voters", self._epoch, offset=offset, detail=names)
        if self._parts.transport is not None:
            for entry in effect.voters:
                for endpoint in entry.endpoints[:1]:
                    self._parts.transport.reach(entry.key.id, endpoint.host, endpoint.port)

    def _voters_change_done(self, effect: fx.VotersChangeDone) -> None:
        self._voter_changes.answer(effect.token, (int(effect.error), effect.reason))

    def _reply(self, effect: fx.Reply) -> None:
        self._repliers.pop(effect.token)(effect.response)

    def _role_changed(self, effect: fx.RoleChanged) -> None:
        self._epoch = effect.epoch
        self._epoch_start_offset = effect.epoch_start_offset
        peer = None if effect.leader_id is None else self._name(effect.leader_id)
        self._trace.row("role", effect.epoch, role=str(effect.role), peer=peer, offset=effect.epoch_start_offset)
        self._progress.forget()
        if self._lease is not None:
            self._lease.forget()
        self._duties.end()
        self._machine.renounce()

    def _high_watermark(self, effect: fx.HighWatermark) -> None:
        self._trace.row(
            "high-watermark", self._epoch, offset=effect.offset, hash=self._log.prefix_hash_at(effect.offset)
        )
        self._replay.end_offset = effect.offset
        if not self._replay.goes_on:
            self._apply_in_time()

    def _apply_in_time(self) -> None:
        """Apply committed records, at once or after the virtual time that this takes."""
        if self._applies_later:
            return
        if wait_s := self._parts.apply_s(self._replay.end_offset - self._machine.applied_offset):
            self._applies_later = True
            self._clock.call_at(self._clock.now() + wait_s, lambda: self._guarded(self._apply_later))
        else:
            self._apply_committed()

    def _apply_later(self) -> None:
        self._applies_later = False
        self._apply_committed()

    def _apply_committed(self) -> None:
        """Apply a slice of the committed records, and answer the requests that wait for it.  The next slice follows in
        a later turn.
        """
        machine, replay = self._machine, self._replay
        went_on = replay.goes_on
        replay.apply_slice()
        machine.settle()
        self._answer_ready_reads()
        leads = self._epoch_start_offset is not None
        if leads and not machine.active and machine.applied_offset > (self._epoch_start_offset or 0):
            machine.activate()
            self._duties.begin()
            self._report_sessions()
            self._report_applied(machine.applied_offset, machine.speculative_hash)
        if replay.goes_on != went_on:
            self._core.seeks_office = not replay.goes_on
        if replay.goes_on:
            self._clock.call_at(self._clock.now(), lambda: self._guarded(self._apply_in_time))
        self._snapshotting.applied()

    def report_broker(self, broker_epoch: int, change: str) -> None:
        """Report an event of this node's broker: see TRACE_EVENTS."""
        self._guarded(lambda: self._trace.row("broker", self._epoch, offset=broker_epoch, detail=change))

    def _report_sessions(self) -> None:
        if self._parts.duties is not None:
            timeout_ms = round(self._parts.duties.session_timeout_s * 1000)
            self._trace.row("sessions", self._epoch, offset=self._machine.applied_offset, detail=f"{timeout_ms}")

    def _report_applied(self, offset: int, state_hash: int) -> None:
        self._trace.row("applied", self._epoch, offset=offset, hash=state_hash)

    def _accepted(self, effect: fx.Accepted) -> None:
        self._proposals.accepted(effect.token, effect.first_offset, effect.end_offset)

    def _refused(self, effect: fx.NotAccepted) -> None:
        self._proposals.refused(effect.token, effect.reason)
        self._reads.refuse(effect.token, NotQueued(effect.reason))

    def _read_ready(self, effect: fx.ReadReady) -> None:
        self._replay.wait_for(effect.high_watermark, effect.token)
        self._answer_ready_reads()

    def _answer_ready_reads(self) -> None:
        for token in self._replay.take_ready():
            self._reads.answer(token, None)

    def _fatal(self, effect: fx.Fatal) -> None:
        self._refuse(effect.reason)

    def _propose(self, token: int, bodies: Sequence[tuple[Any, int]]) -> None:
        self._drive(lambda now: self._core.propose(now, token, bodies, expected_epoch=self._epoch))

    # Tasks, names and ends

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task.  It is cancelled when this node ends, and it ends this node if it raises."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self.collapse(problem)

    def _name(self, voter: int) -> str:
        return self._parts.names.get(voter, str(voter))

    def _say(self, line: str) -> None:
        self._parts.say(f"{self._name(self.node_id)}: {line}")

    def _refuse(self, reason: str) -> None:
        """End the node with a message, because it must not continue."""
        self._say(f"FATAL: {reason}")
        self._trace.row("fatal", self._epoch, detail=reason)
        self._end(1)

    def collapse(self, problem: BaseException) -> None:
        """End because of an unexpected error."""
        if self.ended.done():
            return
        self._say("FATAL: unexpected error\n" + "".join(traceback.format_exception(problem)).rstrip())
        self._trace.row("fatal", self._epoch, detail=f"unexpected error: {problem!r}")
        self._end(70)

    def _end(self, status: int) -> None:
        if self.ended.done():
            return
        self.ended.set_result(status)
        self._timer.cancel()
        self._proposals.cancel()
        self._duties.end()
        self._snapshotting.stop()
        for task in self._tasks:
            task.cancel()
        self._repliers.clear()
        self._reads.cancel_all()
        self._voter_changes.cancel_all()
        self._machine.renounce()


def _voters_in_log(parts: NodeParts) -> VotersInLog:
    identity = parts.identity
    return VotersInLog(
        parts.log,
        voter_set(VoterEntry(identity.key_of(v), parts.endpoints.get(v, ())) for v in identity.voters),
    )


_CARRY_OUT: dict[type, Callable[[Executor, Any], None]] = {
    fx.Persist: Executor._persist,
    fx.Append: Executor._append,
    fx.BeginFlush: Executor._begin_flush,
    fx.Flush: Executor._flush,
    fx.Truncate: Executor._truncate,
    fx.WriteSnapshot: Executor._write_snapshot,
    fx.InstallSnapshot: Executor._install_snapshot,
    fx.Send: Executor._send,
    fx.Reply: Executor._reply,
    fx.RoleChanged: Executor._role_changed,
    fx.HighWatermark: Executor._high_watermark,
    fx.Accepted: Executor._accepted,
    fx.NotAccepted: Executor._refused,
    fx.ReadReady: Executor._read_ready,
    fx.VotersChanged: Executor._voters_changed,
    fx.VotersChangeDone: Executor._voters_change_done,
    fx.Fatal: Executor._fatal,
}
