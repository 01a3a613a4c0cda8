"""Every model by hand: each rule of it by an example.

An operation that cannot be judged is left out and named, and conclusions from the rest are still reported.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edn_files import judged_text
from simulated_objects import event, one_process, renumbered

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.values import SHORT, frozen
from checkers.base.verdict import Validity, Verdict
from checkers.by_hand import judge_events
from checkers.models import past as model_past
from checkers.models.each_object import KNOWN
from checkers.models.model import REFUSED, Model, Operation, value_of


def test_a_model_whose_state_only_grows_is_decided_or_given_up_within_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An enumeration of all its states, without regard to the history, would never end and would fill the memory."""

    def step(state: Any, operation: Operation) -> Any:
        if operation.f == "append":
            return (*state, operation.input)
        return state if state == (operation.output or ()) else REFUSED

    growing = Model("growing", init=tuple, step=step, observers=frozenset({"read"}))
    appended = [("append", 0, 0)] * 2000
    right, wrong = (one_process(*appended, ("read", None, [0] * n)) for n in (2000, 1999))
    assert judge_events(right, growing).validity is Validity.VALID
    for size_bytes in (model_past.SIZE_BYTES_MAX, 100_000):
        monkeypatch.setattr(model_past, "SIZE_BYTES_MAX", size_bytes)
        [witness] = judge_events(wrong, growing).witnesses
        assert [row["index"] for row in witness.events] == [4000, 4001], "older moments may be forgotten, not these"
    tight = judge_events(right, growing, Budget(size_bytes=10_000))
    assert (tight.validity, tight.reason) == (Validity.UNKNOWN, "the budget of 10000 bytes ran out")


def kinds(events: list[Event], model: str | Model) -> list[str]:
    return [w.kind for w in judge_events(events, model).witnesses]


def test_locks_and_ids_need_no_reads() -> None:
    for name, step in (("mutex", ("acquire", None, None)), ("unique-ids", ("generate", None, 1))):
        assert judge_events(one_process(step), name).validity is Validity.VALID


WRONG: list[tuple[str, str, list[str]]] = [
    ("set", "add 1->1; add 2->2; read ->[1 2]", []),
    ("set", "add 1->1; add 2->2; read ->[2]; read ->[1 2]", ["stale read"]),
    ("set", "add 1->1; add 2->2; read ->[1 1 2]", ["duplicate"]),
    ("set", "read ->[7]", ["value from nowhere"]),
    ("queue", "enqueue 1->1; enqueue 2->2; dequeue ->1; dequeue ->2; dequeue ->nil", []),
    ("queue", "enqueue 1->1; enqueue 2->2; dequeue ->2", ["out of order"]),
    ("queue", "enqueue 1->1; enqueue 2->2; dequeue ->nil", ["not empty"]),
    ("queue", "enqueue 1->1; enqueue 2->2; enqueue 1->1; dequeue ->2", ["no order"]),
    ("queue", "enqueue 1->1; enqueue 2->2; dequeue ->1; dequeue ->1", ["duplicate"]),
    ("queue", "enqueue 1->1; enqueue 2->2; dequeue ->3", ["value from nowhere"]),
    ("stack", "push 1->1; push 2->2; pop ->1", ["out of order"]),
    ("stack", "pop ->7", ["value from nowhere"]),
    ("priority-queue", "insert 2->2; extract-min ->nil", ["out of order"]),
    ("semaphore:1", "acquire ->nil; acquire ->nil", ["too many held"]),
    ("mutex", "acquire ->nil; acquire ->nil", ["held twice"]),
    ("mutex", "release ->nil", ["no order"]),
    ("append-log", 'append "a"->["a" 0]; append "b"->["b" 1]; read ->["a" "b"]', []),
    ("append-log", 'append "a"->["a" 0]; append "b"->["b" 1]; read ->["a"]', ["stale read"]),
    ("append-log", 'append "a"->["a" 0]; append "b"->["b" 0]', ["two values at one offset"]),
    ("append-log", 'append "a"->["a" 1]; append "b"->["b" 0]', ["order cycle"]),
    ("append-log", 'read ->["z"]', ["value from nowhere"]),
    ("append-log", "append 7->[7 nil]; read ->[7]", []),
    ("kv", 'put "a"->"a"; put nil->nil; get ->""; append nil->nil; get ->nil', []),
]


