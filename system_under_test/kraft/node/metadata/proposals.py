"""Decided writes on their way to the core: they wait for each other, share one proposal, and are queued or refused.

A write that finds nothing in flight is proposed at once if the one before it was alone, too, and otherwise as soon as
the loop has had its turn: the writes of many clients are often read in one turn, and then they share an append.  While
appended records wait for their commit, writes gather for LINGER_S: the fsync and the fetches that go on would delay a
second append anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from system_under_test.kraft.node.metadata.state_machine import StateMachine, Write
from system_under_test.kraft.node.parts import NodeParts
from system_under_test.kraft.ports import Timer
from system_under_test.kraft.raft.decisions import DIVERGENCE_BY_OFFSET
from system_under_test.kraft.wire.quorum_service import NotQueued

LINGER_S = 0.002
"""How long a write waits for others to share its append and fsync with (Kafka: 25 ms, also if nothing is in flight)."""

BATCH_MAX_BYTES = 8 << 20
BATCH_MAX_RECORDS = 10_000


class Proposals:
    """propose: hands the core a token and the bodies of batches; the core answers with `accepted` or `refused`.

    decided: called once for all writes that go on together, with whether they have records."""

    def __init__(
        self,
        parts: NodeParts,
        machine: StateMachine,
        tokens: Iterator[int],
        propose: Callable[[int, Sequence[tuple[Any, int]]], None],
        decided: Callable[[bool], None],
    ) -> None:
        self._machine = machine
        self._log = parts.log
        self._clock = parts.clock
        self._tokens = tokens
        self._propose = propose
        self._decided = decided
        self._single = DIVERGENCE_BY_OFFSET in parts.identity.bugs
        self._linger: Timer | None = None
        self._lone = False  # the last proposal was one write
        self._proposed: dict[int, list[Write]] = {}

    def soon(self, high_watermark: int) -> None:
        """Propose what is decided: LINGER_S after the first decision that still waits, or earlier (see above)."""
        if self._linger is not None:
            return
        in_flight = high_watermark < self._log.end_offset
        if self._lone and not in_flight:
            self._propose_pending()
            return
        wait_s = LINGER_S if in_flight else 0.0
        self._linger = self._clock.call_at(self._clock.now() + wait_s, self._propose_pending)

    def now(self) -> None:
        """Propose what is decided before anything else can be appended."""
        self.cancel()
        self._propose_pending()

    def _propose_pending(self) -> None:
        """Hand everything decided since the last time to the core: one append, one fsync."""
        self._linger = None
        writes = self._machine.take_pending()
        if not writes:
            return
        self._lone = len(writes) == 1
        bodies = batches_of(writes, single=self._single)
        self._decided(bool(bodies))
        if not bodies:
            self._machine.queued(writes, self._log.end_offset, self._log.end_offset)
            self._machine.settle()
            return
        token = next(self._tokens)
        self._proposed[token] = writes
        self._propose(token, bodies)

    def accepted(self, token: int, first_offset: int, end_offset: int) -> None:
        self._machine.queued(self._proposed.pop(token), first_offset, end_offset)
        self._machine.settle()

    def refused(self, token: int, reason: str) -> None:
        """Nothing of it was queued.  A token of something else is ignored."""
        for write in self._proposed.pop(token, ()):
            write.done(NotQueued(reason))

    def cancel(self) -> None:
        """Propose nothing any more: the node has ended."""
        if self._linger is not None:
            self._linger.cancel()


def batches_of(writes: Sequence[Write], *, single: bool) -> list[tuple[Any, int]]:
    """(body, record count) of each batch.  A write's records are never parted, unless each is to be a batch (`single`).

    A write without records adds nothing.
    """
    if single:
        return [((record,), 1) for write in writes for record in write.records]
    bodies: list[tuple[Any, int]] = []
    batch: list[bytes] = []
    size_bytes = 0
    for write in writes:
        added_bytes = sum(map(len, write.records))
        full = size_bytes + added_bytes > BATCH_MAX_BYTES or len(batch) + len(write.records) > BATCH_MAX_RECORDS
        if batch and full:
            bodies.append((tuple(batch), len(batch)))
            batch, size_bytes = [], 0
        batch += write.records
        size_bytes += added_bytes
    if batch:
        bodies.append((tuple(batch), len(batch)))
    return bodies
