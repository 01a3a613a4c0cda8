"""Histories of Kafka's logs: clean ones, anomalies by name, brute force, and histories that were falsified.

Histories of Kafka's logs as columns, and answers that are read from them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from slow_kafka import count_anomalies
from toy_kafka import Tape, simulate

from checkers.base.checker import Budget
from checkers.base.history import Event, MalformedHistory, Type
from checkers.base.values import name_of_key
from checkers.base.verdict import Validity, Verdict
from checkers.kafka_log import columns
from checkers.kafka_log.columns import OFFSET_MAX
from checkers.kafka_log.judge import ALWAYS_ALLOWED, CYCLES_OF_WRITES, ends_were_read, judge_kafka_log
from checkers.models.model import WrongEvent
from checkers.record.header_and_outcome import Recovery, RunOutcome

# name: (script, other anomalies that occur together with it)
ANOMALIES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "duplicate": (("0 send 1=a", "1 poll 1=a 2=a"), {"int-nonmonotonic-poll"}),
    "inconsistent-offsets": (("0 send 1=a", "1 send 1=b", "2 poll 1=a", "3 poll 1=b"), set()),
    "lost-write": (("0 send 1=a", "0 send 2=b", "1 poll 2=b"), set()),
    "unseen": (("0 send 1=a 2=b", "1 poll 1=a"), set()),
    "G1a": (("!0 send 1=a", "1 poll 1=a"), set()),
    "unsent-read": (("0 poll 1=z",), set()),
    "precommitted-read": (("0 txn send:1=a poll:1=a",), set()),
    "poll-skip": (("0 send 1=a 2=b 3=c", "1 poll 1=a", "1 poll 3=c", "2 poll 1=a 2=b 3=c"), set()),
    "nonmonotonic-poll": (("0 send 1=a 2=b", "1 poll 1=a 2=b", "1 poll 1=a"), set()),
    "int-poll-skip": (("0 send 1=a 2=b 3=c", "1 poll 1=a 3=c", "2 poll 2=b"), set()),
    "int-nonmonotonic-poll": (("0 send 1=a 2=b", "1 poll 2=b 1=a"), set()),
    "nonmonotonic-send": (("0 send 2=a", "0 send 1=b", "1 poll 1=b 2=a"), set()),
    "int-nonmonotonic-send": (("0 send 2=a 1=b", "1 poll 1=b 2=a"), set()),
    "G1c": (("+0 txn send:1=a poll:2=b", "+1 txn send:2=b poll:1=a", "-0", "-1"), set()),
    "G1c-process": (("0 poll 1=a", "0 send 1=a"), set()),
    "G1c-realtime": (("0 poll 1=a", "1 send 1=a"), set()),
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_the_smallest_history_of_each_anomaly(name: str) -> None:
    script, others = ANOMALIES[name]
    verdict = judge_kafka_log(Tape().script(*script).events, read_to_end=name == "unseen")
    assert verdict.validity is Validity.INVALID
    assert {name} <= set(verdict.details["anomalies"]) <= {name} | others
    assert name in {w.kind for w in verdict.witnesses}


@pytest.mark.parametrize("behind", ["", " 2=c"])
def test_a_message_whose_offset_shows_another_one_was_replaced(behind: str) -> None:
    """Both values stand at one offset; the sentence says so, instead of that the first was never polled."""
    verdict = judge_kafka_log(
        Tape().script("0 send 1=a", "1 send 1=b 2=c", f"2 poll 1=b{behind}").events, read_to_end=True
    )
    lost = next(w for w in verdict.witnesses if w.kind == ("lost-write" if behind else "unseen"))
    words = '"a" was acknowledged at offset 1 of k, and a poll shows "b" there: the acknowledged message was replaced'
    assert lost.summary == f"{lost.kind}: {words}"
    assert [(e["process"], e["f"]) for e in lost.events if e["type"] == Type.OK] == [
        (0, "send"),
        (1, "send"),
        (2, "poll"),
    ]


def test_a_message_whose_offset_shows_nothing_was_never_polled() -> None:
    (lost,) = judge_kafka_log(Tape().script("0 send 1=a", "0 send 2=b", "1 poll 2=b").events).witnesses
    assert (
        lost.summary == 'lost-write: "a" was sent to k at offset 1 and never polled, while "b" at offset 2 was polled'
    )


@pytest.mark.parametrize("name", ANOMALIES)
def test_each_anomaly_is_found_in_a_long_history_without_any(name: str) -> None:
    script, others = ANOMALIES[name]
    rng = Random(name)
    clean = simulate(rng, operations=600)
    assert judge_kafka_log(clean).validity is Validity.VALID
    injected = Tape().script(*script, key="injected", first_process=10_000).events
    at = rng.randrange(len(clean))
    verdict = judge_kafka_log(numbered([*clean[:at], *injected, *clean[at:]]), read_to_end=name == "unseen")
    counting = set(verdict.details["anomalies"]) - set(verdict.details["allowed"])
    assert {name} <= counting <= {name} | others
    witness = next(w for w in verdict.witnesses if w.kind == name)
    assert {e["process"] for e in witness.events} <= {e.process for e in injected}
    assert witness.summary.startswith(f"{name}: ")


def test_what_kafka_allows_is_reported_and_does_not_count() -> None:
    verdict = judge_kafka_log(Tape().script("+0 send 1=a 3=c", "+1 send 2=b", "-0", "-1", "2 poll 1=a 2=b 3=c").events)
    assert verdict.validity is Validity.VALID
    assert verdict.details["allowed"] == ["int-send-skip"]


@pytest.mark.parametrize("seed", range(12))
def test_a_correct_broker_is_valid(seed: int) -> None:
    rng = Random(seed)
    events = simulate(
        rng, operations=rng.choice([20, 100, 500]), processes=rng.randint(2, 10), trouble=rng.random() / 3
    )
    verdict = judge_kafka_log(events)
    assert verdict.validity is Validity.VALID, [w.summary for w in verdict.witnesses]
    assert set(verdict.details["anomalies"]) <= {"int-send-skip"}


@pytest.mark.parametrize("name", ["G1c", "G1c-process", "G1c-realtime"])
def test_cycles_come_with_their_edges(name: str) -> None:
    (witness,) = judge_kafka_log(Tape().script(*ANOMALIES[name][0]).events).witnesses
    edges, transactions = witness.facts["cycle"], witness.facts["transactions"]
    assert edges[-1]["to"] == edges[0]["from"]
    assert {edge["from"] for edge in edges} == set(transactions)
    assert {edge["edge"] for edge in edges} == {"wr", name.removeprefix("G1c").lstrip("-") or "wr"}
    assert all((edge["key"] == "k") == (edge["edge"] == "wr") for edge in edges)
    assert sorted(e["index"] for e in witness.events) == sorted(i for t in transactions.values() for i in t["events"])


def test_rebalances_under_subscription_are_allowed_and_seen() -> None:
    seen: set[str] = set()
    for seed in range(6):
        verdict = judge_kafka_log(simulate(Random(seed), operations=300, assign="subscribe"))
        assert verdict.validity is Validity.VALID, [w.summary for w in verdict.witnesses]
        seen |= set(verdict.details["allowed"])
        strict = judge_kafka_log(simulate(Random(seed), operations=300, assign="subscribe"), allow=ALWAYS_ALLOWED)
        assert strict.validity is Validity.INVALID
    assert "nonmonotonic-poll" in seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(40))
def test_many_more_correct_brokers(part: int, night: Random) -> None:
    for assign in ("assign", "subscribe"):
        verdict = judge_kafka_log(simulate(night, operations=5000, processes=12, keys=5, assign=assign))
        assert verdict.validity is Validity.VALID, [w.summary for w in verdict.witnesses]


def test_a_subscription_excuses_its_own_process_alone() -> None:
    """Another consumer's subscription, and a rebalance of another partition, move nothing under this one."""
    skips = ("1 poll 1=a", "1 poll 3=c", "2 poll 1=a 2=b 3=c")
    sent = Tape().script("0 send 1=a 2=b 3=c", "9 subscribe").events
    elsewhere = Tape().script("0 send 1=a 2=b 3=c").script("9 subscribe", key="other").events
    excused = {"1 assign": (False, False), "1 subscribe": (True, True), "1 poll": (True, False)}
    for first, (is_excused, by_another_partition) in excused.items():
        for before, expected in ((sent, is_excused), (elsewhere, by_another_partition)):
            validity = Validity.VALID if expected else Validity.INVALID
            assert judge_kafka_log(numbered([*before, *Tape().script(first, *skips).events])).validity is validity
    moved = Tape().script("1 subscribe")
    moved.record(1, Type.INVOKE, "poll", [["poll"]])
    moved.record(1, Type.OK, "poll", [["rebalance", ["other"]], ["poll", {}]])
    skipped = judge_kafka_log(numbered([*sent, *moved.script(*skips).events]))
    assert skipped.details["anomalies"]["poll-skip"] == 1
    assert skipped.validity is Validity.INVALID