@pytest.mark.parametrize(("model", "script", "expected"), WRONG)
def test_what_an_object_can_do_wrong(model: str, script: str, expected: list[str], tmp_path: Path) -> None:
    found = judged_text(tmp_path, script, model)
    assert [witness.kind for witness in found.verdict.witnesses] == expected, found
    assert found.verdict.validity is (Validity.INVALID if expected else Validity.VALID)


def test_adds_after_the_last_read_are_counted() -> None:
    added = [("add", 1, 1), ("add", 2, 2)]
    late = judge_events(one_process(*added, ("read", None, [1, 2]), ("add", 3, 3)), "set")
    assert late.validity is Validity.VALID, "no read began after the last add"
    assert (late.looked_at["acknowledged"], late.looked_at["never_read"]) == (3, 1)


@pytest.mark.parametrize(
    ("name", "write", "read", "answer"),
    [
        ("set", ("add", 1), "read", [1]),
        ("queue", ("enqueue", 1), "dequeue", 1),
        ("append-log", ("append", 1), "read", [1]),
        ("long-fork", ("txn", [["w", "x", 1]]), "txn", [["r", "x", 1], ["r", "y", None]]),
    ],
)
@pytest.mark.parametrize("retried", [False, True])
def test_a_value_whose_write_failed_comes_from_nowhere_and_no_sentence_denies_the_failed_write(
    name: str, write: tuple[str, Any], read: str, answer: Any, retried: bool
) -> None:
    f, value = write
    asked = [["r", "x", None], ["r", "y", None]] if name == "long-fork" else None
    events = one_process((f, value, value), (read, asked, answer), *([(f, value, value)] * retried))
    events[1] = replace(events[1], type=Type.FAIL)
    [witness] = judge_events(events, name).witnesses
    assert witness.kind == "value from nowhere"
    said = [witness.summary, *witness.facts["why"]]
    assert not any("ever invoked" in each or "no transaction wrote" in each for each in said)
    assert any("failed" in each or "may have happened" in each for each in said), said


def test_a_counter_that_goes_back_has_no_order() -> None:
    back = [event(0, 0, Type.INVOKE, "add", 1)]
    back += [replace(e, index=e.index + 1, process=1) for e in one_process(("read", None, 1), ("read", None, 0))]
    assert kinds(back, "counter") == ["no order"]


def test_a_release_that_was_never_answered_may_have_happened_and_an_acquire_need_not() -> None:
    def step(process: int, type_: Type, f: str) -> Event:
        return event(0, process, type_, f, None)

    held = [step(0, Type.INVOKE, "acquire"), step(0, Type.OK, "acquire"), step(0, Type.INVOKE, "release")]
    taken = [step(1, Type.INVOKE, "acquire"), step(1, Type.OK, "acquire")]
    begun = [step(2, Type.INVOKE, "acquire"), step(2, Type.INFO, "acquire")]
    for events, right in (([*begun, *held, step(0, Type.INFO, "release"), *taken], True), ([*held[:2], *taken], False)):
        numbered = [replace(e, index=index) for index, e in enumerate(events)]
        assert (kinds(numbered, "mutex") == []) == right


def test_one_of_many_equal_appends_without_offsets_need_not_have_happened() -> None:
    lost = [event(0, 99, Type.INVOKE, "append", 7), event(0, 99, Type.INFO, "append", 7)]
    for count in (3, 70):
        kept = one_process(*[("append", 7, 7)] * count, ("read", None, [7] * count))
        assert judge_events(renumbered([*lost, *kept]), "append-log").validity is not Validity.INVALID, count


