"""A cursor over the bytes of Kafka's flexible encoding (KIP-482) and of records in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Cursor:
    """A place in bytes.  Each verb raises ValueError or IndexError where the bytes end."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > self.end:
            raise ValueError("a field reaches beyond its record")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

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
