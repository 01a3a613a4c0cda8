"""State to which the records of a metadata log amount, computed from their bytes alone.

The node's own machine (`controller/image.py`) is a program that may have a mistake.  This model is a second one: it
shares no code with it and follows Kafka's published definitions of the records (KIP-631, KIP-730, KIP-778, KIP-856,
KIP-868, KIP-966).  Both are held against each other by the hash that a node reports for its state:

    state hash = XOR over all entries of int64(BLAKE2b-8(entry)), big-endian and signed

An entry is a record value in the lowest version that holds all of it.  Most entries stand in the log as they are.  Two
kinds change in parts, so the model writes them anew: the registration of a broker and the state of a partition.

*Cursor.*  It reads the bytes of Kafka's flexible encoding (KIP-482) and of records in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

VERSIONS_MAX: Mapping[int, int] = {
    **dict.fromkeys((1, 2, 4, 7, 8, 9, 10, 11, 12, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29), 0),
    0: 4,
    3: 2,
    5: 2,
    17: 3,
}
"""The newest version of each type of record that has a meaning here.  Any other record is kept as it is."""

UNCHANGED = -2
"""The leader in a change of a partition that names none."""
TOPIC_CONFIGS = 2


@dataclass(frozen=True, slots=True)
class _Broker:
    """middle: the bytes of endpoints, features and rack, which no change touches.  log_dirs, cordoned: the bytes of
    arrays."""

    migrates: bool
    incarnation: bytes
    epoch: int
    middle: bytes
    fenced: bool
    leaving: bool
    log_dirs: bytes | None
    cordoned: bytes | None = None

    def value(self, number: int) -> bytes:
        version = 4 if self.cordoned else 3 if self.log_dirs else 2 if self.migrates else 1 if self.leaving else 0
        migrates = _flag(self.migrates) if version >= 2 else b""
        leaving = _flag(self.leaving) if version >= 1 else b""
        head = b"".join((_int(number, 4), migrates, self.incarnation, _int(self.epoch, 8), self.middle))
        arrays = {0: self.log_dirs, 1: self.cordoned}
        tags = {tag: held for tag, held in arrays.items() if held}
        return _value(0, version, head + _flag(self.fenced) + leaving, tags)


@dataclass(frozen=True, slots=True)
class _Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    recovery: int = 0
    elr: tuple[int, ...] | None = None
    last_elr: tuple[int, ...] | None = None

    def value(self, topic: bytes, number: int) -> bytes:
        eligible = {1: self.elr, 2: self.last_elr}
        tags = {tag: _ids(ids) for tag, ids in eligible.items() if ids is not None}
        version = 2 if tags else 1 if self.directories else 0
        lists = b"".join(map(_ids, (self.replicas, self.isr, self.removing, self.adding)))
        epochs = _int(self.leader, 4) + _int(self.leader_epoch, 4) + _int(self.partition_epoch, 4)
        directories = _array(self.directories) if version >= 1 else b""
        if self.recovery:
            tags[0] = _int(self.recovery, 1)
        return _value(3, version, _int(number, 4) + topic + lists + epochs + directories, tags)


class StateModel:
    """Replays record values in offset order.  `state_hash` is that of the state they amount to."""

    def __init__(self) -> None:
        self.state_hash = 0
        self._hashes: dict[Hashable, int] = {}
        self._brokers: dict[int, _Broker] = {}
        self._names: dict[bytes, str] = {}  # topic id -> name
        self._partitions: dict[bytes, dict[int, _Partition]] = {}
        self._configs: dict[tuple[int, str | None], set[str | None]] = {}
        self._unknown = 0
        self._open: list[bytes] | None = None  # the records of a metadata transaction that has begun

    def replay(self, value: bytes) -> None:
        """Raises ValueError, IndexError or KeyError for a record that has no meaning behind those before it."""
        data = Cursor(value)
        frame, kind, version = data.uvarint(), data.uvarint(), data.uvarint()
        if frame != 1:
            raise ValueError(f"frame version {frame} is unknown")
        known = version <= VERSIONS_MAX.get(kind, -1)
        if known and kind in (24, 25):
            buffered, self._open = self._open, None
            if buffered is None:
                raise ValueError("a metadata transaction ends, and none has begun")
            for each in buffered if kind == 24 else ():
                self.replay(each)
        elif self._open is not None:
            if known and kind == 23:
                raise ValueError("a metadata transaction begins inside another one")
            self._open.append(value)
        elif not known:
            self._unknown += 1
            self._set(("unknown", self._unknown), value)
        else:
            _ACTS[kind](self, data, version, value)

    def _set(self, key: Hashable, value: bytes | None) -> None:
        """Set one entry; None removes it."""
        self.state_hash ^= self._hashes.pop(key, 0)
        if value is not None:
            entry = int.from_bytes(blake2b(value, digest_size=8).digest(), "big", signed=True)
            self._hashes[key] = entry
            self.state_hash ^= entry

    # Brokers

    def _register(self, data: Cursor, version: int, value: bytes) -> None:
        number = data.number(4)
        migrates = bool(data.number(1)) if version >= 2 else False
        incarnation, epoch, begin = data.take(16), data.number(8), data.at
        data.array(_endpoint), data.array(_feature), data.text()
        middle, fenced = data.data[begin : data.at], bool(data.number(1))
        leaving, tags = bool(data.number(1)) if version >= 1 else False, _tags(data)
        cordoned = _cordoned(tags, 1)
        made = _Broker(migrates, incarnation, epoch, middle, fenced, leaving, _directories(tags, 0), cordoned)
        self._keep_broker(number, made)

    def _keep_broker(self, number: int, broker: _Broker) -> None:
        self._brokers[number] = broker
        self._set(("broker", number), broker.value(number))

    def _present(self, data: Cursor) -> tuple[int, _Broker]:
        number, epoch = data.number(4), data.number(8)
        broker = self._brokers[number]
        if broker.epoch != epoch:
            raise ValueError(f"broker {number} has epoch {broker.epoch}, not {epoch}")
        return number, broker

    def _unregister(self, data: Cursor, version: int, value: bytes) -> None:
        number, _ = self._present(data)
        del self._brokers[number]
        self._set(("broker", number), None)

    def _fence(self, data: Cursor, version: int, value: bytes) -> None:
        number, broker = self._present(data)
        self._keep_broker(number, replace(broker, fenced=True))

    def _unfence(self, data: Cursor, version: int, value: bytes) -> None:
        number, broker = self._present(data)
        self._keep_broker(number, replace(broker, fenced=False))

    def _change_broker(self, data: Cursor, version: int, value: bytes) -> None:
        number, broker = self._present(data)
        tags = _tags(data)
        fenced = {b"\x01": True, b"\xff": False}.get(tags.get(0, b""), broker.fenced)
        leaving = broker.leaving or tags.get(1) == b"\x01"
        log_dirs = _directories(tags, 2) or broker.log_dirs
        cordoned = _cordoned(tags, 3) or broker.cordoned
        changed = replace(broker, fenced=fenced, leaving=leaving, log_dirs=log_dirs, cordoned=cordoned)
        self._keep_broker(number, changed)

    # Topics

    def _topic(self, data: Cursor, version: int, value: bytes) -> None:
        name, topic = str(data.text()), data.take(16)
        if self._names.get(topic, name) != name or (name in self._names.values() and topic not in self._names):
            raise ValueError(f"topic {name} or its id is given twice")
        self._names[topic] = name
        self._partitions.setdefault(topic, {})
        self._set(("topic", topic), value)

    def _remove_topic(self, data: Cursor, version: int, value: bytes) -> None:
        topic = data.take(16)
        name = self._names.pop(topic)
        self._set(("topic", topic), None)
        for number in self._partitions.pop(topic):
            self._set(("partition", topic, number), None)
        for config in self._configs.pop((TOPIC_CONFIGS, name), ()):
            self._set(("config", TOPIC_CONFIGS, name, config), None)

    def _partition(self, data: Cursor, version: int, value: bytes) -> None:
        number, topic = data.number(4), data.take(16)
        replicas, isr, removing, adding = (_int32s(data) for _ in range(4))
        leader, leader_epoch, partition_epoch = (data.number(4) for _ in range(3))
        directories = tuple(data.array(_uuid) or ()) if version >= 1 else ()
        tags = _tags(data)
        made = _Partition(replicas, isr, removing, adding, leader, leader_epoch, partition_epoch, directories)
        made = replace(made, elr=_list_in(tags, 1), last_elr=_list_in(tags, 2), recovery=_byte_in(tags, 0, 0))
        self._keep_partition(topic, number, made)

    def _keep_partition(self, topic: bytes, number: int, partition: _Partition) -> None:
        """Kafka can neither load nor snapshot a partition with another number of directories than replicas."""
        if partition.directories and len(partition.directories) != len(partition.replicas):
            words = f"{len(partition.replicas)} replicas and {len(partition.directories)} directories"
            raise ValueError(f"partition {number} of topic {self._names.get(topic)} has {words}")
        self._partitions[topic][number] = partition
        self._set(("partition", topic, number), partition.value(topic, number))

    def _change_partition(self, data: Cursor, version: int, value: bytes) -> None:
        """A field without a tag stays.  A change that names a leader begins a new leader epoch."""
        number, topic = data.number(4), data.take(16)
        held, tags = self._partitions[topic][number], _tags(data)
        isr, replicas, removing, adding = (_list_in(tags, tag) for tag in (0, 2, 3, 4))
        leader = Cursor(tags[1]).number(4) if 1 in tags else UNCHANGED
        elr, last_elr = (_list_in(tags, tag) for tag in (6, 7))
        after = _Partition(
            replicas=held.replicas if replicas is None else replicas,
            isr=held.isr if isr is None else isr,
            removing=held.removing if removing is None else removing,
            adding=held.adding if adding is None else adding,
            leader=held.leader if leader == UNCHANGED else leader,
            leader_epoch=held.leader_epoch + (leader != UNCHANGED),
            partition_epoch=held.partition_epoch + 1,
            directories=tuple(Cursor(tags[8]).array(_uuid) or ()) if 8 in tags else held.directories,
            recovery=_byte_in(tags, 5, held.recovery),
            elr=held.elr if elr is None else elr or None,
            last_elr=held.last_elr if last_elr is None else last_elr or None,
        )
        if 8 not in tags and held.directories and len(held.directories) != len(after.replicas):
            after = replace(after, directories=(bytes(16),) * len(after.replicas))  # none is known any more
        self._keep_partition(topic, number, after)

    def _clear_elr(self, data: Cursor, version: int, value: bytes) -> None:
        """An empty name stands for all topics.  Each partition with eligible leaders has changed."""
        name = data.text()
        topics = [topic for topic, held in self._names.items() if name in ("", held)]
        if name and not topics:
            raise ValueError(f"there is no topic {name}")
        for topic in topics:
            for number, held in list(self._partitions[topic].items()):
                if held.elr or held.last_elr:
                    epoch = held.partition_epoch + 1
                    self._keep_partition(topic, number, replace(held, partition_epoch=epoch, elr=None, last_elr=None))

    def _config(self, data: Cursor, version: int, value: bytes) -> None:
        kind, resource, name, held = data.number(1), data.text(), data.text(), data.text()
        names = self._configs.setdefault((kind, resource), set())
        (names.discard if held is None else names.add)(name)
        self._set(("config", kind, resource, name), None if held is None else value)

    # The rest

    def _feature(self, data: Cursor, version: int, value: bytes) -> None:
        name, level = data.text(), data.number(2)
        self._set(("feature", name), value if level else None)

    def _quota(self, data: Cursor, version: int, value: bytes) -> None:
        begin = data.at
        data.array(_quota_entity), data.text()
        key = data.data[begin : data.at]
        data.take(8)
        self._set(("quota", key), None if data.number(1) else value)

    def _scram(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("scram", data.text(), data.number(1)), value)

    def _remove_scram(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("scram", data.text(), data.number(1)), None)

    def _token(self, data: Cursor, version: int, value: bytes) -> None:
        data.text(), data.text(), data.array(Cursor.text), data.take(24)
        self._set(("token", data.text()), value)

    def _remove_token(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("token", data.text()), None)

    def _acl(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("acl", data.take(16)), value)

    def _remove_acl(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("acl", data.take(16)), None)

    def _producer_ids(self, data: Cursor, version: int, value: bytes) -> None:
        self._set("producer ids", value)

    def _migration(self, data: Cursor, version: int, value: bytes) -> None:
        self._set("migration", value)

    def _controller(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("controller", data.number(4)), value)

    def _remove_controller(self, data: Cursor, version: int, value: bytes) -> None:
        self._set(("controller", data.number(4)), None)

    def _nothing(self, data: Cursor, version: int, value: bytes) -> None:
        """A no-op says only that the controller lives."""

    def _begin(self, data: Cursor, version: int, value: bytes) -> None:
        self._open = []


_ACTS: Mapping[int, Callable[[StateModel, Cursor, int, bytes], None]] = {
    0: StateModel._register,
    1: StateModel._unregister,
    2: StateModel._topic,
    3: StateModel._partition,
    4: StateModel._config,
    5: StateModel._change_partition,
    7: StateModel._fence,
    8: StateModel._unfence,
    9: StateModel._remove_topic,
    10: StateModel._token,
    11: StateModel._scram,
    12: StateModel._feature,
    14: StateModel._quota,
    15: StateModel._producer_ids,
    17: StateModel._change_broker,
    18: StateModel._acl,
    19: StateModel._remove_acl,
    20: StateModel._nothing,
    21: StateModel._migration,
    22: StateModel._remove_scram,
    23: StateModel._begin,
    26: StateModel._remove_token,
    27: StateModel._controller,
    28: StateModel._clear_elr,
    29: StateModel._remove_controller,
}


# Reading


def _uuid(data: Cursor) -> bytes:
    return data.take(16)


def _int32s(data: Cursor) -> tuple[int, ...]:
    return tuple(data.array(lambda each: each.number(4)) or ())


def _endpoint(data: Cursor) -> None:
    data.text(), data.text(), data.take(4)
    data.skip_tags()


def _feature(data: Cursor) -> None:
    data.text(), data.take(4)
    data.skip_tags()


def _quota_entity(data: Cursor) -> None:
    data.text(), data.text()
    data.skip_tags()


def _tags(data: Cursor) -> dict[int, bytes]:
    return {data.uvarint(): data.take(data.uvarint()) for _ in range(data.uvarint())}


def _list_in(tags: Mapping[int, bytes], tag: int) -> tuple[int, ...] | None:
    return _int32s(Cursor(tags[tag])) if tag in tags else None


def _byte_in(tags: Mapping[int, bytes], tag: int, otherwise: int) -> int:
    return Cursor(tags[tag]).number(1) if tag in tags else otherwise


def _directories(tags: Mapping[int, bytes], tag: int) -> bytes | None:
    """The bytes of an array of directories; None for an empty one."""
    return tags[tag] if tags.get(tag, b"\x01") not in (b"\x00", b"\x01") else None


def _cordoned(tags: Mapping[int, bytes], tag: int) -> bytes | None:
    """The bytes of an array of directories, which may be empty; None for a null one."""
    return None if tags.get(tag, b"\x00") == b"\x00" else tags[tag]


# Writing


def _int(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


def _flag(flag: bool) -> bytes:
    return b"\x01" if flag else b"\x00"


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _array(elements: tuple[bytes, ...]) -> bytes:
    return _uvarint(len(elements) + 1) + b"".join(elements)


def _ids(numbers: tuple[int, ...]) -> bytes:
    return _array(tuple(_int(number, 4) for number in numbers))


def _value(kind: int, version: int, fields: bytes, tags: Mapping[int, bytes]) -> bytes:
    tagged = b"".join(_uvarint(tag) + _uvarint(len(held)) + held for tag, held in sorted(tags.items()))
    return bytes((1, kind, version)) + fields + _uvarint(len(tags)) + tagged


_BEYOND = "a field reaches beyond its record"


class Cursor:
    """A place in bytes.  Each verb raises ValueError or IndexError where the bytes end."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > self.end:
            raise ValueError(_BEYOND)
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def uvarint(self) -> int:
        value = shift = 0
        while 0 <= self.at < self.end:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError(_BEYOND)

    def zigzag(self) -> int:
        value = self.uvarint()
        return (value >> 1) ^ -(value & 1)

    def uuid(self) -> str:
        return self.take(16).hex()

    def text(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self.take(size - 1).decode()

    def array(self, element: Callable[[Cursor], Any]) -> list[Any] | None:
        count = self.uvarint()
        return None if count == 0 else [element(self) for _ in range(count - 1)]

    def skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())

    def tags(self, known: Mapping[int, tuple[str, Callable[[Cursor], Any]]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            content = Cursor(self.take(self.uvarint()))
            if tag in known:
                name, read = known[tag]
                found[name] = read(content)
        return found


def record_of_next(cursor: Cursor) -> tuple[bytes, bytes]:
    """Return (key, value) of the next record of a batch; a key that is null is empty."""
    after = cursor.zigzag() + cursor.at
    cursor.take(1), cursor.zigzag(), cursor.zigzag()
    key = cursor.take(max(cursor.zigzag(), 0))
    value = cursor.take(max(cursor.zigzag(), 0))
    cursor.at = after
    return key, value
