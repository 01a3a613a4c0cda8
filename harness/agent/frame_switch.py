"""The switch: one process that forwards all frames between nodes, and drops, delays or rejects some of them.

    node n1 [eth0]====[port 0]  switch  [port 1]====[eth0] node n2          ==== is a veth pair

Theory.  Each port is a packet socket on the switch's end of a veth pair.  Each port has a table of paths (destination
MAC -> outgoing port).  The switch looks up a frame in the table of the port at which the frame arrived, and sends it
out unchanged.  To cut the directed link a -> b, the switch removes the path to b from a's table.  New tables are built
separately and installed between two frames, so all links change at once.  A frame without a path is dropped.  If this
process dies, all links are cut.

A broadcast or multicast frame is sent on every path of its port, so cuts also apply to broadcasts, in every protocol.

Frames keep their virtio header.  So the receiving kernel computes checksums and segments that the sending kernel has
left to its device, and a TCP segment of 64 KiB passes the switch as one frame.

Nodes that do not know each other's hardware addresses send ARP requests.  The switch answers requests for the addresses
of its ports itself.  Neighbour discovery of IPv6 passes cut links.  So a cut of one direction never drops the answers
that the other direction needs.

Orders come as JSON lines over the control stream, after the first line (see *Program*).  The switch answers each order
with {"forwarded": n, "overflowed": n}, the number of frames forwarded so far and the number dropped by a full queue, or
with {"refused": "why"}.

    {"cut": [["n1", "n2"], ...]}                             exactly these links are cut
    {"impair": [["n1", "n2", {"loss": 0.1}], ...], "seed": 1}   exactly these links are impaired, as described below

The switch ends when the stream ends.

*ARP.*  The switch answers requests (RFC 826) for its nodes with the answers that the nodes would send.

A frame is: virtio header (10 bytes), Ethernet header (14), ARP packet (28).

*Impairment.*  Faults of frames, per directed link: loss, duplication, corruption, delay, reordering, a limited rate.

`ImpairedLink.admit` performs no I/O.  It decides the fate of one frame at a given time, with its own random generator.
The switch stores the frames until they are due.

* A corrupted frame arrives with one bit flipped after its headers.  Its checksum is completed before the flip, so the
  receiving kernel detects the error and drops the datagram or segment, as it does with real corruption.  A large
  segment whose checksums the kernel has not computed yet is dropped instead.
* Reordering lets a fraction of the frames overtake delayed frames.  It needs a delay.
* With a rate, frames leave one after another.  Frames that would wait longer than `QUEUE_S_MAX` are dropped.

*Program.*  The program runs a switch until its control stream ends.

    python -m harness.agent.frame_switch <control fd> '{"ports": [["n1", "port0", "02:...", "198.18.0.11"], ...], ...}'

A port consists of a node's name, the interface at the switch's end (its name or number), and the node's hardware and
IPv4 addresses.  The IPv4 address is "" if all nodes know each other's hardware addresses.  "release" is true if the
interfaces belong to a bridge and must be detached from it.  The first line that the switch sends on the control stream
is {"ready": true} or {"error": "why"}.

*Reset.*  On a rejected link, the sender of each TCP segment gets a reset, as from a firewall.

A frame is: virtio header (10 bytes), Ethernet header (14), IPv4 header, TCP segment.  The reset has the addresses of
the segment's receiver as its source.  Its numbers follow RFC 9293, 3.10.7.1: if the segment has an ACK, its
acknowledgement number becomes the sequence number of the reset; otherwise the reset acknowledges the segment.  A reset
is never answered with a reset.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import select
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from socket import AF_PACKET, SO_RCVBUF, SOCK_RAW, SOL_SOCKET, if_indextoname, inet_aton, socket
from typing import Any

_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_QDISC_BYPASS = 20
_PACKET_IGNORE_OUTGOING = 23
_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_QUEUE_BYTES = 4 << 20

_VNET_BYTES = 10
_DESTINATION = slice(_VNET_BYTES, _VNET_BYTES + 6)
_FRAME_BYTES_MAX = 1 << 17
_FRAMES_PER_TURN = 32
"""Maximum number of frames that are forwarded from one port before the other ports are served."""
_WAITING_BYTES_MAX = 256 << 20
"""Maximum total size, in bytes, of all delayed frames; further frames are dropped."""


@dataclass(slots=True)
class Port:
    """The port of one node.

    end: packet socket of the port
    address: IPv4 address of the node; b"" if nodes send no ARP requests
    others: destination MAC -> socket of that node's port, for all other nodes
    paths: the part of `others` to which links are not cut
    lanes: destination MAC -> impaired link to that node, for impaired links only
    rejected: destination MACs of cut links that answer TCP with a reset
    """

    node: str
    mac: bytes
    end: socket
    address: bytes = b""
    others: dict[bytes, socket] = field(default_factory=dict)
    paths: dict[bytes, socket] = field(default_factory=dict)
    lanes: dict[bytes, ImpairedLink] = field(default_factory=dict)
    rejected: frozenset[bytes] = frozenset()


class Switch:
    def __init__(self, ports: Iterable[Port], control: socket) -> None:
        self._ports = {port.end.fileno(): port for port in ports}
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
        """Cut exactly these links from now on.

        reject: the cut links that answer TCP with a reset"""
        for port in self._ports.values():
            others = [other for other in self._ports.values() if other is not port]
            port.others = {other.mac: other.end for other in others}
            port.paths = {other.mac: other.end for other in others if (port.node, other.node) not in links}
            port.rejected = frozenset(other.mac for other in others if (port.node, other.node) in reject)

    def impair(self, links: Iterable[tuple[str, str, FrameImpairment]], seed: int) -> None:
        """Impair exactly these links from now on.  Frames that were already admitted keep their departure times."""
        macs = {port.node: port.mac for port in self._ports.values()}
        fresh: dict[str, dict[bytes, ImpairedLink]] = {node: {} for node in macs}
        for a, b, impairment in links:
            fresh[a][macs[b]] = ImpairedLink(impairment, f"{seed}/{a}>{b}")
        for port in self._ports.values():
            before, port.lanes = port.lanes, fresh[port.node]
            for mac, lane in before.items():
                after = port.lanes.get(mac)
                if after is not None and after.impairment.hold:
                    after.held = lane.held
                else:
                    self._play_back(port.paths.get(mac), lane.held)

    def serve(self) -> None:
        """Forward frames until the control stream ends."""
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
                return  # ENETDOWN: the node's namespace is being removed; the next poll reports it
            destination = bytes(frame[_DESTINATION])
            out = port.paths.get(destination)
            if out is not None:
                self._forward(port, destination, out, frame[:size])
            else:
                self._without_path(port, destination, bytes(frame[:size]))

    def _forward(self, port: Port, mac: bytes, out: socket, frame: memoryview | bytes) -> None:
        if port.lanes and (lane := port.lanes.get(mac)) is not None:
            self._delay(lane, out, bytes(frame))
        else:
            self._send(out, frame)

    def _without_path(self, port: Port, destination: bytes, frame: bytes) -> None:
        """Handle a frame whose destination has no path.  Answer it with a reset or an ARP reply, or forward it if it is
        a broadcast, a multicast or neighbour discovery.  Otherwise drop it."""
        answer = reset_for(frame) if destination in port.rejected else reply_for(frame, self._macs_by_address)
        to_all = destination[0] & _GROUP_BIT and frame[_TYPE] != _ARP
        if answer is not None:
            self._send(port.end, answer)
        elif discovers_neighbours(frame):
            for out in port.others.values() if to_all else filter(None, [port.others.get(destination)]):
                self._send(out, frame)
        elif to_all:
            for mac, out in port.paths.items():
                self._forward(port, mac, out, frame)

    def _send(self, out: socket, frame: memoryview | bytes) -> None:
        try:
            out.send(frame)
            self.forwarded += 1
        except OSError:  # EAGAIN, ENOBUFS: a full queue drops frames, as in any switch
            self.overflowed += 1

    def _play_back(self, out: socket | None, held: Sequence[bytes]) -> None:
        """Send held frames in order, or drop them if the link has been cut.

        out: socket of the destination's port; None if the link is cut"""
        self._waiting_bytes -= sum(map(len, held))
        if out is not None:
            for frame in held:
                self._send(out, frame)

    def _delay(self, lane: ImpairedLink, out: socket, frame: bytes) -> None:
        if lane.impairment.hold and self._waiting_bytes + len(frame) <= _WAITING_BYTES_MAX:
            self._waiting_bytes += len(frame)
            lane.held.append(frame)
            return
        for due_s, departing in lane.admit(frame, time.monotonic()):
            if self._waiting_bytes + len(frame) > _WAITING_BYTES_MAX:
                self.overflowed += 1
                continue
            self._admitted += 1
            self._waiting_bytes += len(departing)
            heapq.heappush(self._waiting, (due_s, self._admitted, out, departing))

    def _send_due(self) -> float:
        """Send all due frames.  Return the seconds until the next frame is due; -1 if no frame waits."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(self._waiting)
            self._waiting_bytes -= len(frame)
            self._send(out, frame)
        return max(self._waiting[0][0] - time.monotonic(), 0.0) if self._waiting else -1

    def _obey(self) -> bool:
        """Carry out the received orders; return False once the stream has ended."""
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
                self.impair([(a, b, FrameImpairment(**it)) for a, b, it in order["impair"]], order["seed"])
        except (KeyError, TypeError, ValueError) as problem:
            return {"refused": f"{type(problem).__name__}: {problem}"}
        return {"forwarded": self.forwarded, "overflowed": self.overflowed}


def open_port(node: str, interface: str, mac: str, address: str) -> Port:
    """Open the port of a node.  Raises OSError if the interface does not exist, or if this process may not listen on
    it."""
    end = socket(AF_PACKET, SOCK_RAW, 0)
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    for direction in (_SO_RCVBUFFORCE, SO_RCVBUF):
        # exceeding the machine's limit needs root outside of any user namespace; otherwise the limit applies
        with contextlib.suppress(PermissionError):
            end.setsockopt(SOL_SOCKET, direction, _QUEUE_BYTES)
            break
    end.bind((interface, _ETH_P_ALL))
    end.setblocking(False)
    return Port(node, bytes.fromhex(mac.replace(":", "")), end, inet_aton(address) if address else b"")


_TYPE = slice(_VNET_BYTES + 12, _VNET_BYTES + 14)
_ARP, _IPV6 = b"\x08\x06", b"\x86\xdd"
_GROUP_BIT = 1
_ICMPV6, _DISCOVERY = 58, (135, 136)
_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET, _IPV4, _REQUEST, _REPLY = 1, 0x0800, 1, 2


def reply_for(frame: bytes, macs: Mapping[bytes, bytes]) -> bytes | None:
    """Return the ARP reply to a frame; None if the frame is no request for an address in `macs`.

    macs: IPv4 address -> MAC
    """
    ethernet = frame[_VNET_BYTES : _VNET_BYTES + 14]
    packet = frame[_VNET_BYTES + 14 : _VNET_BYTES + 14 + _PACKET.size]
    if ethernet[12:14] != _ARP or len(packet) < _PACKET.size:
        return None
    hardware, protocol, mac_bytes, address_bytes, operation, sender_mac, sender, _, wanted = _PACKET.unpack(packet)
    if (hardware, protocol, mac_bytes, address_bytes, operation) != (_ETHERNET, _IPV4, 6, 4, _REQUEST):
        return None
    mac = macs.get(wanted)
    if mac is None or mac == sender_mac:  # a node that probes for its own address expects no answer
        return None
    answer = _PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REPLY, mac, wanted, sender_mac, sender)
    return bytes(_VNET_BYTES) + ethernet[6:12] + mac + _ARP + answer


def discovers_neighbours(frame: bytes) -> bool:
    """Return True if a frame is a neighbour solicitation or advertisement of IPv6 (RFC 4861), without extension
    headers."""
    packet = frame[_VNET_BYTES + 14 :]
    return frame[_TYPE] == _IPV6 and len(packet) > 40 and packet[6] == _ICMPV6 and packet[40] in _DISCOVERY


QUEUE_S_MAX = 1.0
DELAY_S_MAX = 10.0
_SHARES = ("loss", "duplicate", "corrupt", "reorder")

_VNET = struct.Struct("<BBHHHH")
_NEEDS_CHECKSUM = 1
_ETHERNET_BYTES = 14


@dataclass(frozen=True, slots=True)
class FrameImpairment:
    """Impairment of a directed link.

    loss, duplicate, corrupt, reorder: fractions of the frames, from 0 to 1
    delay_s: seconds of delay of every frame
    jitter_s: maximum of a uniform random delay, in seconds, that is added to delay_s
    rate_bytes_per_s: limit of the rate; 0 for no limit"""

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_per_s: float = 0.0
    hold: float = 0.0
    """1 to hold every frame until a later order has 0 for this link; then all held frames are sent in order."""

    def __post_init__(self) -> None:
        """Validate the fields.  Raises ValueError that names the field."""
        if self.hold not in (0.0, 1.0):
            raise ValueError(f"hold must be 0 or 1, not {self.hold}")
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


class ImpairedLink:
    """One directed link with an impairment.  With equal seeds, equal calls return equal departures."""

    def __init__(self, impairment: FrameImpairment, seed: str) -> None:
        self.impairment = impairment
        self.held: list[bytes] = []
        self._rng = Random(seed)
        self._free_s = 0.0

    def admit(self, frame: bytes, now_s: float) -> list[tuple[float, bytes]]:
        """Return the departures of a frame: (time in seconds, bytes).  A lost frame has none, a duplicated one two."""
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
        departures = [(leaves_s + self._delay_s(), frame)]
        if it.duplicate and rng.random() < it.duplicate:
            departures.append((leaves_s + self._delay_s(), frame))
        return departures

    def _delay_s(self) -> float:
        it, rng = self.impairment, self._rng
        if it.reorder and rng.random() < it.reorder:
            return 0.0
        return it.delay_s + (rng.random() * it.jitter_s if it.jitter_s else 0.0)


def corrupted(frame: bytes, rng: Random) -> bytes | None:
    """Complete the checksum of a frame, flip one bit of its payload, and return the frame; None if it must be dropped.

    frame: frame with its virtio header (10 bytes)
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
    """Return the Internet checksum (RFC 1071) of data whose checksum field contains the sum of the pseudo header."""
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", bytes(data)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


