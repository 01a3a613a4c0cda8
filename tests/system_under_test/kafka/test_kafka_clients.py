"""Clients of Kafka's workloads, with a library that a test plays: which outcomes are proven, and what is committed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.kafka_log.judge import judge_kafka_log
from system_under_test.client import Outcome, Placement, Request
from system_under_test.kafka.client import KafkaClient, NeverCommitted
from system_under_test.kafka.groups import COMMIT_FIRST, FIRST_CRASH, Crashed
from system_under_test.kafka.records import TO_END, StillOpen
from workloads.kafka import SubscribedConsumer

WHO = Placement(0, "c1", follows=True, reads_only=False)


def message(topic: str, offset: int, value: int) -> Any:
    fields = {"topic": topic, "offset": offset, "value": str(value).encode(), "error": None}
    return SimpleNamespace(**{name: lambda held=held: held for name, held in fields.items()})


class PlayedProducer:
    """A producer of which one step fails; steps: those that were called."""

    def __init__(self, fails: str) -> None:
        self.fails, self.steps = fails, list[str]()

    def __getattr__(self, name: str) -> Any:
        def step(*given: Any, on_delivery: Any = None, **_: Any) -> int:
            self.steps.append(name)
            if name == self.fails:
                raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
            if on_delivery is not None:
                error = SimpleNamespace(str=lambda: "lost") if self.fails == "delivery" else None
                on_delivery(error, message(given[0], 4, int(given[1])))
            return int(self.fails == "undelivered")

        return step


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> KafkaClient:
    monkeypatch.setattr(KafkaClient, "made", {})
    return KafkaClient(WHO, {})


@pytest.mark.parametrize(
    ("fails", "aborts", "raised"),
    [
        ("begin_transaction", 0, NeverCommitted),
        ("produce", 0, NeverCommitted),
        ("delivery", 0, NeverCommitted),
        ("undelivered", 0, NeverCommitted),
        ("", 1, NeverCommitted),
        ("abort_transaction", 1, NeverCommitted),
        ("commit_transaction", 0, confluent_kafka.KafkaException),
    ],
)
def test_a_transaction_fails_only_if_no_commit_was_tried(
    client: KafkaClient, fails: str, aborts: int, raised: type[Exception]
) -> None:
    producer = client.made["transactional"] = PlayedProducer(fails)
    with pytest.raises(raised):
        client.transact_records([["send", "k0", 7]], aborts)
    assert ("commit_transaction" in producer.steps) is (raised is not NeverCommitted)
    assert (raised in client.refused) is (raised is NeverCommitted)
    assert ("transactional" in client.made) is (fails == ""), "what failed is never used again"


def test_a_transaction_answers_its_steps_with_offsets(client: KafkaClient) -> None:
    client.made["transactional"] = PlayedProducer("")
    assert client.transact_records([["send", "k0", 7], ["send", "k1", 8]], 0) == [
        ["send", "k0", [4, 7]],
        ["send", "k1", [4, 8]],
    ]


@pytest.mark.parametrize(("offset", "raised"), [(0, False), (TO_END, True)])
def test_only_the_last_poll_waits_for_open_transactions(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch, offset: int, raised: bool
) -> None:
    monkeypatch.setattr(KafkaClient, "_high_watermark", lambda self, key: 9)
    shown = SimpleNamespace(get_watermark_offsets=lambda *_, **__: (0, 4), assign=lambda _: None)
    shown.consume = lambda *_: [message("k0", each, each) for each in range(4)]
    client.made["consumer"] = shown
    with pytest.raises(StillOpen) if raised else nullcontext():
        assert client.poll_records("k0", offset) == [["poll", {"k0": [[each, each] for each in range(4)]}]]


class PlayedMember:
    """A member of a group whose polls show one record each."""

    def __init__(self) -> None:
        self.commits = list[Any]()
        self.polls = 0

    def consume(self, *_: Any) -> list[Any]:
        self.polls += 1
        return [message("k0", self.polls, 10 + self.polls)]

    def commit(self, offsets: list[Any] | None = None, **_: Any) -> list[Any]:
        self.commits.append(offsets)
        return offsets or []


@pytest.mark.parametrize(("bug", "commits"), [(None, 0), (COMMIT_FIRST, FIRST_CRASH)])
def test_only_the_planted_bug_commits_what_nobody_processed(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch, bug: str | None, commits: int
) -> None:
    monkeypatch.setattr(KafkaClient, "bug", bug)
    member = PlayedMember()
    client.made.update({"member": member, "moved": [], "moved before": []})
    for number in range(1, FIRST_CRASH):
        assert client.poll_subscribed("k0", 0) == [["poll", {"k0": [[number, 10 + number]]}]]
    with pytest.raises(Crashed):
        client.poll_subscribed("k0", 0)
    assert len(member.commits) == commits


def test_a_partition_that_moved_is_named_in_two_answers(client: KafkaClient) -> None:
    client.made.update({"member": PlayedMember(), "moved": ["k0"], "moved before": []})
    assert [client.poll_subscribed("k0", 0)[1:] for _ in range(3)] == [[["rebalance", ["k0"]]]] * 2 + [[]]


def test_a_member_commits_behind_what_an_answer_showed() -> None:
    def heard(member: Any, f: str, type_: Type, payload: str = "") -> Any:
        return member.heard(Request(f, "k0"), Outcome(type_, payload=payload))

    first = SubscribedConsumer(("k0", "k1"), "k0")
    member = heard(first, "subscribe", Type.OK)
    polled = heard(member, "poll", Type.OK, '[["poll", {"k1": [[3, 7], [5, 8]]}], ["rebalance", ["k1"]]]')
    request, _ = polled.next(None)
    assert (request.f, json.loads(request.payload)) == ("commit", {"k1": 6})
    assert heard(polled, "commit", Type.INFO) == replace(polled, processed="") == member
    assert heard(member, "poll", Type.FAIL) == first, "its position is not known any more"


def test_a_record_that_a_group_left_behind_is_lost() -> None:
    """k0 holds two records; the group has committed behind the second, and the last poll begins there."""
    rows = [("send", '[["send", "k0", 1]]', '[["send", "k0", [0, 1]]]'), ("send", '[["send", "k0", 2]]', None)]
    rows += [("subscribe", '["k0"]', '["k0"]'), ("poll", '[["poll"]]', '[["poll", {"k0": [[1, 2]]}]]')]
    events = list[Event]()
    for process, (f, invoked, answered) in enumerate(rows):
        for type_, payload in ((Type.INVOKE, invoked), (Type.OK, answered or invoked)):
            events.append(Event(len(events), len(events), process, type_, f, "k0", payload=payload))
    found = judge_kafka_log(events, read_to_end=True)
    assert (found.validity, [each.kind for each in found.witnesses]) == (Validity.INVALID, ["lost-write"])
