"""Records about brokers and partitions are read as the subject's own codec wrote them, and lead to the same states.

A fresh replay of log files, and a model that shares no code with the node, come to the state of the node's own machine
behind each record.  A mistake in the machine, injected here, makes them differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from checkers.base.columns import REPLAYED
from system_under_test.kraft.collected import files
from system_under_test.kraft.collected.files import UNDECODABLE, read_cluster, replayed, row_of, write_replayed
from system_under_test.kraft.collected.record_layouts import LAYOUTS
from system_under_test.kraft.collected.state_model import StateModel
from system_under_test.kraft.controller import image as machine
from system_under_test.kraft.controller.image import Image
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


TOPIC_ID, OTHER, A, B = UUID(int=7), UUID(int=8), UUID(int=1 << 70), UUID(int=3)
USER = (metadata.QuotaEntity("user", "u"), metadata.QuotaEntity("client-id", None))
REGISTERED = metadata.RegisterBrokerRecord(
    1,
    False,
    A,
    5,
    (metadata.Endpoint("PLAINTEXT", "host", 40_000),),
    (metadata.FeatureRange("metadata.version", 1, 25),),
    "rack",
    True,
)
LOG: tuple[metadata.Record, ...] = (
    metadata.FeatureLevelRecord("metadata.version", 25),
    metadata.FeatureLevelRecord("share.version", 1),
    metadata.FeatureLevelRecord("share.version", 0),
    REGISTERED,
    metadata.BrokerRegistrationChangeRecord(1, 5, fenced=-1),
    metadata.BrokerRegistrationChangeRecord(1, 5, in_controlled_shutdown=1),
    metadata.BrokerRegistrationChangeRecord(1, 5, fenced=1, log_dirs=(A, B)),
    metadata.UnfenceBrokerRecord(1, 5),
    metadata.FenceBrokerRecord(1, 5),
    metadata.RegisterBrokerRecord(1, True, B, 9, (), (), None, False),
    metadata.RegisterBrokerRecord(2, False, B, 9, (), (), None, True, True, (A,)),
    metadata.BrokerRegistrationChangeRecord(2, 9, cordoned_dirs=(A,)),
    metadata.BrokerRegistrationChangeRecord(2, 9, cordoned_dirs=()),
    metadata.UnregisterBrokerRecord(2, 9),
    metadata.RegisterControllerRecord(3, A),
    metadata.RegisterControllerRecord(4, A),
    metadata.UnregisterControllerRecord(4),
    metadata.TopicRecord("t", TOPIC_ID),
    metadata.PartitionRecord(0, TOPIC_ID, (1, 2), (1,), leader=1, leader_epoch=0, partition_epoch=0),
    metadata.PartitionRecord(1, TOPIC_ID, (1,), (), (), (), metadata.NO_LEADER, 0, 0, (A,), 1, (1,), (2,)),
    metadata.PartitionChangeRecord(0, TOPIC_ID, isr=(1, 2)),
    metadata.PartitionChangeRecord(0, TOPIC_ID, leader=2, removing=(1,), adding=(3,), replicas=(1, 2, 3)),
    metadata.PartitionChangeRecord(
        0, TOPIC_ID, isr=(), leader=metadata.NO_LEADER, elr=(2,), last_known_elr=(1,), recovery_state=1
    ),
    metadata.PartitionChangeRecord(0, TOPIC_ID, elr=(), last_known_elr=(), recovery_state=0, removing=(), adding=()),
    metadata.ClearElrRecord("t"),
    metadata.PartitionChangeRecord(0, TOPIC_ID, elr=(2,)),
    metadata.ClearElrRecord(""),
    metadata.PartitionChangeRecord(0, TOPIC_ID, directories=(A, B, A)),
    metadata.PartitionChangeRecord(0, TOPIC_ID, replicas=(1, 2)),
    metadata.PartitionChangeRecord(0, TOPIC_ID, replicas=(1, 2, 3), directories=(A, B, A)),
    metadata.ConfigRecord(2, "t", "retention.ms", "1"),
    metadata.ConfigRecord(2, "t", "retention.ms", "2"),
    metadata.ConfigRecord(2, "t", "retention.bytes", "9"),
    metadata.ConfigRecord(4, "t", "max.connections", "7"),
    metadata.ConfigRecord(2, "t", "retention.ms", None),
    metadata.ClientQuotaRecord(USER, "producer_byte_rate", 5.0),
    metadata.ClientQuotaRecord(USER[:1], "producer_byte_rate", 6.0),
    metadata.ClientQuotaRecord(USER, "producer_byte_rate", 0.0, remove=True),
    metadata.UserScramCredentialRecord("u", 1, b"salt", b"stored", b"server", 4096),
    metadata.UserScramCredentialRecord("u", 2, b"salt", b"stored", b"server", 4096),
    metadata.RemoveUserScramCredentialRecord("u", 1),
    metadata.AccessControlEntryRecord(A, 2, "t", 3, "User:u", "*", 3, 3),
    metadata.AccessControlEntryRecord(B, 2, "t", 3, "User:v", "*", 3, 3),
    metadata.RemoveAccessControlEntryRecord(A),
    metadata.DelegationTokenRecord("User:u", "User:u", ("User:r", "User:s"), 1, 2, 3, "token"),
    metadata.DelegationTokenRecord("User:u", "User:u", (), 1, 2, 3, "second"),
    metadata.RemoveDelegationTokenRecord("token"),
    metadata.ProducerIdsRecord(1, 9, 1000),
    metadata.ProducerIdsRecord(1, 9, 2000),
    metadata.ZkMigrationStateRecord(1),
    metadata.NoOpRecord(),
    metadata.BeginTransactionRecord("x"),
    metadata.ConfigRecord(2, "t", "segment.ms", "1"),
    metadata.EndTransactionRecord(),
    metadata.BeginTransactionRecord(),
    metadata.ConfigRecord(2, "t", "segment.ms", "2"),
    metadata.AbortTransactionRecord("why"),
    metadata.TopicRecord("other", OTHER),
    metadata.RemoveTopicRecord(TOPIC_ID),
    metadata.TopicRecord("t", UUID(int=11)),
)

STRANGE = (
    metadata.TopicRecord("other", TOPIC_ID),
    metadata.FenceBrokerRecord(1, 4),
    metadata.BeginTransactionRecord("inside"),
)
"""Records without a meaning behind most of LOG."""


def states(values: list[bytes]) -> list[tuple[int, int]]:
    """(state hash of the machine, of the model) behind each record."""
    image, model, found = Image(), StateModel(), []
    for value in values:
        image.replay(value)
        model.replay(value)
        found.append((image.state_hash, model.state_hash))
    return found


def test_both_come_to_the_same_state_behind_every_record_of_every_type() -> None:
    assert {type(record) for record in LOG} == set(metadata.RECORD_TYPES.values())
    found = states([*map(metadata.encode, LOG), b"\x01\x63\x00what", b"\x01\x02\x09newer"])
    assert [own for own, _ in found] == [model for _, model in found]
    assert len(set(found)) > 40


def test_both_know_the_same_versions() -> None:
    assert {number: metadata.versions(kind)[-1] for number, kind in metadata.RECORD_TYPES.items()} == {
        number: layout.newest for number, layout in LAYOUTS.items()
    }


@pytest.mark.parametrize("seed", range(20))
def test_both_come_to_the_same_state_in_any_order_that_has_a_meaning(seed: int) -> None:
    random, image, model = Random(seed), Image(), StateModel()
    for _ in range(200):
        record = random.choice(LOG + STRANGE)
        value = metadata.encode(record, random.choice([None, metadata.versions(type(record))[-1]]))
        own = why(lambda value=value: image.replay(value))  # type: ignore[misc]
        assert why(lambda value=value: model.replay(value)) == own, record  # type: ignore[misc]
        assert image.state_hash == model.state_hash, record


def why(replay: Callable[[], object]) -> bool:
    """Whether the record has no meaning behind those before it."""
    try:
        replay()
    except (metadata.CorruptRecord, ValueError, IndexError, KeyError):
        return True
    return False


@pytest.mark.parametrize(
    "kind",
    [
        cls
        for cls in metadata.RECORD_TYPES.values()
        if cls not in (metadata.NoOpRecord, metadata.BeginTransactionRecord)
    ],
)
def test_a_machine_that_misses_one_type_of_record_comes_to_another_state(
    kind: type[metadata.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(machine._APPLY, kind, Image._nothing)
    try:
        found = states([metadata.encode(record) for record in LOG])
    except metadata.CorruptRecord:
        return  # a later record has no meaning without this one, and that is reported
    assert any(own != model for own, model in found)


def test_a_record_without_a_meaning_is_refused() -> None:
    for value in (
        metadata.encode(metadata.RemoveTopicRecord(TOPIC_ID)),
        metadata.encode(metadata.UnregisterBrokerRecord(1, 5)),
        metadata.encode(metadata.EndTransactionRecord()),
        b"\x02\x02\x00",
        b"\x01\x02\x00\x05t",
    ):
        with pytest.raises((ValueError, IndexError, KeyError)):
            StateModel().replay(value)
