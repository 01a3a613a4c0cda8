"""Histories that contradict themselves are refused with the line, in every format: nothing is dropped silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from histories import write_stream

from checkers.base.checker import Budget
from checkers.base.columns import events_to_table
from checkers.base.history import Event
from checkers.base.values import with_article
from checkers.base.verdict import Validity
from checkers.by_hand.judge_file import Ask, FileVerdict, judge, task_of
from checkers.formats.recognise import read_any

REFUSED: dict[str, tuple[str, str, str]] = {
    "a write acknowledged as another": (
        "cas-register",
        """{:process 0, :type :invoke, :f :write, :value 3}
           {:process 0, :type :ok,     :f :write, :value 4}""",
        "2: process 0: write of 3 was acknowledged as 4",
    ),
    "a cas acknowledged as another": (
        "cas-register",
        """{:process 0, :type :invoke, :f :cas, :value [1 2]}
           {:process 0, :type :ok,     :f :cas, :value [1 3]}""",
        "2: process 0: cas of [1, 2] was acknowledged as [1, 3]",
    ),
    "a cas of nil": (
        "cas-register",
        """{:process 0, :type :invoke, :f :cas, :value nil}
           {:process 0, :type :ok,     :f :cas, :value nil}""",
        "1: a cas needs [expected new], not nil",
    ),
    "a write of 1 acknowledged as a truth value": (
        "cas-register",
        """{:process 0, :type :invoke, :f :write, :value 1}
           {:process 0, :type :ok,     :f :write, :value true}""",
        "2: process 0: write of 1 was acknowledged as ",
    ),
    "a cas of one text": (
        "cas-register",
        """{:process 0, :type :invoke, :f :cas, :value "ab"}
           {:process 0, :type :ok,     :f :cas, :value "ab"}""",
        '1: a cas needs [expected new], not "ab"',
    ),
    "a read without a key": (
        "cas-register",
        """{:process 0, :type :invoke, :f :write, :key "x", :value 1}
           {:process 0, :type :ok,     :f :write, :key "x", :value 1}
           {:process 0, :type :invoke, :f :read, :value nil}
           {:process 0, :type :ok,     :f :read, :value 9}""",
        "3: this read has no key",
    ),
    "an element without a key": (
        "set",
        """{:process 0, :type :invoke, :f :add, :key "x", :value 1}
           {:process 0, :type :ok,     :f :add, :key "x", :value 1}
           {:process 0, :type :invoke, :f :read, :value nil}
           {:process 0, :type :ok,     :f :read, :value []}""",
        "3: this read has no key",
    ),
    "another element": (
        "set",
        """{:process 0, :type :invoke, :f :add, :value 1}
           {:process 0, :type :ok,     :f :add, :value 2}""",
        "2: process 0: add of 1 was acknowledged as 2",
    ),
    "an element that is true": (
        "set",
        """{:process 0, :type :invoke, :f :add, :value 1}
           {:process 0, :type :ok,     :f :add, :value true}""",
        "2: process 0: add of 1 was acknowledged as",
    ),
    "another value in the log": (
        "append-log",
        """{:process 0, :type :invoke, :f :append, :value 5}
           {:process 0, :type :ok,     :f :append, :value [6 0]}""",
        "2: process 0: append of 5 was acknowledged as [6, 0]",
    ),
    "another append in a transaction": (
        "list-append",
        """{:process 0, :type :invoke, :value [[:append "x" 1] [:r "x" nil]]}
           {:process 0, :type :ok,     :value [[:append "x" 2] [:r "x" [1]]]}""",
        "2: micro-operation 1 was invoked as",
    ),
    "a register that is written nil": (
        "rw-register",
        """{:process 0, :type :invoke, :value [[:w "x" nil]]}
           {:process 0, :type :ok,     :value [[:w "x" nil]]}
           {:process 0, :type :invoke, :value [[:r "x" nil]]}
           {:process 0, :type :ok,     :value [[:r "x" nil]]}""",
        "2: a write of key 'x' needs a value",
    ),
    "a failed write of nil": (
        "rw-register",
        """{:process 0, :type :invoke, :value [[:w "x" nil]]}
           {:process 0, :type :fail,   :value [[:w "x" nil]]}""",
        "1: a write of key 'x' needs a value",
    ),
    "a transaction that lost a part": (
        "rw-register",
        """{:process 0, :type :invoke, :value [[:w "x" 1] [:r "y" nil]]}
           {:process 0, :type :ok,     :value [[:w "x" 1]]}""",
        "2: 2 micro-operations were invoked and 1 completed",
    ),
}


def judged(path: Path, model: str) -> FileVerdict:
    task = task_of(path, Ask(model), Budget())
    return judge(task.part, task.budget)


def as_edn(folder: Path, text: str) -> Path:
    path = folder / "history.edn"
    path.write_text("\n".join(line.strip() for line in text.splitlines()) + "\n")
    return path


def as_parquet(folder: Path, text: str) -> Path:
    events = read_any(as_edn(folder, text))
    pq.write_table(events_to_table(events), folder / "history.parquet")
    return folder / "history.parquet"


def as_stream(folder: Path, text: str) -> Path:
    return write_stream(folder / "run", read_any(as_edn(folder, text))) / "history.arrows"


@pytest.mark.parametrize("written", [as_edn, as_parquet, as_stream])
@pytest.mark.parametrize("case", REFUSED)
def test_a_contradiction_is_refused_with_its_place(
    case: str, written: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    model, text, words = REFUSED[case]
    found = judged(written(tmp_path, text), model)
    assert found.verdict.validity is Validity.UNKNOWN
    place, _, what = words.partition(": ")
    if place.isdigit():
        place = f"line {place}" if written is as_edn else f"row {int(place) - 1}"
    assert found.verdict.reason.startswith(f"{place}: {what}"), found
    assert bool(found.error) == (case != "a true register"), "the model may be the wrong one"


def test_a_scalar_cas_is_malformed_and_a_cas_to_nil_is_not(tmp_path: Path) -> None:
    def history(value: str) -> str:
        return f"""{{:process 0, :type :invoke, :f :cas, :value {value}}}
                   {{:process 0, :type :info, :f :cas, :value :timed-out}}
                   {{:process 1, :type :invoke, :f :read, :value nil}}
                   {{:process 1, :type :ok, :f :read, :value nil}}"""

    scalar = judged(as_edn(tmp_path, history("5")), "cas-register")
    assert scalar.error == "line 1: a cas needs [expected new], not 5"
    assert judged(as_edn(tmp_path, history("[5 nil]")), "cas-register").verdict.validity is Validity.VALID


def test_a_register_without_a_key_is_not_called_a_key(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :reed, :value nil}
              {:process 0, :type :ok,     :f :reed, :value 1}"""
    assert judged(as_edn(tmp_path, text), "register").verdict.reason == "reed is not an operation of a register"


