"""What the client makes of everything that can become of a request.

The rule it must never break: FAIL is only for what certainly did not happen.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from fake_quorum import FakeNode, start_nodes
from kio.schema.errors import ErrorCode
from kraft_server import read_frame

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from system_under_test.kraft import client as of_kraft
from system_under_test.kraft.client import KraftClient, connect
from system_under_test.kraft.subject import Kraft
from system_under_test.kraft.wire.frames import codec, encode_response
from system_under_test.kraft.wire.versions import NOT_QUEUED

pytestmark = pytest.mark.virtual_time

ANSWER_TO_ANOTHER = encode_response(99, codec(44, 1).response_type(throttle_time=timedelta(0), responses=()))
"""A whole and right response, but to request 99."""

CREATE = Request("create", "k1")
READ = Request("read", "k1")


def write(value: int) -> Request:
    return Request("write", "k1", value)


def peers_of(nodes: dict[int, FakeNode]) -> dict[str, str]:
    return {f"n{i}": f"{host}:{port}" for i, (host, port) in nodes[1].quorum.brokers.items()}


def lead(nodes: dict[int, FakeNode], leader: int, epoch: int, known_to: tuple[int, ...] = (1, 2, 3)) -> None:
    for node in known_to:
        nodes[node].quorum.leader_id = leader
        nodes[node].quorum.epoch = epoch


@pytest.fixture
async def nodes() -> AsyncIterator[dict[int, FakeNode]]:
    nodes = await start_nodes(3)
    yield nodes
    for node in nodes.values():
        await node.stop()


Connect = Callable[..., KraftClient]


@pytest.fixture
async def client_of(nodes: dict[int, FakeNode]) -> AsyncIterator[Connect]:
    opened: list[KraftClient] = []

    def make(*, follows: bool = True, thread: int = 0, functions: dict[str, str] | None = None) -> KraftClient:
        config = {"functions": functions or {}}
        client = connect(Placement(thread, "c1", follows, reads_only=False), peers_of(nodes), config, {})
        assert isinstance(client, KraftClient)
        opened.append(client)
        return client

    yield make
    for client in opened:
        await client.close()


async def test_a_register_is_created_read_as_nil_written_and_read(client_of: Connect) -> None:
    client = client_of()
    assert await client.invoke(CREATE, 2) == Outcome(Type.OK, node="n1")
    assert await client.invoke(READ, 2) == Outcome(Type.OK, None, node="n1")
    assert await client.invoke(write(7), 2) == Outcome(Type.OK, 7, node="n1")
    assert await client.invoke(READ, 2) == Outcome(Type.OK, 7, node="n1")
    assert (await client.invoke(CREATE, 2)).type is Type.OK, "a topic that is there already counts as created"


@pytest.mark.parametrize("functions", [{"add": "add", "read": "members"}, {"add": "append", "read": "entries"}])
async def test_a_set_and_a_log_keep_what_is_appended(client_of: Connect, functions: dict[str, str]) -> None:
    client = client_of(functions=functions)
    await client.invoke(CREATE, 2)
    assert await client.invoke(READ, 2) == Outcome(Type.OK, payload="[]", node="n1")
    for element in (7, 3):
        assert await client.invoke(Request("add", "k1", element), 2) == Outcome(Type.OK, element, node="n1")
    assert await client.invoke(READ, 2) == Outcome(Type.OK, payload="[7, 3]", node="n1")
    negative = await client.invoke(Request("add", "k1", -1), 2)
    assert (negative.type, negative.error) == (Type.FAIL, "invalid config")


def test_the_subject_has_the_functions_of_its_client() -> None:
    assert Kraft.functions == of_kraft.FUNCTIONS


@pytest.mark.parametrize("text", ["7:1", "7", "x:0", "7:0,,8:0"])
def test_a_list_that_no_client_writes_is_no_answer(text: str) -> None:
    with pytest.raises(ValueError):
        of_kraft.value_of(of_kraft.LIST, text)


@pytest.mark.parametrize(("f", "functions"), [("write", {}), ("add", {"read": "members"})])
async def test_a_queued_write_never_gets_the_mark(
    nodes: dict[int, FakeNode], client_of: Connect, f: str, functions: dict[str, str]
) -> None:
    client = client_of(functions=functions)
    await client.invoke(CREATE, 2)
    nodes[1].quorum.lose = True
    outcome = await client.invoke(Request(f, "k1", 1), 2)
    assert (outcome.type, outcome.error) == (Type.INFO, "not controller")
    assert nodes[1].quorum.queued == 2
    assert (await client.invoke(READ, 2)).type is Type.FAIL, "a read has no effect to be unsure of"


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.none], ids=lambda c: c.name)
@pytest.mark.parametrize("request_", [write(1), CREATE, READ], ids=lambda r: r.f)
def test_every_error_code_fails_only_with_proof(request_: Request, code: ErrorCode) -> None:
    """All codes of Kafka, with a message that is not the mark: proof, or unknown."""
    outcome = of_kraft.of_error(request_, None, code, "no mark", "n1")
    if request_.f == "create" and code is ErrorCode.topic_already_exists:
        assert outcome.type is Type.OK
        return
    proven = request_.f == "read" or code in of_kraft.PROVE_NO_RECORD
    assert outcome.type is (Type.FAIL if proven else Type.INFO)
    assert outcome.error and len(outcome.error) < 80


def test_the_mark_proves_something_only_with_error_41() -> None:
    assert of_kraft.of_error(write(1), None, ErrorCode.not_controller, f"{NOT_QUEUED}: x", "n1").type is Type.FAIL
    assert (
        of_kraft.of_error(write(1), None, ErrorCode.not_controller, f"it was not {NOT_QUEUED}", "n1").type is Type.INFO
    )
    assert of_kraft.of_error(write(1), None, ErrorCode.request_timed_out, f"{NOT_QUEUED}: x", "n1").type is Type.INFO


async def test_validation_errors_prove_that_nothing_was_written(client_of: Connect) -> None:
    client = client_of()
    unknown_topic = await client.invoke(write(1), 2)
    assert (unknown_topic.type, unknown_topic.error) == (Type.FAIL, "unknown topic or partition")
    await client.invoke(CREATE, 2)
    too_small = await client.invoke(write(-2), 2)
    assert (too_small.type, too_small.error) == (Type.FAIL, "invalid config")
    illegal = await client.invoke(Request("create", "no spaces"), 2)
    assert illegal.type is Type.FAIL


async def test_an_answer_that_comes_too_late_is_dropped(nodes: dict[int, FakeNode], client_of: Connect) -> None:
    client = client_of()
    await client.invoke(CREATE, 2)
    await client.invoke(write(1), 2)
    nodes[1].quorum.delay_s = 0.3
    late = await client.invoke(READ, 0.1)
    assert (late.type, late.error) == (Type.FAIL, "timed out")
    late = await client.invoke(write(2), 0.1)
    assert (late.type, late.error) == (Type.INFO, "timed out")
    nodes[1].quorum.delay_s = 0.0
    assert (await client.invoke(READ, 2)).value == 1, "not the late answer, and not yet the late write"
    await asyncio.sleep(0.4)
    assert (await client.invoke(READ, 2)).value == 2, "info is info: the late write did happen"


async def test_a_connection_closed_instead_of_an_answer(nodes: dict[int, FakeNode], client_of: Connect) -> None:
    client = client_of()
    await client.invoke(CREATE, 2)
    nodes[1].swallow = 2
    swallowed = await client.invoke(write(1), 2)
    assert (swallowed.type, swallowed.error, swallowed.node) == (Type.INFO, "connection reset", "n1")
    swallowed = await client.invoke(READ, 2)
    assert (swallowed.type, swallowed.error) == (Type.FAIL, "connection reset")
    assert (await client.invoke(READ, 2)).type is Type.OK


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_write_that_a_dead_node_may_have_got_is_unknown(
    nodes: dict[int, FakeNode], client_of: Connect, noticed: bool
) -> None:
    client = client_of()
    await client.invoke(CREATE, 2)
    await nodes[1].stop()
    if noticed:
        await asyncio.sleep(0.05)  # until the client's kernel knows of it
    outcome = await client.invoke(write(1), 2)
    expected = (Type.FAIL, "connection refused") if noticed else (Type.INFO, "connection reset")
    assert (outcome.type, outcome.error) == expected


async def test_without_a_reachable_node(nodes: dict[int, FakeNode], client_of: Connect) -> None:
    for node in nodes.values():
        await node.stop()
    outcome = await client_of().invoke(write(1), 0.2)
    assert (outcome.type, outcome.error, outcome.node) == (Type.FAIL, "no controller known", "")


def client_at(host: str, port: int) -> KraftClient:
    """A client that takes this server for the controller."""
    client = connect(Placement(0, "c9", False, False), {"n1": f"{host}:{port}"}, {}, {})
    assert isinstance(client, KraftClient)
    client._node = "n1"
    return client


async def test_a_connection_that_is_not_made_in_time_sent_nothing() -> None:
    # A listener whose queue is full lets further SYNs go unanswered, as a node behind a partition does.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        host, port = listener.getsockname()
        held = [asyncio.ensure_future(asyncio.open_connection(host, port)) for _ in range(4)]
        await asyncio.sleep(0.05)
        client = client_at(host, port)
        outcome = await client.invoke(write(1), 0.2)
        assert (outcome.type, outcome.error) == (Type.FAIL, "connect timed out")
        await client.close()
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", "connection reset"),
        (b"\0\0", "connection reset"),
        (b"\0\0\0\x64half", "connection reset"),
        (b"\xff\xff\xff\xff", "malformed answer"),
        (b"\0\0\0\x05\0\0\0\x01\0", "malformed answer"),
        (ANSWER_TO_ANOTHER, "malformed answer"),
    ],
)
async def test_a_broken_answer_is_no_answer(reply: bytes, error: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = client_at(host, port)
    outcome = await client.invoke(write(1), 2)
    assert (outcome.type, outcome.error) == (Type.INFO, error)
    await client.close()
    server.close()


async def test_who_follows_goes_where_the_highest_epoch_leads(nodes: dict[int, FakeNode], client_of: Connect) -> None:
    follower, stayer = client_of(follows=True), client_of(follows=False, thread=1)
    await follower.invoke(CREATE, 2)
    assert (await stayer.invoke(READ, 2)).node == "n1"
    lead(nodes, 2, epoch=5, known_to=(2, 3))  # node 1 has not heard of it
    await asyncio.sleep(0.5)
    assert (await follower.invoke(READ, 2)).node == "n2"
    assert (await stayer.invoke(READ, 2)).node == "n1", "one client has to go on asking the deposed one"


async def test_who_follows_gives_up_on_a_leader_that_is_succeeded_and_who_stays_does_not(
    nodes: dict[int, FakeNode], client_of: Connect
) -> None:
    follower, stayer = client_of(follows=True), client_of(follows=False, thread=1)
    await follower.invoke(CREATE, 2)
    await stayer.invoke(READ, 2)
    nodes[1].quorum.delay_s = 5.0  # isolated: it does not answer any more
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = [asyncio.ensure_future(c.invoke(write(v), 1.5)) for v, c in enumerate((follower, stayer), 1)]
    await asyncio.sleep(0.05)
    lead(nodes, 2, epoch=5, known_to=(2, 3))
    given_up = await waiting[0]
    assert loop.time() - began < 1.0
    assert (given_up.type, given_up.node) == (Type.INFO, "n1")
    assert given_up.error == "gave up: a later epoch has another leader"
    assert (await follower.invoke(write(3), 2)).node == "n2"
    sat_out = await waiting[1]
    assert (sat_out.type, sat_out.error) == (Type.INFO, "timed out")


async def test_who_stays_moves_when_refused_but_not_when_unanswered(
    nodes: dict[int, FakeNode], client_of: Connect
) -> None:
    client = client_of(follows=False)
    await client.invoke(CREATE, 2)
    lead(nodes, 3, epoch=5, known_to=(2, 3))
    await asyncio.sleep(0.4)
    nodes[1].quorum.delay_s = 0.3
    assert (await client.invoke(READ, 0.1)).error == "timed out"
    nodes[1].quorum.delay_s = 0.0
    assert (await client.invoke(READ, 2)).node == "n1", "a timeout does not make it move"
    lead(nodes, 3, epoch=5, known_to=(1,))
    refused = await client.invoke(write(1), 2)
    assert (refused.type, refused.error, refused.node) == (Type.FAIL, "not queued: not the active controller", "n1")
    assert not nodes[3].quorum.queued, "no node hands requests of our client on: that would hide a stale read"
    assert (await client.invoke(write(2), 2)).node == "n3"


async def test_who_stays_moves_when_the_door_is_shut(nodes: dict[int, FakeNode], client_of: Connect) -> None:
    client = client_of(follows=False)
    await client.invoke(CREATE, 2)
    lead(nodes, 2, epoch=5, known_to=(2, 3))
    await asyncio.sleep(0.4)
    await nodes[1].stop()
    first = await client.invoke(write(1), 2)
    assert first.type in (Type.FAIL, Type.INFO)
    while first.node == "n1":
        first = await client.invoke(write(2), 2)
    assert first.node == "n2"


async def test_the_finder_ends_with_its_last_client(nodes: dict[int, FakeNode]) -> None:
    shared: dict[str, Any] = {}
    first = connect(Placement(0, "c1", True, False), peers_of(nodes), {}, shared)
    second = connect(Placement(1, "c1", True, False), peers_of(nodes), {}, shared)
    assert isinstance(first, KraftClient) and isinstance(second, KraftClient)
    assert first._finder is second._finder
    await first.invoke(CREATE, 2)
    await first.close()
    assert (await second.invoke(READ, 2)).type is Type.OK
    await second.close()
    calls = len(nodes[1].calls)
    await asyncio.sleep(0.4)
    assert len(nodes[1].calls) == calls


async def test_requests_it_does_not_know_are_refused_before_sending(
    nodes: dict[int, FakeNode], client_of: Connect
) -> None:
    for request in (Request("cas", "k1", 1, 2), Request("write", "k1"), Request("read")):
        outcome = await client_of().invoke(request, 2)
        assert outcome.type is Type.FAIL and outcome.error
    assert not nodes[1].calls


def test_replicas_are_three_or_as_many_as_there_are_nodes() -> None:
    assert [of_kraft.question(CREATE, n).topics[0].replication_factor for n in (1, 2, 3, 5)] == [1, 2, 3, 3]
    assert of_kraft.question(write(5), 3).resources[0].configs[0].name == of_kraft.REGISTER


# A planted bug


@pytest.mark.parametrize("bug", [None, "resends-after-timeout"])
async def test_only_with_the_bug_a_write_without_an_answer_is_sent_again(
    nodes: dict[int, FakeNode], bug: str | None
) -> None:
    """The first one may still take effect, after the second was acknowledged and others have written."""
    client = connect(Placement(0, "c9", follows=False, reads_only=False), peers_of(nodes), {"bug": bug}, {})
    assert (await client.invoke(CREATE, 20)).type is Type.OK
    before = len([call for call in nodes[1].calls if call.api_key == 44])
    nodes[1].swallow = 1
    outcome = await client.invoke(write(7), 20)
    sent = len([call for call in nodes[1].calls if call.api_key == 44]) - before
    assert (outcome.type, sent) == ((Type.OK, 2) if bug else (Type.INFO, 1))
    await client.close()
