"""Clients of Kafka's workloads, with a library that a test plays: which outcomes are proven, and what is committed.

Their own requests and answers have Kafka's fields, as a broker reads and writes them.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.cluster.topic_states import ABSENT
from checkers.kafka_log.judge import judge_kafka_log
from system_under_test.client import Address, Outcome, Placement, Request
from system_under_test.kafka import client as of_kafka
from system_under_test.kafka import wire
from system_under_test.kafka.client import UNMARKED_READS, KafkaClient
from system_under_test.kafka.records import (
    COMMIT_FIRST,
    FIRST_CRASH,
    OFFSETS_OUTSIDE,
    TO_END,
    Crashed,
    NeverCommitted,
    NothingProcessed,
    StillOpen,
)
from system_under_test.kraft.wire import frames
from system_under_test.kraft.wire.versions import built
from workloads.generators import Turn
from workloads.kafka import OwnTopic, SubscribedConsumer, TopicOwner

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


@pytest.mark.parametrize(("transactions", "repeats"), [("once", False), ("repeated", True)])
def test_the_library_repeats_requests_only_where_the_setting_says_so(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch, transactions: str, repeats: bool
) -> None:
    made: list[dict[str, Any]] = []

    def producer(settings: dict[str, Any]) -> PlayedProducer:
        made.append(settings)
        return PlayedProducer("")

    monkeypatch.setattr(confluent_kafka, "Producer", producer)
    monkeypatch.setattr(KafkaClient, "settings", {"transactions": transactions})
    client.transact_records([["send", "k0", 7]], 0)
    (settings,) = made
    assert (settings["socket.timeout.ms"] < settings["message.timeout.ms"]) is repeats
    assert settings["message.timeout.ms"] < settings["transaction.timeout.ms"]


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


def test_a_member_that_was_shown_no_committed_offset_processes_nothing(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka may overlook the offset that is committed; from the first record on, all would be processed twice."""
    settings: dict[str, Any] = {}
    lost = SimpleNamespace(error=lambda: confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTO_OFFSET_RESET))
    member = SimpleNamespace(subscribe=lambda *_, **__: None, consume=lambda *_: [message("k0", 0, 7), lost])
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda given: (settings.update(given), member)[1])
    client.made["admin"] = SimpleNamespace(
        list_topics=lambda **_: SimpleNamespace(topics={"k0": None, "k0-results": None})
    )
    producer = client.made["transactional"] = PlayedProducer("")
    with pytest.raises(confluent_kafka.KafkaException, match="AUTO_OFFSET_RESET"):
        client.process_records()
    assert settings["auto.offset.reset"] == "error"
    assert producer.steps == [] and "member" not in client.made, "the next member asks anew"


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


def _altered(error: int) -> Any:
    return SimpleNamespace(responses=[SimpleNamespace(error_code=error)])


class PlayedBroker:
    """A broker whose copy of the metadata is `behind` questions old; configs and partitions: of the cluster."""

    def __init__(self, behind: int) -> None:
        self.configs, self.partitions = {"k0": 7}, {"k0": 2}
        self.shown, self.behind, self.closed = dict(self.configs), behind, False

    def ask(self, request: tuple[Any, ...]) -> Any:
        match request:
            case ("set", topic, value):
                self.configs[topic] = int(value)
                return _altered(0)
            case ("config", topic):
                self.behind -= 1
                self.shown = dict(self.configs) if self.behind < 0 else self.shown
                return (str(self.shown[topic]), 0) if topic in self.shown else (None, 3)
            case ("partitions", topic):
                return {topic: dict.fromkeys(range(self.partitions.get(topic, 0)))}
        raise AssertionError(request)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> PlayedBroker:
    """A broker in the place of Kafka's protocol."""
    played = PlayedBroker(request.param)
    monkeypatch.setattr(wire, "BrokerConnection", lambda server, timeout_s: played)
    monkeypatch.setattr(wire, "set_config_request", lambda topic, name, value: ("set", topic, value))
    monkeypatch.setattr(wire, "config_request", lambda topic, name: ("config", topic))
    monkeypatch.setattr(wire, "metadata_request", lambda topic: ("partitions", topic))
    for name in ("config_in", "partitions_in"):
        monkeypatch.setattr(wire, name, lambda answer: answer)
    return played