@pytest.mark.parametrize(
    "script",
    [
        ("0 send 5=a", "1 send 3=b", "2 poll 3=b 5=a"),
        ("0 send 5=a", "?1 send _=b", "2 poll 3=b 5=a"),
        ("+0 send 5=a", "3 poll 5=a", "1 send 3=b", "2 poll 3=b 5=a", "-0"),
        ("0 txn send:5=a", "1 txn send:3=b", "2 poll 3=b 5=a"),
    ],
)
def test_a_log_grows_at_its_end_whoever_sends(script: tuple[str, ...]) -> None:
    verdict = judge_kafka_log(Tape().script(*script).events)
    assert [w.kind for w in verdict.witnesses] == ["nonmonotonic-send"]
    assert 'before "b" was sent, but "b" stands at an earlier offset' in verdict.witnesses[0].summary


def test_a_message_of_a_transaction_proves_all_the_others() -> None:
    half = "?0 txn send:x/_=a send:y/_=b"
    seen_first = Tape().script(half, "1 poll x/0=a", "2 send y/5=c", "3 poll y/5=c").events
    assert "lost-write" in judge_kafka_log(seen_first).details["anomalies"]
    perhaps_later = Tape().script(half, "2 send y/5=c", "1 poll x/0=a y/5=c").events
    assert judge_kafka_log(perhaps_later).validity is Validity.UNKNOWN
    (witness,) = judge_kafka_log(perhaps_later, read_to_end=True).witnesses
    assert witness.kind == "unseen"
    assert 'its transaction certainly committed: "a" of the same transaction was polled from x' in witness.summary
    plain = Tape().script(half.replace("txn send:x", "send x").replace("send:y", "y"), "1 poll x/0=a").events
    assert judge_kafka_log(plain, read_to_end=True).validity is Validity.VALID


