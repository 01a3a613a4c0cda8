"""The records of a metadata log, decoded from their bytes alone.

Like `log_files.py`, this reader shares no code with the subject's own codec.  It follows Kafka's published record
layouts (KIP-631, KIP-778, KIP-858, KIP-868, KIP-966) and their flexible encoding (KIP-482):

    value     uvarint 1 (frame), uvarint type, uvarint version, fields in order, tagged fields
    text      uvarint length + 1, bytes; 0 for null          array   uvarint count + 1, elements; 0 for null
    tagged    uvarint count, then for each: uvarint tag, uvarint size, bytes

`record_layouts.toml` states the layouts, and how their fields are written.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayoutField:
    """absent: the value of a field that a record lacks."""

    name: str
    since: int
    tag: int | None
    absent: Any
    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of one type of record. newest: the newest version that is known here."""

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


def type_and_version(value: bytes) -> tuple[int, int]:
    """Return type and version; raise ValueError for a frame other than that of a metadata record."""
    data = Cursor(value)
    if (frame := data.uvarint()) != 1:
        raise ValueError(f"frame version {frame} is unknown")
    return data.uvarint(), data.uvarint()


@lru_cache(maxsize=1 << 14)  # the copies of all nodes hold the same records
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
    """Return the value of a record, in the lowest version that holds all of its fields."""
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
        """Return the bytes after their length; None for null."""
        size = self.uvarint()
        return None if size == 0 else self.take(size - 1)


def record_of_next(cursor: Cursor) -> tuple[bytes, bytes]:
    """Return (key, value) of the next record of a batch; a key that is null is empty."""
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
    int(number): Layout(row["kind"], row["newest"], _fields(row["fields"]))
    for number, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""Type of a record -> its layout."""
