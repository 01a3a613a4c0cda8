"""Tiny nonsense histories: any operation of a model, any small value, any answer, in any order.

They reach cases that realistic simulations never reach: cycles of cas, answers from nowhere, repeated values.

No history hangs a judge, however small and unusual it is; the judges of registers also agree with the search.

Objects whose state no answer shows are unknown, one by one, for every model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from edn_files import judged_text
from histories import Script, operations_of

from checkers.base.checker import Budget
from checkers.base.history import Event, MalformedHistory, Type
from checkers.base.independent_search import linearizable
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, judge_as, judge_events
from checkers.models.model import REFUSED, Model, Operation, State

SMALL = (None, 1, 1, 2, 2, 3)


def nonsense(model: str, rng: Random, operations: int = 6, processes: int = 3) -> list[Event]:
    """Return a history of at most this many operations that follows the grammar of histories, and nothing else."""
    events: list[Event] = []
    idle, busy, fresh = list(range(processes)), dict[int, tuple[str, Any]](), processes
    while operations > 0 or busy:
        if operations > 0 and idle and (not busy or rng.random() < 0.6):
            process = idle.pop(rng.randrange(len(idle)))
            operation = ASK[model](rng)
            busy[process] = operation
            events.append(event_of(len(events), process, Type.INVOKE, *operation))
            operations -= 1
            continue
        process = rng.choice(sorted(busy))
        f, value_invoked = busy.pop(process)
        draw = rng.random()
        kind = Type.OK if draw < 0.8 else Type.FAIL if draw < 0.88 else Type.INFO
        value = ANSWER[model](rng, f, value_invoked) if kind is Type.OK else value_invoked
        events.append(event_of(len(events), process, kind, f, value))
        if kind is Type.INFO:
            process, fresh = fresh, fresh + 1
        idle.append(process)
        if rng.random() < 0.05:
            break  # the rest of the input is dropped
    return events


def event_of(index: int, process: int, type_: Type, f: str, value: Any) -> Event:
    """Return an event with small integers and pairs of a cas in columns, everything else in the payload."""
    if f == "cas" and isinstance(value, tuple):
        return Event(index, index * 1000, process, type_, f, "k", value[0], value[1], node="n1")
    if value is None or isinstance(value, int):
        return Event(index, index * 1000, process, type_, f, "k", value, node="n1")
    return Event(index, index * 1000, process, type_, f, "k", payload=json.dumps(value), node="n1")


def _register(rng: Random) -> tuple[str, Any]:
    f = rng.choice(("read", "write", "cas", "cas"))
    return f, None if f == "read" else rng.choice(SMALL[1:]) if f == "write" else _two(rng)


def _two(rng: Random) -> tuple[int, int]:
    return rng.choice((1, 2, 3)), rng.choice((1, 2, 3))


def _some(rng: Random) -> list[int]:
    return [rng.choice((1, 2, 3)) for _ in range(rng.randrange(4))]


def _one_of(*functions: str) -> Callable[[Random], tuple[str, Any]]:
    """Functions that end in ! take a value."""

    def ask(rng: Random) -> tuple[str, Any]:
        f = rng.choice(functions)
        return (f[:-1], rng.choice(SMALL[1:])) if f.endswith("!") else (f, None)

    return ask


def _kv(rng: Random) -> tuple[str, Any]:
    f = rng.choice(("get", "put", "append"))
    return f, None if f == "get" else rng.choice("ab")


def _answer(reads: dict[str, Callable[[Random], Any]]) -> Callable[[Random, str, Any], Any]:
    return lambda rng, f, value: reads[f](rng) if f in reads else value


def _number(rng: Random) -> int | None:
    return rng.choice(SMALL)


def _of_append(rng: Random, f: str, value: Any) -> Any:
    if f == "read":
        return _some(rng)
    return [value, rng.randrange(3)] if rng.random() < 0.7 else value


def _transaction(write: str) -> Callable[[Random], tuple[str, Any]]:
    def ask(rng: Random) -> tuple[str, Any]:
        each = [rng.choice((write, "r")) for _ in range(rng.randint(1, 3))]
        return "txn", [[f, rng.choice("xy"), rng.choice((1, 2, 3)) if f == write else None] for f in each]

    return ask


def _of_transaction(answer: Callable[[Random], Any]) -> Callable[[Random, str, Any], Any]:
    def completed(rng: Random, f: str, invoked: Any) -> Any:
        return [[f, k, answer(rng) if f == "r" else v] for f, k, v in invoked]

    return completed


def _kafka(rng: Random) -> tuple[str, Any]:
    if rng.random() < 0.1:
        return rng.choice(("assign", "subscribe")), ["x"]
    each = [rng.choice(("send", "poll")) for _ in range(rng.randint(1, 2))]
    return "txn", [[f, rng.choice("xy"), rng.randrange(50)] if f == "send" else ["poll"] for f in each]


def _of_kafka(rng: Random, f: str, invoked: Any) -> Any:
    if f != "txn":
        return invoked
    steps: list[Any] = []
    for part in invoked:
        if part[0] == "send":
            steps.append(["send", part[1], [rng.randrange(4), part[2]]])
        else:
            steps.append(["poll", {k: [[n, rng.randrange(50)] for n in range(rng.randrange(3))] for k in "xy"}])
    return steps


ASK: dict[str, Callable[[Random], tuple[str, Any]]] = {
    "cas-register": _register,
    "kv": _kv,
    "set": _one_of("add!", "read"),
    "queue": _one_of("enqueue!", "dequeue", "drain"),
    "at-least-once-queue": _one_of("enqueue!", "dequeue", "drain"),
    "counter": _one_of("add!", "inc", "dec", "read"),
    "mutex": _one_of("acquire", "release"),
    "append-log": _one_of("append!", "read"),
    "unique-ids": _one_of("generate"),
    "list-append": _transaction("append"),
    "rw-register": _transaction("w"),
    "kafka": _kafka,
}

ANSWER: dict[str, Callable[[Random, str, Any], Any]] = {
    "cas-register": _answer({"read": _number}),
    "kv": _answer({"get": lambda rng: rng.choice((None, "a", "b", "ab"))}),
    "set": _answer({"read": _some}),
    "queue": _answer({"dequeue": _number, "drain": _some}),
    "at-least-once-queue": _answer({"dequeue": _number, "drain": _some}),
    "counter": _answer({"read": lambda rng: rng.randrange(-2, 6)}),
    "mutex": _answer({}),
    "append-log": _of_append,
    "unique-ids": _answer({"generate": lambda rng: rng.randrange(4)}),
    "list-append": _of_transaction(_some),
    "rw-register": _of_transaction(_number),
    "kafka": _of_kafka,
}


pytestmark = pytest.mark.timeout(1200, method="thread")  # also kills a hanging compiled kernel


def test_a_circle_of_cas_is_a_value_from_nowhere() -> None:
    script = Script()
    for expected, new in ((1, 2), (1, 3), (3, 1)):
        script.invoke(0, "cas", expected, new).ok(0)
    verdict = judge_events(script.events, "cas-register")
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].kind == "value from nowhere"


def test_a_circle_of_cas_beside_a_broken_chain_ends() -> None:
    script = Script()
    script.invoke(0, "write", 5).ok(0).invoke(0, "write", 6).ok(0).invoke(0, "read").ok(0, 5)
    for expected, new in ((1, 2), (2, 1)):
        script.invoke(0, "cas", expected, new).ok(0)
    assert judge_events(script.events, "cas-register").validity is Validity.INVALID


def test_a_circle_of_cas_without_an_observer_need_not_have_happened() -> None:
    script = Script()
    script.invoke(0, "cas", 1, 2).info(0).invoke(1, "cas", 2, 1).info(1).invoke(2, "write", 7).ok(2)
    script.invoke(2, "read").ok(2, 7)
    assert judge_events(script.events, "cas-register").validity is Validity.VALID


@pytest.mark.parametrize("model", ASK)
def test_nonsense_ends_with_a_verdict(model: str) -> None:
    judge_nonsense(model, Random(model), 300)


@pytest.mark.nightly
@pytest.mark.parametrize("model", ASK)
def test_nonsense_ends_with_a_verdict_all_night(model: str, night: Random) -> None:
    judge_nonsense(model, night, 20_000)


def judge_nonsense(model: str, rng: Random, cases: int) -> None:
    seen: dict[Validity, int] = {}
    for _ in range(cases):
        events = nonsense(model, rng, rng.randint(1, 8))
        try:
            verdict = judge_as(events, Ask(model), Budget())
        except MalformedHistory:
            continue
        seen[verdict.validity] = seen.get(verdict.validity, 0) + 1
        if model == "cas-register" and verdict.validity in (Validity.VALID, Validity.INVALID):
            assert linearizable(operations_of(events)) == (verdict.validity is Validity.VALID), events
    # By chance alone, no consumer polls each acknowledged message.
    usual = Validity.UNKNOWN if model == "kafka" else Validity.VALID
    assert seen[usual] and seen[Validity.INVALID], seen


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
