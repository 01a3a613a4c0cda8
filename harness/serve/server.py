"""Serves the page at a socket until the process is told to end (Ctrl-C or SIGTERM)."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import uvicorn

from harness.serve.app import LOOPBACK, app_of
from harness.serve.sources import Source


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.  Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def serve_until_stopped(sources: Sequence[Source], at: socket.socket, names: Sequence[str], token: str | None) -> None:
    """names: by which readers may address the server beside loopback; behind a token any name will do."""
    hosts = ["*"] if token is not None else [*LOOPBACK, *names]
    config = uvicorn.Config(
        app_of(sources, hosts, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[at])