def test_an_assignment_that_drops_a_key_begins_it_anew() -> None:
    script = ("0 send 1=a 2=b", "1 assign", "1 poll 1=a 2=b", "1 assign", "1 poll 1=a")
    assert "nonmonotonic-poll" in judge_kafka_log(Tape().script(*script).events).details["anomalies"]
    events = Tape().script(*script[:3]).script("1 assign", key="other").script("1 assign", "1 poll 1=a").events
    assert judge_kafka_log(numbered(events)).validity is Validity.VALID


def test_a_rebalance_inside_a_transaction_excuses_its_polls() -> None:
    tape = Tape().script("0 send 1=a 2=b 3=c", "2 poll 1=a 2=b 3=c")
    steps = [["poll", {"k": [[1, "a"]]}], ["rebalance", ["k"]], ["poll", {"k": [[3, "c"]]}]]
    tape.record(1, Type.INVOKE, "txn", [["poll"], ["poll"]])
    tape.record(1, Type.OK, "txn", steps)
    assert judge_kafka_log(tape.events).validity is Validity.VALID


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            ("0 send 1=a 2=b 3=c", "1 poll 1=a", "!1 poll", "1 poll 3=c", "2 poll 1=a 2=b 3=c"),
            id="a failed poll may have moved the consumer",
        ),
        pytest.param(("?0 send 1=a", "1 poll", "2 send 2=b", "3 poll 2=b"), id="an open send that no poll shows"),
    ],
)
def test_what_shows_nothing_is_no_anomaly(script: tuple[str, ...]) -> None:
    assert judge_kafka_log(Tape().script(*script).events).validity is Validity.VALID


def test_a_value_sent_twice_and_a_budget_too_small_are_unknown() -> None:
    twice = Tape().script("0 send 1=a", "1 send 2=a", "2 poll 1=a").events
    assert "twice" in judge_kafka_log(twice).reason
    assert "steps" in judge_kafka_log(twice, Budget(steps=3)).reason
    assert judge_kafka_log(Tape().script("!0 send 1=a").events).validity is Validity.UNKNOWN


@pytest.mark.parametrize("payload", ["[", '{"a": 1}', '[["send"]]', '[["poll", {"k": [1]}]]', '[["poll", 3]]', None])
def test_a_payload_that_is_no_operation_is_refused_with_its_event(payload: str | None) -> None:
    events = [replace(e, payload=payload) for e in Tape().script("0 poll").events]
    with pytest.raises(MalformedHistory, match=r"index [01]"):
        judge_kafka_log(events)


def numbered(events: list[Event]) -> list[Event]:
    return [replace(e, index=i, time_ns=i) for i, e in enumerate(events)]


@pytest.mark.parametrize(
    ("answers", "recovered", "read"),
    [
        (["ok", "ok"], True, True),
        (["ok", "ok"], False, True),
        (["ok", "timed out"], True, True),  # the log itself is lost
        (["ok", "timed out"], False, False),
        (["ok", "timed out"], None, False),
        ([], True, False),
    ],
)
def test_a_run_has_read_its_logs_by_final_reads_or_cannot_although_it_recovered(
    answers: list[str], recovered: bool | None, read: bool
) -> None:
    final_reads = {f"k{number}": answer for number, answer in enumerate(answers)}
    assert ends_were_read(RunOutcome(final_reads=final_reads, recovery=Recovery(recovered=recovered))) is read
    assert not ends_were_read(RunOutcome(recovery=Recovery(recovered=recovered)))


