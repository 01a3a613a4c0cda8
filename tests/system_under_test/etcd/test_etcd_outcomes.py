"""What an outcome says, against servers that break off, lie about lengths, or answer too late."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import pytest

from checkers.base.history import Type
from system_under_test.client import Address, Placement, Request
from system_under_test.etcd.client import EtcdClient, read_status
from system_under_test.own.one_client_process import Runner

PLACEMENT = Placement(thread=0, client_node="c1", follows=True, reads_only=False)
PATIENCE_S = 30.0
BRIEF_S = 1.0
"""Of an operation that nobody answers."""
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


def runner_of(port: int) -> Runner:
    return Runner(lambda: EtcdClient(PLACEMENT, {"n1": Address("n1", "127.0.0.1", port)}), {}, print, Path("/nowhere"))


def outcomes(answer, *requests: Request, timeout_s: float = PATIENCE_S):
    """What a client makes of these requests, and the member that it asked."""
    member, listening, loop = Member(answer), threading.Event(), asyncio.new_event_loop()
    port: list[int] = []

    async def serve() -> None:
        server = await asyncio.start_server(member.serve, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        listening.set()

    def run() -> None:
        loop.create_task(serve())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert listening.wait(PATIENCE_S)
        runner = runner_of(port[0])
        return [runner.invoke(request, timeout_s) for request in requests], member
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, "timeout"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\nX: close\r\n\r\n{", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\nX: close\r\n\r\n{}", "an answer without a usable length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{}", "an answer without a usable length"),
        (b"SSH-2.0 close\r\n", "not an HTTP answer"),
        (b"close\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]", "an answer that makes no sense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "not a JSON object"),
        (http({"kvs": []}), "an answer without etcd's header"),
        (http({"error": "etcdserver: request timed out"}, "504 Gateway Timeout"), "etcdserver: request timed out"),
        (http({"error": "etcdserver: leader changed"}, "503 x"), "etcdserver: leader changed"),
    ],
)
def test_without_an_answer_a_change_is_unknown_and_a_read_did_nothing(answer, error):
    patience_s = BRIEF_S if error == "timeout" else PATIENCE_S
    (read, write, cas), member = outcomes(answer, READ, WRITE, CAS, timeout_s=patience_s)
    assert (read.type, write.type, cas.type) == (Type.FAIL, Type.INFO, Type.INFO)
    assert read.node == write.node == "n1"
    assert len(member.requests) == 3, "one attempt each"
    assert {read.error.partition(": ")[2] or read.error, write.error.partition(": ")[2] or write.error} == {error}


def test_what_was_never_sent_certainly_did_not_happen():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # bound but not listening: every connection is refused
        outcome = runner_of(deaf.getsockname()[1]).invoke(WRITE, PATIENCE_S)
    assert outcome.type is Type.FAIL and outcome.error.startswith("not sent: ")


def test_a_late_answer_never_answers_the_next_request():
    asked = []

    async def late_then_prompt():
        asked.append(asyncio.Event())
        number = len(asked)
        if number == 1:
            await asked[0].wait()
        asked[0].set()
        value = "MQ==" if number == 1 else "Mg=="  # 1, then 2
        return http({"header": {}, "kvs": [{"value": value}]})

    (one, two), _ = outcomes(late_then_prompt, READ, READ, timeout_s=BRIEF_S)
    assert (one.type, one.error) == (Type.FAIL, "timeout")
    assert (two.type, two.value) == (Type.OK, 2)


def test_chunked_answers_are_read_and_the_connection_is_kept():
    body = b'{"header":{},"kvs":[{"value":"NDI="}]}'
    chunks = b"%x\r\n%s\r\n%x;x=y\r\n%s\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    done, member = outcomes(answer, READ, READ, READ)
    assert [o.value for o in done] == [42, 42, 42]
    assert member.requests == ["/v3/kv/range"] * 3


def test_a_value_that_is_no_number_is_no_answer():
    (read,), _ = outcomes(http({"header": {}, "kvs": [{"value": "eHl6"}]}), READ)
    assert (read.type, read.error) == (Type.FAIL, "BadAnswer: a value that is no number")


@pytest.mark.parametrize("request_", [Request("read"), Request("steal", "k"), Request("write", "k")])
def test_what_means_nothing_to_a_register_is_refused_before_sending(request_):
    (outcome,), member = outcomes(http({"header": {}}), request_)
    assert outcome.type is Type.FAIL and member.requests == []


def test_a_status_names_member_term_and_leader():
    assert read_status(STATUS).term == 2
    assert read_status({"header": {"member_id": "7"}, "leader": "0"}).leader_id == ""
    with pytest.raises(ValueError, match="without a member's id"):
        read_status({"error": "x"})
