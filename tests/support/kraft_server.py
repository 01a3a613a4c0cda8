"""A server of Kafka's wire protocol that listens on sockets."""

from __future__ import annotations

from typing import Any

from system_under_test.kraft.wire.network import SocketNetwork
from system_under_test.kraft.wire.server import Handler, Server


async def serve(host: str, port: int, handler: Handler, *args: Any, **options: Any) -> Server:
    """A server that listens on host:port (0 = any free one).  args, options: of `Server`, after its handler."""
    server = Server(handler, *args, **options)
    await server.listen(SocketNetwork(), host, port)
    return server
