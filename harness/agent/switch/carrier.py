"""The switch: one process that carries every frame between the nodes, or does not.

    node n1 [eth0]====[port 0]  switch  [port 1]====[eth0] node n2          ==== is a veth pair

Theory.  Each port is a packet socket on the switch's end of a veth pair.  A frame that comes in at a port is looked up
in *that port's* table of paths (destination MAC -> port) and sent out there, untouched.  A cut of the directed link a
-> b removes the path to b from a's table.  New tables are built aside and put in place between two frames, so all links
change at once.  A frame without a path goes nowhere.  That holds for unknown addresses and broadcasts as well; no node
needs them, because all have each other as permanent neighbours.  If this process dies, everything is cut.

Frames travel with their virtio header.  So the kernel at the far end computes the checksums
and segments that are not computed yet, and a TCP segment of 64 KiB passes here as one frame.

Nodes that do not know each other's hardware addresses ask with ARP.  The switch answers such a request itself, for the
addresses of its ports.  So a cut of one direction never loses the answers that the other direction needs.

A switch that does not carry (`carries` false) stands beside a bridge that carries, and cuts.  It only answers TCP on
rejected links with a reset, and it listens only while a link of a port is rejected.

Control is a stream of JSON lines (`python -m harness.agent.switch` says how it begins).  Each is answered by
{"forwarded": n, "overflowed": n}, the frames carried so far and those that a full queue lost, or by {"refused": "why"}.

    {"cut": [["n1", "n2"], ...]}                             these links carry nothing, all others do
    {"impair": [["n1", "n2", {"loss": 0.1}], ...], "seed": 1}   see `impairment.py`; links that are not named are clean

The switch ends when the stream ends.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import select
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from socket import AF_PACKET, SO_RCVBUF, SOCK_RAW, SOL_SOCKET, socket
from typing import Any

from harness.agent.switch.arp import reply_for
from harness.agent.switch.impairment import FrameImpairment, ImpairedLink
from harness.agent.switch.rejection import reset_for

_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_QDISC_BYPASS = 20
_PACKET_IGNORE_OUTGOING = 23
_ETH_P_ALL = 3
_ETH_P_UNUSED = 0x88B5
"""For local experiments (IEEE 802): a packet socket bound to it receives no frame of nodes.  The kernel takes 0, which
means none, only before the first bind."""
_SO_RCVBUFFORCE = 33
_QUEUE_BYTES = 4 << 20

_VNET_BYTES = 10
_DESTINATION = slice(_VNET_BYTES, _VNET_BYTES + 6)
_FRAME_BYTES_MAX = 1 << 17
_FRAMES_PER_TURN = 32
"""How many frames one port may send before the others have their turn."""
_WAITING_BYTES_MAX = 256 << 20
"""Of all frames that are delayed; what comes on top is lost."""


@dataclass(slots=True)
class Port:
    """One node's end of the switch.  paths: destination MAC -> the socket it is reached by.  lanes: destination MAC ->
    what happens to frames on the way there, for impaired links only.  rejected: destination MACs of cut links that
    answer TCP with a reset.  address: the node's IPv4 address; only resets need it, b"" without them.
    listen: switches the reception of frames on or off."""

    node: str
    mac: bytes
    end: socket
    address: bytes = b""
    listen: Callable[[bool], None] = lambda on: None
    paths: dict[bytes, socket] = field(default_factory=dict)
    lanes: dict[bytes, ImpairedLink] = field(default_factory=dict)
    rejected: frozenset[bytes] = frozenset()


def paths(ports: Iterable[Port], cut: Collection[tuple[str, str]]) -> dict[str, dict[bytes, socket]]:
    """Node -> its table, with every directed link in `cut` left out."""
    every = list(ports)
    return {a.node: {b.mac: b.end for b in every if b is not a and (a.node, b.node) not in cut} for a in every}


class Switch:
    """carries: whether frames reach other nodes through this switch, or through a bridge beside it."""

    def __init__(self, ports: Iterable[Port], control: socket, carries: bool = True) -> None:
        self._ports = {port.end.fileno(): port for port in ports}
        self._carries = carries
        self._macs_by_address = {port.address: port.mac for port in self._ports.values() if port.address}
        self._control = control
        self._said = bytearray()
        self._frame = memoryview(bytearray(_FRAME_BYTES_MAX))
        self.forwarded = 0
        self.overflowed = 0
        self._waiting: list[tuple[float, int, socket, bytes]] = []
        self._waiting_bytes = 0
        self._admitted = 0
        self.cut(frozenset())

    def cut(self, links: Collection[tuple[str, str]], reject: Collection[tuple[str, str]] = ()) -> None:
        """Exactly these links are cut from now on.  reject: those that answer TCP with a reset."""
        tables = paths(self._ports.values(), links)
        macs = {port.node: port.mac for port in self._ports.values()}
        for port in self._ports.values():
            port.paths = tables[port.node] if self._carries else {}
            port.rejected = frozenset(macs[to] for source, to in reject if source == port.node)
            port.listen(self._carries or bool(port.rejected))

    def impair(self, links: Iterable[tuple[str, str, FrameImpairment]], seed: int) -> None:
        """Exactly these links are impaired from now on.  Frames under way arrive as decided before."""
        macs = {port.node: port.mac for port in self._ports.values()}
        fresh: dict[str, dict[bytes, ImpairedLink]] = {node: {} for node in macs}
        for a, b, impairment in links:
            fresh[a][macs[b]] = ImpairedLink(impairment, f"{seed}/{a}>{b}")
        for port in self._ports.values():
            port.lanes = fresh[port.node]

    def serve(self) -> None:
        """Carry frames until the control stream ends."""
        poll = select.epoll()
        for number in (*self._ports, self._control.fileno()):
            poll.register(number, select.EPOLLIN)
        while True:
            for number, _ in poll.poll(self._send_due()):
                port = self._ports.get(number)
                if port is not None:
                    self._carry(port)
                elif not self._obey():
                    return

    def _carry(self, port: Port) -> None:
        frame, receive = self._frame, port.end.recv_into
        for _ in range(_FRAMES_PER_TURN):
            try:
                size = receive(frame)
            except BlockingIOError:
                return
            except OSError:
                return  # ENETDOWN: the node's namespace is going; the next poll says more
            out = port.paths.get(bytes(frame[_DESTINATION]))
            if out is None:
                self._answer(port, bytes(frame[:size]))
                continue
            if port.lanes and (lane := port.lanes.get(bytes(frame[_DESTINATION]))) is not None:
                self._delay(lane, out, bytes(frame[:size]))
            else:
                self._send(out, frame[:size])

    def _answer(self, port: Port, frame: bytes) -> None:
        """What the switch itself sends back for a frame that it does not carry, if anything."""
        answer = None
        if frame[_DESTINATION] in port.rejected:
            answer = reset_for(frame)
        elif self._carries:
            answer = reply_for(frame, self._macs_by_address)
        if answer is not None:
            self._send(port.end, answer)

    def _send(self, out: socket, frame: memoryview | bytes) -> None:
        try:
            out.send(frame)
            self.forwarded += 1
        except OSError:  # EAGAIN, ENOBUFS: a full queue loses frames, as any switch does
            self.overflowed += 1

    def _delay(self, lane: ImpairedLink, out: socket, frame: bytes) -> None:
        for departure in lane.admit(frame, time.monotonic()):
            if self._waiting_bytes + len(frame) > _WAITING_BYTES_MAX:
                self.overflowed += 1
                continue
            self._admitted += 1
            self._waiting_bytes += len(departure.frame)
            heapq.heappush(self._waiting, (departure.due_s, self._admitted, out, departure.frame))

    def _send_due(self) -> float:
        """Send what is due; seconds until the next is, -1 if nothing waits."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(self._waiting)
            self._waiting_bytes -= len(frame)
            self._send(out, frame)
        return max(self._waiting[0][0] - time.monotonic(), 0.0) if self._waiting else -1

    def _obey(self) -> bool:
        """Carry out what has been ordered; False once the stream has ended."""
        data = self._control.recv(1 << 16)
        self._said += data
        while (end := self._said.find(b"\n")) >= 0:
            order = json.loads(self._said[:end])
            del self._said[: end + 1]
            self._control.sendall(json.dumps(self._carry_out(order)).encode() + b"\n")
        return bool(data)

    def _carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            if "cut" in order:
                links, rejected = order["cut"], order.get("reject", [])
                self.cut({(a, b) for a, b in links}, {(a, b) for a, b in rejected})
            if "impair" in order:
                self.impair([(a, b, FrameImpairment.from_json(it)) for a, b, it in order["impair"]], order["seed"])
        except (KeyError, TypeError, ValueError) as problem:
            return {"refused": f"{type(problem).__name__}: {problem}"}
        return {"forwarded": self.forwarded, "overflowed": self.overflowed}


def open_port(node: str, interface: str, mac: str, address: bytes = b"") -> Port:
    """Raises OSError if there is no such interface, or we may not listen there."""
    end = socket(AF_PACKET, SOCK_RAW, 0)
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    for direction in (_SO_RCVBUFFORCE, SO_RCVBUF):
        with contextlib.suppress(PermissionError):  # forcing needs root outside; then the machine's limit holds
            end.setsockopt(SOL_SOCKET, direction, _QUEUE_BYTES)
            break
    listening = False

    def listen(on: bool) -> None:
        nonlocal listening
        if on != listening:
            end.bind((interface, _ETH_P_ALL if on else _ETH_P_UNUSED))
            listening = on

    end.bind((interface, _ETH_P_UNUSED))
    end.setblocking(False)
    return Port(node, bytes.fromhex(mac.replace(":", "")), end, address, listen)
