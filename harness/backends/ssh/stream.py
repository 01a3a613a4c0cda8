"""A channel of an ssh connection as asyncio streams, over which the harness speaks to an agent.

paramiko fills a channel's buffers in a thread of its own and then makes a descriptor readable, which the loop watches.
So an answer needs no thread but paramiko's.  Sending may block (a full window, a dead network), so it has a thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from dataclasses import dataclass

import paramiko

_PIECE_BYTES = 1 << 18
_STDERR_PIECES = 50


@dataclass(slots=True)
class AttachedChannel:
    """The agent's stdin and stdout as asyncio streams, and the last of what it wrote to stderr.

    ended: set once the host has closed all of its side, and everything it wrote has been read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stderr: deque[bytes]
    ended: asyncio.Event

    def words(self) -> str:
        return b"".join(self.stderr).decode(errors="replace")


def attach(channel: paramiko.Channel) -> AttachedChannel:
    """Wrap a channel.  Call it on the loop's thread."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = _ChannelTransport(channel, protocol, loop)
    protocol.connection_made(transport)
    return AttachedChannel(
        reader, asyncio.StreamWriter(transport, protocol, reader, loop), transport.stderr, transport.ended
    )


class _ChannelTransport(asyncio.Transport):
    """Closing ends the host's stdin only; what the host still has to say is read to its end."""

    def __init__(
        self, channel: paramiko.Channel, protocol: asyncio.StreamReaderProtocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self.stderr: deque[bytes] = deque(maxlen=_STDERR_PIECES)
        self._channel = channel
        self._protocol = protocol
        self._loop = loop
        self._descriptor = channel.fileno()
        self._closing = False
        self.ended = asyncio.Event()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="ssh-send", daemon=True).start()
        loop.add_reader(self._descriptor, self._readable)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._outgoing.put(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._outgoing.put(None)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._outgoing.put(None)

    def abort(self) -> None:
        self.close()
        self._channel.close()

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if not self.ended.is_set():
            self._loop.add_reader(self._descriptor, self._readable)

    def _readable(self) -> None:
        """Take what came, one piece of each; the descriptor stays readable while there is more."""
        while self._channel.recv_stderr_ready():
            self.stderr.append(self._channel.recv_stderr(_PIECE_BYTES))
        if self._channel.recv_ready():
            self._protocol.data_received(self._channel.recv(_PIECE_BYTES))
        elif self._channel.eof_received or self._channel.closed:
            self.ended.set()
            self._loop.remove_reader(self._descriptor)
            self._protocol.eof_received()

    def _send(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._channel.sendall(data)
            except OSError:
                return  # the reading side sees the same end, and reports it
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError):
            return
