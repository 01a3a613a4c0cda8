"""etcd's operations against an etcd of one process that lives in memory: what each reads, writes and compares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from system_under_test.client import Placement
from system_under_test.etcd.client import TRIES, BadAnswer, Beaten, EtcdClient, from_gateway, to_gateway


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
