"""Verbs of the agent for its node's network: firewall tables, beacons, trials of links, and a switch.

*Firewall.*  The agent changes its own tables one transaction at a time, and deletes them when it ends for any reason.

*Beacons.*  Small datagrams on every directed link, which prove to the harness which links are cut and which are open.

Theory.  Every node numbers its datagrams to each peer, from 1 and without gaps.  The sender reports its numbers at the
beginning and at the end of a window (`mark`); the receiver remembers the numbers that arrived (`count`).  So counting
the arrivals of one window needs no clock shared by two nodes.  A delayed datagram from before the window is not
counted, and a datagram that arrives twice is counted once.

A datagram that the kernel refuses (EPERM, ENETUNREACH, a full buffer) gets no number, because it was not sent: if
nothing can be sent on a link, the missing arrivals prove nothing.

Beacons have their own thread, because they must be sent every 15 ms even while a client computes.  One wake-up handles
a whole round: send to all peers, and receive all datagrams that have arrived.  With a round every 2 ms, seven nodes
    send
21,000 datagrams a second.

*Trials.*  Bursts of datagrams on one directed link.  A trial measures losses, duplicates, reordering and delays, while
beacons only show whether a link is open.  The receiver keeps the numbers and the delays of each trial.  The delay is
the difference of the sender's and the receiver's monotonic clocks, so it is correct only if both nodes are on one
machine.

*Switch.*  The switch is a child of the agent.  It is started once, gets its orders over a socket, and dies with the
agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.agent.children import Children, run
from harness.agent.frames import limit

Table = tuple[str, str]
"""Family and name of an nft table, such as ("ip", "krucible_x")."""


class FirewallTables:
    def __init__(self, children: Children) -> None:
        self._children = children
        self._owned: set[Table] = set()
        self._in_order = asyncio.Lock()

    async def apply(self, text: str, owned: Sequence[Table]) -> None:
        """Apply `text` as one nft transaction.  If it fails, nothing is changed, and OSError is raised with nft's
        message.

        owned: tables to delete when the agent ends
        """
        self._owned.update((family, name) for family, name in owned)
        async with self._in_order:  # the change ordered last must be applied last
            status, _, words = await run(self._children, ["nft", "-f", "-"], 10.0, text.encode())
        if status != 0:
            raise OSError(errno.EINVAL, f"nft refused: {words.decode(errors='replace').strip()[:500]}")

    def delete_owned(self) -> None:
        """Delete the owned tables, and block until they are gone.  The agent calls this at its end, without the event
        loop.
        """
        if self._owned:
            text = "".join(without(table) for table in self._owned)
            subprocess.run(["nft", "-f", "-"], input=text.encode(), check=False, timeout=5.0, capture_output=True)
            self._owned.clear()


def without(table: Table) -> str:
    """Return nft text that deletes a table, whether it exists or not; nft's `destroy` would need a newer kernel."""
    family, name = table
    return f"add table {family} {name}\ndelete table {family} {name}\n"


def replace_set(table: Table, name: str, elements: Collection[str]) -> str:
    """Return nft text that sets the content of a set to exactly these elements."""
    of = f"{' '.join(table)} {name}"
    return f"flush set {of}\n" + (f"add element {of} {{ {', '.join(sorted(elements))} }}\n" if elements else "")


_DATAGRAM = struct.Struct("!8sQ")
REMEMBERED = 1 << 14
"""Number of latest beacons that a receiver remembers per source: those of 32 s at the shortest useful interval, 2
ms."""


@dataclass(slots=True)
class _Peer:
    address: tuple[str, int]
    sent: int = 0
    seen: array[int] = field(default_factory=lambda: array("Q", bytes(8 * REMEMBERED)))