def test_true_is_not_one(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :add, :value 1}
              {:process 0, :type :ok,     :f :add, :value 1}
              {:process 0, :type :invoke, :f :read, :value nil}
              {:process 0, :type :ok,     :f :read, :value [true]}"""
    found = judged(as_edn(tmp_path, text), "set")
    assert found.verdict.validity is Validity.INVALID
    assert found.verdict.witnesses[0].kind == "value from nowhere"
    assert "true" in found.verdict.witnesses[0].summary


def test_nil_is_an_element_like_any_other(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :add, :value 1}
              {:process 0, :type :ok,     :f :add, :value 1}
              {:process 0, :type :invoke, :f :read, :value nil}
              {:process 0, :type :ok,     :f :read, :value [1 nil]}"""
    assert judged(as_edn(tmp_path, text), "set").verdict.witnesses[0].kind == "value from nowhere"


@pytest.mark.parametrize(("other", "refused"), [("1", True), ('"2"', False)])
def test_a_number_and_a_text_are_not_one_key(tmp_path: Path, other: str, refused: bool) -> None:
    text = f"""{{:process 0, :type :invoke, :f :put, :key "1", :value "a"}}
               {{:process 0, :type :ok,     :f :put, :key "1", :value "a"}}
               {{:process 0, :type :invoke, :f :get, :key {other}, :value nil}}
               {{:process 0, :type :ok,     :f :get, :key {other}, :value ""}}"""
    found = judged(as_edn(tmp_path, text), "kv")
    assert found.error.startswith("line 3: a key stands as the text '1'" if refused else "")
    assert bool(found.error) is refused


