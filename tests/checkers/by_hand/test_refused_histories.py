"""Histories that contradict themselves are refused with the line, in every format: nothing is dropped silently.

Messages to a user whose file is not what `check` needs: each line gives the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from edn_files import judged_file, judged_text, operations, read_any
from histories import write_stream

from checkers.base.columns import events_to_table
from checkers.base.history import NEMESIS, Event, Type
from checkers.base.values import with_article
from checkers.base.verdict import Validity
from checkers.by_hand import likely_models
from checkers.models.each_object import refused_setting

REFUSED: dict[str, tuple[str, str, str]] = {
    "another write": ("cas-register", "write 3->4", "2: process 0: write of 3 was acknowledged as 4"),
    "another cas": ("cas-register", "cas [1 2]->[1 3]", "2: process 0: cas of [1, 2] was acknowledged as [1, 3]"),
    "a cas of nil": ("cas-register", "cas nil->nil", "1: a cas needs [expected new], not nil"),
    "a cas of one text": ("cas-register", 'cas "ab"->"ab"', '1: a cas needs [expected new], not "ab"'),
    "a scalar cas": ("cas-register", "cas 5->?:timed-out", "1: a cas needs [expected new], not 5"),
    "a truth value": ("cas-register", "write 1->true", "2: process 0: write of 1 was acknowledged as "),
    "a read without a key": ("cas-register", 'write 1->1 @"x"; read ->9', "3: this read has no key"),
    "an element without a key": ("set", 'add 1->1 @"x"; read ->[]', "3: this read has no key"),
    "another element": ("set", "add 1->2", "2: process 0: add of 1 was acknowledged as 2"),
    "an element that is true": ("set", "add 1->true", "2: process 0: add of 1 was acknowledged as"),
    "another value in the log": ("append-log", "append 5->[6 0]", "2: process 0: append of 5 was acknowledged as [6"),
    "another append in a transaction": (
        "list-append",
        'txn [[:append "x" 1] [:r "x" nil]]->[[:append "x" 2] [:r "x" [1]]]',
        "2: micro-operation 1 was invoked as",
    ),
    "a register that is written nil": (
        "rw-register",
        'txn [[:w "x" nil]]->[[:w "x" nil]]; txn [[:r "x" nil]]->[[:r "x" nil]]',
        "2: a write of key 'x' needs a value",
    ),
    "a failed write of nil": ("rw-register", 'txn [[:w "x" nil]]->![[:w "x" nil]]', "1: a write of key 'x' needs"),
    "a transaction that lost a part": (
        "rw-register",
        'txn [[:w "x" 1] [:r "y" nil]]->[[:w "x" 1]]',
        "2: 2 micro-operations were invoked and 1 completed",
    ),
}  # fmt: skip
REFUSED_IN_TEXT: dict[str, tuple[str, str, str]] = {
    "create of a client": ("cas-register", "create 9->9", "1: create is reserved for set-up"),
    "a key as text and as number": (
        "kv", 'put "a"->"a" @"1"; get ->"" @1', "3: a key occurs as the text '1'"
    ),
    "tuples of keys and values": (
        "set", "add [3 1]->[3 1]; read [3 nil]->[3 [1]]", "3: read of [3, null] looks like [key value]: use --keyed"
    ),
}  # fmt: skip


def as_edn(folder: Path, text: str) -> Path:
    path = folder / "history.edn"
    path.write_text(operations(text) if "->" in text else text)
    return path


def as_parquet(folder: Path, text: str) -> Path:
    return parquet_of(folder, read_any(as_edn(folder, text)))


def as_stream(folder: Path, text: str) -> Path:
    return write_stream(folder / "run", read_any(as_edn(folder, text))) / "history.arrows"


@pytest.mark.parametrize(
    ("case", "written"),
    [*product(REFUSED, (as_edn, as_parquet, as_stream)), *((case, as_edn) for case in REFUSED_IN_TEXT)],
)
def test_a_contradiction_is_refused_with_its_place(
    case: str, written: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    model, text, words = (REFUSED | REFUSED_IN_TEXT)[case]
    found = judged_file(written(tmp_path, text), model)
    assert found.verdict.validity is Validity.UNKNOWN
    place, _, what = words.partition(": ")
    assert found.error.startswith(f"line {place}: {what}" if written is as_edn else f"row {int(place) - 1}: {what}")


JUDGED: dict[str, tuple[str, str, Validity]] = {
    "a cas to nil": ("cas-register", "cas [5 nil]->?:timed-out; read ->nil", Validity.VALID),
    "true is not one": ("set", "add 1->1; read ->[true]", Validity.INVALID),
    "nil is an element like any other": ("set", "add 1->1; read ->[1 nil]", Validity.INVALID),
    "two keys that are texts": ("kv", 'put "a"->"a" @"1"; get ->"" @"2"', Validity.VALID),
    "a map in another order is the same key": (
        "counter", "add 1->1 @{:a 1 :b 2}; read ->0 @{:b 2 :a 1}", Validity.INVALID
    ),
    "a key with keys of several types": (
        "register", 'write 1->1 @{1 2, "a" 3}; read ->1 @{"a" 3, 1 2}', Validity.VALID
    ),
    "an answer without a value": ("cas-register", "write 1->nil; read ->1", Validity.VALID),
    "any function of another object": ("register", "reed ->1", Validity.UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_what_contradicts_nothing_is_judged(case: str, tmp_path: Path) -> None:
    model, text, validity = JUDGED[case]
    found = judged_text(tmp_path, text, model)
    assert found.verdict.validity is validity, found.error


def test_an_operation_of_a_client_cannot_hide_as_set_up_or_as_a_fault(tmp_path: Path) -> None:
    for key, changes, words in (
        (' @"x"', {"f": "create"}, "row 4: create of key x"),
        ("", {"process": -1}, "row 4: read is invoked by clients"),
    ):
        events = read_any(as_edn(tmp_path, f"write 1->1{key}; read ->1{key}; read ->9{key}"))
        hidden = [replace(e, **changes) if e.process == 2 else e for e in events]
        assert judged_file(parquet_of(tmp_path, hidden), "cas-register").error.startswith(words)
    named = operations("write 1->1; read ->1; read ->9").replace(":process 2", ":process -1")
    assert judged_text(tmp_path, named, "cas-register").error.startswith("line 5: process -1")


@pytest.mark.parametrize(("invoked", "answered"), [("1", "2"), ("2", "1"), ("nil", "2")])
@pytest.mark.parametrize("f", ["acquire", "release"])
def test_another_number_of_permits_than_was_invoked_is_refused(
    tmp_path: Path, f: str, invoked: str, answered: str
) -> None:
    wrong = judged_text(tmp_path, f"{f} {invoked}->{answered}", "semaphore:2")
    assert f"{f} of {invoked} was acknowledged as {answered}" in wrong.error
    for allowed in (invoked, "nil"):
        assert judged_text(tmp_path, f"{f} {invoked}->{allowed}", "semaphore:2").error == ""


def test_an_index_that_falls_is_refused_because_two_histories_are_not_one(tmp_path: Path) -> None:
    one = """{:index 0, :process 0, :type :invoke, :f :write, :value 1}
             {:index 2, :process 0, :type :ok, :f :write, :value 1}
             {:index 3, :process 1, :type :invoke, :f :read, :value nil}
             {:index 7, :process 1, :type :ok, :f :read, :value 1}"""
    assert judged_text(tmp_path, one, "register").verdict.validity is Validity.VALID
    other = """{:index 0, :process 1, :type :invoke, :f :read, :value nil}
               {:index 1, :process 1, :type :ok, :f :read, :value nil}"""
    found = judged_text(tmp_path, one + "\n" + other, "register")
    assert found.error.startswith("line 5: :index 0 comes after :index 7")
    copied = judged_text(tmp_path, one.replace(":index 3", ":index 2"), "register")
    assert copied.error.startswith("line 3: :index 2 comes twice")
    without = one.replace(":index 3,", "").replace(":index 0", ":index -1")
    assert judged_text(tmp_path, without, "register").verdict.validity is Validity.VALID


def test_tuples_may_be_read_as_keys_and_values(tmp_path: Path) -> None:
    found = judged_text(tmp_path, "add [3 1]->[3 1]; read [3 nil]->[3 [1]]", "set", keyed=True)
    assert found.verdict.validity is Validity.VALID


def parquet_of(folder: Path, events: Sequence[Event]) -> Path:
    pq.write_table(events_to_table(events), folder / "hidden.parquet")
    return folder / "hidden.parquet"


WITHOUT_VALUE = {
    "register": ("write", "read"), "cas-register": ("write", "read"), "kv": ("put", "get"), "set": ("add", "read"),
    "counter": ("add", "read"), "queue": ("enqueue", "dequeue"), "at-least-once-queue": ("enqueue", "dequeue"),
    "stack": ("push", "pop"), "append-log": ("append", "read"), "bank": ("transfer", "read"),
    "kafka": ("send", "poll"), "rw-register": ("txn", "txn"),
}  # fmt: skip


@pytest.mark.parametrize("model", WITHOUT_VALUE)
def test_a_value_under_another_name_is_missed_by_name(tmp_path: Path, model: str) -> None:
    write, read = WITHOUT_VALUE[model]
    text = operations(f"{write} 1->1; {read} ->2").replace(":value", ":val")
    found = judged_text(tmp_path, text, model)
    assert found.error.startswith("line ")
    assert "value" in found.error
    if model not in ("kafka", "rw-register"):
        answered = judged_text(tmp_path, "\n".join(text.splitlines()[2:]), model)
        assert f"line 2: the answer of {with_article(read)} needs a :value" in answered.error


def test_a_model_of_ones_own_needs_a_value_somewhere(tmp_path: Path) -> None:
    text = operations("acquire 1->1").replace(":value", ":val")
    found = judged_text(tmp_path, text, str(tmp_path / "model.py"), "def init(): return 0\ndef step(s, o): return s")
    assert "no operation of this history has a :value" in found.error


@pytest.mark.parametrize("index", ['"{}"', "{}.0", "{}.5", "-{}1", ":i{}", "[{}]", "9223372036854775808{}"])
def test_an_index_that_is_no_place_in_an_order_is_refused(tmp_path: Path, index: str) -> None:
    rows = ["0, :type :invoke, :f :write, :value 1", "0, :type :ok, :f :write, :value 1"]
    text = "\n".join(f"{{:process {row}, :index {index.format(n)}}}" for n, row in enumerate(rows))
    assert "is not an integer of 0 or more" in judged_text(tmp_path, text, "register").error


def test_operations_of_jepsen_without_an_index_have_minus_one(tmp_path: Path) -> None:
    text = operations("write 1->1; read ->1").replace("}", ", :index -1}")
    assert judged_text(tmp_path, text, "register").verdict.validity is Validity.VALID


def test_times_are_shown_only_if_every_operation_has_one(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1, :time 1000000000}
              {:process 0, :type :ok, :f :write, :value 1, :time 2000000000}
              {:process 0, :type :invoke, :f :write, :value 2}
              {:process 0, :type :ok, :f :write, :value 2, :time 9000000000}
              {:process 1, :type :invoke, :f :read, :value nil}
              {:process 1, :type :ok, :f :read, :value 1}"""
    (witness,) = judged_text(tmp_path, text, "register").verdict.witnesses
    assert " ms" not in str(witness)
    assert {event["time_ns"] for event in witness.events} == {0}


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


TAUGHT = {
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
        "never invoked; every completion needs an invoke, which shows which operations overlapped",
    ),
    "a register as transactions": (
        REGISTER,
        "list-append",
        "line 2: the value of a transaction must be a list of micro-operations like [[:append 1 5] [:r 2 nil]]",
    ),
    "another kind of transactions": (LISTS, "rw-register", "line 2: ['append', 3, 1] is no micro-operation"),
    "a register without a model": (
        REGISTER,
        "",
        "line 1: its format does not determine the model: give --model NAME, perhaps register",
    ),
    "transactions without a model": (LISTS, "", "give --model NAME, perhaps list-append"),
    "an answer whose value has a damaged name": (
        REGISTER.replace(":value 3, :process 1", ":valne 3, :process 1"),
        "register",
        "line 4: the invoke has :value nil, and the answer has no :value",
    ),
}


@pytest.mark.parametrize("case", TAUGHT)
def test_a_refusal_says_what_to_do(case: str, tmp_path: Path) -> None:
    text, model, words = TAUGHT[case]
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
    assert found.reason.startswith(
        'index 0: "a" is no whole number, so it has no priority; operations that cannot be judged'
    )


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
