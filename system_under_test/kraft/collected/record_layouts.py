"""Decoder of the records of a metadata log.

Like `log_files.py`, this reader shares no code with the subject's own codec.  It follows Kafka's published record
layouts (KIP-631, KIP-778, KIP-858, KIP-868, KIP-966) and their flexible encoding (KIP-482):

    value     uvarint 1 (frame), uvarint type, uvarint version, fields in order, tagged fields
    text      uvarint length + 1, bytes; 0 for null          array   uvarint count + 1, elements; 0 for null
    tagged    uvarint count, then for each: uvarint tag, uvarint size, bytes

`_TYPES` describes each field of a layout: its name and type, then `@` and the first version that has the field, and `#`
and the tag of a tagged field.  An array whose type ends with `?` may be null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayoutField:
    """One field of a record.

    absent: value of the field in a record that lacks it
    """

    name: str
    since: int
    tag: int | None
    absent: Any
    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one type of record.

    newest: newest version that this decoder supports
    """

    kind: str
    newest: int
    fields: tuple[LayoutField, ...]


_INTEGERS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_STRUCTS = {
    "endpoint": "name text, host text, port int16, protocol int16",
    "feature": "name text, least int16, most int16",
    "entity": "type text, name text",
}
_FIELD = re.compile(r"(\w+) (\S+?)(?: ?@(\d+))?(?: ?#(\d+))?")
_TYPES = """
0 register broker 4: broker int32, migrates bool @2, incarnation uuid, epoch int64, endpoints [endpoint],
    features [feature], rack text, fenced bool, leaving bool @1, directories [uuid] @3 #0, cordoned [uuid]? @4 #1
1 unregister broker 0: broker int32, epoch int64
2 topic 0: name text, topic uuid
3 partition 2: number int32, topic uuid, replicas [int32], isr [int32], removing [int32], adding [int32], leader int32,
    leader_epoch int32, partition_epoch int32, directories [uuid] @1, recovery int8 #0, elr [int32]? @2 #1,
    last_elr [int32]? @2 #2
4 config 0: kind int8, resource text, name text, value text
5 change partition 2: number int32, topic uuid, isr [int32]? #0, leader int32 #1, replicas [int32]? #2,
    removing [int32]? #3, adding [int32]? #4, recovery int8 #5, elr [int32]? @2 #6, last_elr [int32]? @2 #7,
    directories [uuid]? @1 #8
7 fence broker 0: broker int32, epoch int64
8 unfence broker 0: broker int32, epoch int64
9 remove topic 0: topic uuid
10 delegation token 0: owner text, requester text, renewers [text], issued int64, limit int64, expires int64, token text
11 user scram credential 0: name text, mechanism int8, salt bytes, stored bytes, server bytes, iterations int32
12 feature 0: feature text, level int16
14 client quota 0: entity [entity], key text, value int64, remove bool
15 producer ids 0: broker int32, epoch int64, next int64
17 change broker 3: broker int32, epoch int64, fenced int8 #0, leaving int8 @1 #1, directories [uuid] @2 #2,
    cordoned [uuid]? @3 #3
18 access control entry 0: id uuid, type int8, resource text, pattern int8, principal text, host text, operation int8,
    permission int8
19 remove access control entry 0: id uuid
20 no-op 0:
21 zk migration 0: state int8
22 remove user scram credential 0: name text, mechanism int8
23 begin transaction 0: name text #0
24 end transaction 0:
25 abort transaction 0: reason text #0
26 remove delegation token 0: token text
27 register controller 0: controller int32, incarnation uuid, migrates bool, endpoints [endpoint], features [feature]
28 clear elr 0: name text
29 unregister controller 0: controller int32
"""
"""Number, name and newest version of each type, and its fields."""


def type_and_version(value: bytes) -> tuple[int, int]:
    """Return type and version of a record; raise ValueError for any frame but that of a metadata record."""
    data = Cursor(value)
    if (frame := data.uvarint()) != 1:
        raise ValueError(f"frame version {frame} is unknown")
    return data.uvarint(), data.uvarint()


@lru_cache(maxsize=1 << 14)  # the copies of all nodes contain the same records
def decode(value: bytes) -> Fields:
    """Return name -> value of the fields of a record whose type is in LAYOUTS.

    A tagged field is included only if the record has it.  Raises ValueError or IndexError.
    """
    kind, version = type_and_version(value)
    data, layout, found = Cursor(value), LAYOUTS[kind], {}
    data.uvarint(), data.uvarint(), data.uvarint()
    for field in layout.fields:
        if field.tag is None:
            found[field.name] = field.read(data) if version >= field.since else field.absent
    tagged = {field.tag: field for field in layout.fields}
    for _ in range(data.uvarint()):
        tag, content = data.uvarint(), Cursor(data.take(data.uvarint()))
        if tag in tagged:
            found[tagged[tag].name] = tagged[tag].read(content)
    if data.at != data.end:
        raise ValueError(f"{data.end - data.at} bytes follow a record of type {kind}, version {version}")
    return found


