"""Requests that are handed on share a few connections to the controller."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.create_topics.v7 import response as created
from kraft_server import serve

from system_under_test.kraft.wire.admin import CONNECTIONS_MAX, Forwarder
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.quorum_service import NotQueued
from system_under_test.kraft.wire.server import Server, WireCall
from system_under_test.kraft.wire.versions import NO_TIME

pytestmark = pytest.mark.virtual_time

REQUEST = create_topics.CreateTopicsRequest(topics=(), timeout=NO_TIME)
ANSWER = created.CreateTopicsResponse(throttle_time=NO_TIME, topics=())


class Controller:
    """Answers when `open` is set, and counts the connections on which requests came."""

    def __init__(self) -> None:
        self.connections: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.busy = asyncio.Event()  # as many wait as there may be connections
        self.hangs_up = False

    async def handle(self, call: WireCall) -> Entity | None:
        self.connections.append(call.connection)
        if len(self.connections) == CONNECTIONS_MAX:
            self.busy.set()
        await self.open.wait()
        return None if self.hangs_up else ANSWER


async def started(controller: Controller) -> Server:
    return await serve("127.0.0.1", 0, controller.handle)


async def test_requests_one_after_another_use_one_connection() -> None:
    """Every forwarded request opened one of its own."""
    controller = Controller()
    server, forwarder = await started(controller), Forwarder("n1")
    for _ in range(5):
        assert await forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0) == ANSWER
    assert controller.connections == [1] * 5
    forwarder.close()
    await server.close()


async def test_requests_at_once_use_a_few_connections() -> None:
    controller = Controller()
    server, forwarder = await started(controller), Forwarder("n1")
    controller.open.clear()
    answers = [asyncio.ensure_future(forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0)) for _ in range(30)]
    await controller.busy.wait()
    controller.open.set()
    assert await asyncio.gather(*answers) == [ANSWER] * 30
    assert len(set(controller.connections)) == CONNECTIONS_MAX
    forwarder.close()
    await server.close()


async def test_a_request_without_an_answer_is_unknown_and_costs_its_connection() -> None:
    controller = Controller()
    server, forwarder = await started(controller), Forwarder("n1")
    controller.hangs_up = True
    with pytest.raises(TimeoutError):
        await forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0)
    controller.hangs_up = False
    assert await forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0) == ANSWER
    assert controller.connections == [1, 2]
    port = server.port
    forwarder.close()
    await server.close()
    with pytest.raises(NotQueued):
        await forwarder.forward("127.0.0.1", port, REQUEST, 10.0)
