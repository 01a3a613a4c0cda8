"""A network between processes: connections are delayed, stall while their link is cut, and break.

A link is a directed pair of hosts.  A connection is two pipes, one per direction.  Data arrives in the
order in which it was written into the pipe, each piece after its own delay.  Connections do not wait for each other.

    cut link       nothing arrives; the pipe stalls, as TCP does, and delivers everything after the heal
    rejected link  data that arrives is answered with a reset
    loss           a lost piece is sent again after 0.2, 0.4, 0.8 ... s, and all later pieces wait for it
    dead process   the kernel closes its connections; the close travels like data, so the other end stays half-open
                   while the link is cut

Corrupt packets count as lost, because a checksum detects them.  Duplicate packets do not affect a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from simulation.loop import OWNER, Gate, Process, SimulatedLoop

Link = tuple[str, str]

_OWN = (None, "", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")
"""Addresses that mean the process's own host."""
SYN_AGAIN_S = 1.0
"""Seconds until the kernel first resends a lost SYN; later intervals are 2, 4 ... s."""
PIECE = "piece"
"""Kind of data that arrives in a stream, for `Process.costs`."""
LOST_AGAIN_S, LOST_AGAIN_S_MAX = 0.2, 5.0
STALLED_AGAIN_S = 0.4
"""Maximum seconds after a heal until stalled data is sent again."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """An impairment of the packets on a link.

    loss: fraction of packets that are lost or corrupt
    rate_bytes_per_s: maximum rate; 0 for no limit
    """

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_per_s: float = 0.0


class SimulatedNetwork:
    """A network of named hosts.  A pair of host and port is only a name.

    base_delay_s, spread_s: every piece takes base_delay_s plus a random fraction of spread_s
    """

    def __init__(self, loop: SimulatedLoop, random: Random, base_delay_s: float = 2e-4, spread_s: float = 8e-4) -> None:
        self.loop = loop
        self.random = random
        self.base_delay_s, self.spread_s = base_delay_s, spread_s
        self.links_cut: frozenset[Link] = frozenset()
        self.links_rejected: frozenset[Link] = frozenset()
        self.impaired: Mapping[Link, Impairment] = {}
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._stalled: list[Pipe] = []
        self._open: dict[Process, dict[End, None]] = {}
        self._connections = 0
        self._layers: dict[int, Mapping[Link, Impairment | None]] = {}
        loop.network = self

    # Faults

    def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """Cut exactly these links from now on.

        reject: those of the links that answer with a reset
        """
        self.links_cut, self.links_rejected = frozenset(links), frozenset(reject)
        stalled, self._stalled = self._stalled, []
        for pipe in stalled:
            pipe.try_again()

    def lay(self, links: Mapping[Link, Impairment | None]) -> int:
        """Cut these links (None) or impair them, in addition to earlier calls.  Returns a number for `lift`.

        A link that is both cut and impaired is cut; of two impairments the later one applies.
        """
        self._layers[number := self.number()] = links
        self._order_layers()
        return number

    def lift(self, *numbers: int) -> None:
        """Undo the calls of `lay` with these numbers; without a number, undo all."""
        for number in numbers or tuple(self._layers):
            self._layers.pop(number, None)
        self._order_layers()

    def _order_layers(self) -> None:
        laid = [pair for links in self._layers.values() for pair in links.items()]
        self.impaired = {link: how for link, how in laid if how is not None}
        self.cut({link for link, how in laid if how is None})

    def died(self, process: Process) -> None:
        """Close the connections and listeners of a dead process, as a kernel does."""
        self._listeners = {key: found for key, found in self._listeners.items() if found.owner is not process}
        for end in tuple(self._open.pop(process, ())):
            end.owner_died()

    def delay_s(self, link: Link, size_bytes: int = 0) -> float:
        """Return the seconds that a piece of this size takes on a link that is not cut."""
        seconds = self.base_delay_s + self.spread_s * self.random.random()
        if (how := self.impaired.get(link)) is not None:
            seconds += how.delay_s + how.jitter_s * self.random.random()
            if how.rate_bytes_per_s:
                seconds += size_bytes / how.rate_bytes_per_s
            again_s = LOST_AGAIN_S
            while how.loss and self.random.random() < how.loss and again_s < LOST_AGAIN_S_MAX:
                seconds, again_s = seconds + again_s, again_s * 2
        return seconds

    # Connections

    def listen(self, accept: Any, host: str, port: int) -> _Listener:
        """Listen on an address.  Raises OSError if the address is in use.

        accept: creates an asyncio.Protocol for each connection, or answers calls (`simulation.calls.Callee`)
        """
        owner = OWNER.get()
        if owner is None:
            raise RuntimeError("only a process can listen")
        host = owner.host if host in _OWN else host
        if (host, port) in self._listeners:
            raise OSError(98, "the address is in use")
        listener = self._listeners[host, port] = _Listener(self, owner, (host, port), accept)
        return listener

    async def dial(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> tuple[Any, Any]:
        """Connect from the process whose callback runs now.  Raises ConnectionRefusedError."""
        mine = OWNER.get()
        if mine is None:
            raise RuntimeError("only a process can connect")
        host = mine.host if host in _OWN else host
        there, back = (mine.host, host), (host, mine.host)
        again_s = SYN_AGAIN_S
        while True:
            await asyncio.sleep(self.delay_s(there) + self.delay_s(back))
            if there in self.links_rejected:
                raise ConnectionRefusedError(111, "the connection was refused")
            if there not in self.links_cut and back not in self.links_cut:
                break
            await asyncio.sleep(again_s)
            again_s *= 2
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, "the connection was refused")
        near, far = ConnectionEnd(self, mine, listener.owner), ConnectionEnd(self, listener.owner, mine)
        near.other, far.other = far, near
        near.protocol = factory()
        near.protocol.connection_made(near)
        self.loop.call_soon(far.accepted, listener.accept, context=listener.owner.context.copy())
        return near, near.protocol

    def listener(self, host: str, port: int) -> _Listener | None:
        return self._listeners.get((host, port))

    def number(self) -> int:
        """Return an unused number, for a connection or for a call of `lay`."""
        self._connections += 1
        return self._connections

    def opened(self, end: End) -> None:
        self._open.setdefault(end.owner, {})[end] = None

    def closed(self, end: End) -> None:
        self._open.get(end.owner, {}).pop(end, None)

    def stall(self, pipe: Pipe) -> None:
        self._stalled.append(pipe)

    def forget(self, key: tuple[str, int]) -> None:
        self._listeners.pop(key, None)


class _Listener(asyncio.AbstractServer):
    """The server that `loop.create_server` returns.  It listens at once, and has no sockets of the kernel."""

    sockets = ()

    def __init__(self, network: SimulatedNetwork, owner: Process, key: tuple[str, int], accept: Any) -> None:
        self.owner = owner
        self.accept = accept
        self._network = network
        self._key = key
        self._serving: asyncio.Future[None] | None = None

    def close(self) -> None:
        if self.is_serving():
            self._network.forget(self._key)
        if self._serving is not None:
            self._serving.cancel()

    async def wait_closed(self) -> None:
        return None

    def is_serving(self) -> bool:
        return self._network.listener(*self._key) is self

    def get_loop(self) -> SimulatedLoop:
        return self._network.loop

    async def start_serving(self) -> None:
        return None

    async def serve_forever(self) -> None:
        """Wait until the server is closed or this task is cancelled; then raise CancelledError."""
        self._serving = self._network.loop.create_future()
        try:
            await self._serving
        finally:
            self.close()


class End:
    """One end of a connection, which its process holds open.

    other: the other end, set once both ends exist
    """

    other: End

    def __init__(self, network: SimulatedNetwork, owner: Process, peer: Process) -> None:
        self.owner = owner
        self.over = False
        self.out = Pipe(network, owner, peer)
        self._network = network
        network.opened(self)

    def close(self) -> None:
        if not self.over and self.owner.gate is not Gate.DEAD:
            self._leave()
            self.out.send(self.other.peer_left, None, 0)

    def peer_left(self, _: None) -> None:
        """Close this end, because the other end was closed and all data that it had sent has arrived."""
        if not self.over:
            self._leave()
            self.lost(None)

    def broken(self) -> None:
        """Close this end with a reset, because the link has rejected data."""
        if not self.over and self.owner.gate is not Gate.DEAD:
            self._leave()
            self.lost(ConnectionResetError(104, "the connection was reset"))

    def lost(self, problem: Exception | None) -> None:
        """Handle an end of the connection that this side did not request."""
        raise NotImplementedError

    def owner_died(self) -> None:
        self.over = True
        self.out.send(self.other.peer_left, None, 0)

    def _leave(self) -> None:
        self.over = True
        self._network.closed(self)


class ConnectionEnd(End, asyncio.Transport):
    """One end of a stream: the transport to which a protocol writes."""

    other: ConnectionEnd

    def __init__(self, network: SimulatedNetwork, owner: Process, peer: Process) -> None:
        asyncio.Transport.__init__(self, {"peername": (peer.host, 0), "sockname": (owner.host, 0)})
        End.__init__(self, network, owner, peer)
        self.out.reset = self.broken
        self.protocol: Any = None
        self._early: list[bytes] = []
        self._reading = True

    def accepted(self, accept: Callable[[], Any]) -> None:
        if self.over:
            return  # the dialling side has already closed
        self.protocol = accept()
        self.protocol.connection_made(self)
        self._deliver_early()

    def write(self, data: Any) -> None:
        if not self.over and self.owner.gate is not Gate.DEAD and data:
            piece = bytes(data)
            self.out.send(self.other.arrived, piece, len(piece))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self.over and self.owner.gate is not Gate.DEAD:
            self.out.send(self.other.arrived, b"", 0)

    def arrived(self, data: bytes) -> None:
        """Pass data to the protocol; b"" means that the other end will write no more data."""
        if self.over:
            return
        if self.protocol is None or not self._reading:
            self._early.append(data)
        elif not data:
            if not self.protocol.eof_received():
                self.close()
        else:
            self._network.loop.handles(self.owner, PIECE)
            self.protocol.data_received(data)

    def _deliver_early(self) -> None:
        early, self._early = self._early, []
        for data in early:
            self.arrived(data)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._early:
            self._network.loop.call_soon(self._deliver_early, context=self.owner.context.copy())

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self.over

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: data that cannot be sent yet waits in the network."""

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def close(self) -> None:
        before = self.over
        End.close(self)
        if self.over and not before:
            self._tell(None)

    abort = close

    def lost(self, problem: Exception | None) -> None:
        if problem is None and self.protocol is not None:
            self.protocol.eof_received()
        self._tell(problem)

    def _tell(self, problem: Exception | None) -> None:
        if self.protocol is not None:
            self._network.loop.call_soon(self.protocol.connection_lost, problem, context=self.owner.context.copy())


