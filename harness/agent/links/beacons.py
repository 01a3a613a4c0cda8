"""Beacons: small datagrams on every directed link, by which the harness proves what is cut and what is open.

Theory.  Every node numbers what it sends to each peer, from 1 and without gaps.  The sender notes its numbers when a
window begins and ends (`mark`); the receiver remembers which numbers came (`count`).  So "how many of those sent
within the window arrived" needs no clock that two nodes would share.  A datagram held back from before the window is
not counted, and neither is one that arrives twice.

A datagram the kernel refuses (EPERM, ENETUNREACH, a full buffer) gets no number: it was not sent, and a link on which
nothing could be sent proves nothing.  Refusals are counted apart.

Beacons have a thread of their own: they must go out every 15 ms even while a client computes.  One wake-up serves a
whole beat (send to all, take what came), because a beat every 2 ms on seven nodes is 21,000 datagrams a second.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

_DATAGRAM = struct.Struct("!8sQ")
REMEMBERED = 1 << 14
"""Numbers a receiver remembers per source: 32 s at the fastest useful interval of 2 ms."""


@dataclass(slots=True)
class _Peer:
    address: tuple[str, int]
    sent: int = 0
    refused: int = 0
    seen: array[int] = field(default_factory=lambda: array("Q", bytes(8 * REMEMBERED)))


class BeaconSender:
    """Sends to and listens for peers from `start` to `stop`.

    token: eight bytes that tell this run's datagrams from any other's.  address: where this node listens, peers: node
    name -> address, all on the same port.  Raises OSError if the address cannot be bound.
    """

    def __init__(self, token: bytes, address: str, port: int, peers: Mapping[str, str], interval_ms: float) -> None:
        self._token = token
        self._peers = {name: _Peer((peer, port)) for name, peer in peers.items()}
        self._by_address = {peer.address: peer for peer in self._peers.values()}
        self._interval_s = interval_ms / 1e3
        self._due_s = time.monotonic()
        self._late_s_max = 0.0
        self._stopping = False
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.setblocking(False)
        self._socket.bind((address, port))
        self._thread = threading.Thread(target=self._beat_on, name="beacons", daemon=True)
        self._thread.start()

    def set_interval(self, interval_ms: float) -> None:
        """Takes effect at once: the next beat is now."""
        with self._changed:
            self._interval_s = interval_ms / 1e3
            self._due_s = time.monotonic()
            self._changed.notify()

    def mark(self) -> dict[str, int]:
        """Peer -> the number of the last datagram sent to it."""
        with self._changed:
            return {name: peer.sent for name, peer in self._peers.items()}

    def count(self, windows: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Source -> how many of its numbers in (first, last] arrived here, each counted once.

        Raises ValueError for a window longer than what is remembered."""
        with self._changed:
            self._take_all()
            return {name: _count(self._peers[name].seen, *window) for name, window in windows.items()}

    def health(self) -> tuple[dict[str, int], float]:
        """Peer -> datagrams the kernel refused; and how late the latest beat was since the last question, seconds."""
        with self._changed:
            late_s, self._late_s_max = self._late_s_max, 0.0
            return {name: peer.refused for name, peer in self._peers.items()}, late_s

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._socket.close()

    def _beat_on(self) -> None:
        with self._changed:
            while not self._stopping:
                now_s = time.monotonic()
                if now_s < self._due_s:
                    self._changed.wait(self._due_s - now_s)
                    continue
                self._late_s_max = max(self._late_s_max, now_s - self._due_s)
                self._due_s = max(self._due_s + self._interval_s, now_s)  # missed beats are not made up for
                self._send_all()
                self._take_all()

    def _send_all(self) -> None:
        for peer in self._peers.values():
            try:
                self._socket.sendto(_DATAGRAM.pack(self._token, peer.sent + 1), peer.address)
            except OSError:
                peer.refused += 1
            else:
                peer.sent += 1

    def _take_all(self) -> None:
        while True:
            try:
                data, address = self._socket.recvfrom(64)
            except BlockingIOError:
                return
            except OSError:
                continue  # an error the network reported for something we sent; the next receive is clean
            peer = self._by_address.get(address)
            if peer is not None and len(data) == _DATAGRAM.size:
                token, number = _DATAGRAM.unpack(data)
                if token == self._token:
                    peer.seen[number % REMEMBERED] = number


def _count(seen: array[int], first: int, last: int) -> int:
    if not 0 <= last - first <= REMEMBERED:
        raise ValueError(f"a window holds 0 to {REMEMBERED} datagrams, not {last - first}")
    return sum(seen[number % REMEMBERED] == number for number in range(first + 1, last + 1))