def encode(kind: int, fields: Fields) -> bytes:
    """Return the value of a record, encoded in the lowest version that can contain all of its fields."""
    given = [each for each in LAYOUTS[kind].fields if fields.get(each.name, each.absent) != each.absent]
    version = max((each.since for each in given), default=0)
    untagged = [each for each in LAYOUTS[kind].fields if each.tag is None and each.since <= version]
    tags = sorted((each.tag, each.write(fields[each.name])) for each in given if each.tag is not None)
    tagged = b"".join(_uvarint(tag) + _uvarint(len(held)) + held for tag, held in tags)
    plain = b"".join(each.write(fields[each.name]) for each in untagged)
    return bytes((1, kind, version)) + plain + _uvarint(len(tags)) + tagged


_BEYOND = "a field reaches beyond its record"


class Cursor:
    """A position in bytes.  Each method raises ValueError or IndexError at the end of the bytes."""

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

    def sized(self) -> bytes | None:
        """Read a length-prefixed byte string; return None if the length encodes null."""
        size = self.uvarint()
        return None if size == 0 else self.take(size - 1)


def record_of_next(cursor: Cursor) -> tuple[bytes, bytes]:
    """Return (key, value) of the next record of a batch; b"" for a null key."""
    after = cursor.zigzag() + cursor.at
    cursor.take(1), cursor.zigzag(), cursor.zigzag()
    key = cursor.take(max(cursor.zigzag(), 0))
    value = cursor.take(max(cursor.zigzag(), 0))
    cursor.at = after
    return key, value


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _sized(data: bytes | None) -> bytes:
    return b"\0" if data is None else _uvarint(len(data) + 1) + data


def _field(name: str, kind: str, since: str | None, tag: str | None) -> LayoutField:
    absent: Any = False if kind == "bool" else [] if kind.endswith("]") else 0 if kind in _INTEGERS else None
    return LayoutField(name, int(since or 0), None if tag is None else int(tag), absent, *_codec(kind))


def _codec(kind: str) -> tuple[Callable[[Cursor], Any], Callable[[Any], bytes]]:
    """Return functions that read and write values of a type."""
    if size := _INTEGERS.get(kind):
        return lambda data: data.number(size), lambda value: value.to_bytes(size, "big", signed=True)
    if kind in _STRUCTS:
        return _struct(_fields(_STRUCTS[kind]))
    if kind.startswith("["):
        return _array(*_codec(kind.strip("[]?")), nullable=kind.endswith("?"))
    return {
        "bool": (lambda data: bool(data.number(1)), lambda value: bytes((value,))),
        "uuid": (lambda data: data.take(16).hex(), bytes.fromhex),
        "bytes": (Cursor.sized, _sized),
        "text": (_read_text, lambda value: _sized(value and value.encode())),
    }[kind]


def _read_text(data: Cursor) -> str | None:
    held = data.sized()
    return None if held is None else held.decode()


def _array(
    read: Callable[[Cursor], Any], write: Callable[[Any], bytes], *, nullable: bool
) -> tuple[Callable[[Cursor], Any], Callable[[Any], bytes]]:
    def read_all(data: Cursor) -> list[Any] | None:
        count = data.uvarint()
        return None if count == 0 and nullable else [read(data) for _ in range(count - 1)]

    return read_all, lambda values: _uvarint(len(values) + 1) + b"".join(map(write, values))


def _struct(fields: tuple[LayoutField, ...]) -> tuple[Callable[[Cursor], Any], Callable[[Any], bytes]]:
    def read(data: Cursor) -> list[Any]:
        values = [field.read(data) for field in fields]
        for _ in range(data.uvarint()):
            data.uvarint(), data.take(data.uvarint())
        return values

    return read, lambda values: b"".join([*(f.write(v) for f, v in zip(fields, values, strict=True)), b"\0"])


def _fields(text: str) -> tuple[LayoutField, ...]:
    return tuple(_field(*found.groups()) for each in text.split(",") if (found := _FIELD.fullmatch(each.strip())))


LAYOUTS: Mapping[int, Layout] = {
    int(number): Layout(kind, int(newest), _fields(text))
    for number, kind, newest, text in re.findall(r"^(\d+) (.+) (\d+):((?:.*\n    )*.*)", _TYPES, re.MULTILINE)
}
"""Type of a record -> its layout."""