class Pipe:
    """One direction of a connection.

    reset: called at the source when the link rejects data
    """

    __slots__ = ("_last_s", "_network", "_queue", "_source", "_stalled", "link", "reset", "target")

    def __init__(self, network: SimulatedNetwork, source: Process, target: Process) -> None:
        self.link = (source.host, target.host)
        self.target = target
        self._source = source
        self.reset: Callable[[], None] = _nothing
        self._network = network
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._last_s = 0.0
        self._stalled = False

    def send(self, deliver: Callable[[Any], None], what: Any, size_bytes: int) -> None:
        """Call `deliver(what)` at the target, after all data that was sent before.

        Data of a busy process leaves when the process is no longer busy.  When a process dies, the kernel's close
        leaves at once.
        """
        network = self._network
        self._queue.append((deliver, what))
        if not self._stalled:
            leaves_s, source = network.loop.time(), self._source
            if source.busy_until > leaves_s and source.gate is not Gate.DEAD:
                leaves_s = source.busy_until
            arrives_s = leaves_s + network.delay_s(self.link, size_bytes)
            if arrives_s > self._last_s:
                self._last_s = arrives_s
            network.loop.post(self._last_s, self.target, self._arrive, None)

    def try_again(self) -> None:
        """Send the waiting data again, because the link may be healed by now.  If the link is still cut, the pipe
        stalls again.
        """
        network = self._network
        self._stalled = False
        self._last_s = network.loop.time() + STALLED_AGAIN_S * network.random.random()
        for _ in self._queue:
            self._last_s += network.delay_s(self.link) / 10
            network.loop.post(self._last_s, self.target, self._arrive, None)

    def _arrive(self, _: None) -> None:
        network = self._network
        if self._stalled or not self._queue:
            return
        if self.link in network.links_rejected:
            self._queue.clear()
            self.reset()
        elif self.link in network.links_cut:
            self._stalled = True
            network.stall(self)
        else:
            deliver, what = self._queue.popleft()
            deliver(what)


def _nothing() -> None:
    return None
