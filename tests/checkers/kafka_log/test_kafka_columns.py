"""Histories of Kafka's logs as columns, and answers that are read from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from test_kafka_log import falsified
from toy_kafka import Tape, simulate

from checkers.base.history import Event, Type
from checkers.base.values import name_of_key
from checkers.base.verdict import Validity, Verdict
from checkers.kafka_log import columns
from checkers.kafka_log.columns import OFFSET_MAX
from checkers.kafka_log.judge import ALWAYS_ALLOWED, CYCLES_OF_WRITES, judge_kafka_log
from checkers.models.model import WrongEvent

SCRIPT = ("0 send 1=a", "1 send 2=b", "2 poll 1=a 2=b", "1 assign", "1 poll 2=b", "3 txn send:_=c poll:2=b", "4 poll")


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the queries read every history; the list gets an entry for each that they leave to the other reader."""
    left: list[int] = []
    read: Callable[..., columns.Rows] = columns._one_by_one

    def noted(*arguments: Any) -> columns.Rows:
        left.append(len(left))
        return read(*arguments)

    monkeypatch.setattr(columns, "ONE_BY_ONE_MAX", -1)
    monkeypatch.setattr(columns, "_one_by_one", noted)
    return left


def with_queries_and_without(events: Sequence[Event], monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, Verdict]:
    by_query = judge_kafka_log(events, allow=(), read_to_end=True)
    with monkeypatch.context() as patched:
        patched.setattr(columns, "ONE_BY_ONE_MAX", len(events))
        return by_query, judge_kafka_log(events, allow=(), read_to_end=True)


def test_both_readers_find_the_same(one_by_one: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rng, cases, found = Random(1), 40, set[str]()
    for case in range(cases):
        events = simulate(rng, operations=40, processes=4, keys=3, assign=("assign", "subscribe")[case % 2])
        events = falsified(rng, events) if case % 4 else events
        by_query, other = with_queries_and_without(events, monkeypatch)
        assert by_query == other, events
        found.update(by_query.details.get("anomalies", ()))
    assert len(found) > 8, found
    assert len(one_by_one) < cases + cases // 3, "every case is read one by one once, and few are twice"


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ('"b"', "1.5"),
        ('"b"', '["a", 1]'),
        ('"b"', "true"),
        ('"b"', "123456789012345678901234567890"),
        ('"k"', '"\\"k\\""'),
        ('"send", "k"', '"send", true'),
    ],
)
def test_the_unusual_is_read_one_by_one(
    text: str, odd: str, one_by_one: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Tape().script(*SCRIPT).events
    judge_kafka_log(plain)
    assert not one_by_one
    by_query, other = with_queries_and_without(
        [replace(e, payload=(e.payload or "").replace(text, odd)) for e in plain], monkeypatch
    )
    assert by_query == other
    assert len(one_by_one) == 2


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("[2, ", "[-1, "),
        ("[2, ", "[2.0, "),
        ("[2, ", "[true, "),
        ("[2, ", f"[{columns.OFFSET_MAX}, "),
        ("[2, ", "[2, 2, "),
        ('"poll"', '"peek"'),
        ("}]]", "}],]"),
        ("}]]", "}]"),
        ("[[1, ", "[3, [1, "),
        ('[["poll"', '[null, ["poll"'),
    ],
)
def test_damage_is_refused_and_named(text: str, odd: str, one_by_one: list[int]) -> None:
    events = Tape().script(*SCRIPT).events
    wrong = [replace(e, payload=(e.payload or "").replace(text, odd)) for e in events]
    assert wrong != events
    with pytest.raises(WrongEvent, match="index"):
        judge_kafka_log(wrong)
    assert one_by_one


# An answer repeats its invoke


Steps = list[Any]
SENT_7: Steps = [["send", 0, 7]]
POLLED = ("poll", [["poll"]], Type.OK, [["poll", {"0": [[0, 7]]}]])


def history(*operations: tuple[str, Steps, Type, Steps]) -> Sequence[Event]:
    """Operations (f, invoke, type of the completion, answer), one after another."""
    tape = Tape()
    for process, (f, invoked, type_, answer) in enumerate(operations):
        tape.record(process, Type.INVOKE, f, invoked)
        tape.record(process, type_, f, answer)
    return tape.events


