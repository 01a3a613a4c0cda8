"""Carries out what the core wants, through the ports; serves the quorum to clients' requests.

Everything happens on one thread, one call of the core at a time.  A call returns its effects, and all of them are
carried out, in order, each finished before the next, before the core is called again:

    event -> core -> effects -> disk, then trace, then messages -> (the core's own deadline passed?  tick) -> timer

That order is what the traces are judged by: a row is written after its effect is durable and before any message that
depends on it leaves.  Answers and requests leave only as later effects of the same list, and reach a socket only when
the loop runs again.

Ends.  `ended` becomes the process' exit status:

    0   `stop` was called
    1   the node refuses to go on: a Fatal of the core, a disk that fails, a log that does not join
    70  an unexpected error (EX_SOFTWARE), with its traceback on stderr

After the end nothing is answered and nothing is sent any more.
"""

from __future__ import annotations

import asyncio
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.records import CorruptRecord
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import CorruptBatch
from system_under_test.kraft.log.log import DamagedLog, Log, LogRefused
from system_under_test.kraft.log.quorum_state import QuorumStateFile
from system_under_test.kraft.node.lease import Lease
from system_under_test.kraft.node.proposals import batches_of
from system_under_test.kraft.node.replay import Replay
from system_under_test.kraft.node.state_machine import StateMachine, Write
from system_under_test.kraft.node.trace import Trace
from system_under_test.kraft.ports import Clock, Timer, Transport
from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import (
    DIVERGENCE_BY_OFFSET,
    durable_state,
    must_check_batches,
    must_confirm_no_op,
)
from system_under_test.kraft.raft.effects import Effect
from system_under_test.kraft.raft.messages import (
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    Identity,
    RaftRequest,
    RaftResponse,
)
from system_under_test.kraft.wire.quorum import NotQueued, QuorumInfo, VoterState

T = TypeVar("T")

LINGER_S = 0.002
"""How long a write waits for others to share its append and fsync with (Kafka: 25 ms)."""

_TICKS_MAX = 16
"""Ticks in a row before the loop gets its turn again."""


@dataclass(frozen=True, slots=True)
class World:
    """What a node is given.  names: voter id -> node name; brokers: id -> (host, port)."""

    identity: Identity
    log: Log
    state_file: QuorumStateFile
    clock: Clock
    transport: Transport
    trace: Trace
    random: Random
    names: Mapping[int, str]
    brokers: Mapping[int, tuple[str, int]]


