"""Encoding of dataclasses in Kafka's flexible format (KIP-482).  The annotations of a class are the table of its
fields.

    @dataclass(frozen=True, slots=True)
    class Endpoint(Struct):
        name: str                                                  a string; `str | None` may be null
        port: UInt16                                               a number of a stated width
        racks: Annotated[tuple[str, ...], Since(1)] = ()           from version 1 on
        logs: Annotated[tuple[UUID, ...], Since(2), Tag(0)] = ()   a tagged field, left out if it has its default

`StructCodec(cls)` compiles a reader and a writer for each version when that version is first used.  A length is
verified before it is used, so a few bytes never claim much memory.  Tags that a version does not know are kept in
`unknown_tags` and written again.

Cost: linear in the size of the value.  Decoding records is a large share of a node's work, above all when it starts.
So `_straight_reader` generates a function that reads the common form of a struct, without tags and with lengths of one
byte, three to four times as fast.  The general reader handles every other form, and malformed bytes.
"""

from __future__ import annotations

import itertools
import struct
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID


class Malformed(ValueError):
    """Raised for bytes that do not encode the expected struct.  The message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """The base of every struct.

    unknown_tags: (number, bytes) of tagged fields of later versions, in ascending order
    """

    unknown_tags: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)


class Since(NamedTuple):
    """The first version that contains a field."""

    version: int


class Tag(NamedTuple):
    """The number of a tagged field."""

    number: int


Reader = Callable[[bytes, int], tuple[Any, int]]


class WireType(NamedTuple):
    """The encoding of one type.

    read: (data, at) -> (value, position after it)
    write: (out, value) appends the encoded value
    size_min_bytes: minimum bytes of an encoded value; an array is rejected if its elements cannot fit into the
        remaining bytes
    form: format character of `struct` for a number of fixed width, otherwise ""
    counted: for a value with a length prefix, an expression that decodes it from the bytes `{}`, otherwise ""
    nullable: True if the value may be null

    Both functions raise Malformed, struct.error, IndexError or UnicodeDecodeError for invalid input.
    """

    read: Reader
    write: Callable[[bytearray, Any], None]
    size_min_bytes: int
    form: str = ""
    counted: str = ""
    nullable: bool = False


_SHORT_MAX = 0x7F
"""Largest number whose uvarint takes one byte."""


def read_uvarint(data: bytes, at: int, shift_max: int = 28) -> tuple[int, int]:
    """Read an unsigned number in groups of seven bits, the lowest first.

    shift_max: maximum shift of the last group, in bits

    Raises IndexError at the end of the bytes.
    """
    byte = data[at]
    if byte <= _SHORT_MAX:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
        if shift > shift_max:
            raise Malformed(f"a uvarint of more than {shift_max // 7 + 1} bytes")


def uvarint(number: int) -> bytes:
    if number <= _SHORT_MAX:
        return bytes((number,))
    out = bytearray()
    while number > _SHORT_MAX:
        out.append(number & _SHORT_MAX | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _take(data: bytes, at: int, size_bytes: int) -> tuple[bytes, int]:
    end = at + size_bytes
    if end > len(data):
        raise Malformed(f"{size_bytes} bytes are announced, but only {len(data) - at} are left")
    return data[at:end], end


def _fixed(form: str) -> WireType:
    packer = struct.Struct(f">{form}")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return packer.unpack_from(data, at)[0], at + packer.size

    def write(out: bytearray, value: Any) -> None:
        out.extend(packer.pack(value))

    return WireType(read, write, packer.size, form)


def _read_uuid(data: bytes, at: int) -> tuple[UUID, int]:
    taken, at = _take(data, at, 16)
    return UUID(bytes=taken), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_uvarint(data, at)
    if length == 0:
        raise Malformed("null where bytes are required")
    return _take(data, at, length - 1)


def _write_bytes(out: bytearray, value: bytes) -> None:
    if len(value) < _SHORT_MAX:  # the common case: a record contains several values, nearly all of them short
        out.append(len(value) + 1)
    else:
        out += uvarint(len(value) + 1)
    out += value


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length, at = read_uvarint(data, at)
    if length == 0:
        raise Malformed("null where a string is required")
    taken, at = _take(data, at, length - 1)
    return taken.decode(), at


def _nullable(wire: WireType) -> WireType:
    """Make a type nullable.  Null is encoded as a length of zero, with which no string, byte string or array begins."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return (None, at + 1) if data[at] == 0 else wire.read(data, at)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0)
        else:
            wire.write(out, value)

    return WireType(read, write, 1, counted=wire.counted, nullable=True)