_IP_S = 10.0


def main() -> None:
    control = socket(fileno=int(sys.argv[1]))
    plan = json.loads(sys.argv[2])
    try:
        interfaces = [if_indextoname(end) if isinstance(end, int) else end for _, end, _, _ in plan["ports"]]
        rows = zip(plan["ports"], interfaces, strict=True)
        switch = Switch([open_port(node, name, mac, address) for (node, _, mac, address), name in rows], control)
        if plan.get("release"):  # not earlier: from now on, the switch receives the frames that the bridge does not get
            ip("".join(f"link set dev {interface} nomaster\n" for interface in interfaces))
    except OSError as problem:
        control.sendall(json.dumps({"error": problem.strerror or str(problem)}).encode() + b"\n")
        return
    control.sendall(b'{"ready": true}\n')
    switch.serve()


def ip(batch: str, *prefix: str) -> None:
    """Run `ip -batch`.  If it fails, raises OSError with the message of `ip`.

    batch: commands, one a line
    prefix: words before the command `ip`
    """
    argv = [*prefix, "ip", "-batch", "-"]
    done = subprocess.run(argv, input=batch, capture_output=True, text=True, timeout=_IP_S, check=False)
    if done.returncode != 0:
        raise OSError(f"ip refused: {done.stderr.strip()}")