@pytest.mark.parametrize(("bug", "shown"), [(None, 92), (UNMARKED_READS, 72)])
@pytest.mark.parametrize("broker", [5], indirect=True)
def test_a_read_waits_for_what_was_written_before_it(
    client: KafkaClient, broker: PlayedBroker, monkeypatch: pytest.MonkeyPatch, bug: str | None, shown: int
) -> None:
    monkeypatch.setattr(KafkaClient, "bug", bug)
    client.servers = {"n1": Address("n1", "198.18.0.11", 9092)}
    broker.configs["k0"] = 9  # committed, but not visible yet
    assert client.shown_topic("k0") == shown
    assert (client.answered, broker.closed) == ("n1", True)


def test_the_minimum_of_the_cluster_is_changed_at_any_broker(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    answers = map(_altered, (0, 41))
    played = SimpleNamespace(ask=lambda request: sent.append(request) or next(answers), close=lambda: None)
    monkeypatch.setattr(wire, "BrokerConnection", lambda server, timeout_s: played)
    monkeypatch.setattr(of_kafka, "_MINIMUM_EVERY_S", 0.001)
    client.servers = {"n1": Address("n1", "198.18.0.11", 9092)}
    client.change_minimum()
    (changed,) = sent[0].resources
    assert (changed.resource_type, changed.resource_name, changed.configs[0].name) == (4, "", "min.insync.replicas")
    with pytest.raises(of_kafka.NotShown, match="error 41"):
        client.change_minimum()


def test_partitions_are_moved_to_brokers_of_the_cluster(client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    state, sent = SimpleNamespace(partition_index=0, replica_nodes=[101, 102, 103]), list[Any]()
    errors, answers = iter([[]] * 120 + [[85]]), iter([*[([], 0)] * 40, (["k0"], 0), ([], 7)])

    def ask(request: Any) -> Any:
        sent.append(request)
        if request == "moves":
            names, error = next(answers)
            return SimpleNamespace(topics=[SimpleNamespace(name=name) for name in names], error_code=error)
        return None

    played = SimpleNamespace(ask=ask, close=lambda: None)
    monkeypatch.setattr(wire, "BrokerConnection", lambda server, timeout_s: played)
    monkeypatch.setattr(wire, "partitions_in", lambda answer: {"k0": {0: state}, "removed": {}})
    monkeypatch.setattr(wire, "move_request", lambda *move: move)
    monkeypatch.setattr(wire, "errors_of_move", lambda answer: next(errors))
    monkeypatch.setattr(wire, "moves_request", lambda: "moves")
    monkeypatch.setattr(of_kafka, "_MOVE_EVERY_S", 0)
    client.servers = {f"n{n}": Address(f"n{n}", f"198.18.0.1{n}", 9092) for n in range(1, 5)}
    for seed in (*range(40), *range(40)):
        client.move_partition(seed)
    moves = [move for move in sent if isinstance(move, tuple)]
    assert moves[:40] == moves[40:], "a seed decides all that is chosen"
    assert {move[:2] for move in moves} == {("k0", 0)}
    targets = [move[2] for move in moves if move[2] is not None]
    assert {number for target in targets for number in target} == {101, 102, 103, 104}
    assert {len({*target}) for target in targets} == {2, 3}
    monkeypatch.setattr(KafkaClient, "settings", {"moves": of_kafka.PAIRS})
    for seed in range(40):
        client.move_partition(seed)
    pairs = [move[2] for move in sent if isinstance(move, tuple)][len(moves) :]
    assert {len({*pair}) for pair in pairs if pair is not None} == {2}
    for words in ("no partition can be moved", "error 7"):
        with pytest.raises(of_kafka.NotShown, match=words):
            client.move_partition(0)
    monkeypatch.setattr(KafkaClient, "settings", {"moves": of_kafka.ANY})
    with pytest.raises(of_kafka.NotShown, match="error 85"):
        client.move_partition(0)


@pytest.mark.parametrize(("protocol", "spoken"), [("classic", "classic"), ("consumer", "consumer"), ("mixed", None)])
def test_a_group_has_members_of_one_protocol_or_of_both(
    monkeypatch: pytest.MonkeyPatch, protocol: str, spoken: str | None
) -> None:
    made: list[dict[str, Any]] = []
    member = SimpleNamespace(subscribe=lambda *_, **__: None)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda settings: made.append(settings) or member)
    monkeypatch.setattr(KafkaClient, "made", {})
    monkeypatch.setattr(KafkaClient, "settings", {"group_protocol": protocol})
    for thread in range(2):
        KafkaClient(Placement(thread, "c1", follows=True, reads_only=True), {}).subscribe_topics(["k0"])
    assert [each["group.protocol"] for each in made] == ([spoken] * 2 if spoken else ["consumer", "classic"])


@pytest.mark.parametrize("broker", [0], indirect=True)
def test_a_topic_that_does_not_exist_and_one_that_nobody_changed_have_states(
    client: KafkaClient, broker: PlayedBroker
) -> None:
    client.servers = {"n1": Address("n1", "198.18.0.11", 9092)}
    assert client.shown_topic("k1") == ABSENT
    broker.configs["k1"], broker.partitions["k1"] = 0, 1
    assert client.shown_topic("k1") is None


@pytest.mark.parametrize("broker", [1 << 40], indirect=True)
def test_a_broker_that_does_not_catch_up_answers_no_read(
    client: KafkaClient, broker: PlayedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_kafka, "_LIMIT_S", 0.05)
    client.servers = {"n1": Address("n1", "198.18.0.11", 9092)}
    with pytest.raises(TimeoutError, match="n1 does not show what the controller has committed"):
        client.shown_topic("k0")
    assert broker.closed


def test_a_change_without_an_answer_retires_its_topic() -> None:
    owner = TopicOwner(("k0", "k1"), {"k0": OwnTopic(), "k1": OwnTopic()})
    changed = Request("write", "k0", 71, of_kafka.ALTER)
    acknowledged = owner.heard(changed, Outcome(Type.OK, 71, of_kafka.ALTER))
    assert isinstance(acknowledged, TopicOwner) and acknowledged.topics["k0"] == OwnTopic(71)
    unanswered = acknowledged.heard(changed, Outcome(Type.INFO, 71, of_kafka.ALTER))
    assert isinstance(unanswered, TopicOwner) and unanswered.topics["k0"].retired
    assert not unanswered.topics["k1"].retired
    turn = Turn(WHO, 1, Random(1))
    reading = Request("read", "k0")
    for type_, functions in ((Type.FAIL, {"read"}), (Type.OK, {"read", "write"})):
        after = unanswered.heard(reading, Outcome(type_))
        asked = [after.next(turn)[0] for _ in range(50)]
        assert {request.f for request in asked if isinstance(request, Request)} == functions
        assert {request.key for request in asked if isinstance(request, Request) and request.f == "write"} <= {"k1"}
    assert acknowledged.heard(changed, Outcome(Type.FAIL)) == acknowledged


class PlayedProcessor(PlayedProducer):
    """A transactional producer that notes what a transaction sent, and which offsets went into it."""

    def __init__(self) -> None:
        super().__init__("")
        self.sent, self.inside = list[tuple[str, bytes]](), list[int]()

    def produce(self, topic: str, value: bytes, **_: Any) -> None:
        self.steps.append("produce")
        self.sent.append((topic, value))

    def send_offsets_to_transaction(self, offsets: list[Any], *_: Any) -> None:
        self.steps.append("send_offsets_to_transaction")
        self.inside += [each.offset for each in offsets]


@pytest.mark.parametrize(
    ("bug", "inside", "outside", "commits"),
    [(None, FIRST_CRASH, 0, FIRST_CRASH - 1), (OFFSETS_OUTSIDE, 0, FIRST_CRASH - 1, FIRST_CRASH)],
)
def test_only_the_planted_bug_commits_results_without_their_offsets(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch, bug: str | None, inside: int, outside: int, commits: int
) -> None:
    monkeypatch.setattr(KafkaClient, "bug", bug)
    member, producer = PlayedMember(), PlayedProcessor()
    member.consumer_group_metadata = lambda: "group"  # type: ignore[attr-defined]
    client.made.update({"member": member, "transactional": producer})
    for _ in range(FIRST_CRASH - 1):
        client.process_records()
    with pytest.raises(Crashed):
        client.process_records()
    assert (len(producer.inside), len(member.commits)) == (inside, outside)
    assert producer.steps.count("commit_transaction") == commits
    assert producer.sent[0] == ("k0-results", b"11")
    assert "member" not in client.made and "transactional" not in client.made, "their positions are unknown"


def test_results_and_what_is_left_are_read_as_one_queue(client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {"k0": [[0, 5], [1, 6], [2, 7]], "k0-results": [[0, 5], [2, 6]]}
    committed = [2, 2, 0, 0, 2, 3]
    monkeypatch.setattr(client, "_committed", lambda key: committed.pop(0))
    monkeypatch.setattr(client, "_poll", lambda key, offset, to_end: [each for each in logs[key] if each[0] >= offset])
    assert client.processed_records("k0") == [5, 6, 7]
    logs["k0-results"] = []
    with pytest.raises(NothingProcessed):
        client.processed_records("k0")
    with pytest.raises(StillOpen, match="processed meanwhile"):
        client.processed_records("k0")


def sent(request: Any) -> Any:
    """Return a request as a broker reads it."""
    body = wire.frame(request)[4:]
    header, at = frames.decode_request_header(body)
    return frames.decode_request_body(header, body, at)


def answered(request: Any, **given: Any) -> Any:
    """Return the answer to a request, as a client reads it."""
    kind = frames.codec(request.__api_key__, request.__version__).response_type
    return frames.decode_response(type(request), frames.encode_response(1, built(kind, given))[4:])[1]


def test_each_request_is_what_kafka_defines() -> None:
    assert [each.name for each in sent(wire.metadata_request("a", "b")).topics] == ["a", "b"]
    assert sent(wire.metadata_request()).topics is None
    assert sent(wire.find_coordinator_request("g")).key == "g"
    committed = sent(wire.commit_request("g", "t", 7))
    assert (committed.group_id, committed.topics[0].name) == ("g", "t")
    assert committed.topics[0].partitions[0].committed_offset == 7
    assert sent(wire.fetch_request("g")).topics is None
    many = sent(wire.fetch_many_request([f"g{number:05}" for number in range(8000)]))
    assert (len(many.groups), many.groups[-1].group_id, many.groups[0].topics) == (8000, "g07999", None)
    made = sent(wire.create_topic_request("t", 3)).topics[0]
    assert (made.name, made.num_partitions, made.replication_factor) == ("t", 1, 3)
    (changed,) = sent(wire.set_config_request("t", "retention.ms", "7")).resources
    (entry,) = changed.configs
    assert (changed.resource_type, changed.resource_name, entry.name, entry.value) == (2, "t", "retention.ms", "7")
    assert sent(wire.moves_request()).topics is None
    for replicas in ((3, 1, 102), None):
        (topic,) = sent(wire.move_request("k0", 7, replicas)).topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index, partition.replicas) == ("k0", 7, replicas)


@pytest.mark.parametrize(
    ("offset", "error", "of_group", "expected"),
    [(7, 0, 0, ([7], 0)), (-1, 0, 0, ([], 0)), (7, 16, 0, ([], 16)), (7, 0, 14, ([7], 14))],
)
def test_offsets_and_errors_are_read(offset: int, error: int, of_group: int, expected: tuple[list[int], int]) -> None:
    row = {"partition_index": 0, "committed_offset": offset, "metadata": None, "error_code": ErrorCode(error)}
    topics = [{"name": "t", "partitions": [row]}]
    answer = answered(wire.fetch_request("g"), topics=topics, error_code=ErrorCode(of_group))
    assert wire.offsets_in(answer) == expected


@pytest.mark.parametrize(
    ("source", "error", "expected"), [(1, 0, ("7", 0)), (5, 0, (None, 0)), (None, 3, (None, 3)), (None, 0, (None, 0))]
)
def test_only_a_config_of_the_topic_itself_counts(
    source: int | None, error: int, expected: tuple[str | None, int]
) -> None:
    of_all = {"name": "log.retention.ms", "value": "9", "source": 5}
    rest = {"read_only": False, "config_source": source, "is_sensitive": False, "synonyms": [of_all]}
    configs = [{"name": "retention.ms", "value": "7", **rest}] if source is not None else []
    result = {"error_code": ErrorCode(error), "resource_type": 2, "resource_name": "t", "configs": configs}
    request = wire.config_request("t", "retention.ms")
    assert sent(request).resources[0].configuration_keys == ("retention.ms",)
    assert wire.config_in(answered(request, results=[result])) == expected


@pytest.mark.parametrize(
    ("of_all", "of_one", "expected"), [(0, [0], []), (0, [85], [85]), (41, [], [41]), (41, [39], [41, 39])]
)
def test_errors_of_a_move_are_read(of_all: int, of_one: list[int], expected: list[int]) -> None:
    rows = [{"partition_index": 7, "error_code": ErrorCode(error)} for error in of_one]
    responses = [{"name": "k0", "partitions": rows}] if rows else []
    request = wire.move_request("k0", 7, (1,))
    answer = answered(request, error_code=ErrorCode(of_all), error_message="no", responses=responses)
    assert wire.errors_of_move(answer) == expected
