"""Refuses bodies whose lengths do not fit their frame, before they are parsed.

kio's native parser reserves memory for as many elements as an array *says* it has.  So four hostile bytes can request
32 GiB, and a failed allocation there aborts the process instead of raising.  So every body that came over a network is
first walked here, by a walker compiled once per entity type.  It constructs nothing; it only proves that each length
fits into what follows it.

    walk(body, at) -> position behind the entity;   MalformedBody if a length is too large
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

Walk = Callable[[bytes, int], int]

_FIXED_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4,
    "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip


class MalformedBody(ValueError):
    """A length inside a body reaches beyond it."""


@cache
def walker(entity_type: Any) -> Walk:
    """The walker of a kio entity type."""
    flexible: bool = entity_type.__flexible__
    steps: list[int | Walk] = []  # an int is a run of fixed-size fields
    tagged: dict[int, Walk] = {}
    for field in fields(entity_type):
        step = _field_step(field, flexible)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _as_walk(step)
        elif isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)

    def walk(body: bytes, at: int) -> int:
        for step in steps:
            at = at + step if type(step) is int else step(body, at)  # type: ignore[operator]
        return _walk_tags(body, at, tagged) if flexible else at

    return walk


def check(entity_type: Any, body: bytes, at: int) -> None:
    """Raises MalformedBody unless an entity of this type fits into `body` from `at` on.

    Bytes behind it are ignored, as Kafka does: librdkafka's Metadata request for all topics has three of them.
    """
    try:
        end = walker(entity_type)(body, at)
    except IndexError as problem:
        raise MalformedBody(f"{entity_type.__name__}: ends within a field") from problem
    if end > len(body):
        raise MalformedBody(f"{entity_type.__name__}: {end - at} bytes were announced, {len(body) - at} came")


def skip_tags(frame: bytes, at: int) -> int:
    """The position behind a section of unknown tagged fields.  Raises IndexError or MalformedBody."""
    return _walk_tags(frame, at, {})


def _field_step(field: Field[Any], flexible: bool) -> int | Walk:
    kind, is_array, is_nullable = _shape(field.type)
    if is_dataclass(kind):
        element: int | Walk = walker(kind)  # type: ignore[arg-type]
        if is_nullable and not is_array and "tag" not in field.metadata:
            element = _nullable(_as_walk(element))
    else:
        name = field.metadata["kafka_type"]
        element = _FIXED_BYTES.get(name) or _sized(name, flexible)
    return _array(element, flexible) if is_array else element


def _shape(field_type: Any) -> tuple[Any, bool, bool]:
    """(element type, is an array, may be null) of a field's annotation."""
    nullable = False
    if get_origin(field_type) in (UnionType, Union):
        nullable = True
        field_type = next(t for t in get_args(field_type) if t is not NoneType)
    if get_origin(field_type) is tuple:
        return _shape(get_args(field_type)[0])[0], True, nullable
    return field_type, False, nullable


def _as_walk(step: int | Walk) -> Walk:
    return (lambda body, at: at + step) if isinstance(step, int) else step


def _nullable(walk: Walk) -> Walk:
    """A struct behind one byte that says whether it is there (KIP-893)."""
    return lambda body, at: at + 1 if body[at] > 0x7F else walk(body, at + 1)


def _sized(name: str, flexible: bool) -> Walk:
    """Strings and byte strings; all null forms have the length -1 or, compact, 0."""
    if name not in ("string", "bytes", "records"):
        raise NotImplementedError(f"no walker for fields of type {name}")
    if flexible:
        return _walk_compact
    return _walk_short_string if name == "string" else _walk_long_bytes


def _array(element: int | Walk, flexible: bool) -> Walk:
    def walk(body: bytes, at: int) -> int:
        if flexible:
            count, at = _uvarint(body, at)
            count -= 1
        else:
            count, at = int.from_bytes(body[at : at + 4], "big", signed=True), at + 4
        if count > len(body) - at:  # no element is shorter than a byte
            raise MalformedBody(f"an array of {count} elements in {len(body) - at} bytes")
        if type(element) is int:
            return at + max(count, 0) * element
        for _ in range(count):
            at = element(body, at)  # type: ignore[operator]
        return at

    return walk


def _walk_compact(body: bytes, at: int) -> int:
    size_bytes, at = _uvarint(body, at)
    return at + max(size_bytes - 1, 0)


def _walk_short_string(body: bytes, at: int) -> int:
    return at + 2 + max(int.from_bytes(body[at : at + 2], "big", signed=True), 0)


def _walk_long_bytes(body: bytes, at: int) -> int:
    return at + 4 + max(int.from_bytes(body[at : at + 4], "big", signed=True), 0)


def _walk_tags(body: bytes, at: int, tagged: dict[int, Walk]) -> int:
    count, at = _uvarint(body, at)
    for _ in range(count):
        tag, at = _uvarint(body, at)
        size_bytes, at = _uvarint(body, at)
        end = at + size_bytes
        if tag in tagged and tagged[tag](body, at) != end:
            raise MalformedBody(f"tagged field {tag} does not fill its {size_bytes} bytes")
        at = end
    return at


def _uvarint(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while shift < 35:
        at += 1
        byte = body[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
    raise MalformedBody("a uvarint of more than five bytes")
