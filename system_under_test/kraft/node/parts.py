"""Parts of a node: its identity, its disk and its trace, and the ports to clock and network.

`VotersInLog` finds the voters in a node's log and in the snapshot after which the log begins.  `Awaited` keeps the
answers for which coroutines wait, by token: the core returns the token in the effect with the answer.  `DeadlineTimer`
is one timer for several deadlines.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from system_under_test.kraft.controller.partition_requests import DutySettings
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.small_files import QuorumStateFile
from system_under_test.kraft.node.config import KAFKA_LIMITS, SnapshotLimits
from system_under_test.kraft.node.trace import Trace
from system_under_test.kraft.ports import Calls, Clock, Timer, Transport, no_time
from system_under_test.kraft.raft.messages import Batch, Identity
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterHistory, VoterSet


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts from which a node is made.

    names: voter id -> node name
    brokers: voter id -> (host, port), including this node if it can be a voter
    say: receives lines for the operator
    calls: carries requests instead of the transport, in a simulator
    duties: settings of an active controller whose brokers register; None if every voter is a broker by configuration
    endpoints: voter id -> endpoints at which the other voters reach it
    apply_s: see `Ports`
    controller_bugs: planted bugs of `controller/decisions.py`; those of the consensus core are in `identity`
    """

    identity: Identity
    log: Log
    state_file: QuorumStateFile
    clock: Clock
    transport: Transport | None
    trace: Trace
    random: Random
    names: Mapping[int, str]
    brokers: Mapping[int, tuple[str, int]]
    say: Callable[[str], None] = to_stderr
    calls: Calls | None = None
    duties: DutySettings | None = None
    controller_bugs: frozenset[str] = frozenset()
    snapshots: SnapshotLimits = KAFKA_LIMITS
    apply_s: Callable[[int], float] = no_time
    endpoints: Mapping[int, tuple[VoterEndpoint, ...]] = field(default_factory=dict)


class VotersInLog:
    """`raft.voters.VoterRecords` of a log on a disk.

    configured: voters in force while the log names none
    """

    def __init__(self, log: Log, configured: VoterSet) -> None:
        self._log = log
        self._configured = configured

    def load(self) -> VoterHistory:
        """Return all sets of voters.  Raises CorruptSnapshot and DamagedLog."""
        history = VoterHistory(self._configured)
        if self._log.start_offset:
            at_start = self._log.snapshots.voters(self._log.start)
            if at_start is not None:
                history = VoterHistory(at_start, self._log.start_offset - 1)
        for batch in self._log.control_batches():
            if (named := self.read(batch)) is not None:
                history.append(batch.base_offset, named)
        return history

    def read(self, batch: Batch) -> VoterSet | None:
        """See `VoterRecords`.  Raises CorruptBatch."""
        if isinstance(batch.body, bytes):
            return codec.voters(batch.body)
        return batch.body if isinstance(batch.body, VoterSet) else None


T = TypeVar("T")


class Awaited(Generic[T]):
    """Answers of the core for which coroutines wait.

    tokens: source of new tokens, shared with all requests to the core

    An answer that is no longer awaited is ignored: it came twice, or its coroutine was cancelled.
    """

    def __init__(self, tokens: Iterator[int]) -> None:
        self._tokens = tokens
        self._futures: dict[int, asyncio.Future[T]] = {}

    @contextmanager
    def expect(self) -> Iterator[tuple[int, asyncio.Future[T]]]:
        """Yield a new token and the future of its answer, which is awaited inside the block."""
        token = next(self._tokens)
        future = self._futures[token] = asyncio.get_running_loop().create_future()
        try:
            yield token, future
        finally:
            self._futures.pop(token, None)

    def answer(self, token: int, value: T) -> None:
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(value)

    def refuse(self, token: int, problem: Exception) -> None:
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(problem)

    def cancel_all(self) -> None:
        for future in self._futures.values():
            future.cancel()


class DeadlineTimer:
    """A timer that calls `ring` at the earliest time that was set.

    An earlier time stays set, because a call of `ring` with nothing to do is cheaper than moving the timer.
    """

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at = math.inf

    def set(self, at: float) -> None:
        """Fire at the time `at` of the clock, unless an earlier time is set."""
        if at >= self._at:
            return
        self.cancel()
        self._at = at
        self._timer = self._clock.call_at(at, self._rings)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _rings(self) -> None:
        self._timer, self._at = None, math.inf
        self._ring()
