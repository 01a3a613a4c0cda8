"""Both ends of Kafka's wire protocol on sockets: a server that listens, and frames from a stream."""

from __future__ import annotations

import asyncio
from typing import Any

from system_under_test.kraft.wire.channel import SocketNetwork
from system_under_test.kraft.wire.frames import Entity, decode_response, encode_request
from system_under_test.kraft.wire.server import Handler, Server


async def serve(host: str, port: int, handler: Handler, *args: Any, **options: Any) -> Server:
    """A server that listens on host:port (0 = any free one).  args, options: of `Server`, after its handler."""
    server = Server(handler, *args, **options)
    await server.listen(SocketNetwork(), host, port)
    return server


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame without its size, or None where the peer closed between frames."""
    try:
        prefix = await reader.readexactly(4)
    except asyncio.IncompleteReadError as end:
        if not end.partial:
            return None
        raise
    return await reader.readexactly(int.from_bytes(prefix, "big"))


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, request: Entity) -> Any:
    """The answer to a request, the number-th on a connection."""
    writer.write(encode_request(number, "test", request))
    frame = await read_frame(reader)
    assert frame is not None
    answered, body = decode_response(type(request), frame)
    assert answered == number
    return body
