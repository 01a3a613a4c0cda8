"""The model of the metadata state and the node's own machine come to the same state behind every record.

Each record type is replayed, replaced and removed.  A mistake in the machine, injected here, makes them differ.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import UUID

import pytest

from system_under_test.kraft.collected.record_layouts import LAYOUTS
from system_under_test.kraft.collected.state_model import StateModel
from system_under_test.kraft.controller import image as machine
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records import metadata

TOPIC, OTHER, A, B = UUID(int=7), UUID(int=8), UUID(int=1 << 70), UUID(int=3)
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
    metadata.TopicRecord("t", TOPIC),
    metadata.PartitionRecord(0, TOPIC, (1, 2), (1,), leader=1, leader_epoch=0, partition_epoch=0),
    metadata.PartitionRecord(1, TOPIC, (1,), (), (), (), metadata.NO_LEADER, 0, 0, (A,), 1, (1,), (2,)),
    metadata.PartitionChangeRecord(0, TOPIC, isr=(1, 2)),
    metadata.PartitionChangeRecord(0, TOPIC, leader=2, removing=(1,), adding=(3,), replicas=(1, 2, 3)),
    metadata.PartitionChangeRecord(
        0, TOPIC, isr=(), leader=metadata.NO_LEADER, elr=(2,), last_known_elr=(1,), recovery_state=1
    ),
    metadata.PartitionChangeRecord(0, TOPIC, elr=(), last_known_elr=(), recovery_state=0, removing=(), adding=()),
    metadata.ClearElrRecord("t"),
    metadata.PartitionChangeRecord(0, TOPIC, elr=(2,)),
    metadata.ClearElrRecord(""),
    metadata.PartitionChangeRecord(0, TOPIC, directories=(A, B, A)),
    metadata.PartitionChangeRecord(0, TOPIC, replicas=(1, 2)),
    metadata.PartitionChangeRecord(0, TOPIC, replicas=(1, 2, 3), directories=(A, B, A)),
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
    metadata.RemoveTopicRecord(TOPIC),
    metadata.TopicRecord("t", UUID(int=11)),
)

STRANGE = (
    metadata.TopicRecord("other", TOPIC),
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
        metadata.encode(metadata.RemoveTopicRecord(TOPIC)),
        metadata.encode(metadata.UnregisterBrokerRecord(1, 5)),
        metadata.encode(metadata.EndTransactionRecord()),
        b"\x02\x02\x00",
        b"\x01\x02\x00\x05t",
    ):
        with pytest.raises((ValueError, IndexError, KeyError)):
            StateModel().replay(value)
