"""Applying what is committed, a slice at a time, and the reads that wait for it.

A node may have much to replay: at its start, or when it was cut off.  In one step that would block its loop for so long
that the quorum elects another leader.  So the node applies a slice, serves its loop, and goes on.

A long replay reports only some of the states it passes.  They are chosen by offset, so that all nodes choose the same.
"""

from __future__ import annotations

from collections.abc import Callable

from system_under_test.kraft.log.log import Log
from system_under_test.kraft.node.metadata.state_machine import StateMachine

SLICE_RECORDS = 500
"""How many committed records are applied before the loop gets its turn; one batch is never parted."""
SPARSE_RECORDS = 5_000
"""With more than these to replay, a state is reported only each REPORT_RECORDS and at the end."""
REPORT_RECORDS = 20_000
"""A report hashes every entry that changed since the last one, which costs more than to replay its records."""


class Replay:
    """report: called with (applied offset, state hash).  say: called with a line for the node's operator.

    end_offset: everything below it is committed.
    """

    def __init__(
        self, log: Log, machine: StateMachine, report: Callable[[int, int], None], say: Callable[[str], None]
    ) -> None:
        self.end_offset = machine.applied_offset
        self.goes_on = False
        self._log = log
        self._machine = machine
        self._report = report
        self._say = say
        self._waiting: list[tuple[int, int]] = []  # (mark, token)

    def apply_slice(self) -> None:
        """Apply the next committed batches; `goes_on` says whether more are left."""
        machine, target = self._machine, self.end_offset
        sparse = target - machine.applied_offset > SPARSE_RECORDS
        slice_end = machine.applied_offset + SLICE_RECORDS
        self.goes_on = False
        for batch in self._log.batches(machine.applied_offset, target):
            if machine.applied_offset >= slice_end:
                self.goes_on = True
                break
            before = machine.applied_offset
            for record in machine.apply(batch):
                self._say(
                    f"kept a record of unknown type {record.type}, version {record.version}, at offset {before} or "
                    "shortly behind it: a later version of the software wrote it"
                )
            now = machine.applied_offset
            if not sparse or now == target or now // REPORT_RECORDS > before // REPORT_RECORDS:
                self._report(now, machine.committed.state_hash)

    def wait_for(self, mark: int, token: int) -> None:
        """A read that is proved, and that must see everything below `mark`."""
        self._waiting.append((mark, token))

    def take_ready(self) -> list[int]:
        """The tokens of the reads whose mark is applied by now."""
        ready = [token for mark, token in self._waiting if mark <= self._machine.applied_offset]
        self._waiting = [(mark, token) for mark, token in self._waiting if mark > self._machine.applied_offset]
        return ready
