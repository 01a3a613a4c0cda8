"""The client of etcd: what each operation reads, writes and compares, and what an outcome says.

An etcd of one process that lives in memory answers the first tests.  In the others a server breaks off, lies about
lengths, or answers too late.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from checkers.base.history import Type
from system_under_test.client import Address, Placement, Request
from system_under_test.etcd_client import TRIES, BadAnswer, Beaten, EtcdClient, from_gateway, read_status, to_gateway
from system_under_test.own.one_client_process import Runner


class MemoryEtcd:
    """Speaks as `Gateway` does.  race: called before each transaction, as a faster client would be."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, int]] = {}
        self.revision = 1
        self.race = lambda: None

    def connect(self) -> None: ...

    def put(self, key: str, value: str) -> None:
        self.revision += 1
        self.held[key] = (value, self.revision)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/range"):
            return {"header": {}, **self._range(body)}
        if path.endswith("/put"):
            self.put(body["key"], body["value"])
            return {"header": {"revision": str(self.revision)}}
        if body.get("compare"):
            self.race()
        if not all(self._holds(c) for c in body.get("compare", [])):
            return {"header": {}}
        responses = []
        for request in body["success"]:
            if "request_put" in request:
                self.put(request["request_put"]["key"], request["request_put"]["value"])
            else:
                responses.append({"response_range": self._range(request["request_range"])})
        return {"header": {}, "succeeded": True, "responses": responses}

    def _range(self, body: dict[str, Any]) -> dict[str, Any]:
        first, end = from_gateway(body["key"]), from_gateway(body.get("range_end", ""))
        found = {k: v for k, v in self.held.items() if (first <= from_gateway(k) < end if end else k == body["key"])}
        kvs = [{"value": value, "mod_revision": str(revision)} for value, revision in found.values()]
        return {"kvs": kvs} if kvs else {}

    def _holds(self, compare: dict[str, Any]) -> bool:
        value, revision = self.held.get(compare["key"], ("", 0))
        if compare["target"] == "VALUE":
            return value == compare["value"]
        return revision == int(compare.get("mod_revision", compare.get("create_revision", 0)))


@pytest.fixture
def etcd() -> MemoryEtcd:
    return MemoryEtcd()


def client_of(etcd: MemoryEtcd) -> EtcdClient:
    client = EtcdClient(Placement(0, "c1", follows=True, reads_only=False), {})
    client.connection = etcd
    return client


def ask(etcd: MemoryEtcd, f: str, *given: Any) -> Any:
    return getattr(client_of(etcd), f)(*given)


def test_sets_counters_and_logs(etcd: MemoryEtcd) -> None:
    for element in (5, 12, 3):
        ask(etcd, "add", "s1", element)
    ask(etcd, "add", "s10", 99)  # another set whose name has the same prefix
    assert sorted(ask(etcd, "members", "s1")) == [3, 5, 12]
    assert ask(etcd, "total", "c") == 0
    ask(etcd, "increment", "c", 4)
    ask(etcd, "increment", "c", -1)
    assert ask(etcd, "total", "c") == 3
    assert ask(etcd, "entries", "l") == []
    assert [ask(etcd, "append", "l", v) for v in (7, 8)] == [0, 1]
    assert ask(etcd, "entries", "l") == [7, 8]


def test_queues_strings_and_ids(etcd: MemoryEtcd) -> None:
    assert ask(etcd, "dequeue", "q") is None and ask(etcd, "drain", "q") == []
    for value in (7, 0, 8):
        ask(etcd, "enqueue", "q", value)
    assert [ask(etcd, "dequeue", "q") for _ in range(2)] == [7, 0]
    ask(etcd, "enqueue", "q", 9)
    assert ask(etcd, "drain", "q") == [8, 9]
    assert ask(etcd, "dequeue", "q") is None
    assert ask(etcd, "get", "t") == ""
    ask(etcd, "append_text", "t", "é ")
    ask(etcd, "append_text", "t", "b")
    assert ask(etcd, "get", "t") == "é b"
    ask(etcd, "put", "t", "c")
    assert ask(etcd, "get", "t") == "c"
    first, second = [ask(etcd, "generate", "i") for _ in range(2)]
    assert first < second


def test_a_dequeue_that_another_was_faster_than_takes_the_next(etcd: MemoryEtcd) -> None:
    for value in (1, 2):
        ask(etcd, "enqueue", "q", value)
    faster = [lambda: etcd.put(*_list("q", [2]))]
    etcd.race = lambda: faster.pop()() if faster else None
    assert ask(etcd, "dequeue", "q") == 2
    assert ask(etcd, "drain", "q") == []


def test_transactions_read_what_they_wrote_and_all_keys_at_one_moment(etcd: MemoryEtcd) -> None:
    steps = [["r", "x", None], ["append", "x", 1], ["append", "y", 2], ["append", "x", 3], ["r", "x", None]]
    expected = [["r", "x", None], ["append", "x", 1], ["append", "y", 2], ["append", "x", 3], ["r", "x", [1, 3]]]
    assert ask(etcd, "transact_lists", steps) == expected
    assert ask(etcd, "transact_lists", [["r", "y", None]]) == [["r", "y", [2]]]
    ask(etcd, "transact_registers", [["w", "a", 1], ["w", "b", 2]])
    assert ask(etcd, "transact_registers", [["r", "b", None], ["w", "b", 3], ["r", "b", None], ["r", "a", None]]) == [
        ["r", "b", 2],
        ["w", "b", 3],
        ["r", "b", 3],
        ["r", "a", 1],
    ]


def test_a_faster_client_makes_it_begin_anew_and_nothing_is_lost(etcd: MemoryEtcd) -> None:
    ask(etcd, "append", "l", 1)
    faster = [lambda: etcd.put(*_list("l", [1, 2]))]
    etcd.race = lambda: faster.pop()() if faster else None
    assert ask(etcd, "append", "l", 3) == 2
    assert ask(etcd, "entries", "l") == [1, 2, 3]


def test_an_operation_that_is_always_beaten_did_not_happen(etcd: MemoryEtcd) -> None:
    beaten = []

    def race() -> None:
        beaten.append(1)
        etcd.put(*_list("l", beaten))

    etcd.race = race
    client = client_of(etcd)
    with pytest.raises(Beaten):
        client.append("l", 100)
    assert len(beaten) == TRIES
    assert client.harmless
    etcd.race = lambda: None
    assert 100 not in ask(etcd, "entries", "l")


def test_what_only_reads_never_counts_as_a_change(etcd: MemoryEtcd) -> None:
    for f, given in (("members", "s"), ("total", "c"), ("entries", "l"), ("transact_lists", [["r", "x", None]])):
        client = client_of(etcd)
        getattr(client, f)(given)
        assert client.harmless, f
    client = client_of(etcd)
    client.transact_lists([["append", "x", 1]])
    assert not client.harmless


def test_a_value_that_is_not_ours_is_no_answer(etcd: MemoryEtcd) -> None:
    etcd.put(_list("l", [])[0], "bm90IEpTT04=")
    with pytest.raises(BadAnswer):
        ask(etcd, "entries", "l")


def _list(key: str, values: list[int]) -> tuple[str, str]:
    return to_gateway(key), to_gateway(json.dumps(values))


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
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]", "an invalid answer"),
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