class BeaconVerbs:
    """Verbs for beacons.  Before `start`, all verbs but `stop` raise OSError (ESRCH)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._peers: dict[str, _Peer] = {}
        self._thread: threading.Thread | None = None

    def start(self, token: bytes, address: str, port: int, peers: Mapping[str, str], interval_ms: float) -> None:
        """Send beacons to these peers and receive theirs from now on.  A new start replaces an earlier one.

        token: eight bytes that distinguish this run's datagrams from those of other runs
        address: address at which this node listens
        port: UDP port of all nodes
        peers: node -> address
        interval_ms: milliseconds between two rounds
        Raises OSError if the address cannot be bound.
        """
        self.stop()
        self._token = token
        self._peers = {name: _Peer((peer, port)) for name, peer in peers.items()}
        self._by_address = {peer.address: peer for peer in self._peers.values()}
        self._interval_s = interval_ms / 1e3
        self._due_s = time.monotonic()
        self._stopping = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.setblocking(False)
        self._socket.bind((address, port))
        self._thread = threading.Thread(target=self._beat_on, name="beacons", daemon=True)
        self._thread.start()

    def set_interval(self, interval_ms: float) -> None:
        """Set the interval between rounds, and begin a round now."""
        with self._sending():
            self._interval_s = interval_ms / 1e3
            self._due_s = time.monotonic()
            self._changed.notify()

    def mark(self) -> dict[str, int]:
        """Return peer -> the number of the last datagram sent to it."""
        with self._sending():
            return {name: peer.sent for name, peer in self._peers.items()}

    def count(self, windows: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Return source -> number of distinct datagrams of its window that have arrived at this node.

        windows: source -> (first, last): the window contains the numbers above `first`, up to `last`
        Raises ValueError for a window longer than REMEMBERED."""
        with self._sending():
            self._take_all()
            return {name: _count(self._peers[name].seen, *window) for name, window in windows.items()}

    def stop(self) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._thread = None
        self._socket.close()

    def _sending(self) -> threading.Condition:
        if self._thread is None:
            raise OSError(errno.ESRCH, "no beacons were started on this node")
        return self._changed

    def _beat_on(self) -> None:
        with self._changed:
            while not self._stopping:
                now_s = time.monotonic()
                if now_s < self._due_s:
                    self._changed.wait(self._due_s - now_s)
                    continue
                self._due_s = max(self._due_s + self._interval_s, now_s)  # missed beacons are not sent later
                self._send_all()
                self._take_all()

    def _send_all(self) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                self._socket.sendto(_DATAGRAM.pack(self._token, peer.sent + 1), peer.address)
                peer.sent += 1

    def _take_all(self) -> None:
        while True:
            try:
                data, address = self._socket.recvfrom(64)
            except BlockingIOError:
                return
            except OSError:
                continue  # an error that the network reported for an earlier send; the next receive works
            peer = self._by_address.get(address)
            if peer is not None and len(data) == _DATAGRAM.size:
                token, number = _DATAGRAM.unpack(data)
                if token == self._token:
                    peer.seen[number % REMEMBERED] = number


def _count(seen: array[int], first: int, last: int) -> int:
    if not 0 <= last - first <= REMEMBERED:
        raise ValueError(f"a window has 0 to {REMEMBERED} datagrams, not {last - first}")
    return sum(seen[number % REMEMBERED] == number for number in range(first + 1, last + 1))


_TRIAL_DATAGRAM = struct.Struct("!8sQIq")
_PADDING = bytes(200)
_TOKEN = b"krtrial1"
KEPT_MAX = 64
"""Maximum number of trials that a receiver remembers; the oldest is forgotten first."""


@dataclass(slots=True)
class _Heard:
    numbers: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)