@pytest.mark.parametrize(
    ("invoked", "answer", "words"),
    [
        (SENT_7, [["send", 0, [0, 8]]], "was invoked as"),
        (SENT_7, [["send", 1, [0, 7]]], "was invoked as"),
        (SENT_7, [["send", 0, [0, "7"]]], "was invoked as"),
        (SENT_7, [], "1 micro-operations were invoked and 0 completed"),
        ([*SENT_7, ["send", 0, 8]], [["send", 0, [0, 7]]], "2 micro-operations were invoked and 1 completed"),
        ([*SENT_7, ["poll"]], [["poll", {}], ["send", 0, [0, 7]]], "was invoked as"),
        ([["poll"]], [["send", 0, [0, 3]]], "was invoked as"),
        ([["send", 0, [1, 7]]], [["send", 0, [4, [2, 7]]]], "was invoked as"),
    ],
)
def test_an_answer_to_another_invoke_is_refused(invoked: Steps, answer: Steps, words: str) -> None:
    with pytest.raises(WrongEvent, match=words) as refused:
        judge_kafka_log(history(("txn", invoked, Type.OK, answer), POLLED))
    assert refused.value.index == 1


@pytest.mark.parametrize(
    "answer", [[["send", 0, [0, 7]]], [["send", "0", [None, 7]]], SENT_7, [["rebalance", ["0"]], ["send", 0, [0, 7]]]]
)
def test_an_answer_may_add_offsets_and_rebalances(answer: Steps) -> None:
    assert judge_kafka_log(history(("txn", SENT_7, Type.OK, answer), POLLED)).validity is Validity.VALID


@pytest.mark.parametrize(
    ("type_", "answer"),
    [
        (Type.INFO, [["send", 0, [3, 7]]]),
        (Type.OK, [["send", 0, [3, 7]]]),
        (Type.OK, [["send", "0", [3, 7]]]),
        (Type.OK, [["send", 0, [0, [3, 7]]]]),
        (Type.OK, [["send", 0, [None, [3, 7]]]]),
    ],
)
def test_a_value_may_be_a_pair(type_: Type, answer: Steps) -> None:
    events = history(
        ("send", [["send", 0, [3, 7]]], type_, answer), ("poll", [["poll"]], Type.OK, [["poll", {"0": [[0, [3, 7]]]}]])
    )
    verdict = judge_kafka_log(events)
    assert verdict.validity is Validity.VALID, verdict.witnesses


@pytest.mark.parametrize("key", [0, "0", "0a", "k", ["topic", 0], True, 1.5])
def test_a_partition_may_have_any_name(key: Any) -> None:
    """A map of a poll names it otherwise than a send does."""
    sent = ("send", [["send", key, 7]], Type.OK, [["send", key, [0, 7]]])
    polled = ("poll", [["poll"]], Type.OK, [["poll", {name_of_key(key): [[0, 7]]}]])
    assert judge_kafka_log(history(sent, ("assign", [key], Type.OK, [key]), polled)).validity is Validity.VALID


@pytest.mark.parametrize("offset", [-1, -2, True, OFFSET_MAX, 2**63, 1.5, "0"])
@pytest.mark.parametrize("f", ["send", "poll"])
def test_what_is_no_offset_is_refused(offset: Any, f: str) -> None:
    wrong: Steps = [["send", 0, [offset, 7]]] if f == "send" else [["poll", {"0": [[offset, 7]]}]]
    with pytest.raises(WrongEvent):
        judge_kafka_log(history((f, SENT_7 if f == "send" else [["poll"]], Type.OK, wrong)))


def test_the_greatest_offset_is_read() -> None:
    offset = OFFSET_MAX - 1
    polled = ("poll", [["poll"]], Type.OK, [["poll", {"0": [[offset, 7]]}]])
    events = history(("send", SENT_7, Type.OK, [["send", 0, [offset, 7]]]), polled)
    assert judge_kafka_log(events).validity is Validity.VALID