def _array(wire: WireType) -> WireType:
    read_one, write_one, form = wire.read, wire.write, wire.form

    def read(data: bytes, at: int) -> tuple[Any, int]:
        length, at = read_uvarint(data, at)
        if length == 0:
            raise Malformed("null where an array is required")
        if (length - 1) * wire.size_min_bytes > len(data) - at:
            raise Malformed(f"{length - 1} elements are announced, but only {len(data) - at} bytes are left")
        if form:
            end = at + (length - 1) * wire.size_min_bytes
            return struct.unpack(f">{length - 1}{form}", data[at:end]), end
        found = []
        for _ in range(length - 1):
            value, at = read_one(data, at)
            found.append(value)
        return tuple(found), at

    def write(out: bytearray, value: Any) -> None:
        out += uvarint(len(value) + 1)
        if form:
            out.extend(struct.pack(f">{len(value)}{form}", *value))
            return
        for each in value:
            write_one(out, each)

    return WireType(read, write, 1)


BOOL = _fixed("?")
Int8 = Annotated[int, _fixed("b")]
Int16 = Annotated[int, _fixed("h")]
UInt16 = Annotated[int, _fixed("H")]
Int32 = Annotated[int, _fixed("i")]
Int64 = Annotated[int, _fixed("q")]
Float64 = Annotated[float, _fixed("d")]

_PLAIN: dict[type, WireType] = {
    bool: BOOL,
    str: WireType(_read_text, lambda out, value: _write_bytes(out, value.encode()), 1, counted="{}.decode()"),
    bytes: WireType(_read_bytes, _write_bytes, 1, counted="{}"),
    UUID: WireType(_read_uuid, lambda out, value: out.extend(value.bytes), 16),
}


class _Field(NamedTuple):
    """One field of a struct.

    tag: None if the field is not tagged
    default: MISSING if the field has no default
    """

    name: str
    wire: WireType
    since: int
    tag: int | None
    default: Any


def _wire_type(hint: Any, version: int) -> WireType:
    """Return the wire type of an annotation, ignoring its Since and Tag."""
    if get_origin(hint) is Annotated:
        plain, *notes = get_args(hint)
        return next((note for note in notes if isinstance(note, WireType)), None) or _wire_type(plain, version)
    if get_origin(hint) in (Union, types.UnionType):
        [inner] = [each for each in get_args(hint) if each is not type(None)]
        return _nullable(_wire_type(inner, version))
    if get_origin(hint) is tuple:
        return _array(_wire_type(get_args(hint)[0], version))
    if issubclass(hint, Struct):
        return _struct(hint, _fields_of(hint, version))
    return _PLAIN[hint]


