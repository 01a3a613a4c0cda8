"""Model of the state that results from the records of a metadata log.

The node's own state machine (`controller/image.py`) may have a bug.  This model is a second implementation, which
shares no code with that state machine and follows Kafka's published definitions of the records (KIP-631, KIP-730,
KIP-778, KIP-856, KIP-868, KIP-966).  The two are compared by the hash that a node reports for its state:

    state hash = XOR over all entries of int64(BLAKE2b-8(entry)), big-endian and signed

An entry is a record value in the lowest version that can contain all of its fields.  Most entries are values of the
log, unchanged.  Entries of two kinds change in parts, so the model encodes these again: registrations of brokers and
states of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b

from system_under_test.kraft.collected.record_layouts import LAYOUTS, Fields, decode, encode, type_and_version

UNCHANGED = -2
"""Value of the leader in a change of a partition that does not name a leader."""
TOPIC_CONFIGS = 2
_REGISTER, _PARTITION, _BEGIN, _END, _ABORT = 0, 3, 23, 24, 25

_SETS: Mapping[int, tuple[str, ...]] = {
    2: ("topic", "topic"),
    4: ("config", "kind", "resource", "name"),
    10: ("token", "token"),
    11: ("scram", "name", "mechanism"),
    12: ("feature", "feature"),
    14: ("quota", "entity", "key"),
    15: ("producer ids",),
    18: ("acl", "id"),
    21: ("migration",),
    27: ("controller", "controller"),
}
"""Type of a record that becomes an entry -> the kind of the entry, and the fields that identify it."""
_REMOVES: Mapping[int, int] = {19: 18, 22: 11, 26: 10, 29: 27}
"""Type of a record that removes an entry -> the type that set the entry."""
_GONE: Mapping[int, Callable[[Fields], bool]] = {
    4: lambda fields: fields["value"] is None,
    12: lambda fields: fields["level"] == 0,
    14: lambda fields: fields["remove"],
}
"""Type of a record -> function that returns True if the record removes the entry that it names."""


class StateModel:
    """The state after a replay of record values in offset order.  `state_hash` is the hash of this state."""

    def __init__(self) -> None:
        self.state_hash = 0
        self._hashes: dict[tuple[Hashable, ...], int] = {}
        self._brokers: dict[int, Fields] = {}
        self._names: dict[str, str] = {}  # topic id -> name
        self._partitions: dict[str, dict[int, Fields]] = {}
        self._unknown = 0
        self._open: list[bytes] | None = None  # records of an open metadata transaction

    def replay(self, value: bytes) -> None:
        """Replay a record; raise ValueError, IndexError or KeyError if the record is impossible after the earlier
        records.
        """
        kind, version = type_and_version(value)
        known = kind in LAYOUTS and version <= LAYOUTS[kind].newest
        if known and kind in (_END, _ABORT):
            buffered, self._open = self._open, None
            if buffered is None:
                raise ValueError("a metadata transaction ends, and none has begun")
            for each in buffered if kind == _END else ():
                self.replay(each)
        elif self._open is not None:
            if known and kind == _BEGIN:
                raise ValueError("a metadata transaction begins inside another one")
            self._open.append(value)
        elif not known:
            self._unknown += 1
            self._set(("unknown", self._unknown), value)
        else:
            self._apply(kind, decode(value), value)

    def _apply(self, kind: int, fields: Fields, value: bytes) -> None:
        if kind in _ACTS:
            _ACTS[kind](self, fields)
        if kind in _SETS or kind in _REMOVES:
            entry, *names = _SETS[_REMOVES.get(kind, kind)]
            gone = kind in _REMOVES or (kind in _GONE and _GONE[kind](fields))
            self._set((entry, *(repr(fields[name]) for name in names)), None if gone else value)

    def _set(self, key: tuple[Hashable, ...], value: bytes | None) -> None:
        """Set one entry; None removes it."""
        self.state_hash ^= self._hashes.pop(key, 0)
        if value is not None:
            entry = int.from_bytes(blake2b(value, digest_size=8).digest(), "big", signed=True)
            self._hashes[key] = entry
            self.state_hash ^= entry

    def _begin(self, fields: Fields) -> None:
        self._open = []

    # Brokers

    def _keep_broker(self, fields: Fields) -> None:
        self._brokers[fields["broker"]] = fields
        self._set(("broker", fields["broker"]), encode(_REGISTER, fields))

    def _present(self, fields: Fields) -> Fields:
        broker = self._brokers[fields["broker"]]
        if broker["epoch"] != fields["epoch"]:
            raise ValueError(f"broker {fields['broker']} has epoch {broker['epoch']}, not {fields['epoch']}")
        return broker

    def _unregister(self, fields: Fields) -> None:
        self._present(fields)
        del self._brokers[fields["broker"]]
        self._set(("broker", fields["broker"]), None)

    def _change_broker(self, fields: Fields, fenced: int = 0) -> None:
        """Apply a change of a broker's registration.

        fenced: value for a record without such a field
        """
        broker = self._present(fields)
        changes = {
            "fenced": {1: True, -1: False}.get(fields.get("fenced", fenced), broker["fenced"]),
            "leaving": broker["leaving"] or fields.get("leaving") == 1,
            "directories": fields.get("directories") or broker.get("directories", []),
        }
        if fields.get("cordoned") is not None:
            changes["cordoned"] = fields["cordoned"]
        self._keep_broker({**broker, **changes})

    # Topics

    def _topic(self, fields: Fields) -> None:
        name, topic = str(fields["name"]), fields["topic"]
        if self._names.get(topic, name) != name or (name in self._names.values() and topic not in self._names):
            raise ValueError(f"topic {name} or its id is created twice")
        self._names[topic] = name
        self._partitions.setdefault(topic, {})

    def _remove_topic(self, fields: Fields) -> None:
        topic = fields["topic"]
        name = self._names.pop(topic)
        self._set(("topic", repr(topic)), None)
        for number in self._partitions.pop(topic):
            self._set(("partition", topic, number), None)
        for key in [key for key in self._hashes if key[:3] == ("config", repr(TOPIC_CONFIGS), repr(name))]:
            self._set(key, None)

    def _keep_partition(self, fields: Fields) -> None:
        """Set the state of a partition.  Raises ValueError if the numbers of directories and replicas differ, because
        Kafka can neither load nor snapshot such a partition.
        """
        number, topic = fields["number"], fields["topic"]
        if fields["directories"] and len(fields["directories"]) != len(fields["replicas"]):
            words = f"{len(fields['replicas'])} replicas and {len(fields['directories'])} directories"
            raise ValueError(f"partition {number} of topic {self._names.get(topic)} has {words}")
        self._partitions[topic][number] = fields
        self._set(("partition", topic, number), encode(_PARTITION, fields))

    def _change_partition(self, fields: Fields) -> None:
        """Change a partition.  A tagged field that the record lacks keeps its value.  A change that names a leader
        begins a new leader epoch.
        """
        held = self._partitions[fields["topic"]][fields["number"]]
        after = {**held, **{name: value for name, value in fields.items() if value is not None}}
        if fields.get("leader", UNCHANGED) == UNCHANGED:
            after["leader"] = held["leader"]
        else:
            after["leader_epoch"] = held["leader_epoch"] + 1
        if (
            fields.get("directories") is None
            and held["directories"]
            and len(held["directories"]) != len(after["replicas"])
        ):
            after["directories"] = [bytes(16).hex()] * len(after["replicas"])  # directories are unknown from now on
        after["partition_epoch"] = held["partition_epoch"] + 1
        for name in ("elr", "last_elr"):
            if fields.get(name) == []:
                after[name] = None
        self._keep_partition(after)

    def _clear_elr(self, fields: Fields) -> None:
        """Clear eligible leaders; an empty name stands for all topics.  Each partition with eligible leaders counts as
        changed.
        """
        topics = [topic for topic, held in self._names.items() if fields["name"] in ("", held)]
        if fields["name"] and not topics:
            raise ValueError(f"there is no topic {fields['name']}")
        for topic in topics:
            for held in list(self._partitions[topic].values()):
                if held.get("elr") or held.get("last_elr"):
                    epoch = held["partition_epoch"] + 1
                    self._keep_partition({**held, "partition_epoch": epoch, "elr": None, "last_elr": None})


_ACTS: Mapping[int, Callable[[StateModel, Fields], None]] = {
    _REGISTER: StateModel._keep_broker,
    1: StateModel._unregister,
    2: StateModel._topic,
    _PARTITION: StateModel._keep_partition,
    5: StateModel._change_partition,
    7: lambda model, fields: model._change_broker(fields, fenced=1),
    8: lambda model, fields: model._change_broker(fields, fenced=-1),
    9: StateModel._remove_topic,
    17: StateModel._change_broker,
    _BEGIN: StateModel._begin,
    28: StateModel._clear_elr,
}
"""Type of a record -> its effect in addition to, or instead of, setting or removing one entry."""
