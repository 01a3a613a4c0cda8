"""The metadata image: the state that results from all committed records.

    replay(record) changes the image;  no other code may change metadata.

A controller has two images: the committed image, which answers reads, and the speculative image, which also contains
records that are appended but uncommitted, and which is the input of `decide` functions.  When a controller loses
leadership, `speculative = committed.copy()`.

Entries.  An image is a set of entries, each a record with a key: a topic by its id, a partition by topic id and number,
a config by resource and name, a broker by its id.  Some records replace an entry, some change a part of one
(`PartitionChangeRecord`, `UnfenceBrokerRecord`), and some remove entries.  `records()` returns all entries: a replay of
exactly these records results in the same image.  A snapshot contains these records.

State hash.

    state_hash = XOR over all entries of int64(BLAKE2b-8(encoded record)), big-endian and signed; 0 if there are none

The hash depends neither on the order of records nor on the number of replays of each, and a replay of a snapshot
results in the same hash.  The hash of a small image is computed from its content at each read, so that it covers
everything that readers see.  The hash of a large image is stored and updated at each read: an entry that changed a
hundred times between two reads is hashed once.  From time to time the hash of a large image is also computed from its
content.

Each unknown record (`UnknownRecord`) is kept unchanged as a separate entry, and has no other effect.  Records between
BeginTransaction and EndTransaction (KIP-868) take effect together at the end, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.decisions import configs_go_with_topic, topic_id_after_change
from system_under_test.kraft.records import metadata

HASHED_ANEW_MAX = 128
"""Maximum number of entries of an image whose hash is computed from its content at each read; for a larger image this
happens at every HASHED_ANEW_EVERY-th read.
"""
HASHED_ANEW_EVERY = 1024

R = TypeVar("R", bound=metadata.Record)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its partitions, by number."""

    name: str
    id: UUID
    partitions: Mapping[int, metadata.PartitionRecord]


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Description of the records of one type that become entries.

    key: returns the key of a record's entry
    removes: returns True if the record removes its entry instead of setting it
    """

    key: Callable[[Any], Hashable]
    removes: Callable[[Any], bool] = lambda record: False


TABLES: dict[type[metadata.Record], RecordTable] = {
    metadata.FeatureLevelRecord: RecordTable(lambda r: r.name, lambda r: r.level == 0),
    metadata.RegisterControllerRecord: RecordTable(lambda r: r.controller_id),
    metadata.RegisterBrokerRecord: RecordTable(lambda r: r.broker_id),
    metadata.ProducerIdsRecord: RecordTable(lambda r: ()),
    metadata.ZkMigrationStateRecord: RecordTable(lambda r: ()),
    metadata.ClientQuotaRecord: RecordTable(lambda r: (r.entity, r.key), lambda r: r.remove),
    metadata.UserScramCredentialRecord: RecordTable(lambda r: (r.name, r.mechanism)),
    metadata.DelegationTokenRecord: RecordTable(lambda r: r.token_id),
    metadata.AccessControlEntryRecord: RecordTable(lambda r: r.id),
}
"""Types of records whose entries are the unchanged records, in the order of a snapshot."""

REMOVERS: dict[type[metadata.Record], tuple[type[metadata.Record], Callable[[Any], Hashable]]] = {
    metadata.RemoveUserScramCredentialRecord: (metadata.UserScramCredentialRecord, lambda r: (r.name, r.mechanism)),
    metadata.RemoveDelegationTokenRecord: (metadata.DelegationTokenRecord, lambda r: r.token_id),
    metadata.RemoveAccessControlEntryRecord: (metadata.AccessControlEntryRecord, lambda r: r.id),
    metadata.UnregisterControllerRecord: (metadata.RegisterControllerRecord, lambda r: r.controller_id),
}
"""Types of records that remove an entry of another type -> that type, and the key of the entry."""


class Image:
    """The metadata image.  Readers use its properties; they must neither change nor keep the returned values.

    `copy` costs one shallow copy of each table.  Afterwards both images share the maps of partitions and of configs,
    and each image copies a map before its first change: changes of ten thousand partitions of a topic cost one copy.

    bugs: planted bugs of the controller
    controller: id of the node that decides on the image; None if there is none
    """

    def __init__(self, bugs: Collection[str] = (), controller: int | None = None) -> None:
        self._bugs = bugs
        self.controller = controller
        self._own_partitions: dict[
            str, dict[int, metadata.PartitionRecord]
        ] = {}  # of topics whose map is not shared with another image
        self._own_configs: dict[tuple[int, str], dict[str, str]] = {}  # likewise, the configs of resources
        self._reads_of_hash = 0
        self._topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._tables: dict[type[metadata.Record], dict[Hashable, metadata.Record]] = {kind: {} for kind in TABLES}
        self._unknown: list[metadata.UnknownRecord] = []
        self._transaction: list[metadata.Record | metadata.UnknownRecord] | None = None
        self._hashes: dict[object, int] = {}
        self._state_hash = 0  # of `_hashes`
        self._changed: dict[
            object, metadata.Record | metadata.UnknownRecord | None
        ] = {}  # entries set since; None: removed

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._topics

    @property
    def features(self) -> Mapping[str, int]:
        """Return the finalized level of each feature in use."""
        return {name: record.level for name, record in self.table(metadata.FeatureLevelRecord).items()}  # type: ignore[misc]

    @property
    def metadata_version(self) -> int | None:
        """Return the level of `metadata.version`, which determines the versions of records; None if it is not in
        use.
        """
        held = self.table(metadata.FeatureLevelRecord).get("metadata.version")
        return None if held is None else held.level

    @property
    def keeps_elr(self) -> bool:
        """Return True if eligible leader replicas are kept (KIP-966)."""
        held = self.table(metadata.FeatureLevelRecord).get("eligible.leader.replicas.version")
        return held is not None and held.level > 0

    @property
    def brokers(self) -> Mapping[int, metadata.RegisterBrokerRecord]:
        """Return the current registration of each broker, by broker id."""
        return self.table(metadata.RegisterBrokerRecord)  # type: ignore[return-value]

    @property
    def unknown(self) -> int:
        """Return the number of records of unknown types in the image."""
        return len(self._unknown)

    @property
    def in_transaction(self) -> bool:
        """Return True if a metadata transaction is open.

        The records of an open transaction have no effect yet, so no snapshot can be taken.
        """
        return self._transaction is not None

    @property
    def state_hash(self) -> int:
        """Return the state hash (the formula is in the module's docstring), an int64."""
        self._reads_of_hash += 1
        self._hash_what_changed()
        if len(self._hashes) <= HASHED_ANEW_MAX or self._reads_of_hash % HASHED_ANEW_EVERY == 0:
            return self.hash_of_content()
        return self._state_hash

    def hash_of_content(self) -> int:
        """Return the state hash, computed from every entry.  The cost grows with the number of entries."""
        total = 0
        for record in self.records():
            total ^= _hash_of(record)
        return total

    def table(self, kind: type[R]) -> Mapping[Hashable, R]:
        """Return the entries of one type in TABLES, by key."""
        return self._tables[kind]  # type: ignore[return-value]

    def topic_of(self, topic_id: UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def configs(self, resource_name: str, resource_type: int = metadata.TOPIC_RESOURCE) -> Mapping[str, str]:
        """Return the overrides of one resource: config name -> value; empty if it has none."""
        return self._configs.get((resource_type, resource_name), {})

    def configured(self, resource_type: int) -> list[str]:
        """Return the names of the resources of one type that have overrides."""
        return [name for kind, name in self._configs if kind == resource_type]

    def records(self) -> Iterator[metadata.Record | metadata.UnknownRecord]:
        """Return all entries, in an order in which they can be replayed."""
        for table in self._tables.values():
            yield from table.values()
        for topic in self._topics.values():
            yield _topic_record(topic.name, topic.id.int)
            yield from topic.partitions.values()
        for (resource_type, resource_name), overrides in self._configs.items():
            for name, value in overrides.items():
                yield _config_record(resource_type, resource_name, name, value)
        yield from self._unknown

    def copy(self) -> Image:
        twin = Image(self._bugs, self.controller)
        twin._topics = self._topics.copy()
        twin._names = self._names.copy()
        twin._configs = self._configs.copy()
        twin._tables = {kind: table.copy() for kind, table in self._tables.items()}
        twin._unknown = self._unknown.copy()
        twin._transaction = None if self._transaction is None else self._transaction.copy()
        twin._hashes = self._hashes.copy()
        twin._state_hash = self._state_hash
        twin._changed = self._changed.copy()
        self._own_partitions, self._own_configs = {}, {}
        return twin

    def replay(self, record_value: bytes) -> metadata.Record | metadata.UnknownRecord:
        """Apply one record (the value of a data record of the log), and return it decoded.

        Raises CorruptRecord if the record cannot be decoded or contradicts the image; the image is then unchanged.
        """
        record = metadata.decode(record_value)
        if self._transaction is None:
            _APPLY[type(record)](self, record)
        else:
            self.apply(record)
        return record

    def apply(self, record: metadata.Record | metadata.UnknownRecord) -> None:
        """Apply a decoded record, like `replay`."""
        kind = type(record)
        if self._transaction is None or kind in _ENDS_TRANSACTION:
            _APPLY[kind](self, record)
        elif kind is metadata.BeginTransactionRecord:
            raise metadata.CorruptRecord("a metadata transaction begins inside another one")
        else:
            self._transaction.append(record)

    def _begin_transaction(self, record: metadata.BeginTransactionRecord) -> None:
        self._transaction = []

    def _end_transaction(self, record: metadata.EndTransactionRecord | metadata.AbortTransactionRecord) -> None:
        if self._transaction is None:
            raise metadata.CorruptRecord("a metadata transaction ends, and none has begun")
        buffered, self._transaction = self._transaction, None
        for each in buffered if isinstance(record, metadata.EndTransactionRecord) else ():
            _APPLY[type(each)](self, each)

    def _keep_unknown(self, record: metadata.UnknownRecord) -> None:
        self._unknown.append(record)
        self._changed[metadata.UnknownRecord, len(self._unknown)] = record

    def _enter(self, record: metadata.Record) -> None:
        """Apply a record of a type in TABLES."""
        kind = type(record)
        table = TABLES[kind]
        self._set(kind, table.key(record), None if table.removes(record) else record)

    def _take_away(self, record: metadata.Record) -> None:
        """Apply a record of a type in REMOVERS."""
        of, key = REMOVERS[type(record)]
        self._set(of, key(record), None)

    def _set(self, kind: type[metadata.Record], key: Hashable, record: metadata.Record | None) -> None:
        """Set one entry of a table, or remove it if `record` is None."""
        if record is None:
            self._tables[kind].pop(key, None)
        else:
            self._tables[kind][key] = record
        self._changed[kind, key] = record

    # -- Brokers

    def _broker(self, broker_id: int, broker_epoch: int) -> metadata.RegisterBrokerRecord:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            known = "is not registered" if broker is None else f"has epoch {broker.broker_epoch}"
            raise metadata.CorruptRecord(f"a record changes broker {broker_id} of epoch {broker_epoch}, which {known}")
        return broker

    def _set_broker(self, broker: metadata.RegisterBrokerRecord, **changes: Any) -> None:
        self._set(metadata.RegisterBrokerRecord, broker.broker_id, replace(broker, **changes))

    def _fence(self, record: metadata.FenceBrokerRecord) -> None:
        self._set_broker(self._broker(record.broker_id, record.broker_epoch), fenced=True)

    def _unfence(self, record: metadata.UnfenceBrokerRecord) -> None:
        self._set_broker(self._broker(record.broker_id, record.broker_epoch), fenced=False)

    def _unregister(self, record: metadata.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        self._set(metadata.RegisterBrokerRecord, record.broker_id, None)

    def _change_broker(self, record: metadata.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        changes: dict[str, Any] = {} if record.fenced == 0 else {"fenced": record.fenced == 1}
        if record.in_controlled_shutdown == 1:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = record.log_dirs
        if record.cordoned_dirs is not None:
            changes["cordoned_dirs"] = record.cordoned_dirs
        self._set_broker(broker, **changes)

    # -- Topics, partitions and configs

    def _create_topic(self, record: metadata.TopicRecord) -> None:
        known = self._topics.get(record.name)
        if self._names.get(record.topic_id, record.name) != record.name:
            raise metadata.CorruptRecord(f"topic id {record.topic_id} belongs to {record.name} and to another topic")
        if known is not None and known.id != record.topic_id:
            raise metadata.CorruptRecord(
                f"topic {record.name} is created twice, as {known.id} and as {record.topic_id}"
            )
        partitions: Mapping[int, metadata.PartitionRecord] = known.partitions if known else {}
        self._topics[record.name] = Topic(record.name, record.topic_id, partitions)
        self._names[record.topic_id] = record.name
        self._changed[record.topic_id] = record

    def _topic_with(self, topic_id: UUID, partition: int) -> Topic:
        topic = self.topic_of(topic_id)
        if topic is None:
            raise metadata.CorruptRecord(f"partition {partition} belongs to no known topic ({topic_id})")
        return topic

    def _set_partition(self, record: metadata.PartitionRecord) -> None:
        self._keep_partition(self._topic_with(record.topic_id, record.partition), record)

    def _keep_partition(self, topic: Topic, record: metadata.PartitionRecord) -> None:
        if len(record.directories) not in (0, len(record.replicas)):
            which = f"partition {record.partition} of {topic.name}"
            words = f"{which} has {len(record.replicas)} replicas and {len(record.directories)} directories"
            raise metadata.CorruptRecord(words)
        partitions = self._own_partitions.get(topic.name)
        if partitions is None:
            partitions = self._own_partitions[topic.name] = dict(topic.partitions)
            self._topics[topic.name] = replace(topic, partitions=partitions)
        partitions[record.partition] = record
        self._changed[topic.id, record.partition] = record

    def _change_partition(self, record: metadata.PartitionChangeRecord) -> None:
        topic = self._topic_with(record.topic_id, record.partition)
        if record.partition not in topic.partitions:
            raise metadata.CorruptRecord(
                f"a record changes partition {record.partition} of {topic.name}, which does not exist"
            )
        after = changed(topic.partitions[record.partition], record)
        after = replace(after, topic_id=topic_id_after_change(after.topic_id, self._bugs))
        self._names[after.topic_id] = topic.name
        self._keep_partition(topic, after)

    def _clear_elr(self, record: metadata.ClearElrRecord) -> None:
        """Clear eligible leaders.  As in Kafka, this counts as a change of each partition that had eligible leaders."""
        if record.topic and record.topic not in self._topics:
            raise metadata.CorruptRecord(
                f"a record clears the eligible leaders of topic {record.topic}, which does not exist"
            )
        for name in [record.topic] if record.topic else list(self._topics):
            for partition in list(self._topics[name].partitions.values()):
                if partition.elr or partition.last_known_elr:
                    change = metadata.PartitionChangeRecord(
                        partition.partition, partition.topic_id, elr=(), last_known_elr=()
                    )
                    self._keep_partition(self._topics[name], changed(partition, change))

    def _remove_topic(self, record: metadata.RemoveTopicRecord) -> None:
        topic = self.topic_of(record.topic_id)
        if topic is None:
            raise metadata.CorruptRecord(f"a record removes topic {record.topic_id}, which does not exist")
        del self._topics[topic.name], self._names[topic.id]
        self._own_partitions.pop(topic.name, None)
        self._changed[topic.id] = None
        for partition in topic.partitions:
            self._changed[topic.id, partition] = None
        if configs_go_with_topic(self._bugs):
            self._own_configs.pop((metadata.TOPIC_RESOURCE, topic.name), None)
            for name in self._configs.pop((metadata.TOPIC_RESOURCE, topic.name), {}):
                self._changed[metadata.TOPIC_RESOURCE, topic.name, name] = None

    def _set_config(self, record: metadata.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        overrides = self._own_configs.get(resource)
        if overrides is None:
            overrides = self._own_configs[resource] = dict(self._configs.get(resource, ()))
            self._configs[resource] = overrides
        if record.value is not None:
            overrides[record.name] = record.value
            self._changed[*resource, record.name] = record
            return
        overrides.pop(record.name, None)
        self._changed[*resource, record.name] = None
        if not overrides:
            del self._configs[resource], self._own_configs[resource]

    def _nothing(self, record: metadata.NoOpRecord) -> None:
        """Do nothing, because a NoOp record only shows that the controller is alive."""

    def _hash_what_changed(self) -> None:
        for key, record in self._changed.items():
            self._state_hash ^= self._hashes.pop(key, 0)
            if record is not None:
                entry = _hash_of(record)
                self._hashes[key] = entry
                self._state_hash ^= entry
        self._changed.clear()


def changed(partition: metadata.PartitionRecord, change: metadata.PartitionChangeRecord) -> metadata.PartitionRecord:
    """Return the partition after a change (KIP-631).

    Every change increments the partition epoch, and every change that names a leader increments the leader epoch.
    After a change of the number of replicas without directories, all directories are unknown.
    """
    changes: dict[str, Any] = {
        name: value
        for name in ("isr", "replicas", "removing", "adding", "directories")
        if (value := getattr(change, name)) is not None
    }
    replicas = changes.get("replicas", partition.replicas)
    if change.directories is None and len(partition.directories) not in (0, len(replicas)):
        changes["directories"] = (metadata.MIGRATING,) * len(replicas)
    for name in ("elr", "last_known_elr"):  # an empty list is not written
        if (value := getattr(change, name)) is not None:
            changes[name] = value or None
    if change.leader != metadata.LEADER_UNCHANGED:
        changes.update(leader=change.leader, leader_epoch=partition.leader_epoch + 1)
    if change.recovery_state != -1:
        changes["recovery_state"] = change.recovery_state
    return replace(partition, partition_epoch=partition.partition_epoch + 1, **changes)


@lru_cache(maxsize=4096)
def _topic_record(name: str, id: int) -> metadata.TopicRecord:
    """Return the record of a topic.

    id: topic id as a number, which is cheaper to hash than a UUID
    """
    return metadata.TopicRecord(name, UUID(int=id))


_config_record = lru_cache(maxsize=4096)(metadata.ConfigRecord)
"""Cached, because a small image needs the same few records for each of its hashes."""


@lru_cache(maxsize=4096)
def _hash_of_new(record: metadata.Record | metadata.UnknownRecord) -> int:
    return int.from_bytes(blake2b(metadata.encode(record), digest_size=8).digest(), "big", signed=True)


_HASHES_MAX = 8192
_hashes: dict[int, tuple[metadata.Record | metadata.UnknownRecord, int]] = {}
"""`id()` of a record -> the record and its hash.  A record never changes, and the reference to it keeps its `id()`
unique.
"""


def _hash_of(record: metadata.Record | metadata.UnknownRecord) -> int:
    known = _hashes.get(id(record))
    if known is None:
        if len(_hashes) >= _HASHES_MAX:
            _hashes.clear()
        known = _hashes[id(record)] = record, _hash_of_new(record)
    return known[1]


_APPLY: dict[type, Callable[[Image, Any], None]] = {
    metadata.TopicRecord: Image._create_topic,
    metadata.PartitionRecord: Image._set_partition,
    metadata.PartitionChangeRecord: Image._change_partition,
    metadata.RemoveTopicRecord: Image._remove_topic,
    metadata.ClearElrRecord: Image._clear_elr,
    metadata.ConfigRecord: Image._set_config,
    metadata.FenceBrokerRecord: Image._fence,
    metadata.UnfenceBrokerRecord: Image._unfence,
    metadata.BrokerRegistrationChangeRecord: Image._change_broker,
    metadata.UnregisterBrokerRecord: Image._unregister,
    metadata.NoOpRecord: Image._nothing,
    metadata.BeginTransactionRecord: Image._begin_transaction,
    metadata.EndTransactionRecord: Image._end_transaction,
    metadata.AbortTransactionRecord: Image._end_transaction,
    metadata.UnknownRecord: Image._keep_unknown,
    **dict.fromkeys(TABLES, Image._enter),
    **dict.fromkeys(REMOVERS, Image._take_away),
}
"""Type of a record -> its effect on an image."""

_ENDS_TRANSACTION = frozenset({metadata.EndTransactionRecord, metadata.AbortTransactionRecord})


class Refused(Exception):
    """The controller refuses a request, or one of its entries.

    error: Kafka's error code of the answer
    message: one sentence for the client
    """

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
