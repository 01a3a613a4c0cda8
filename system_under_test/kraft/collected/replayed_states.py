"""Replays a copied metadata log into a fresh image, and tells the hash of the state behind each batch.

The bytes are read as `log_files.py` reads them, and so by nothing that wrote them.  The image is the node's own pure
machine (`controller/image.py`): what is compared with what the node reported is not the machine, but whether it comes
to the same state without the node's past: its caches, its slices of a long replay, its snapshots, its terms as a leader
that decided ahead of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import REPLAYED
from checkers.kernels.kafka_files.record_batch import CONTROL, HEADER_SIZE_BYTES
from system_under_test.kraft.collected.cluster_files import Cursor, value_of_next
from system_under_test.kraft.collected.log_files import log_start, segments
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records.metadata import CorruptRecord

RECORDS_MAX = 50_000
"""Of one log; about a second.  The states behind them are not computed."""


def replayed(folder: Path) -> Iterator[tuple[int, int]]:
    """(end offset of a batch, hash of the state there), up to the first record that does not fit.

    Nothing of a log that begins behind a snapshot: `snapshot-equals-prefix` judges what stood before it."""
    if log_start(folder) > 0:
        return
    image, records = Image(), 0
    for segment in segments(folder):
        data, batches = segment.data.tobytes(), segment.batches
        columns = (batches.base, batches.records, batches.attributes, batches.start, batches.stop)
        for base, count, attributes, start, stop in zip(*(c.tolist() for c in columns), strict=True):
            cursor = Cursor(data, start + HEADER_SIZE_BYTES, stop)
            try:
                for _ in range(0 if attributes & CONTROL else count):
                    image.replay(value_of_next(cursor))
            except (CorruptRecord, ValueError, IndexError):
                return
            records += count
            yield base + count, image.state_hash
            if records >= RECORDS_MAX:
                return


def write_replayed(path: Path, node: str, copy: int, states: Iterator[tuple[int, int]]) -> None:
    """A file of schema REPLAYED."""
    rows = [{"node": node, "copy": copy, "offset": offset, "hash": value} for offset, value in states]
    pq.write_table(pa.Table.from_pylist(rows, REPLAYED), path, compression="zstd")