class Trials(asyncio.DatagramProtocol):
    """Verbs for trials.  Once a node listens, other nodes may `send` to it, and `result` measures the arrivals."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}
        self._transport: asyncio.DatagramTransport | None = None

    async def listen(self, address: str, port: int) -> None:
        """Listen for datagrams, or do nothing if this node already listens.  Raises OSError if the address cannot be
        bound."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(address, port))

    @limit(30.0)
    async def send(self, peer: tuple[str, int], trial: int, count: int, interval_s: float) -> int:
        """Send `count` numbered datagrams, and return their number.  Raises OSError before `listen`."""
        if self._transport is None:
            raise OSError("trials need a socket: call listen first")
        for number in range(count):
            datagram = _TRIAL_DATAGRAM.pack(_TOKEN, trial, number, time.monotonic_ns()) + _PADDING
            self._transport.sendto(datagram, tuple(peer))
            await asyncio.sleep(interval_s)
        return count

    def result(self, trial: int) -> dict[str, float]:
        """Return the measurements of a trial: see `measured`."""
        heard = self._heard.get(trial, _Heard())
        return measured(heard.numbers, heard.delays_s)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        now_ns = time.monotonic_ns()
        if len(data) != _TRIAL_DATAGRAM.size + len(_PADDING):
            return
        token, trial, number, sent_ns = _TRIAL_DATAGRAM.unpack_from(data)
        if token != _TOKEN or data[_TRIAL_DATAGRAM.size :] != _PADDING:
            return
        while len(self._heard) >= KEPT_MAX and trial not in self._heard:
            del self._heard[next(iter(self._heard))]
        heard = self._heard.setdefault(trial, _Heard())
        heard.numbers.append(number)
        heard.delays_s.append((now_ns - sent_ns) / 1e9)


def measured(numbers: Sequence[int], delays_s: Sequence[float]) -> dict[str, float]:
    """Return the measurements of one trial.

    numbers, delays_s: number and delay of each arrival, in order

    received: number of distinct datagrams that arrived
    repeated: number of further arrivals of the same datagrams
    reordered: number of datagrams that arrived after a datagram with a higher number
    delay_ms: median delay
    least_delay_ms: minimum delay among the higher half of the numbers that arrived.  A loaded machine delays only some
        of them; a link with a delay or a queue delays all of them.
    """
    first_time = list(dict.fromkeys(numbers))
    late_half = sorted(zip(numbers, delays_s, strict=True))[len(numbers) // 2 :]
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
        "delay_ms": statistics.median(delays_s) * 1e3 if delays_s else -1.0,
    }


class SwitchVerbs:
    """Verbs for the switch.  Use them only on the event loop's thread."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._in_order = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @limit(60.0)
    async def start(self, ports: Sequence[Sequence[Any]], release: bool) -> None:
        """Start a switch (`harness.agent.frame_switch`).  Raises OSError if a switch was started before, or if it
        cannot be started."""
        if self._writer is not None:
            raise OSError(errno.EEXIST, "a switch is already running")
        ours, theirs = socket.socketpair()
        plan = json.dumps({"ports": ports, "release": release})
        argv = [sys.executable, "-P", "-m", "harness.agent.frame_switch", str(theirs.fileno()), plan]
        with theirs:
            self._children.start(argv, _ended, pass_fds=(theirs.fileno(),))
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        answer = await self._line()
        if "ready" not in answer:
            raise OSError(errno.EIO, f"the switch: {answer['error']}")

    async def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send an order to the switch, and return its answer.  Raises OSError if the switch refuses the order, has
        ended, or was never started."""
        async with self._in_order:
            if self._writer is None:
                raise OSError(errno.ESRCH, "the switch was never started")
            self._writer.write(json.dumps(order).encode() + b"\n")
            answer = await self._line()
        if "refused" in answer:
            raise OSError(errno.EINVAL, f"the switch refused: {answer['refused']}")
        return answer

    async def _line(self) -> dict[str, Any]:
        assert self._reader is not None
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise OSError(errno.ESRCH, "the switch has ended")
        words: dict[str, Any] = json.loads(line)
        return words


def _ended(status: int) -> None:
    print(f"agent: the switch ended with {status}", file=sys.stderr, flush=True)
