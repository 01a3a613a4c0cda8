"""Finds the voters in a node's log and in the snapshot where it begins."""

from __future__ import annotations

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.raft.voters import VoterHistory, VoterSet


class VotersInLog:
    """`raft.voters.VoterRecords` of a log on a disk.  configured: in force as long as the log names none."""

    def __init__(self, log: Log, configured: VoterSet) -> None:
        self._log = log
        self._configured = configured

    def load(self) -> VoterHistory:
        """Raises CorruptSnapshot, and DamagedLog."""
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