@pytest.mark.parametrize(
    "operations",
    [
        [("poll", [["poll"]], Type.OK, [["poll", {}]])],
        [("txn", [], Type.OK, [])],
        [("send", SENT_7, Type.INFO, SENT_7), ("poll", [["poll"]], Type.OK, [["poll", {"0": []}]])],
    ],
)
def test_without_a_message_there_is_nothing_to_judge(operations: list[tuple[str, Steps, Type, Steps]]) -> None:
    verdict = judge_kafka_log(history(*operations))
    assert verdict.validity is Validity.UNKNOWN and "nothing to judge" in verdict.reason


def test_an_acknowledged_message_that_was_never_polled_is_lost_only_if_logs_were_read_to_their_ends() -> None:
    events = history(("send", SENT_7, Type.OK, [["send", 0, [0, 7]]]), ("poll", [["poll"]], Type.OK, [["poll", {}]]))
    assert [w.kind for w in judge_kafka_log(events, read_to_end=True).witnesses] == ["unseen"]
    verdict = judge_kafka_log(events)
    assert verdict.validity is Validity.UNKNOWN and "1 acknowledged message of 0: no poll showed" in verdict.reason
    assert judge_kafka_log(events, allow=("unseen",)).validity is Validity.VALID


@pytest.mark.parametrize("mark", ["!", "?"])
def test_what_a_poll_without_success_showed_stood_in_the_log(mark: str) -> None:
    two_values = Tape().script("0 send 1=a", "1 poll 1=a", f"{mark}2 poll 1=b").events
    assert set(judge_kafka_log(two_values).details["anomalies"]) == {"inconsistent-offsets", "unsent-read"}
    two_offsets = Tape().script("0 send 1=a", "1 poll 1=a", f"{mark}2 poll 2=a").events
    assert set(judge_kafka_log(two_offsets).details["anomalies"]) == {"duplicate"}
    seen = Tape().script("0 send 1=a", f"{mark}2 poll 1=a").events
    assert judge_kafka_log(seen, read_to_end=True).validity is Validity.VALID


@pytest.mark.parametrize("mark", ["!", "?"])
def test_a_poll_without_success_proves_no_order_of_reading_and_no_abort(mark: str) -> None:
    skips = Tape().script("0 send 1=a 2=b 3=c", f"{mark}1 poll 3=c 1=a", "2 poll 1=a 2=b 3=c").events
    assert judge_kafka_log(skips).validity is Validity.VALID
    aborted = Tape().script("0 send 2=b", "!1 send 1=a", f"{mark}2 poll 1=a", "3 poll 2=b").events
    assert judge_kafka_log(aborted).validity is Validity.VALID


def test_a_poll_without_success_shows_that_an_open_send_happened() -> None:
    events = Tape().script("?0 send 1=a 2=b 3=c", "!1 poll 1=a", "2 poll 3=c").events
    assert set(judge_kafka_log(events).details["anomalies"]) == {"lost-write"}


CYCLES = {
    "G0": (
        "+0 txn send:a/0=1 send:b/1=2",
        "+1 txn send:a/1=3 send:b/0=4",
        "-0",
        "-1",
        "2 poll a/0=1 a/1=3 b/0=4 b/1=2",
    ),
    "G0-realtime": ("+2 send y/1=c x/2=d", "0 send y/2=a", "1 send x/1=b", "-2", "3 poll x/1=b x/2=d y/1=c y/2=a"),
}


@pytest.mark.parametrize("name", CYCLES)
def test_cycles_of_writes_are_searched_only_if_they_count(name: str) -> None:
    events = Tape().script(*CYCLES[name]).events
    assert judge_kafka_log(events).validity is Validity.VALID
    verdict = judge_kafka_log(events, allow=ALWAYS_ALLOWED - CYCLES_OF_WRITES)
    assert [w.kind for w in verdict.witnesses] == [name]


def test_the_order_of_writes_alone_makes_no_cycle_of_reads() -> None:
    """Transactions interleave their sends, so a cycle of ww and wr proves nothing about what consumers see."""
    script = ("+0 txn send:a/0=1 poll:b/1=4", "+1 txn send:a/1=3 send:b/1=4", "-1", "-0", "2 poll a/0=1 a/1=3 b/1=4")
    events = Tape().script(*script).events
    assert json.loads(events[0].payload or "")[1] == ["poll"]
    assert "G1c" not in judge_kafka_log(events, allow=()).details["anomalies"]
