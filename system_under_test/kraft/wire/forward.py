"""Handing a stock client's admin request on to the active controller.

Stock clients may send admin requests to any broker, which passes them to the controller (Kafka wraps them into
ENVELOPE 58, to carry the client's identity; without authentication the plain request says the same).  The request
goes out under a client id of ours, and such requests are never handed on again: no loop is possible, whoever
believes whatever of the controller.
"""

from __future__ import annotations

import asyncio

from system_under_test.kraft.wire.connection import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.marks import OUR_PREFIX
from system_under_test.kraft.wire.quorum import NotQueued

CONNECT_TIMEOUT_S = 1.0


def is_ours(client_id: str | None) -> bool:
    return client_id is not None and client_id.startswith(OUR_PREFIX)


async def forward(host: str, port: int, request: Entity, sender: str, timeout_s: float) -> Entity:
    """The controller's answer to `request`.

    Raises NotQueued if it could not be reached at all, TimeoutError if it was asked and the outcome is unknown.
    """
    connection = Connection(host, port, OUR_PREFIX + sender, connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        async with asyncio.timeout(timeout_s):
            return await connection.ask(request)
    except (OSError, MalformedFrame) as problem:
        if not connection.sent:
            raise NotQueued("the controller cannot be reached") from problem
        raise TimeoutError(f"no answer of the controller: {problem}") from problem
    finally:
        connection.close()
