"""The consensus core alone as a voter of a swarm, whose effects apply to a log in memory.

The log of a consensus core without a disk below it, which can lose power.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.voter import (
    CALLS_PORT,
    OK,
    REFUSED,
    UNKNOWN,
    Change,
    Value,
    VoterOnMachine,
    WatchedTrace,
)
from harness.campaign.swarm.watch import Watch
from harness.exploring.voter import BatchLog, VotersInBatches
from simulation.loop import SimulatedLoop
from simulation.machine import Machine
from simulation.network import SimulatedNetwork
from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import BUGS, durable_state, must_fsync, must_stop_on
from system_under_test.kraft.raft.messages import (
    Batch,
    Identity,
    QuorumState,
    Timing,
)
from system_under_test.kraft.raft.voters import CONFIGURED, VoterHistory, VoterSet


class CoreVoter(VoterOnMachine):
    """The same core that a node runs, with a log in memory.  A change is (key, value)."""

    cluster_id = "swarm"

    def __init__(
        self, number: int, scenario: Scenario, machine: Machine, network: SimulatedNetwork, watch: Watch
    ) -> None:
        super().__init__(number, scenario, machine, network, watch)
        self._format()
        self._bugs = frozenset({scenario.bug}) if scenario.bug in BUGS else frozenset()
        self._loop: SimulatedLoop = network.loop
        self._tokens = itertools.count(1)

    def _format(self) -> None:
        self._log = CoreLog(self.machine)
        self._core: Core | None = None

    async def _serve(self, machine: Machine) -> int:
        self._calls = self._lanes()
        self._trace = WatchedTrace(self)
        self._repliers: dict[int, Callable[[Any], None]] = {}
        self._reads: dict[int, tuple[str, int]] = {}
        self._accepted: list[tuple[int, int]] = []  # (end offset, token)
        self._image: dict[str, Value] = {}
        self._applied = 0
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        random = Random(f"{self._scenario.seed}/{self.number}/timeouts/{self.lives}")
        configured = self._configured()
        identity = Identity(
            self.cluster_id,
            self.replica,
            configured.ids,
            Timing(),
            self._bugs,
            {entry.key.id: entry.key.directory for entry in configured if entry.key.directory is not None},
            observer=self.observes,
            dynamic=self._scenario.dynamic,
        )
        state, log = self._log.state, self._log
        self._core = Core(identity, log, state, random, self._now(), VotersInBatches(log, configured))
        self._network.listen(self, self.name, CALLS_PORT)
        self._trace.row(
            "start", max(state.epoch, log.last_epoch), offset=log.end_offset, hash=log.prefix(log.end_offset)
        )
        self._vote_row("quorum-state", state)
        self._drive(self._core.start)
        return await self._ended

    def _now(self) -> float:
        return self._loop.time() * self._rate

    def _drive(self, event: Callable[[float], list[fx.Effect]]) -> None:
        core = self._core
        if core is None or self._ended.done():
            return
        now = self._now()
        try:
            self._carry_out(event(now))
            for _ in range(16):
                if core.deadline() > now or self._ended.done():
                    break
                self._carry_out(core.tick(now))
        except OSError as problem:
            self._stop(f"the disk failed: {problem}")
        except Exception as problem:  # noqa: BLE001 - any other error is a finding
            self.may_stop = False
            self._stop(f"unexpected error: {problem!r}")
        if not self._ended.done() and core.deadline() < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = core.deadline()
            self._timer = self._loop.call_at(self._timer_at / self._rate + 1e-9, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._drive(lambda now: [])

    def _stop(self, reason: str) -> None:
        self._trace.row("fatal", self.epoch, detail=reason)
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set_result(1)

    def _carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            self._do(effect)
            if self._ended.done():
                return

    def _vote_row(self, event: str, state: QuorumState) -> None:
        self._trace.row(event, state.epoch, peer=None if state.voted is None else f"n{state.voted.id}")

    def _do(self, effect: fx.Effect) -> None:
        """Carry out one effect, and then report it.  Messages are the most frequent."""
        log, row = self._log, self._trace.row
        match effect:
            case fx.Send(peer=peer, request=request):
                self._calls.call(
                    peer, request, lambda it: self._drive(lambda now: self._known.on_response(now, peer, request, it))
                )
            case fx.Reply(token=token, response=response):
                self._answer(token, response)
            case fx.Persist(state=state, voted_now=voted_now):
                stored = durable_state(state, self._bugs)
                log.store(stored)
                self._vote_row("vote" if voted_now else "quorum-state", state if voted_now else stored)
            case fx.Append(batches=batches):
                try:
                    log.append(batches)
                except OSError as problem:
                    if must_stop_on(problem.errno, self._bugs):
                        raise
                row("append", log.last_epoch, offset=log.end_offset)
            case fx.BeginFlush():
                log.begin_flush(self._flushed, must_fsync(self._bugs))
            case fx.Flush():
                log.flush(must_fsync(self._bugs))
                row("flush", self.epoch, offset=log.flushed)
            case fx.Truncate(end_offset=end):
                log.truncate(end)
                row("truncate", self.epoch, offset=log.end_offset)
            case fx.RoleChanged(role=role, epoch=epoch, leader_id=leader, epoch_start_offset=start):
                row("role", epoch, role=str(role), peer=None if leader is None else f"n{leader}", offset=start)
                lost, self._accepted = self._accepted, []
                for _, token in lost:
                    self._answer(token, (UNKNOWN, None))
            case fx.HighWatermark(offset=mark):
                row("high-watermark", self.epoch, offset=mark, hash=log.prefix(mark))
                self._apply(mark)
            case fx.Accepted(end_offset=end, token=token):
                self._accepted.append((end, token))
            case fx.ReadReady(token=token, high_watermark=mark):
                key, owed = self._reads.pop(token)
                self.watch.answered_read(self, mark, owed)
                self._answer(token, (OK, self._image.get(key), self.epoch, mark))
            case fx.VotersChanged(offset=offset, voters=voters):
                names = " ".join(f"n{n}" for n in voters.ids)
                row("voters", self.epoch, offset=None if offset == CONFIGURED else offset, detail=names)
            case fx.NotAccepted(token=token):
                self._answer(token, (REFUSED, None))
            case fx.VotersChangeDone(token=token, error=error):
                self._answer(token, (REFUSED if error else OK, None))
            case fx.Fatal(reason=reason):
                self._stop(reason)
            case _:
                raise NotImplementedError(f"a core alone has no snapshots: {effect}")

    def _answer(self, token: int, answer: Any) -> None:
        if (reply := self._repliers.pop(token, None)) is not None:
            reply(answer)

    def _flushed(self, log_end_offset: int, problem: Exception | None) -> None:
        def flushed(now: float) -> list[fx.Effect]:
            if problem is not None:
                raise problem
            self._trace.row("flush", self.epoch, offset=self._log.flushed)
            return self._known.on_flushed(now, log_end_offset)

        self._drive(flushed)

    @property
    def _known(self) -> Core:
        assert self._core is not None
        return self._core

    def _apply(self, mark: int) -> None:
        log = self._log
        for batch in log.batches[log.count_below(self._applied) : log.count_below(mark)]:
            if isinstance(batch.body, tuple):
                key, value, appends = batch.body
                held = self._image.get(key) or ()
                self._image[key] = (*held, value) if appends and isinstance(held, tuple) else value
        self._applied = mark
        while self._accepted and self._accepted[0][0] <= mark:
            self._answer(self._accepted.pop(0)[1], (OK, None, self.epoch, mark))

    # simulation.calls.Callee

    def asked(self, connection: int, what: Any, reply: Callable[[Any], None]) -> None:
        if self._ended.done():
            return
        token, core = next(self._tokens), self._known
        if type(what) is not tuple:
            self._repliers[token] = self._noted(connection, what, reply)
            self._drive(lambda now: core.on_request(now, token, connection, what))
            return
        function, key, value = what
        if function == "read":
            self._reads[token] = (key, self.watch.committed)
            self._repliers[token] = self._awaited(connection, math.inf, reply)
            self._drive(lambda now: core.read(now, token))
        elif function == "voters":
            self._repliers[token] = self._noted_change(value, reply)
            self._drive(lambda now: core.change_voters(now, token, value))
        elif function == "create":
            reply((OK, None) if core.role == "leader" else (REFUSED, None))
        else:
            self._repliers[token] = reply
            self._drive(lambda now: core.propose(now, token, [((key, value, function == "append"), 1)]))

    def gone(self, connection: int) -> None:
        if self._core is not None:
            self.watch.calls.gone(self, connection)
            self._drive(lambda now: self._known.on_disconnect(now, connection))

    # State that the watch and the storm read

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self._core.epoch if self._core is not None else 0

    @property
    def mark(self) -> int:  # type: ignore[override]
        return (self._core.high_watermark or 0) if self._core is not None else 0

    @property
    def flushed(self) -> int:  # type: ignore[override]
        return self._log.flushed

    @property
    def durable_end(self) -> int:  # type: ignore[override]
        return self._log.fsynced

    @property
    def end(self) -> tuple[int, int]:  # type: ignore[override]
        return self._log.last_epoch, self._log.end_offset

    def voter_history(self) -> VoterHistory:
        return VotersInBatches(self._log, self._configured()).load()

    def prefix(self, offset: int) -> int | None:
        return self._log.prefix(offset)

    def changes(self, offset: int, end_offset: int) -> Iterator[Change]:
        log = self._log
        for batch in log.batches[log.count_below(offset) : log.count_below(end_offset)]:
            if isinstance(batch.body, tuple):
                key, value, _ = batch.body
                yield (batch.base_offset, 0), key, value

    def power_lost(self, kind: str, random: Random) -> None:
        self._log.lose(kind, random)


class CoreLog(BatchLog):
    """The log of a core alone, which can lose power.  The machine's disk decides which operations fail."""

    __slots__ = ("_flushing", "_machine", "chain", "ends", "flushed", "fsynced", "state")
    batches: list[Batch]

    def __init__(self, machine: Machine) -> None:
        super().__init__([])
        self.state = QuorumState()
        self.ends: list[int] = []
        self.chain: list[int] = []
        """Hash of everything up to each batch."""
        self.flushed = self.fsynced = 0
        self._machine = machine
        self._flushing = 0  # end of the log that the flush in progress makes durable

    def prefix(self, offset: int) -> int | None:
        if offset == 0:
            return 0
        at = self.count_below(offset) - 1
        return self.chain[at] if at >= 0 and self.ends[at] == offset else None

    def count_below(self, end_offset: int) -> int:
        return bisect_right(self.ends, end_offset)

    def append(self, batches: Sequence[Batch]) -> None:
        self._changes("write")
        for batch in batches:
            self.batches.append(batch)
            self.ends.append(batch.end_offset)
            before = self.chain[-1] if self.chain else 1
            self.chain.append(_mixed(before, batch))

    def flush(self, really: bool = True) -> None:
        disk = self._machine.disk
        disk.fail_if("fsync", "log")
        disk.before_change()
        self.flushed = self.end_offset
        if really:
            self.fsynced = self.end_offset

    def begin_flush(self, done: Callable[[int, Exception | None], None], really: bool = True) -> None:
        self._flushing = self.end_offset
        self._machine.disk.beside(partial(self._end_flush, really), partial(done, self.end_offset))

    def _end_flush(self, really: bool) -> None:
        disk = self._machine.disk
        disk.fail_if("fsync", "log")
        disk.before_change()
        self.flushed = max(self.flushed, self._flushing)
        if really:
            self.fsynced = max(self.fsynced, self._flushing)

    def truncate(self, end_offset: int) -> None:
        """Truncate the log durably, as a node's log does."""
        self._changes("truncate")
        self._cut(end_offset)

    def store(self, state: QuorumState) -> None:
        self._changes("write")
        self.state = state

    def lose(self, kind: str, random: Random) -> None:
        """Lose power: nothing of the unsynced data is kept, or a prefix."""
        kept = {"lose": self.fsynced, "keep": self.end_offset}.get(kind)
        ends = [self.fsynced, *self.ends[self.count_below(self.fsynced) :]]
        self._cut(random.choice(ends) if kept is None else kept)
        self.flushed = self.fsynced = self.end_offset

    def _changes(self, verb: str) -> None:
        disk = self._machine.disk
        disk.fail_if(verb, "log")
        disk.before_change()

    def _cut(self, end_offset: int) -> None:
        keep = self.count_below(end_offset)
        del self.batches[keep:], self.ends[keep:], self.chain[keep:]
        self.flushed, self.fsynced = min(self.flushed, self.end_offset), min(self.fsynced, self.end_offset)
        self._flushing = min(self._flushing, self.end_offset)


def _mixed(before: int, batch: Batch) -> int:
    """Return a running hash that is the same in every process."""
    body = batch.body if isinstance(batch.body, tuple) else ("leader",)
    if isinstance(batch.body, VoterSet):
        body = ("voters", *((entry.key.id, entry.key.directory, entry.endpoints) for entry in batch.body))
    text = f"{before} {batch.base_offset} {batch.epoch} {batch.count} {body}"
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")
