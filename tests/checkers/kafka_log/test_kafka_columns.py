"""The queries that read all payloads at once find what the reader of single operations finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from test_kafka_falsified import falsified
from toy_kafka import Tape, simulate

from checkers.base.history import Event
from checkers.base.verdict import Verdict
from checkers.kafka_log import columns
from checkers.kafka_log.judge import judge_kafka_log
from checkers.models.answers import WrongEvent

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