def test_offsets_and_tokens_may_be_of_any_size() -> None:
    for far in (2**62, 2**63, 2**70):
        rising = one_process(("append", 7, [7, far]), ("append", 8, [8, far + 1]), ("read", None, []))
        assert kinds(rising, "append-log") == ["stale read"]
        falling = one_process(("append", 7, [7, far + 1]), ("append", 8, [8, far]))
        assert kinds(falling, "append-log") == ["order cycle"]
        tokens = [("acquire", None, [far]), ("acquire", None, [far + 1])]
        assert kinds(one_process(*tokens), "fenced-lock") == []
        assert kinds(one_process(*tokens[::-1]), "fenced-lock") == ["tokens out of order"]


def test_a_witness_ends_where_the_history_went_wrong_and_forgets_what_lies_before() -> None:
    right = [("enqueue", n, n) if even else ("dequeue", None, n) for n in [*range(29), 0] for even in (True, False)]
    events = one_process(*right, ("enqueue", 90, 90), ("enqueue", 91, 91), ("dequeue", None, 91), ("dequeue", None, 90))
    [witness] = judge_events(events, "queue").witnesses
    assert witness.events[-1]["index"] == 125
    assert len(witness.events) <= 6
    assert witness.facts["rejudged"] is True


@pytest.mark.parametrize("name", KNOWN)
def test_every_write_may_be_acknowledged_as_the_value_that_it_gave(name: str) -> None:
    """Equal texts are not decoded before they are compared, so no model may refuse them."""
    for value in (None, 1, "a", (1, 2), (("w", "x", 1), ("r", "y", None)), (("r", "x"),)):
        assert all(allows(value, value) for allows in KNOWN[name].fixed.values()), value


PAYLOADS = ['"a b"', ' "a"', '"a" ', "[1, [2]]", "7", " 7", "null", '{"a": [1]}', r'"\u00e4\""', "-1", "true"]


@pytest.mark.parametrize("payload", [*PAYLOADS, '["' + "a" * SHORT + '"] '])
def test_a_payload_is_read_as_json_reads_it(payload: str) -> None:
    read = value_of(Event(0, 0, 0, Type.OK, "get", payload=payload))
    assert repr(read) == repr(frozen(json.loads(payload)))


