"""What happens to frames on their way, per directed link: loss, duplication, corruption, delay, reordering, a rate.

Pure: `Lane.admit` decides for one frame at one moment, from random numbers of its own.  The switch keeps the frames
until they are due.

* A corrupted frame arrives with one bit flipped behind its headers.  Its checksum is completed first, so the receiving
  kernel notices and drops the datagram or segment, as it does with real corruption.  A large segment whose checksum the
  kernel has not computed yet is dropped instead: the receiver would have dropped the damaged part of it.
* Reordering lets a share of the frames overtake those that are delayed.  It needs a delay.
* A rate lets frames leave one after another.  What would wait longer than `QUEUE_S_MAX` is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

QUEUE_S_MAX = 1.0
DELAY_S_MAX = 10.0
_SHARES = ("loss", "duplicate", "corrupt", "reorder")

_VNET = struct.Struct("<BBHHHH")
_NEEDS_CHECKSUM = 1
_ETHERNET_BYTES = 14


@dataclass(frozen=True, slots=True)
class FrameImpairment:
    """loss, duplicate, corrupt, reorder: shares of the frames, from 0 to 1.  delay_s: of every frame; jitter_s: a
    uniform random part of up to that much more.  rate_bytes_per_s: 0 for no limit."""

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field."""
        for name in _SHARES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        for name in ("delay_s", "jitter_s"):
            if not 0.0 <= getattr(self, name) <= DELAY_S_MAX:
                raise ValueError(f"{name} must be from 0 to {DELAY_S_MAX:g}, not {getattr(self, name)}")
        if not self.rate_bytes_per_s >= 0.0:
            raise ValueError(f"rate_bytes_per_s must be 0 or more, not {self.rate_bytes_per_s}")
        if self.reorder and not self.delay_s:
            raise ValueError("reorder needs a delay_s: only delayed frames can be overtaken")

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> FrameImpairment:
        """Raises ValueError for unknown or wrong fields."""
        known = {field.name for field in fields(FrameImpairment)}
        if unknown := set(given) - known:
            raise ValueError(f"an impairment has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
        return FrameImpairment(**{name: float(value) for name, value in given.items()})


@dataclass(slots=True)
class Departure:
    """One frame to be sent at a moment of the monotonic clock, in seconds."""

    due_s: float
    frame: bytes


class ImpairedLink:
    """One directed link with an impairment.  Equal seeds and equal calls give equal departures."""

    def __init__(self, impairment: FrameImpairment, seed: str) -> None:
        self.impairment = impairment
        self._rng = Random(seed)
        self._free_s = 0.0

    def admit(self, frame: bytes, now_s: float) -> list[Departure]:
        """When the frame arrives, and as what: no departure if it is lost, two if it is duplicated."""
        it, rng = self.impairment, self._rng
        if it.loss and rng.random() < it.loss:
            return []
        if it.corrupt and rng.random() < it.corrupt:
            damaged = corrupted(frame, rng)
            if damaged is None:
                return []
            frame = damaged
        leaves_s = now_s
        if it.rate_bytes_per_s:
            leaves_s = max(now_s, self._free_s) + len(frame) / it.rate_bytes_per_s
            if leaves_s - now_s > QUEUE_S_MAX:
                return []
            self._free_s = leaves_s
        departures = [Departure(leaves_s + self._delay_s(), frame)]
        if it.duplicate and rng.random() < it.duplicate:
            departures.append(Departure(leaves_s + self._delay_s(), frame))
        return departures

    def _delay_s(self) -> float:
        it, rng = self.impairment, self._rng
        if it.reorder and rng.random() < it.reorder:
            return 0.0
        return it.delay_s + (rng.random() * it.jitter_s if it.jitter_s else 0.0)


def corrupted(frame: bytes, rng: Random) -> bytes | None:
    """The frame with one bit of its payload flipped, its checksum completed before; None where it must be dropped.

    frame: with its virtio header (10 bytes).
    """
    flags, segmentation, _, _, start, offset = _VNET.unpack_from(frame)
    body = bytearray(frame[_VNET.size :])
    if segmentation:
        return None
    if flags & _NEEDS_CHECKSUM:
        place = start + offset
        if place + 2 > len(body):
            return None
        struct.pack_into("!H", body, place, _checksum(body[start:]) or 0xFFFF)
    first = min(max(start if flags & _NEEDS_CHECKSUM else _ETHERNET_BYTES + 20, _ETHERNET_BYTES), len(body) - 1)
    body[rng.randrange(first, len(body))] ^= 1 << rng.randrange(8)
    return bytes(_VNET.size) + bytes(body)


def _checksum(data: bytes | bytearray) -> int:
    """The Internet checksum (RFC 1071) of data whose checksum field holds the sum of the pseudo header."""
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", bytes(data)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