class QuorumNode:
    """One voter, controller and metadata-serving broker.  Implements `wire.quorum.Quorum`.

    Made on a running loop.  Call `start` once, then hand it what arrives.
    """

    def __init__(self, world: World) -> None:
        self.node_id = world.identity.me.id
        self.cluster_id = world.identity.cluster_id
        self.brokers = world.brokers
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._world = world
        self._log = world.log
        self._clock = world.clock
        self._trace = world.trace
        state = world.state_file.load()
        self._core = Core(world.identity, world.log, state, world.random, world.clock.now())
        self._machine = StateMachine(world.log.start_offset)
        self._replay = Replay(world.log, self._machine, self._report_applied)
        # As carried out so far: in the middle of a list of effects the core is already at its end.
        self._epoch = max(state.epoch, world.log.last_epoch)
        self._epoch_start_offset: int | None = None  # not None while this node leads
        self._single_record_batches = DIVERGENCE_BY_OFFSET in world.identity.bugs
        self._tokens = 0
        self._replies: dict[int, asyncio.Future[RaftResponse]] = {}
        self._reads: dict[int, asyncio.Future[None]] = {}
        self._proposals: dict[int, list[Write]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._fetched: dict[int, VoterState] = {}
        self._timer: Timer | None = None
        self._timer_at = math.inf
        self._linger: Timer | None = None
        self._lease = Lease(world.identity)
        self._damage_reported: tuple[int, int] | None = None  # (peer, offset)

    def start(self) -> None:
        """Take up what was found on the disk, and take part in the quorum."""
        recovery = self._log.recovery
        detail = None
        if recovery.torn_bytes:
            detail = f"cut a torn tail of {recovery.torn_bytes} bytes: {recovery.torn_because}"
            self._say(detail)
        self._trace.row("start", self._epoch, offset=self._log.end_offset, hash=self._log.prefix_hash, detail=detail)
        self._drive(self._core.start)

    async def stop(self, limit_s: float = 1.0) -> None:
        """An orderly end: resign, announce it to the others (for at most limit_s), and set `ended` to 0."""
        self._drive(self._core.shutdown)
        telling = {task for task in self._sending if task.get_name() == EndQuorumEpochRequest.__name__}
        if telling:
            await asyncio.wait(telling, timeout=limit_s)
        if not self.ended.done():
            self._trace.row("stop", self._epoch)
            self._end(0)

    # From other voters

    async def on_raft_request(self, connection: int, request: RaftRequest) -> RaftResponse | None:
        """The answer; None if there will be none because this node has ended."""
        if self.ended.done():
            return None
        if isinstance(request, FetchRequest):
            self._note_fetch(request)
            self._lease.fetched(request.replica.id, connection)
        token = self._new_token()
        reply: asyncio.Future[RaftResponse] = asyncio.get_running_loop().create_future()
        self._replies[token] = reply
        self._drive(lambda now: self._core.on_request(now, token, connection, request))
        try:
            response = await reply
            self._lease.answered(connection, self._clock.wall_ms())
            return response
        except asyncio.CancelledError:
            if self.ended.done():
                return None
            raise
        finally:
            self._replies.pop(token, None)

    def on_disconnect(self, connection: int) -> None:
        self._drive(lambda now: self._core.on_disconnect(now, connection))

    # wire.quorum.Quorum

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
    def role(self) -> str:
        return self._core.role

    @property
    def incarnation(self) -> int:
        return self._trace.incarnation

    def is_active(self) -> bool:
        """Leads, and has committed and applied its own LeaderChange."""
        return self._machine.active and not self.ended.done()

    def committed_image(self) -> Image:
        return self._machine.committed

    async def write(self, decide: Callable[[Image], tuple[list[bytes], T]]) -> T:
        """See `wire.quorum.Quorum`."""
        if self.ended.done():
            raise NotQueued("this node has ended")
        try:
            write, result = self._machine.decide(decide)
        except CorruptRecord as problem:
            self.collapse(problem)
            raise
        if self._linger is None:
            self._linger = self._clock.call_at(self._clock.now() + LINGER_S, self._propose_pending)
        await write.done
        if not write.records and must_confirm_no_op(self._world.identity.bugs):
            await self.read()  # nothing of its own was committed, which would prove that this node still leads
        return result

    async def read(self) -> Image:
        """See `wire.quorum.Quorum`."""
        if self.ended.done():
            raise NotQueued("this node has ended")
        if self._machine.active and self._lease.answers(self._clock.wall_ms()):
            return self._machine.committed
        token = self._new_token()
        ready = self._reads[token] = asyncio.get_running_loop().create_future()
        self._drive(lambda now: self._core.read(now, token))
        try:
            await ready
        finally:
            self._reads.pop(token, None)
        return self._machine.committed

    def describe(self) -> QuorumInfo:
        voters = [self._fetched.get(voter, VoterState(voter)) for voter in self._core.voters if voter != self.node_id]
        if self._epoch_start_offset is not None:
            now_ms = self._clock.wall_ms()
            voters.append(VoterState(self.node_id, self._log.end_offset, now_ms, now_ms))
        return QuorumInfo(self._core.leader_id, self._core.epoch, self._core.high_watermark, tuple(voters))

    # Carrying out

    def _drive(self, event: Callable[[float], list[Effect]]) -> None:
        """Hand the event to the core, carry out all that follows, and set the timer."""
        self._guarded(lambda: self._drive_unguarded(event))

    def _drive_unguarded(self, event: Callable[[float], list[Effect]]) -> None:
        now = self._clock.now()
        self._carry_out(event(now))
        deadline = self._core.deadline()
        for _ in range(_TICKS_MAX):
            if deadline > now or self.ended.done():
                break
            self._carry_out(self._core.tick(now))
            deadline = self._core.deadline()
        self._set_timer(deadline)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do it, unless this node has ended.  What goes wrong is this node's end, with its reason."""
        if self.ended.done():
            return
        try:
            action()
        except OSError as problem:
            self._refuse(f"the disk failed: {problem}")
        except DamagedLog as problem:
            self._refuse(f"the log on the disk is damaged: {problem}")
        except (CorruptBatch, LogRefused) as problem:
            self._refuse(f"the log cannot take what was fetched: {problem}")
        except Exception as problem:  # noqa: BLE001 - the boundary: any other error is this node's end
            self.collapse(problem)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            _CARRY_OUT[type(effect)](self, effect)
            if self.ended.done():
                return

    def _persist(self, effect: fx.Persist) -> None:
        self._world.state_file.store(durable_state(effect.state, self._world.identity.bugs))
        self._epoch = effect.state.epoch
        if effect.voted_now and effect.state.voted is not None:
            self._trace.row("vote", self._epoch, peer=self._name(effect.state.voted.id))

    def _append(self, effect: fx.Append) -> None:
        self._log.append(effect.batches, self._clock.wall_ms())
        self._trace.row("append", self._log.last_epoch, offset=self._log.end_offset)

    def _flush(self, effect: fx.Flush) -> None:
        self._log.flush()
        self._trace.row("flush", self._epoch, offset=self._log.flushed_offset)

    def _truncate(self, effect: fx.Truncate) -> None:
        self._log.truncate(effect.end_offset)
        self._trace.row("truncate", self._epoch, offset=self._log.end_offset)

    def _send(self, effect: fx.Send) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(effect), name=type(effect.request).__name__)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _ask(self, effect: fx.Send) -> None:
        try:
            response = await self._world.transport.request(effect.peer, effect.request)
        except Exception as problem:  # noqa: BLE001 - a transport must not raise; the core would wait for ever
            self.collapse(problem)
            return
        if isinstance(response, FetchResponse):
            response = self._undamaged(effect.peer, response)
        self._drive(lambda now: self._core.on_response(now, effect.peer, effect.request, response))

    def _undamaged(self, peer: int, response: FetchResponse) -> FetchResponse | None:
        """The response up to its first damaged batch; None, as if there were no answer, if that is the very first.

        A leader whose disk rots must not stop its followers.  They refuse the batch, report it once, and ask again.
        """
        if self.ended.done() or not must_check_batches(self._world.identity.bugs):
            return response
        for number, batch in enumerate(response.batches):
            try:
                codec.check(batch)
            except CorruptBatch as problem:
                self._report_damage(
                    peer, self._log.end_offset + sum(b.count for b in response.batches[:number]), problem
                )
                return replace(response, batches=response.batches[:number]) if number else None
        return response

    def _report_damage(self, peer: int, offset: int, problem: CorruptBatch) -> None:
        if (peer, offset) == self._damage_reported:
            return
        self._damage_reported = (peer, offset)
        self._say(f"refused a damaged batch that {self._name(peer)} sent for offset {offset}: {problem}")
        self._trace.row("refused", self._epoch, offset=offset, peer=self._name(peer), detail=str(problem))

    def _reply(self, effect: fx.Reply) -> None:
        reply = self._replies.pop(effect.token, None)
        if reply is not None and not reply.done():
            reply.set_result(effect.response)

    def _role_changed(self, effect: fx.RoleChanged) -> None:
        self._epoch = effect.epoch
        self._epoch_start_offset = effect.epoch_start_offset
        peer = None if effect.leader_id is None else self._name(effect.leader_id)
        self._trace.row("role", effect.epoch, role=str(effect.role), peer=peer, offset=effect.epoch_start_offset)
        self._fetched.clear()
        self._lease.forget()
        self._machine.renounce()

    def _high_watermark(self, effect: fx.HighWatermark) -> None:
        self._trace.row(
            "high-watermark", self._epoch, offset=effect.offset, hash=self._log.prefix_hash_at(effect.offset)
        )
        self._replay.end_offset = effect.offset
        if not self._replay.goes_on:
            self._apply_committed()

    def _apply_committed(self) -> None:
        """Apply a slice of what is committed, and all that follows from it; then go on once the loop had its turn."""
        machine, replay = self._machine, self._replay
        went_on = replay.goes_on
        replay.apply_slice()
        machine.settle()
        self._answer_ready_reads()
        leads = self._epoch_start_offset is not None
        if leads and not machine.active and machine.applied_offset > (self._epoch_start_offset or 0):
            machine.activate()
        if replay.goes_on != went_on:
            self._core.seek_office(not replay.goes_on)
        if replay.goes_on:
            self._clock.call_at(self._clock.now(), lambda: self._guarded(self._apply_committed))

    def _report_applied(self, offset: int, state_hash: int) -> None:
        self._trace.row("applied", self._epoch, offset=offset, hash=state_hash)

    def _accepted(self, effect: fx.Accepted) -> None:
        self._machine.queued(self._proposals.pop(effect.token), effect.first_offset, effect.end_offset)

    def _refused(self, effect: fx.Refused) -> None:
        for write in self._proposals.pop(effect.token, ()):
            write.fail(NotQueued(effect.reason))
        read = self._reads.pop(effect.token, None)
        if read is not None and not read.done():
            read.set_exception(NotQueued(effect.reason))

    def _read_ready(self, effect: fx.ReadReady) -> None:
        self._replay.wait_for(effect.high_watermark, effect.token)
        self._answer_ready_reads()

    def _answer_ready_reads(self) -> None:
        for token in self._replay.take_ready():
            read = self._reads.pop(token, None)
            if read is not None and not read.done():
                read.set_result(None)

    def _fatal(self, effect: fx.Fatal) -> None:
        self._refuse(effect.reason)

    # Writing

    def _propose_pending(self) -> None:
        """Hand everything decided since the last time to the core: one append, one fsync."""
        self._linger = None
        writes = self._machine.take_pending()
        if not writes or self.ended.done():
            return
        bodies = batches_of(writes, single=self._single_record_batches)
        if not bodies:
            self._machine.queued(writes, self._log.end_offset, self._log.end_offset)
            self._machine.settle()
            return
        token = self._new_token()
        self._proposals[token] = writes
        self._drive(lambda now: self._core.propose(now, token, bodies, expected_epoch=self._epoch))

    # Time, names and ends

    def _set_timer(self, deadline: float) -> None:
        """Wake at the core's deadline; an earlier timer is left to ring in vain, which is cheaper than to move it."""
        if deadline >= self._timer_at or self.ended.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._clock.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._drive(lambda now: [])

    def _new_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _name(self, voter: int) -> str:
        return self._world.names.get(voter, str(voter))

    def _note_fetch(self, request: FetchRequest) -> None:
        """For DescribeQuorum: how far a voter has come, by a Fetch that fits this leader's epoch and log."""
        if self._epoch_start_offset is None or request.current_leader_epoch != self._core.epoch:
            return
        if request.replica.id not in self._core.voters or not 0 <= request.fetch_offset <= self._log.end_offset:
            return
        voter, now_ms = request.replica.id, self._clock.wall_ms()
        known = self._fetched.get(voter)
        caught_up_ms = now_ms if request.fetch_offset >= self._log.end_offset else -1
        if caught_up_ms < 0 and known is not None:
            caught_up_ms = known.last_caught_up_ms
        self._fetched[voter] = VoterState(voter, request.fetch_offset, now_ms, caught_up_ms)

    def _say(self, line: str) -> None:
        print(f"{self._name(self.node_id)}: {line}", file=sys.stderr, flush=True)

    def _refuse(self, reason: str) -> None:
        """The node refuses to go on, and says so."""
        self._say(f"FATAL: {reason}")
        self._trace.row("fatal", self._epoch, detail=reason)
        self._end(1)

    def collapse(self, problem: BaseException) -> None:
        """End because of an unexpected error."""
        if self.ended.done():
            return
        self._say("FATAL: unexpected error")
        traceback.print_exception(problem, file=sys.stderr)
        self._trace.row("fatal", self._epoch, detail=f"unexpected error: {problem!r}")
        self._end(70)

    def _end(self, status: int) -> None:
        if self.ended.done():
            return
        self.ended.set_result(status)
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        for task in self._sending:
            task.cancel()
        for reply in self._replies.values():
            reply.cancel()
        for read in self._reads.values():
            read.cancel()
        self._machine.renounce()


_CARRY_OUT: dict[type, Callable[[QuorumNode, Any], None]] = {
    fx.Persist: QuorumNode._persist,
    fx.Append: QuorumNode._append,
    fx.Flush: QuorumNode._flush,
    fx.Truncate: QuorumNode._truncate,
    fx.Send: QuorumNode._send,
    fx.Reply: QuorumNode._reply,
    fx.RoleChanged: QuorumNode._role_changed,
    fx.HighWatermark: QuorumNode._high_watermark,
    fx.Accepted: QuorumNode._accepted,
    fx.Refused: QuorumNode._refused,
    fx.ReadReady: QuorumNode._read_ready,
    fx.Fatal: QuorumNode._fatal,
}