def test_the_order_of_a_map_makes_no_other_key(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :add, :key {:a 1 :b 2}, :value 1}
              {:process 0, :type :ok,     :f :add, :key {:a 1 :b 2}, :value 1}
              {:process 0, :type :invoke, :f :read, :key {:b 2 :a 1}, :value nil}
              {:process 0, :type :ok,     :f :read, :key {:b 2 :a 1}, :value 0}"""
    assert judged(as_edn(tmp_path, text), "counter").verdict.validity is Validity.INVALID


def test_an_operation_of_a_client_cannot_hide_as_set_up(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :create, :value 9}
              {:process 0, :type :ok,     :f :create, :value 9}"""
    assert judged(as_edn(tmp_path, text), "cas-register").error.startswith("line 1: create is the name of set-up's")
    written = as_edn(
        tmp_path,
        """{:process 0, :type :invoke, :f :write, :key "x", :value 1}
           {:process 0, :type :ok,     :f :write, :key "x", :value 1}
           {:process 0, :type :invoke, :f :read, :key "x", :value nil}
           {:process 0, :type :ok,     :f :read, :key "x", :value 9}""",
    )
    events = read_any(written)
    hidden = [changed(e, f="create") if e.f == "read" else e for e in events]
    assert judged(parquet_of(tmp_path, hidden), "cas-register").error.startswith("row 2: create of key x")


def test_an_operation_of_a_client_cannot_hide_as_a_fault(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1}
              {:process 0, :type :ok,     :f :write, :value 1}
              {:process 1, :type :invoke, :f :read, :value nil}
              {:process 1, :type :ok,     :f :read, :value 1}
              {:process 2, :type :invoke, :f :read, :value nil}
              {:process 2, :type :ok,     :f :read, :value 9}"""
    numbered = as_edn(tmp_path, text.replace(":process 2", ":process -1"))
    assert judged(numbered, "cas-register").error.startswith("line 5: process -1")
    events = read_any(as_edn(tmp_path, text))
    hidden = [changed(e, process=-1) if e.process == 2 else e for e in events]
    assert judged(parquet_of(tmp_path, hidden), "cas-register").error.startswith("row 4: read is invoked by clients")


def test_an_answer_without_a_value_contradicts_nothing(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1}
              {:process 0, :type :ok,     :f :write, :value nil}
              {:process 0, :type :invoke, :f :read, :value nil}
              {:process 0, :type :ok,     :f :read, :value 1}"""
    assert judged(as_edn(tmp_path, text), "cas-register").verdict.validity is Validity.VALID


@pytest.mark.parametrize(("invoked", "answered"), [("1", "2"), ("2", "1"), ("nil", "2")])
@pytest.mark.parametrize("f", ["acquire", "release"])
def test_another_number_of_permits_than_was_invoked_is_refused(
    tmp_path: Path, f: str, invoked: str, answered: str
) -> None:
    def acknowledged(value: str) -> str:
        return f"""{{:process 0, :type :invoke, :f :{f}, :value {invoked}}}
                   {{:process 0, :type :ok, :f :{f}, :value {value}}}"""

    wrong = judged(as_edn(tmp_path, acknowledged(answered)), "semaphore:2")
    assert f"{f} of {invoked} was acknowledged as {answered}" in wrong.error
    for allowed in (invoked, "nil"):
        assert judged(as_edn(tmp_path, acknowledged(allowed)), "semaphore:2").error == ""


def test_a_key_may_be_a_map_with_keys_of_several_types(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :key {1 2, "a" 3}, :value 1}
              {:process 0, :type :ok, :f :write, :key {"a" 3, 1 2}, :value 1}
              {:process 0, :type :invoke, :f :read, :key {1 2, "a" 3}, :value nil}
              {:process 0, :type :ok, :f :read, :key {1 2, "a" 3}, :value 1}"""
    assert judged(as_edn(tmp_path, text), "register").verdict.validity is Validity.VALID


def test_an_index_that_falls_is_refused_because_two_histories_are_not_one(tmp_path: Path) -> None:
    one = """{:index 0, :process 0, :type :invoke, :f :write, :value 1}
             {:index 2, :process 0, :type :ok, :f :write, :value 1}
             {:index 3, :process 1, :type :invoke, :f :read, :value nil}
             {:index 7, :process 1, :type :ok, :f :read, :value 1}"""
    assert judged(as_edn(tmp_path, one), "register").verdict.validity is Validity.VALID
    other = """{:index 0, :process 1, :type :invoke, :f :read, :value nil}
               {:index 1, :process 1, :type :ok, :f :read, :value nil}"""
    found = judged(as_edn(tmp_path, one + "\n" + other), "register")
    assert found.error.startswith("line 5: :index 0 comes after :index 7")
    copied = judged(as_edn(tmp_path, one.replace(":index 3", ":index 2")), "register")
    assert copied.error.startswith("line 3: :index 2 comes twice")
    without = one.replace(":index 3,", "").replace(":index 0", ":index -1")
    assert judged(as_edn(tmp_path, without), "register").verdict.validity is Validity.VALID


def test_tuples_of_keys_and_values_are_refused_where_they_are_not_read_as_such(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :add, :value [3 1]}
              {:process 0, :type :ok,     :f :add, :value [3 1]}
              {:process 0, :type :invoke, :f :read, :value [3 nil]}
              {:process 0, :type :ok,     :f :read, :value [3 [1]]}"""
    path = as_edn(tmp_path, text)
    assert judged(path, "set").error == "line 3: read of [3, null] looks like [key value]: use --keyed"
    task = task_of(path, Ask("set", keyed=True), Budget())
    assert judge(task.part, task.budget).verdict.validity is Validity.VALID


