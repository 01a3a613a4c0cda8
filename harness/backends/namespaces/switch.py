"""The switch: one process that carries every frame between the nodes, or does not.

    node n1 [eth0]====[port 0]  switch  [port 1]====[eth0] node n2          ==== is a veth pair

Theory.  Each port is a packet socket on the switch's end of a veth pair.  A frame that comes in at a port is looked up
in *that port's* table of paths (destination MAC -> port) and sent out there, untouched.  To cut the directed link
a -> b is to have no path to b in a's table.  New tables are built aside and put in place between two frames, so all
links change at once.  No path, no frame: unknown addresses and broadcasts go nowhere (nodes have each other as
permanent neighbours, so nothing needs them), and if this process dies, everything is cut.

Frames travel with their virtio header, so that checksums and segments the kernel has not computed yet stay its own
business at the far end: a TCP segment of 64 KiB passes here as one frame.

    python -m harness.backends.namespaces.switch <control fd> '{"ports": [["n1", "port0", "02:..."], ...]}'

Control is a stream of JSON lines: {"cut": [["n1", "n2"], ...]} is answered by {"forwarded": n, "overflowed": n}, the
frames carried so far and those a full queue lost.  The switch ends when the stream ends.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from socket import AF_PACKET, SO_RCVBUF, SOCK_RAW, SOL_SOCKET, socket

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
"""How many frames one port may send before the others have their turn."""


@dataclass(slots=True)
class Port:
    """One node's end of the switch.  paths: destination MAC -> the socket it is reached by."""

    node: str
    mac: bytes
    end: socket
    paths: dict[bytes, socket] = field(default_factory=dict)


def paths(ports: Iterable[Port], cut: Collection[tuple[str, str]]) -> dict[str, dict[bytes, socket]]:
    """Node -> its table, with every directed link in `cut` left out."""
    every = list(ports)
    return {a.node: {b.mac: b.end for b in every if b is not a and (a.node, b.node) not in cut} for a in every}


class Switch:
    def __init__(self, ports: Iterable[Port], control: socket) -> None:
        self._ports = {port.end.fileno(): port for port in ports}
        self._control = control
        self._said = bytearray()
        self._frame = memoryview(bytearray(_FRAME_BYTES_MAX))
        self.forwarded = 0
        self.overflowed = 0
        self.cut(frozenset())

    def cut(self, links: Collection[tuple[str, str]]) -> None:
        tables = paths(self._ports.values(), links)
        for port in self._ports.values():
            port.paths = tables[port.node]

    def serve(self) -> None:
        """Carry frames until the control stream ends."""
        poll = select.epoll()
        for number in (*self._ports, self._control.fileno()):
            poll.register(number, select.EPOLLIN)
        while True:
            for number, _ in poll.poll():
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
                continue
            try:
                out.send(frame[:size])
                self.forwarded += 1
            except OSError:  # EAGAIN, ENOBUFS: a full queue loses frames, as any switch does
                self.overflowed += 1

    def _obey(self) -> bool:
        """Carry out what has been ordered; False once the stream has ended."""
        data = self._control.recv(1 << 16)
        self._said += data
        while (end := self._said.find(b"\n")) >= 0:
            order = json.loads(self._said[:end])
            del self._said[: end + 1]
            self.cut({(a, b) for a, b in order["cut"]})
            done = {"forwarded": self.forwarded, "overflowed": self.overflowed}
            self._control.sendall(json.dumps(done).encode() + b"\n")
        return bool(data)


def open_port(node: str, interface: str, mac: str) -> Port:
    """Raises OSError if there is no such interface, or we may not listen there."""
    listening = socket(AF_PACKET, SOCK_RAW, 0)
    listening.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    listening.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    listening.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    for direction in (_SO_RCVBUFFORCE, SO_RCVBUF):
        with contextlib.suppress(PermissionError):  # forcing needs root outside; then the machine's limit holds
            listening.setsockopt(SOL_SOCKET, direction, _QUEUE_BYTES)
            break
    listening.bind((interface, _ETH_P_ALL))
    listening.setblocking(False)
    return Port(node, bytes.fromhex(mac.replace(":", "")), listening)


def main() -> None:
    control = socket(fileno=int(sys.argv[1]))
    plan = json.loads(sys.argv[2])
    switch = Switch([open_port(*port) for port in plan["ports"]], control)
    control.sendall(b'{"ready": true}\n')
    switch.serve()


if __name__ == "__main__":
    main()
