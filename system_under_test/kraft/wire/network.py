"""The network port on asyncio's own sockets, and how a stream of bytes becomes frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from system_under_test.kraft.ports import Listener
from system_under_test.kraft.wire.frames import FRAME_SIZE_MAX_BYTES, MalformedFrame

P = TypeVar("P", bound=asyncio.Protocol)


class SocketNetwork:
    """`ports.Network` on TCP sockets."""

    async def dial(self, host: str, port: int, protocol: Callable[[], P]) -> P:
        _, made = await asyncio.get_running_loop().create_connection(protocol, host, port)
        return made

    async def listen(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> Listener:
        return SocketListener(await asyncio.get_running_loop().create_server(protocol, host, port))


class SocketListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        return cast(int, self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()


class FrameBuffer:
    """Bytes in, frames without their sizes out."""

    def __init__(self, size_max_bytes: int = FRAME_SIZE_MAX_BYTES) -> None:
        self._bytes: bytes | bytearray = b""  # a bytearray only while a frame is in parts
        self._size_max_bytes = size_max_bytes

    def __len__(self) -> int:
        """Bytes that are not taken yet."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        if not self._bytes:
            self._bytes = data
            return
        if isinstance(self._bytes, bytes):
            self._bytes = bytearray(self._bytes)
        self._bytes += data

    def take(self) -> bytes | None:
        """The next whole frame; None if it has not arrived yet.  Raises MalformedFrame for an impossible size."""
        if len(self._bytes) < 4:
            return None
        size_bytes = int.from_bytes(self._bytes[:4], "big", signed=True)
        if not 0 < size_bytes <= self._size_max_bytes:
            raise MalformedFrame(f"a frame of {size_bytes} bytes")
        end = 4 + size_bytes
        if len(self._bytes) < end:
            return None
        frame = bytes(self._bytes[4:end])
        self._bytes = self._bytes[end:]
        return frame