def _fields_of(cls: type[Struct], version: int) -> list[_Field]:
    """Return the fields that a version of the struct has, in their order on the wire."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for each in fields(cls):
        if each.name == "unknown_tags":
            continue
        hint = hints[each.name]
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        since = next((note.version for note in notes if isinstance(note, Since)), 0)
        tag = next((note.number for note in notes if isinstance(note, Tag)), None)
        if since <= version:
            found.append(_Field(each.name, _wire_type(hint, version), since, tag, each.default))
    return found


def _struct(cls: type[Struct], wanted: list[_Field]) -> WireType:
    plain = [each for each in wanted if each.tag is None]
    readers = [each.wire.read for each in plain]
    writers = [(each.name, each.wire.write) for each in plain]
    names = [each.name for each in plain]
    tagged = {each.tag: each for each in wanted if each.tag is not None}
    for each in tagged.values():
        assert each.default is not MISSING, f"{cls.__name__}.{each.name} is tagged and needs a default"

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: list[Any] = []
        try:
            for read_field in readers:
                value, at = read_field(data, at)
                found.append(value)
        except (Malformed, struct.error, IndexError, UnicodeDecodeError) as problem:
            raise Malformed(f"{names[len(found)]}: {problem}") from problem
        values: dict[str, Any] = dict(zip(names, found, strict=True))
        count, at = read_uvarint(data, at)
        unknown = []
        last = -1
        for _ in range(count):
            number, at = read_uvarint(data, at)
            size_bytes, at = read_uvarint(data, at)
            content, at = _take(data, at, size_bytes)
            if number <= last:
                raise Malformed(f"tag {number} follows tag {last}")
            last = number
            if number not in tagged:
                unknown.append((number, content))
                continue
            value, end = tagged[number].wire.read(content, 0)
            if end != len(content):
                raise Malformed(f"tag {number} has {len(content)} bytes, but its value ends after {end}")
            values[tagged[number].name] = value
        if unknown:
            values["unknown_tags"] = tuple(unknown)
        return cls(**values), at

    def write(out: bytearray, value: Any) -> None:
        for name, write_field in writers:
            write_field(out, getattr(value, name))
        if not tagged and not value.unknown_tags:
            out.append(0)
            return
        contents = list(value.unknown_tags)
        for number, each in tagged.items():
            held = getattr(value, each.name)
            if held != each.default:
                content = bytearray()
                each.wire.write(content, held)
                contents.append((number, bytes(content)))
        out += uvarint(len(contents))
        for number, content in sorted(contents):
            out += uvarint(number) + uvarint(len(content)) + content

    size_min_bytes = 1 + sum(each.wire.size_min_bytes for each in plain)
    return WireType(_straight_reader(cls, plain, read), write, size_min_bytes)


def _straight_reader(cls: type[Struct], plain: list[_Field], general: Reader) -> Reader:
    """Generate a function that reads the common form of a struct: no tags, lengths of one byte.  It passes any other
    form to `general`.

    The generated source contains nothing but names and types of the fields.  If the data ends within a value, the
    function fails when it reads the next byte, which after the last value is the number of tags.
    """
    names: dict[str, Any] = {"cls": cls, "new": object.__new__, "general": general}
    names["trouble"] = (IndexError, ValueError, struct.error)
    lines = ["def read(data, begin):", " try:", "  at = begin"]
    for form, run in itertools.groupby(plain, key=lambda each: bool(each.wire.form)):
        group = list(run)
        if form:
            packer = struct.Struct(">" + "".join(each.wire.form for each in group))
            names[f"unpack_{group[0].name}"] = packer.unpack_from
            targets = ", ".join(f"v_{each.name}" for each in group)
            lines += [f"  {targets}, = unpack_{group[0].name}(data, at)", f"  at += {packer.size}"]
            continue
        for each in group:
            value = f"v_{each.name}"
            if not each.wire.counted:
                names[f"read_{each.name}"] = each.wire.read
                lines += [f"  {value}, at = read_{each.name}(data, at)"]
                continue
            made = each.wire.counted.format("data[at + 1 : at + n]")
            lines += ["  n = data[at]", f"  if n > {_SHORT_MAX}: return general(data, begin)"]
            if each.wire.nullable:
                lines += [f"  {value} = {made} if n else None", "  at += n or 1"]
            else:
                lines += ["  if not n: return general(data, begin)", f"  {value} = {made}", "  at += n"]
    # Equivalent to `cls.__init__`, with fewer calls.
    lines += ["  if data[at] == 0:", "   made = new(cls)"]
    for attribute in fields(cls):
        name = attribute.name
        names[f"set_{name}"], names[f"default_{name}"] = getattr(cls, name).__set__, attribute.default
        value = f"v_{name}" if any(name == each.name for each in plain) else f"default_{name}"
        lines += [f"   set_{name}(made, {value})"]
    lines += ["   return made, at + 1", " except trouble:", "  return general(data, begin)"]
    lines += [" return general(data, begin)"]
    exec("\n".join(lines), names)
    made_reader: Reader = names["read"]
    return made_reader


S = TypeVar("S", bound=Struct)


class StructCodec:
    """Reads and writes one struct in each of its versions, 0 to `version_max`."""

    def __init__(self, cls: type[Struct], version_max: int = 0) -> None:
        self.version_max = version_max
        self._cls = cls
        self._by_version: dict[int, WireType] = {}

    def _compile(self, version: int) -> WireType:
        """Compile the reader and the writer of a version at its first use: most are never used, and a node must start
        fast.
        """
        if not 0 <= version <= self.version_max:
            raise Malformed(f"version {version} of {self._cls.__name__} is not among 0 to {self.version_max}")
        made = self._by_version[version] = _struct(self._cls, _fields_of(self._cls, version))
        return made

    @cached_property
    def _later(self) -> list[_Field]:
        return [each for each in _fields_of(self._cls, self.version_max) if each.since > 0]

    def version_for(self, value: Struct) -> int:
        """Return the lowest version that can hold every field whose value is not its default.  Old readers understand
        this version.
        """
        if not self._later:
            return 0
        return max((each.since for each in self._later if getattr(value, each.name) != each.default), default=0)

    def reader(self, version: int) -> Reader:
        """Return the reader of a version (see `WireType`).  Raises Malformed for an unknown version."""
        return (self._by_version.get(version) or self._compile(version)).read

    def read(self, data: bytes, at: int, version: int) -> tuple[Any, int]:
        """Return a struct and the position after it.  Raises Malformed for other bytes, and for an unknown version."""
        try:
            return self.reader(version)(data, at)
        except (struct.error, IndexError, UnicodeDecodeError) as problem:
            raise Malformed(str(problem)) from problem

    def encode(self, value: Struct) -> bytes:
        """Return the bytes of a struct in version 0.  Raises ValueError as `write`."""
        out = bytearray()
        self.write(out, value, 0)
        return bytes(out)

    def write(self, out: bytearray, value: Struct, version: int) -> None:
        """Append the bytes of a struct.  Raises ValueError if the version lacks a field whose value is not its default,
        or if a number is out of range.
        """
        if version < self.version_for(value):
            raise ValueError(f"{type(value).__name__} of version {version} cannot hold all fields of {value}")
        try:
            (self._by_version.get(version) or self._compile(version)).write(out, value)
        except struct.error as problem:
            raise ValueError(f"{type(value).__name__}: {problem}") from problem
