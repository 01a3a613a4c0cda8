"""A fresh replay of log files leads to the states that a node's own machine has behind each batch."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq

from checkers.base.columns import REPLAYED
from system_under_test.kraft.collected import files
from system_under_test.kraft.collected.files import replayed, write_replayed
from system_under_test.kraft.log.log import FOLDER, Log, open_log
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.node.state_machine import StateMachine
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.records.metadata import ConfigRecord, RemoveTopicRecord, TopicRecord, encode

TOPIC = UUID(int=7)
VALUES = [
    [encode(TopicRecord("t", TOPIC))],
    [encode(ConfigRecord(2, "t", "retention.ms", "1")), encode(ConfigRecord(2, "t", "retention.ms", "2"))],
    [encode(ConfigRecord(2, "t", "retention.ms", None))],
    [encode(RemoveTopicRecord(TOPIC))],
]


def written(folder: Path, values: list[list[bytes]]) -> Log:
    """One batch for each list of records, in segments of a few batches."""
    log = open_log(RealDisk(folder), FOLDER, segment_max_bytes=250)
    for records in values:
        log.append([Batch(log.end_offset, 1, len(records), tuple(records))], 0)
    log.flush()
    return log


def test_each_batch_leads_to_the_state_of_the_nodes_own_machine(tmp_path: Path) -> None:
    log, machine, expected = written(tmp_path, VALUES), StateMachine(0), []
    for batch in log.batches(0, log.end_offset):
        machine.apply(batch)
        expected.append((machine.applied_offset, machine.committed.state_hash))
    assert list(replayed(tmp_path / FOLDER)) == expected
    assert len({state for _, state in expected}) > 2 and expected[-1][0] == 5
    write_replayed(tmp_path / "n1.parquet", "n1", 3, replayed(tmp_path / FOLDER))
    table = pq.read_table(tmp_path / "n1.parquet", partitioning=None)
    assert table.schema.equals(REPLAYED) and table["offset"].to_pylist() == [end for end, _ in expected]


def test_it_ends_at_a_record_that_does_not_fit_and_at_its_limit(tmp_path: Path, monkeypatch: object) -> None:
    whole = list(replayed(written(tmp_path / "whole", VALUES) and tmp_path / "whole" / FOLDER))
    torn = [*VALUES[:2], [b"\x01\x02"], *VALUES[2:]]
    written(tmp_path / "torn", torn)
    assert list(replayed(tmp_path / "torn" / FOLDER)) == whole[:2]
    limit, files.RECORDS_MAX = files.RECORDS_MAX, 2
    try:
        assert list(replayed(tmp_path / "whole" / FOLDER)) == whole[:2]
    finally:
        files.RECORDS_MAX = limit
