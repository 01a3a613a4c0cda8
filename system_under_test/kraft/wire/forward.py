"""Handing a stock client's admin request on to the active controller.

Stock clients may send admin requests to any broker, which passes them to the controller (Kafka wraps them into
ENVELOPE 58, to carry the client's identity; without authentication the plain request says the same).  The request
goes out under a client id of ours, and such requests are never handed on again: no loop is possible, whoever
believes whatever of the controller.
"""

from __future__ import annotations

import asyncio

from system_under_test.kraft.wire.frames import Entity, MalformedFrame, decode_response, encode_request, read_frame
from system_under_test.kraft.wire.quorum import NotQueued

OUR_PREFIX = "krucible-"
"""Client ids that begin so are the project's own: their requests are answered here or refused, never handed on."""

CONNECT_TIMEOUT_S = 1.0


def is_ours(client_id: str | None) -> bool:
    return client_id is not None and client_id.startswith(OUR_PREFIX)


async def forward(host: str, port: int, request: Entity, sender: str, timeout_s: float) -> Entity:
    """The controller's answer to `request`.

    Raises NotQueued if it could not be reached at all, TimeoutError if it was asked and the outcome is unknown.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError as problem:
        raise NotQueued("the controller cannot be reached") from problem
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(encode_request(1, OUR_PREFIX + sender, request))
            frame = await read_frame(reader)
        if frame is None:
            raise TimeoutError("the controller closed the connection")
        return decode_response(type(request), frame)[1]
    except (OSError, asyncio.IncompleteReadError, MalformedFrame) as problem:
        raise TimeoutError(f"no answer of the controller: {problem}") from problem
    finally:
        writer.transport.abort()
