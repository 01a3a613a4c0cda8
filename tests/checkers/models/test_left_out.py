"""An operation that cannot be judged is left out and named, and conclusions from the rest are still reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.base.checker import Budget
from checkers.base.verdict import Validity, Verdict
from checkers.by_hand.judge_file import Ask, judge, task_of

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
    """script: operations `f given->answer`, one after another, each by a process of its own."""
    lines = []
    for process, step in enumerate(script.split("; ")):
        f, _, rest = step.partition(" ")
        given, answer = rest.split("->")
        row = f"{{:process {process}, :f :{f}, :type"
        lines += [f"{row} :invoke, :value {given or 'nil'}}}", f"{row} :ok, :value {answer}}}"]
    (tmp_path / "history.edn").write_text("\n".join(lines))
    found = judge(task_of(tmp_path / "history.edn", Ask(model), Budget()).part, Budget())
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


def test_a_balance_of_nil_is_no_balance(tmp_path: Path) -> None:
    script = "read ->{0 10, 1 10}; read ->{0 nil, 1 10}; read ->{0 3, 1 10}; read ->{0 -5, 1 25}"
    verdict = judged(tmp_path, "bank", script)
    assert [witness.kind for witness in verdict.witnesses] == ["other accounts", "wrong total", "negative balance"]
    listed = judged(tmp_path, "bank", "read ->[10 10]; read ->[nil 10]; read ->[10 10]")
    assert [witness.kind for witness in listed.witnesses] == ["other accounts"]
