"""The metadata image: what all committed records amount to.

    replay(record) changes the image;  every other change of metadata is forbidden.

A controller keeps two of them: the committed one, which answers reads, and the speculative one, which also holds
what was appended but not yet committed and is what `decide` functions see.  Losing leadership means
`speculative = committed.copy()`.

State hash.  An image is a set of entries; each is the latest record of one key: a topic (by id), a partition (by topic
id and number), a config (by resource and name).  A removed config is no entry.

    state_hash = XOR over all entries of int64(BLAKE2b-8(encoded record)), big-endian and signed; 0 if there are none

so it depends neither on the order of records nor on how often each is replayed.

A small image is hashed anew each time from what it holds, so that the hash covers everything a reader can see.  Of a
large one the sum is kept up to date record by record, and it is computed anew now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from uuid import UUID

from system_under_test.kraft.controller.records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    CorruptRecord,
    NoOpRecord,
    PartitionRecord,
    TopicRecord,
    decode,
    encode,
)

HASHED_ANEW_MAX = 128
"""An image of more entries is hashed anew only at every HASHED_ANEW_EVERY-th time."""
HASHED_ANEW_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its partitions, by number."""

    name: str
    id: UUID
    partitions: Mapping[int, PartitionRecord]


class Image:
    """Topics and configs.  Read them through the properties; never change what they return, and do not keep it.

    `copy` costs one shallow copy of each table.  Afterwards both images share the maps of partitions, and each copies
    a map before it changes it for the first time: ten thousand partitions of a topic cost one copy.
    """

    def __init__(self) -> None:
        self._own_partitions: dict[str, dict[int, PartitionRecord]] = {}  # of topics whose map no other image shares
        self._reads_of_hash = 0
        self._topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._hashes: dict[object, int] = {}
        self._state_hash = 0

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._topics

    @property
    def state_hash(self) -> int:
        """See the module's formula; an int64."""
        self._reads_of_hash += 1
        if len(self._hashes) <= HASHED_ANEW_MAX or self._reads_of_hash % HASHED_ANEW_EVERY == 0:
            return self._hash_of_content()
        return self._state_hash

    def topic_of(self, topic_id: UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def configs(self, resource_name: str, resource_type: int = TOPIC_RESOURCE) -> Mapping[str, str]:
        """The overrides of one resource: config name -> value; empty where it has none."""
        return self._configs.get((resource_type, resource_name), {})

    def copy(self) -> Image:
        twin = Image()
        twin._topics = self._topics.copy()
        twin._names = self._names.copy()
        twin._configs = self._configs.copy()
        twin._hashes = self._hashes.copy()
        twin._state_hash = self._state_hash
        self._own_partitions = {}
        return twin

    def replay(self, record_value: bytes) -> None:
        """Apply one record (the value of a data record of the log).

        Raises CorruptRecord if it cannot be decoded or does not fit the image; the image is then unchanged.
        """
        record = decode(record_value)
        _REPLAY[type(record)](self, record, record_value)

    def _replay_topic(self, record: TopicRecord, value: bytes) -> None:
        known = self._topics.get(record.name)
        if self._names.get(record.topic_id, record.name) != record.name:
            raise CorruptRecord(f"topic id {record.topic_id} is given to {record.name} and to another topic")
        if known is not None and known.id != record.topic_id:
            raise CorruptRecord(f"topic {record.name} is created twice, as {known.id} and as {record.topic_id}")
        partitions: Mapping[int, PartitionRecord] = known.partitions if known else {}
        self._topics[record.name] = Topic(record.name, record.topic_id, partitions)
        self._names[record.topic_id] = record.name
        self._set_entry(record.topic_id, value)

    def _replay_partition(self, record: PartitionRecord, value: bytes) -> None:
        topic = self.topic_of(record.topic_id)
        if topic is None:
            raise CorruptRecord(f"partition {record.partition} belongs to no known topic ({record.topic_id})")
        partitions = self._own_partitions.get(topic.name)
        if partitions is None:
            partitions = self._own_partitions[topic.name] = dict(topic.partitions)
            self._topics[topic.name] = replace(topic, partitions=partitions)
        partitions[record.partition] = record
        self._set_entry((record.topic_id, record.partition), value)

    def _replay_config(self, record: ConfigRecord, value: bytes) -> None:
        resource = (record.resource_type, record.resource_name)
        overrides = dict(self._configs.get(resource, {}))
        if record.value is None:
            overrides.pop(record.name, None)
        else:
            overrides[record.name] = record.value
        if overrides:
            self._configs[resource] = overrides
        else:
            self._configs.pop(resource, None)
        self._set_entry((*resource, record.name), None if record.value is None else value)

    def _replay_nothing(self, record: NoOpRecord, value: bytes) -> None:
        """A NoOp says only that the controller lives."""

    def _set_entry(self, key: object, value: bytes | None) -> None:
        self._state_hash ^= self._hashes.pop(key, 0)
        if value is not None:
            entry = _hash(value)
            self._hashes[key] = entry
            self._state_hash ^= entry

    def _hash_of_content(self) -> int:
        total = 0
        for topic in self._topics.values():
            total ^= _hash_of_record(TopicRecord(topic.name, topic.id))
            for partition in topic.partitions.values():
                total ^= _hash_of_record(partition)
        for (resource_type, resource_name), overrides in self._configs.items():
            for name, value in overrides.items():
                total ^= _hash_of_record(ConfigRecord(resource_type, resource_name, name, value))
        return total


def _hash(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big", signed=True)


@lru_cache(maxsize=4096)
def _hash_of_record(record: TopicRecord | PartitionRecord | ConfigRecord) -> int:
    return _hash(encode(record))


_REPLAY: dict[type, Callable[[Image, Any, bytes], None]] = {
    TopicRecord: Image._replay_topic,
    PartitionRecord: Image._replay_partition,
    ConfigRecord: Image._replay_config,
    NoOpRecord: Image._replay_nothing,
}
