"""An operation that cannot be judged is left out and named, and conclusions from the rest are still reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from edn_files import judged_text

from checkers.base.verdict import Validity, Verdict

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
