"""Handing a stock client's admin request on to the active controller.

Stock clients may send admin requests to any broker, which passes them to the controller.  Kafka wraps them into
ENVELOPE 58, to carry the client's identity; without authentication the plain request says the same.  The request goes
out under a client id of ours, and such requests are never handed on again.  So no loop is possible, even if nodes
disagree about who the controller is.

A connection carries one request at a time.  A few are kept open for each controller and used again; a request without
an answer costs its connection (`connection.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from system_under_test.kraft.ports import Network
from system_under_test.kraft.wire.connection import Connection
from system_under_test.kraft.wire.extensions import OUR_PREFIX
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.quorum_service import NotQueued

CONNECT_TIMEOUT_S = 1.0
CONNECTIONS_MAX = 8
"""To one controller.  A further request waits until one of them is free."""


def is_ours(client_id: str | None) -> bool:
    return client_id is not None and client_id.startswith(OUR_PREFIX)


@dataclass(slots=True)
class _Pool:
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTIONS_MAX))
    idle: list[Connection] = field(default_factory=list)


class Forwarder:
    """One node's connections to controllers.  sender: this node's name in the client id."""

    def __init__(self, sender: str, network: Network | None = None) -> None:
        self._client_id = OUR_PREFIX + sender
        self._network = network
        self._pools: dict[tuple[str, int], _Pool] = {}

    async def forward(self, host: str, port: int, request: Entity, timeout_s: float) -> Entity:
        """The controller's answer to `request`.

        Raises NotQueued if it could not be sent at all, TimeoutError if it was sent and the outcome is unknown.
        """
        pool = self._pools.setdefault((host, port), _Pool())
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s), pool.free:
                connection = pool.idle.pop() if pool.idle else self._connection(host, port)
                answer = await connection.ask(request)
                pool.idle.append(connection)
                return answer
        except (OSError, MalformedFrame) as problem:
            if connection is None or not connection.sent:
                raise NotQueued("the controller cannot be reached") from problem
            raise TimeoutError(f"no answer of the controller: {problem}") from problem

    def close(self) -> None:
        """Drop the idle connections."""
        for pool in self._pools.values():
            while pool.idle:
                pool.idle.pop().close()

    def _connection(self, host: str, port: int) -> Connection:
        return Connection(host, port, self._client_id, connect_timeout_s=CONNECT_TIMEOUT_S, network=self._network)
