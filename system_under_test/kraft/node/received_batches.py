"""Batches that a follower takes of a Fetch response: all before the first damaged batch.

A leader whose disk rots must not stop its followers.  They refuse the batch, report it once, and fetch again.
"""

from __future__ import annotations

from collections.abc import Callable

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import CorruptBatch
from system_under_test.kraft.raft.messages import FetchResponse


class ReceivedBatches:
    """report: called with peer, offset and what is wrong; not twice in a row for one place."""

    def __init__(self, report: Callable[[int, int, CorruptBatch], None]) -> None:
        self._report = report
        self._reported: tuple[int, int] | None = None  # (peer, offset)

    def undamaged(self, peer: int, log_end_offset: int, response: FetchResponse) -> FetchResponse | None:
        """The response up to its first damaged batch; None, as if there were no answer, if that is the very first.

        log_end_offset: where the response's first batch would be appended.
        """
        offset = log_end_offset
        for number, batch in enumerate(response.batches):
            try:
                codec.check(batch)
            except CorruptBatch as problem:
                if self._reported != (peer, offset):
                    self._reported = (peer, offset)
                    self._report(peer, offset, problem)
                return response._replace(batches=response.batches[:number]) if number else None
            offset += batch.count
        return response