def changed(event: Event, **columns: object) -> Event:
    return Event(**{name: columns.get(name, getattr(event, name)) for name in Event.__slots__})  # type: ignore[arg-type]


def parquet_of(folder: Path, events: Sequence[Event]) -> Path:
    pq.write_table(events_to_table(events), folder / "hidden.parquet")
    return folder / "hidden.parquet"


WITHOUT_VALUE = {
    "register": ("write", "read"),
    "cas-register": ("write", "read"),
    "kv": ("put", "get"),
    "set": ("add", "read"),
    "counter": ("add", "read"),
    "queue": ("enqueue", "dequeue"),
    "at-least-once-queue": ("enqueue", "dequeue"),
    "stack": ("push", "pop"),
    "append-log": ("append", "read"),
    "bank": ("transfer", "read"),
    "kafka": ("send", "poll"),
    "rw-register": ("txn", "txn"),
}


@pytest.mark.parametrize("model", WITHOUT_VALUE)
def test_a_value_under_another_name_is_missed_by_name(tmp_path: Path, model: str) -> None:
    write, read = WITHOUT_VALUE[model]
    text = f"""{{:process 0, :type :invoke, :f :{write}, :val 1}}
               {{:process 0, :type :ok, :f :{write}, :val 1}}
               {{:process 1, :type :invoke, :f :{read}, :val nil}}
               {{:process 1, :type :ok, :f :{read}, :val 2}}"""
    found = judged(as_edn(tmp_path, text), model)
    assert found.error.startswith("line ")
    assert "value" in found.error
    if model not in ("kafka", "rw-register"):
        answered = judged(as_edn(tmp_path, "\n".join(text.splitlines()[2:])), model)
        assert f"line 2: the answer of {with_article(read)} needs a :value" in answered.error


def test_a_model_of_ones_own_needs_a_value_somewhere(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :acquire, :val 1}
              {:process 0, :type :ok, :f :acquire, :val 1}"""
    own = Ask(str(tmp_path / "model.py"), "def init(): return 0\ndef step(s, o): return s")
    found = judge(task_of(as_edn(tmp_path, text), own, Budget()).part, Budget())
    assert "no operation of this history has a :value" in found.error


@pytest.mark.parametrize("index", ['"{}"', "{}.0", "{}.5", "-{}1", ":i{}", "[{}]", "9223372036854775808{}"])
def test_an_index_that_is_no_place_in_an_order_is_refused(tmp_path: Path, index: str) -> None:
    rows = ["0, :type :invoke, :f :write, :value 1", "0, :type :ok, :f :write, :value 1"]
    text = "\n".join(f"{{:process {row}, :index {index.format(n)}}}" for n, row in enumerate(rows))
    assert "is no whole number from 0 on" in judged(as_edn(tmp_path, text), "register").error


def test_operations_of_jepsen_without_an_index_have_minus_one(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1, :index -1}
              {:process 0, :type :ok, :f :write, :value 1, :index -1}
              {:process 0, :type :invoke, :f :read, :value nil, :index -1}
              {:process 0, :type :ok, :f :read, :value 1, :index -1}"""
    assert judged(as_edn(tmp_path, text), "register").verdict.validity is Validity.VALID


def test_times_are_shown_only_if_every_operation_has_one(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1, :time 1000000000}
              {:process 0, :type :ok, :f :write, :value 1, :time 2000000000}
              {:process 0, :type :invoke, :f :write, :value 2}
              {:process 0, :type :ok, :f :write, :value 2, :time 9000000000}
              {:process 1, :type :invoke, :f :read, :value nil}
              {:process 1, :type :ok, :f :read, :value 1}"""
    (witness,) = judged(as_edn(tmp_path, text), "register").verdict.witnesses
    assert " ms" not in str(witness)
    assert {event["time_ns"] for event in witness.events} == {0}
