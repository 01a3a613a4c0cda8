"""Histories of a correct broker with some falsified answers: kernels against the rules over plain objects."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from slow_kafka import count_anomalies
from toy_kafka import Tape, simulate

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.kafka_log.judge import judge_kafka_log


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


@pytest.mark.parametrize("odd", ['"text \\u00e9"', "-1", "1.5", '["a", 1]', "true"])
def test_values_that_kernels_do_not_read(odd: str) -> None:
    script = ("0 send 1=a", "1 send 2=b", "2 poll 1=a 2=b", "1 assign", "1 poll 2=b", "3 poll 1=a")
    plain = Tape().script(*script).events
    strange = [replace(e, payload=(e.payload or "").replace('"b"', odd)) for e in plain]
    one, other = judge_kafka_log(plain), judge_kafka_log(strange)
    assert one.details == other.details
    assert one.looked_at == other.looked_at


def test_offsets_with_large_gaps() -> None:
    script = ("0 send 5=a", "0 send 2000000000=b", "1 poll 5=a", "1 poll 2000000001=c 2000000000=b")
    verdict = judge_kafka_log(Tape().script(*script).events)
    assert verdict.details["anomalies"] == {"unsent-read": 1, "int-nonmonotonic-poll": 1, "poll-skip": 1}
