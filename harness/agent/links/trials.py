"""Trials: a burst of datagrams on one directed link, to measure what the link does to them.

Beacons tell whether a link is open.  A trial measures how much it loses, repeats, reorders and delays.  The receiver
keeps the numbers and the delays of each trial.  The delay compares the sender's monotonic clock with the receiver's: it
is true only where both are nodes of one machine.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from dataclasses import dataclass, field

_DATAGRAM = struct.Struct("!8sQIq")
_PADDING = bytes(200)
_TOKEN = b"krtrial1"
KEPT_MAX = 64
"""Trials a receiver remembers; the oldest is forgotten first."""


@dataclass(slots=True)
class _Heard:
    numbers: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)


class Trials(asyncio.DatagramProtocol):
    """One per node.  `listen` first; then any node may `send` to it, and `result` says what came."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}
        self._transport: asyncio.DatagramTransport | None = None

    async def listen(self, address: str, port: int) -> None:
        """A no-op if it listens already.  Raises OSError if the address cannot be bound."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(address, port))

    async def send(self, peer: tuple[str, int], trial: int, count: int, interval_s: float) -> int:
        """Send `count` numbered datagrams; how many were sent.  Raises OSError before `listen`."""
        if self._transport is None:
            raise OSError("trials need a socket: call listen first")
        for number in range(count):
            self._transport.sendto(_DATAGRAM.pack(_TOKEN, trial, number, time.monotonic_ns()) + _PADDING, peer)
            await asyncio.sleep(interval_s)
        return count

    def result(self, trial: int) -> dict[str, float]:
        """received: different datagrams; repeated: of those that came again; reordered: how many came after a later
        one; delay_ms: the median; least_delay_ms: the least of the second half of the numbers that came.

        A loaded machine delays some datagrams.  A link that delays or queues leaves none of the second half early."""
        heard = self._heard.get(trial, _Heard())
        numbers = heard.numbers
        first_time = list(dict.fromkeys(numbers))
        late_half = sorted(zip(numbers, heard.delays_s, strict=True))[len(numbers) // 2 :]
        highest = -1
        reordered = 0
        for number in first_time:
            reordered += number < highest
            highest = max(highest, number)
        return {
            "received": len(first_time),
            "repeated": len(numbers) - len(first_time),
            "reordered": reordered,
            "least_delay_ms": min(delay_s for _, delay_s in late_half) * 1e3 if late_half else -1.0,
            "delay_ms": statistics.median(heard.delays_s) * 1e3 if heard.delays_s else -1.0,
        }

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        now_ns = time.monotonic_ns()
        if len(data) != _DATAGRAM.size + len(_PADDING):
            return
        token, trial, number, sent_ns = _DATAGRAM.unpack_from(data)
        if token != _TOKEN or data[_DATAGRAM.size :] != _PADDING:
            return
        while len(self._heard) >= KEPT_MAX and trial not in self._heard:
            del self._heard[next(iter(self._heard))]
        heard = self._heard.setdefault(trial, _Heard())
        heard.numbers.append(number)
        heard.delays_s.append((now_ns - sent_ns) / 1e9)
