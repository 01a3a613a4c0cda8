"""Objects whose state no answer shows are unknown, one by one, for every model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from edn_files import judged_text

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.models.model import REFUSED, Model, Operation, State

OK, FAIL, INFO = Type.OK, Type.FAIL, Type.INFO

Step = tuple[str | None, str, Any, Type, Any]
"""(key, function, invoked value, outcome, answer)"""


def history(*steps: Step) -> list[Event]:
    """Return a history in which every step is an operation of a separate process, one after another."""
    events: list[Event] = []
    for process, (key, f, invoked, outcome, answered) in enumerate(steps):
        for type_, value in ((Type.INVOKE, invoked), (outcome, answered)):
            index = len(events)
            if f == "cas" and value is not None:
                events.append(Event(index, index, process, type_, f, key, value[0], value[1], node="n1"))
            elif value is None or isinstance(value, int):
                events.append(Event(index, index, process, type_, f, key, value, node="n1"))
            else:
                events.append(Event(index, index, process, type_, f, key, payload=json.dumps(value), node="n1"))
    return events


def acknowledged(key: str | None, f: str, value: Any) -> Step:
    return key, f, value, OK, value


CHANGE_AND_LOOK: dict[str, tuple[tuple[str, Any], tuple[str, Any]]] = {
    "register": (("write", 1), ("read", 1)),
    "cas-register": (("write", 1), ("read", 1)),
    "kv": (("put", "x"), ("get", "x")),
    "set": (("add", 1), ("read", [1])),
    "counter": (("add", 1), ("read", 1)),
    "queue": (("enqueue", 1), ("dequeue", 1)),
    "at-least-once-queue": (("enqueue", 1), ("dequeue", 1)),
    "append-log": (("append", 1), ("read", [1])),
}
"""Model -> (a change and its value, an observing function and its answer after the change)."""


@pytest.mark.parametrize("model", CHANGE_AND_LOOK)
def test_an_object_that_was_never_looked_at_is_unknown(model: str) -> None:
    (change, value), (look, _) = CHANGE_AND_LOOK[model]
    for outcome in (FAIL, INFO):
        verdict = judge_events(history(acknowledged(None, change, value), (None, look, None, outcome, None)), model)
        assert verdict.validity is Validity.UNKNOWN
        assert verdict.reason.endswith("nothing shows what became of 1 acknowledged operation")


@pytest.mark.parametrize("model", CHANGE_AND_LOOK)
def test_three_keys_and_one_read_of_one_leave_the_other_two_unknown(model: str) -> None:
    (change, value), (look, answer) = CHANGE_AND_LOOK[model]
    writes = [acknowledged(key, change, value) for key in ("k1", "k2", "k3")]
    verdict = judge_events(history(*writes, ("k2", look, None, OK, answer)), model)
    assert verdict.validity is Validity.UNKNOWN
    assert "of k1, k3 was answered, so nothing shows what became of 2 acknowledged operations" in verdict.reason
    assert verdict.looked_at["unseen_keys"] == 2
    reads = [(key, look, None, OK, answer) for key in ("k1", "k2", "k3")]
    assert judge_events(history(*writes, *reads), model).validity is Validity.VALID


def test_a_key_with_open_writes_alone_is_unknown_and_one_with_nothing_at_stake_is_not() -> None:
    seen: list[Step] = [acknowledged("k1", "write", 1), ("k1", "read", None, OK, 1)]
    verdict = judge_events(history(*seen, ("k2", "write", 2, INFO, None)), "register")
    assert verdict.reason == "no cas or read of k2 was answered, so nothing shows what became of open operations"
    untouched: Iterable[Step] = (("k2", "read", None, FAIL, None), ("k3", "write", 3, FAIL, None))
    assert judge_events(history(*seen, *untouched), "register").validity is Validity.VALID


def test_a_cas_that_succeeded_shows_what_the_register_held() -> None:
    events = history(acknowledged("k1", "write", 1), acknowledged("k1", "cas", (1, 2)))
    assert judge_events(events, "cas-register").validity is Validity.VALID


def test_a_violation_elsewhere_stays_a_violation() -> None:
    events = history(acknowledged("k1", "write", 1), ("k2", "read", None, OK, 9))
    assert judge_events(events, "register").validity is Validity.INVALID


def _step(state: State, operation: Operation) -> object:
    assert isinstance(state, int)
    match operation.f:
        case "read":
            return state if operation.output in (None, state) else REFUSED
        case "take" if state == 0:
            return REFUSED if operation.returned else state
        case "bump" if operation.returned and operation.output not in (None, state + 1):
            return REFUSED
    return state + (-1 if operation.f == "take" else 1)


OWN = Model("own", init=int, step=_step, observers=frozenset({"read"}))


@pytest.mark.parametrize(
    ("step", "validity"),
    [
        (("k", "bump", None, OK, None), Validity.UNKNOWN),
        (("k", "bump", None, OK, 1), Validity.VALID),
        (("k", "read", None, OK, 0), Validity.VALID),
    ],
    ids=["an answer without a value", "an answer that the state decides", "an observer"],
)
def test_a_model_of_ones_own_is_seen_by_what_its_state_decides(step: Step, validity: Validity) -> None:
    assert judge_events(history(step), OWN).validity is validity


def test_a_success_that_the_first_state_refuses_shows_something() -> None:
    events = history(("k", "bump", None, OK, None), ("k", "take", None, OK, None))
    assert judge_events(events, OWN).validity is Validity.VALID


@pytest.mark.parametrize("model", ["register", "kv", "set"])
def test_in_a_file_an_unread_object_does_not_silence_the_others(tmp_path: Path, model: str) -> None:
    write, read, value, shown, empty = {
        "register": ("write", "read", "1", "1", "nil"),
        "kv": ("put", "get", '"a"', '"a"', '""'),
        "set": ("add", "read", "1", "[1]", "[]"),
    }[model]
    writes = [f"{write} {value}->{value} @:{key}" for key in "abc"]
    reads = [f"{read} ->{shown} @:{key}" for key in "ab"]
    some = judged_text(tmp_path, "; ".join([*writes, *reads]), model).verdict
    assert some.validity is Validity.VALID
    assert some.details["decided"].startswith("1 of 3 keys was never read")
    assert judged_text(tmp_path, "; ".join(writes), model).verdict.validity is Validity.UNKNOWN
    wrong = reads[1].replace(shown, empty)
    assert judged_text(tmp_path, "; ".join([*writes, reads[0], wrong]), model).verdict.validity is Validity.INVALID