_IPV4_TYPE = b"\x08\x00"
_PROTOCOL_TCP = 6
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_TTL = 64


def reset_for(frame: bytes) -> bytes | None:
    """Return a frame that resets the TCP connection of `frame`; None if it is no TCP segment that may be answered."""
    ethernet, packet = frame[_VNET_BYTES : _VNET_BYTES + 14], frame[_VNET_BYTES + 14 :]
    if ethernet[12:14] != _IPV4_TYPE or len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != _PROTOCOL_TCP:
        return None
    header_bytes = (packet[0] & 15) * 4
    segment = packet[header_bytes:]
    if len(segment) < 20 or struct.unpack_from("!H", packet, 6)[0] & 0x1FFF:  # a later fragment has no TCP header
        return None
    to_port, from_port, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", segment)
    if flags & _RST:
        return None
    source, destination = packet[12:16], packet[16:20]
    if flags & _ACK:
        numbers = acknowledged, 0, _RST
    else:
        payload_bytes = struct.unpack_from("!H", packet, 2)[0] - header_bytes - (offset >> 4) * 4
        end = sequence + payload_bytes + bool(flags & _SYN) + bool(flags & _FIN)
        numbers = 0, end & 0xFFFFFFFF, _RST | _ACK
    number, next_number, flags = numbers
    header = struct.pack("!HHIIBBHHH", from_port, to_port, number, next_number, 5 << 4, flags, 0, 0, 0)
    reset = _with_checksum(header, destination + source)
    ip = _ipv4(destination, source, len(reset))
    return bytes(_VNET_BYTES) + ethernet[6:12] + ethernet[0:6] + _IPV4_TYPE + ip + reset


def _with_checksum(segment: bytes, addresses: bytes) -> bytes:
    """Return a TCP segment with its checksum, which also covers the addresses of sender and receiver (RFC 9293, 3.1).

    addresses: address of the sender, then of the receiver
    """
    pseudo = addresses + struct.pack("!BBH", 0, _PROTOCOL_TCP, len(segment))
    return segment[:16] + struct.pack("!H", _checksum(pseudo + segment)) + segment[18:]


def _ipv4(source: bytes, to: bytes, payload_bytes: int) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + payload_bytes, 0, 0, _TTL, _PROTOCOL_TCP, 0) + source + to
    return header[:10] + struct.pack("!H", _checksum(header)) + header[12:]


if __name__ == "__main__":
    main()
