"""What a user reads whose file is not what `check` needs: each line says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.base.checker import Budget
from checkers.base.history import NEMESIS, Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand.judge_file import Ask, FileVerdict, judge, likely_models, task_of

REGISTER = """{:type :invoke, :f :write, :value 3, :process 0, :time 100, :index 0}
{:type :ok, :f :write, :value 3, :process 0, :time 200, :index 1}
{:type :invoke, :f :read, :value nil, :process 1, :time 300, :index 2}
{:type :ok, :f :read, :value 3, :process 1, :time 400, :index 3}
"""
LISTS = """{:type :invoke, :f nil, :value [[:append 3 1]], :process 0}
{:type :ok, :f nil, :value [[:append 3 1]], :process 0}
{:type :invoke, :f :txn, :value [[:r 3 nil]], :process 1}
{:type :ok, :f :txn, :value [[:r 3 [1]]], :process 1}
"""


def judged(folder: Path, text: str, model: str) -> FileVerdict:
    path = folder / "history.edn"
    path.write_text(text)
    return judge(task_of(path, Ask(model), Budget()).part, Budget())


REFUSED = {
    "JSON lines": (
        '{"process": 0, "type": "invoke", "f": "write", "value": 1}\n',
        "register",
        "line 1: the file is JSON, and an operation is written in EDN, like {:process 0,",
    ),
    "a table": (
        "process,type,f,value\n0,invoke,write,1\n",
        "register",
        "line 1: an operation must be a map like {:process 0, :type :invoke, :f :write, :value 1}, not 'process'",
    ),
    "the results of Jepsen": (
        "{:valid? true, :count 3}\n",
        "register",
        "line 1: an operation's :type must be invoke, ok, fail or info; this map has none (:valid?, :count)",
    ),
    "answers alone": (
        "{:process 0, :type :ok, :value [[:append 3 1]]}\n",
        "list-append",
        "never invoked; every completion needs an invoke, which shows what ran at once",
    ),
    "a register as transactions": (
        REGISTER,
        "list-append",
        "line 2: a transaction needs a list of micro-operations in its value, like [[:append 1 5] [:r 2 nil]]",
    ),
    "another kind of transactions": (LISTS, "rw-register", "line 2: ['append', 3, 1] is no micro-operation"),
    "a register without a model": (
        REGISTER,
        "",
        "line 1: its format does not name what is judged: give --model NAME, perhaps register",
    ),
    "transactions without a model": (LISTS, "", "give --model NAME, perhaps list-append"),
    "an answer whose value has a damaged name": (
        REGISTER.replace(":value 3, :process 1", ":valne 3, :process 1"),
        "register",
        "line 4: the invoke has :value nil, and the answer has no :value",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_to_do(case: str, tmp_path: Path) -> None:
    text, model, words = REFUSED[case]
    found = judged(tmp_path, text, model)
    assert found.verdict.validity is Validity.UNKNOWN
    assert words in found.error


def test_a_function_nil_is_a_transaction(tmp_path: Path) -> None:
    found = judged(tmp_path, LISTS, "list-append")
    assert found.verdict.validity is Validity.VALID, found.error


@pytest.mark.parametrize(
    ("functions", "models"),
    [
        ("read write", ("register",)),
        ("read write cas", ("cas-register",)),
        ("get append", ("kv",)),
        ("add read", ("set", "counter")),
        ("enqueue dequeue drain", ("queue", "at-least-once-queue")),
        ("acquire release", ("mutex", "semaphore:N")),
        ("transfer read", ("bank",)),
        ("send poll", ("kafka",)),
        ("read dequeue", ()),
        ("", ()),
    ],
)
def test_functions_show_the_likely_models(functions: str, models: tuple[str, ...]) -> None:
    events = [Event(at, at, at, Type.INVOKE, f) for at, f in enumerate(functions.split())]
    assert likely_models([*events, Event(9, 9, NEMESIS, Type.INFO, "kill")]) == models
