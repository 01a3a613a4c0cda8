"""What an outcome says, against servers that break off, lie about lengths, or answer too late."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from checkers.base.history import Type
from system_under_test.client import Placement, Request
from system_under_test.etcd.client import connect
from system_under_test.etcd.leadership import read_status

pytestmark = pytest.mark.virtual_time

PLACEMENT = Placement(thread=0, client_node="c1", follows=True, reads_only=False)
READ, WRITE, CAS = Request("read", "k"), Request("write", "k", 5), Request("cas", "k", 4, 5)
STATUS = {"header": {"member_id": "7"}, "leader": "7", "raftTerm": "2"}


def http(body: object, status: str = "200 OK", header: str = "") -> bytes:
    packed = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(packed)}\r\n{header}\r\n".encode() + packed


class Member:
    """One fake member.  `answer` gives the bytes of an answer to a request that is no status; None = silence."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self.connections = 0

    async def serve(self, reader, writer) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                await reader.readexactly(length)
                if b"/maintenance/status" in line:
                    answer = http(STATUS)
                else:
                    self.requests.append(line.split()[1].decode())
                    answer = await self.answer() if asyncio.iscoroutinefunction(self.answer) else self.answer
                if answer is None:
                    continue
                writer.write(answer)
                await writer.drain()
                if b"close" in answer:
                    break
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()


async def outcomes(answer, *requests: Request, timeout_s: float = 10):
    member = Member(answer)
    server = await asyncio.start_server(member.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = connect(PLACEMENT, {"n1": address}, {}, {})
    try:
        return [await client.invoke(r, timeout_s) for r in requests], member
    finally:
        await client.close()
        server.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, "timeout"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\nX: close\r\n\r\n{", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\nX: close\r\n\r\n{}", "an answer without a usable length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{}", "an answer without a usable length"),
        (b"SSH-2.0 close\r\n", "not an HTTP answer"),
        (b"close\r\n", "an answer that makes no sense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]", "an answer that makes no sense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "not a JSON object"),
        (http({"kvs": []}), "an answer without etcd's header"),
        (http({"error": "etcdserver: request timed out"}, "504 Gateway Timeout"), "etcdserver: request timed out"),
        (http({"error": "etcdserver: leader changed"}, "503 x"), "etcdserver: leader changed"),
    ],
)
async def test_without_an_answer_a_change_is_unknown_and_a_read_did_nothing(answer, error):
    patience_s = 0.3 if error == "timeout" else 10
    (read, write, cas), member = await outcomes(answer, READ, WRITE, CAS, timeout_s=patience_s)
    assert (read.type, write.type, cas.type) == (Type.FAIL, Type.INFO, Type.INFO)
    assert read.node == write.node == "n1"
    assert len(member.requests) == 3, "one attempt each"
    assert {read.error, write.error, cas.error} == {error}


async def test_what_was_never_sent_certainly_did_not_happen():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        client = connect(PLACEMENT, {"n1": f"127.0.0.1:{deaf.getsockname()[1]}"}, {}, {})
        outcome = await client.invoke(WRITE, 2.0)
        await client.close()
    assert outcome.type is Type.FAIL and outcome.error.startswith("not sent: ")


async def test_a_late_answer_never_answers_the_next_request():
    delays = iter([0.5, 0.0])

    async def late_then_prompt():
        delay = next(delays)
        await asyncio.sleep(delay)
        value = "MQ==" if delay else "Mg=="  # 1, then 2
        return http({"header": {}, "kvs": [{"value": value}]})

    (first, second), member = await outcomes(late_then_prompt, READ, READ, timeout_s=0.3)
    assert (first.type, first.error) == (Type.FAIL, "timeout")
    assert (second.type, second.value) == (Type.OK, 2)
    assert member.connections == 3, "one for the view, and a fresh one after the timeout"


async def test_chunked_answers_are_read_and_the_connection_is_kept():
    body = b'{"header":{},"kvs":[{"value":"NDI="}]}'
    chunks = b"%x\r\n%s\r\n%x;x=y\r\n%s\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    done, member = await outcomes(answer, READ, READ, READ)
    assert [o.value for o in done] == [42, 42, 42]
    assert member.connections == 2


async def test_a_value_that_is_no_number_is_no_answer():
    (read,), _ = await outcomes(http({"header": {}, "kvs": [{"value": "eHl6"}]}), READ)
    assert (read.type, read.error) == (Type.FAIL, "a value that is no number")


@pytest.mark.parametrize("request_", [Request("read"), Request("steal", "k"), Request("write", "k")])
async def test_what_means_nothing_to_a_register_is_refused_before_sending(request_):
    (outcome,), member = await outcomes(http({"header": {}}), request_)
    assert outcome.type is Type.FAIL and member.requests == []


def test_a_status_names_member_term_and_leader():
    assert read_status(STATUS).term == 2
    assert read_status({"header": {"member_id": "7"}, "leader": "0"}).leader_id == ""
    with pytest.raises(ValueError, match="without a member's id"):
        read_status({"error": "x"})
