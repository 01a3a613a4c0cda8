"""Messages to a user whose file is not what `check` needs: each line gives the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from edn_files import judged_text

from checkers.base.history import NEMESIS, Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand.judge_file import likely_models
from checkers.models.each_object import refused_setting

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


REFUSED = {
    "a type with a colon in JSON": (
        '{"process": 0, "type": ":invoke", "f": "write", "value": 1}\n',
        "register",
        'line 1: an operation\'s :type must be invoke, ok, fail or info, not ":invoke"',
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
    found = judged_text(tmp_path, text, model)
    assert found.verdict.validity is Validity.UNKNOWN
    assert words in found.error


def test_an_object_that_clojure_cannot_print_is_no_list(tmp_path: Path) -> None:
    found = judged_text(tmp_path, 'add 1->1; read ->#object[Queue 0x1f "[1]"]', "set")
    assert found.verdict.validity is Validity.UNKNOWN
    assert 'a read answered "#object[Queue 0x1f' in found.verdict.reason


def test_a_function_nil_is_a_transaction(tmp_path: Path) -> None:
    found = judged_text(tmp_path, LISTS, "list-append")
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


ODD_VALUES = {
    "a priority that is a text": (
        "priority-queue",
        'insert "a"->"a"; insert 1->1; extract-min ->7',
        "7 was taken, and no insert of it can have happened before",
    ),
    "a counter that answers nil": (
        "counter",
        "add 1->1; read ->nil",
        "a read answered nil; an answer of 1 would have been right",
    ),
    "a text that is gone": (
        "kv",
        'put "x"->"x"; get ->nil',
        "explains get() -> nil (index 3)",
    ),
    "a list with nil": (
        "list-append",
        "txn [[:append x 1]]->[[:append x 1]]; txn [[:r x nil]]->[[:r x [nil 3]]]",
        "T1 read x as [nil, 3], but",
    ),
    "a message that is nil": (
        "kafka",
        "assign [0]->[0]; poll [[:poll]]->[[:poll {0 [[5 nil]]}]]",
        "nil was polled from 0, and no operation ever sent it",
    ),
}


@pytest.mark.parametrize("case", ODD_VALUES)
def test_an_odd_value_hides_no_violation_and_is_shown_as_in_the_file(case: str, tmp_path: Path) -> None:
    model, text, words = ODD_VALUES[case]
    found = judged_text(tmp_path, text, model).verdict
    assert found.validity is Validity.INVALID
    assert words in found.witnesses[0].summary


def test_a_priority_that_is_no_number_is_named(tmp_path: Path) -> None:
    found = judged_text(tmp_path, 'insert "a"->"a"; insert 1->1; extract-min ->1', "priority-queue").verdict
    assert found.validity is Validity.UNKNOWN
    assert found.reason.startswith('index 0: "a" is no whole number, so it has no priority; what cannot be judged')


@pytest.mark.parametrize("error", [":empty", '"empty"', "[:empty]"])
def test_a_take_that_failed_with_empty_may_count(error: str, tmp_path: Path) -> None:
    text = f"enqueue 1->1; drain ->!nil, :error {error}"
    assert judged_text(tmp_path, text, "queue", settings=(("empty", "observed"),)).verdict.validity is Validity.INVALID


def test_finding_nothing_shows_nothing_of_a_queue_that_delivers_again(tmp_path: Path) -> None:
    text = "enqueue 1->1; dequeue ->nil"
    assert judged_text(tmp_path, text, "at-least-once-queue").verdict.validity is Validity.UNKNOWN
    assert judged_text(tmp_path, text, "queue").verdict.validity is Validity.INVALID
    assert refused_setting("at-least-once-queue", "empty", "observed")


@pytest.mark.parametrize(
    ("model", "put", "look", "value", "answer"),
    [
        ("set", "add", "read", "3", "[3]"),
        ("queue", "enqueue", "dequeue", "3", "3"),
        ("register", "write", "read", '"a"', '"a"'),
        ("append-log", "append", "read", "3", "[3]"),
    ],
)
def test_a_change_that_timed_out_may_explain_a_value_from_nowhere(
    model: str, put: str, look: str, value: str, answer: str, tmp_path: Path
) -> None:
    rows = f"{put} {value}->!{value}, :error :timeout; {look} ->{answer}"
    summary = judged_text(tmp_path, rows, model).verdict.witnesses[0].summary
    assert "failed (index 1: timeout), and a time-out does not prove that it did not happen: record it as" in summary
    refused = judged_text(tmp_path, rows.replace(":timeout", ":full"), model).verdict.witnesses[0].summary
    assert refused.endswith(f" of {value} failed (index 1: full)")