# Histories of a correct broker with some falsified answers


def falsified(rng: Random, events: list[Event]) -> list[Event]:
    """Return completions of which some lack a message, repeat or swap messages, or have another offset or outcome."""
    changed = list(events)
    for at in rng.sample(range(len(events)), max(1, len(events) // 40)):
        event = events[at]
        if event.type is Type.INVOKE or event.f in ("assign", "subscribe"):
            continue
        if rng.random() < 0.2:
            changed[at] = replace(event, type=rng.choice([Type.OK, Type.FAIL]))
            continue
        steps = json.loads(event.payload or "[]")
        sent = [part for part in steps if part[0] == "send" and isinstance(part[2], list)]
        if sent and rng.random() < 0.3:
            changed = [_without(e, sent[0][2][1]) for e in changed]
            if len(sent) > 1:
                changed = [_without(e, sent[1][2][1]) for e in changed]
                sent[0][2][0], sent[1][2][0] = sent[1][2][0], sent[0][2][0]
            elif rng.random() < 0.5 and event.f == "txn":
                steps.append(["poll", {sent[0][1]: [list(sent[0][2])]}])
            elif sent[0][2][0]:
                sent[0][2][0] = rng.randrange(sent[0][2][0])
        for part in steps:
            if part[0] == "poll" and len(part) == 2:
                for messages in filter(None, part[1].values()):
                    _spoil(rng, messages)
            elif part[0] == "send" and isinstance(part[2], list) and rng.random() < 0.5:
                part[2][0] = rng.choice([None, rng.randrange(20), (part[2][0] or 0) + 1])
        changed[at] = replace(event, payload=json.dumps(steps))
        if len(steps) != len(json.loads(event.payload or "[]")):
            asked = max(i for i in range(at) if changed[i].process == event.process)
            changed[asked] = replace(changed[asked], payload=_and_a_poll(changed[asked]))
    return changed


def _and_a_poll(invoke: Event) -> str:
    return json.dumps([*json.loads(invoke.payload or "[]"), ["poll"]])


def _without(event: Event, value: int) -> Event:
    """The event without the value in its polls."""
    if event.type is not Type.OK or event.f not in ("poll", "txn"):
        return event
    steps = json.loads(event.payload or "[]")
    for part in steps:
        if part[0] == "poll" and len(part) == 2:
            part[1] = {key: [m for m in messages if m[1] != value] for key, messages in part[1].items()}
    return replace(event, payload=json.dumps(steps))


def _spoil(rng: Random, messages: list[Any]) -> None:
    at = rng.randrange(len(messages))
    match rng.randrange(5):
        case 0:
            messages.insert(at, messages[at])
        case 1:
            messages[at], messages[-1] = messages[-1], messages[at]
        case 2:
            messages[at][0] = rng.choice([None, (messages[at][0] or 0) + 1])
        case 3:
            messages[at][1] = rng.randrange(100, 130)
        case _:
            if len(messages) > 1:
                del messages[at]


def compare(rng: Random, cases: int, operations: int) -> Counter[str]:
    seen = Counter[str]()
    for _ in range(cases):
        assign = rng.choice(["assign", "subscribe"])
        clean = simulate(rng, operations=operations, processes=rng.randint(2, 6), keys=rng.randint(1, 4), assign=assign)
        events = falsified(rng, clean)
        verdict = judge_kafka_log(events, allow=(), read_to_end=True)
        if verdict.validity in (Validity.UNKNOWN, Validity.NOT_APPLICABLE):
            continue  # a value that was sent twice, or no success
        found = {n: c for n, c in verdict.details["anomalies"].items() if not n.startswith(("G0", "G1c"))}
        assert found == dict(count_anomalies(events)), events
        seen.update(found)
    return seen


def test_kernels_find_what_the_rules_say() -> None:
    seen = compare(Random(1), cases=240, operations=60)
    assert len(seen) == 14, seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_more_of_several_sizes(part: int, night: Random) -> None:
    compare(night, cases=1000, operations=80)
    compare(night, cases=10, operations=2000)


def test_offsets_with_large_gaps() -> None:
    script = ("0 send 5=a", "0 send 2000000000=b", "1 poll 5=a", "1 poll 2000000001=c 2000000000=b")
    verdict = judge_kafka_log(Tape().script(*script).events)
    assert verdict.details["anomalies"] == {"unsent-read": 1, "int-nonmonotonic-poll": 1, "poll-skip": 1}


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