@pytest.mark.parametrize("payload", ["", " ", '"a', '"a" b', "[1", '"a\n"', "a"])
def test_a_payload_that_is_no_json_is_refused(payload: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        value_of(Event(0, 0, 0, Type.OK, "get", payload=payload))


def test_objects_are_judged_apart_and_a_budget_leaves_only_one_unknown() -> None:
    easy = [replace(e, key="easy") for e in one_process(("push", 1, 1), ("pop", None, 1))]
    crowd = one_process(("push", 0, 0))  # its pop precedes the pops of all elements pushed later
    crowd += [event(2 + n, 10 + n, Type.INVOKE, "push", 1 + n % 7) for n in range(14)]
    crowd += [event(16 + n, 10 + n, Type.OK, "push", 1 + n % 7) for n in range(14)]
    crowd += [event(30, 10, Type.INVOKE, "pop", None), event(31, 10, Type.OK, "pop", 0)]
    events = easy + [replace(e, key="hard", index=e.index + len(easy)) for e in crowd]
    verdict = judge_events(events, "stack", Budget(steps=100_000))
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason.startswith("key hard: the budget of 100000 steps ran out")


# model: (a history with an odd answer, a correct continuation, a wrong continuation, the kind, words)
ODD: dict[str, tuple[str, str, str, str, str]] = {
    "bank": ("read ->{0 10, 1 10}; read ->nil", "read ->{0 10, 1 10}", "read ->{0 3, 1 10}", "wrong total", "nil"),
    "unique-ids": ("generate ->1; generate ->nil", "generate ->2", "generate ->1", "duplicate", "nil, which is no id"),
    "queue": ("enqueue nil->nil; enqueue 1->1", "dequeue ->1", "dequeue ->7", "value from nowhere", "enqueue of nil"),
    "at-least-once-queue": (
        "enqueue nil->nil; enqueue 1->1",
        "dequeue ->1",
        "dequeue ->7",
        "value from nowhere",
        "nil",
    ),
    "stack": ("push nil->nil; push 1->1; pop ->nil", "pop ->1", "pop ->7", "value from nowhere", "push of nil"),
    "priority-queue": (
        "insert nil->nil; insert 1->1",
        "extract-min ->1",
        "extract-min ->7",
        "value from nowhere",
        "nil",
    ),
    "set": ("add 1->1; read ->7", "read ->[1]", "read ->[1 9]", "value from nowhere", "7, which is no list"),
    "append-log": ("append 1->[1 :x]; read ->7", "read ->[1]", "read ->[9]", "value from nowhere", "no whole number"),
    "kv": ('put "a"->"a"; get ->7', 'get ->"a"', 'get ->"b"', "value from nowhere", "7, which is no string"),
    "fenced-lock": ("acquire ->3; acquire ->:x", "write 3->3", "acquire ->3", "token handed out twice", "no integer"),
}


def judged(tmp_path: Path, model: str, script: str) -> Verdict:
    found = judged_text(tmp_path, script, model)
    assert not found.error
    return found.verdict


@pytest.mark.parametrize("model", ODD)
def test_one_odd_operation_hides_nothing(tmp_path: Path, model: str) -> None:
    odd, right, wrong, kind, words = ODD[model]
    unknown = judged(tmp_path, model, f"{odd}; {right}")
    assert unknown.validity is Validity.UNKNOWN
    assert words in unknown.reason
    assert "left out" in unknown.reason
    invalid = judged(tmp_path, model, f"{odd}; {wrong}")
    assert invalid.validity is Validity.INVALID
    assert [witness.kind for witness in invalid.witnesses] == [kind]
    assert words in invalid.reason


@pytest.mark.parametrize(
    ("model", "script", "words"),
    [
        ("counter", "add 1.5->1.5; read ->1.5", "inc and dec of whole numbers"),
        ("priority-queue", "insert 2.5->2.5; extract-min ->2.5", "no whole number"),
        *(("append-log", f"append 7->[7 {at}]", "no whole number from 0 on") for at in ("-1", '"0"', "0.0", "true")),
        ("append-log", "append 7->[7 -5]; read ->[]", "no whole number from 0 on"),
        *(("kv", f"put {odd}->{odd}; get ->nil", "no string") for odd in ("0", "5", "true", "1.5", '["a"]')),
        ("kv", 'append 5->5; get ->"5"', "no string"),
        ("set", "remove 1->1", "remove is not an operation of a set"),
        ("queue", "enqueue 1->1; push 1->1", "push is not an operation of a queue"),
        ("queue", "enqueue 1->1; drain ->7", "a drain answered 7, which is no list"),
    ],
)
def test_what_no_object_can_do_or_answer_is_unknown(tmp_path: Path, model: str, script: str, words: str) -> None:
    verdict = judged(tmp_path, model, script)
    assert verdict.validity is Validity.UNKNOWN
    assert words in verdict.reason


def test_a_balance_of_nil_is_no_balance(tmp_path: Path) -> None:
    script = "read ->{0 10, 1 10}; read ->{0 nil, 1 10}; read ->{0 3, 1 10}; read ->{0 -5, 1 25}"
    verdict = judged(tmp_path, "bank", script)
    assert [witness.kind for witness in verdict.witnesses] == ["other accounts", "wrong total", "negative balance"]
    listed = judged(tmp_path, "bank", "read ->[10 10]; read ->[nil 10]; read ->[10 10]")
    assert [witness.kind for witness in listed.witnesses] == ["other accounts"]
