"""The reader of records about brokers and partitions: it finds what the subject's own codec wrote.

A fresh replay of log files leads to the states that a node's own machine has behind each batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from checkers.base.columns import REPLAYED
from system_under_test.kraft.collected import files
from system_under_test.kraft.collected.files import UNDECODABLE, read_cluster, replayed, row_of, write_replayed
from system_under_test.kraft.log.log import FOLDER, Log, open_log
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.node.state_machine import StateMachine
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.records import metadata

ORDERS = UUID(int=0xAB)

RECORDS: list[tuple[metadata.Record, str, str, dict[str, Any]]] = [
    (
        metadata.RegisterBrokerRecord(
            3,
            incarnation_id=UUID(int=5),
            broker_epoch=17,
            endpoints=(metadata.Endpoint("PLAINTEXT", "n3", 9092),),
            features=(metadata.FeatureRange("metadata.version", 1, 25),),
            rack="r1",
            in_controlled_shutdown=True,
            log_dirs=(UUID(int=9),),
        ),
        "register broker",
        "broker 3",
        {"incarnation": UUID(int=5).hex, "epoch": 17, "rack": "r1", "fenced": True, "leaving": True}
        | {"directories": [UUID(int=9).hex]},
    ),
    (metadata.UnregisterBrokerRecord(3, 17), "unregister broker", "broker 3", {"epoch": 17}),
    (metadata.FenceBrokerRecord(3, 17), "fence broker", "broker 3", {"epoch": 17}),
    (
        metadata.BrokerRegistrationChangeRecord(3, 17, fenced=-1, in_controlled_shutdown=1),
        "change broker",
        "broker 3",
        {"epoch": 17, "fenced": -1, "leaving": 1},
    ),
    (metadata.TopicRecord("orders", ORDERS), "topic", ORDERS.hex, {"name": "orders"}),
    (metadata.RemoveTopicRecord(ORDERS), "remove topic", ORDERS.hex, {}),
    (
        metadata.PartitionRecord(2, ORDERS, (1, 2), (1,), (), (2,), 1, 4, 6, directories=(UUID(int=0),) * 2, elr=(2,)),
        "partition",
        f"{ORDERS.hex}/2",
        {
            "replicas": [1, 2],
            "isr": [1],
            "removing": [],
            "adding": [2],
            "leader": 1,
            "leader_epoch": 4,
            "partition_epoch": 6,
            "directories": [UUID(int=0).hex] * 2,
            "elr": [2],
        },
    ),
    (
        metadata.PartitionChangeRecord(2, ORDERS, isr=(), leader=-1, elr=(1,), last_known_elr=(2,), recovery_state=1),
        "change partition",
        f"{ORDERS.hex}/2",
        {"isr": [], "leader": -1, "elr": [1], "last_elr": [2], "recovery": 1},
    ),
    (metadata.FeatureLevelRecord("kraft.version", 1), "feature", "kraft.version", {"level": 1}),
    (metadata.ProducerIdsRecord(3, 17, 1000), "producer ids", "broker 3", {"epoch": 17, "next": 1000}),
    (metadata.ClearElrRecord("orders"), "clear elr", "orders", {}),
    (metadata.NoOpRecord(), "no-op", "", {}),
    (
        metadata.ConfigRecord(2, "orders", "min.insync.replicas", "2"),
        "config",
        "2 orders",
        {"name": "min.insync.replicas", "value": "2"},
    ),
]


@pytest.mark.parametrize(("record", "kind", "about", "fields"), RECORDS, ids=[kind for _, kind, _, _ in RECORDS])
def test_each_record_is_read_as_it_was_written(
    record: metadata.Record, kind: str, about: str, fields: dict[str, Any]
) -> None:
    row = row_of(metadata.encode(record), 7, 3, 5)
    assert row is not None
    assert row[:5] == (7, 3, 5, kind, about)
    assert json.loads(row[5]) == fields


def test_configs_that_decide_nothing_about_partitions_are_left_out() -> None:
    assert row_of(metadata.encode(metadata.ConfigRecord(2, "orders", "retention.ms", "2")), 7, 3, 5) is None


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_record_that_ends_too_early_is_no_record(cut: int) -> None:
    whole = metadata.encode(RECORDS[0][0])
    with pytest.raises((ValueError, IndexError)):
        row_of(whole[:-cut], 7, 3, 5)


TOPIC = UUID(int=7)
VALUES = [
    [metadata.encode(metadata.TopicRecord("t", TOPIC))],
    [
        metadata.encode(metadata.ConfigRecord(2, "t", "retention.ms", "1")),
        metadata.encode(metadata.ConfigRecord(2, "t", "retention.ms", "2")),
    ],
    [metadata.encode(metadata.ConfigRecord(2, "t", "retention.ms", None))],
    [metadata.encode(metadata.RemoveTopicRecord(TOPIC))],
]


def written(folder: Path, values: list[list[bytes]]) -> Log:
    """One batch for each list of records, in segments of a few batches."""
    log = open_log(RealDisk(folder), FOLDER, segment_max_bytes=250)
    for records in values:
        log.append([Batch(log.end_offset, 1, len(records), tuple(records))], 0)
    log.flush()
    return log


def test_a_log_is_read_batch_by_batch_up_to_what_cannot_be_decoded(tmp_path: Path) -> None:
    good = [metadata.encode(record) for record, _, _, _ in RECORDS]
    bad = metadata.encode(RECORDS[0][0])[:-3]
    written(tmp_path, [good, good[:1], [good[1], bad], good[:1]])
    rows = list(read_cluster(tmp_path / FOLDER))
    count = len(good)
    assert [row[:3] for row in rows[:count]] == [(offset, 1, 0) for offset in range(count)]
    assert [row[3] for row in rows[count:]] == ["register broker", "unregister broker", UNDECODABLE]
    assert [row[0] for row in rows[count:]] == [count, count + 1, count + 2]


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
