"""Replays a copied metadata log into an empty model, and tells the hash of the state behind each batch.

Neither the reader of the bytes (`log_files.py`) nor the model (`state_model.py`) shares code with the node.  So a
difference shows a mistake of the node's own machine, or of its past: its caches, its slices of a long replay, its
snapshots, its terms as a leader that decided ahead of the log.
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
from system_under_test.kraft.collected.state_model import StateModel

RECORDS_MAX = 50_000
"""Of one log; about a second.  The states behind them are not computed."""


def replayed(folder: Path) -> Iterator[tuple[int, int]]:
    """(end offset of a batch, hash of the state there), up to the first record that does not fit.

    Nothing of a log that begins behind a snapshot: `snapshot-equals-prefix` judges what stood before it."""
    if log_start(folder) > 0:
        return
    model, records = StateModel(), 0
    for segment in segments(folder):
        data, batches = segment.data.tobytes(), segment.batches
        columns = (batches.base, batches.records, batches.attributes, batches.start, batches.stop)
        for base, count, attributes, start, stop in zip(*(c.tolist() for c in columns), strict=True):
            cursor = Cursor(data, start + HEADER_SIZE_BYTES, stop)
            try:
                for _ in range(0 if attributes & CONTROL else count):
                    model.replay(value_of_next(cursor))
            except (ValueError, IndexError, KeyError):
                return
            records += count
            yield base + count, model.state_hash
            if records >= RECORDS_MAX:
                return


def write_replayed(path: Path, node: str, copy: int, states: Iterator[tuple[int, int]]) -> None:
    """A file of schema REPLAYED."""
    rows = [{"node": node, "copy": copy, "offset": offset, "hash": value} for offset, value in states]
    pq.write_table(pa.Table.from_pylist(rows, REPLAYED), path, compression="zstd")
