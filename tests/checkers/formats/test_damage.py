"""Histories that are damaged, truncated or no histories at all: one sentence with the line or row, never a traceback.

A file truncated at the end of a line is a shorter history and may be valid: it looks like a test that ended there.  Any
other truncation must be detected.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from edn_files import read_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.base.checker import Budget
from checkers.base.columns import HISTORY, events_to_table
from checkers.base.history import Event, MalformedHistory, Type
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, judge, names, task_of

EVENTS = [
    Event(0, 10, 0, Type.INVOKE, "write", "a", 100001),
    Event(1, 20, 1, Type.INVOKE, "cas", "a", 100001, 100002),
    Event(2, 30, 0, Type.OK, "write", "a", 100001, node="n1"),
    Event(3, 40, 1, Type.INFO, "cas", "a", error="timed out"),
    Event(4, 50, 2, Type.INVOKE, "read", "a"),
    Event(5, 60, 2, Type.OK, "read", "a", 100002, node="n2"),
]


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def stream(events: list[Event], *, ended: bool = True, batch_rows: int = 2) -> bytes:
    sink = io.BytesIO()
    writer = pa.ipc.new_stream(sink, HISTORY, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True))
    for first in range(0, len(events), batch_rows):
        writer.write_table(events_to_table(events[first : first + batch_rows]))
    whole = sink.getvalue()
    writer.close()
    return sink.getvalue() if ended else whole


def edn(events: list[Event]) -> bytes:
    head = '{{:process {}, :type :{}, :f :{}, :key "a", :value {}}}\n'
    return "".join(head.format(*columns(e)) for e in events).encode()


def log(events: list[Event]) -> bytes:
    lines = ["INFO  jepsen.util - {}\t:{}\t:{}\t{}\n".format(*columns(e)) for e in events]
    return "".join(["INFO  jepsen.core - Worker 3 starting\n\n", *lines]).encode()


def columns(event: Event) -> tuple[int, str, str, str]:
    value = "nil" if event.value is None else str(event.value)
    pair = value if event.value2 is None else f"[{value} {event.value2}]"
    return event.process, event.type.name.lower(), event.f, pair


MODELS = [name.replace(":N", ":2") for name in names()]
LIST_APPEND = b"""{:process 0, :type :invoke, :f :txn, :value [[:append "x" 1] [:r "x" nil]]}
{:process 0, :type :ok, :f :txn, :value [[:append "x" 1] [:r "x" [1]]]}
{:process 1, :type :invoke, :f :txn, :value [[:r "x" nil]]}
{:process 1, :type :ok, :f :txn, :value [[:r "x" [1]]]}
"""
KAFKA = b"""{:process 0, :type :invoke, :f :send, :value [[:send 0 1]]}
{:process 0, :type :ok, :f :send, :value [[:send 0 [5 1]]]}
{:process 1, :type :invoke, :f :assign, :value [0]}
{:process 1, :type :ok, :f :assign, :value [0]}
{:process 1, :type :invoke, :f :poll, :value [[:poll]]}
{:process 1, :type :ok, :f :poll, :value [[:poll {0 [[5 1]]}]], :rebalance-log [{:keys [0]}]}
"""
EXAMPLES: dict[str, tuple[str, bytes]] = {
    "edn": ("cas-register", edn(EVENTS)),
    "log": ("cas-register", log(EVENTS)),
    "parquet": ("cas-register", parquet(events_to_table(EVENTS))),
    "arrow": ("cas-register", stream(EVENTS)),
    "list-append": ("list-append", LIST_APPEND),
    "kafka": ("kafka", KAFKA),
}


def refusal(content: bytes) -> str:
    with pytest.raises(MalformedHistory) as damage:
        read_bytes(content)
    words = str(damage.value)
    assert "\n" not in words
    return words


@cache
def verdict_of(folder: Path, model: str, content: bytes) -> tuple[Validity, str]:
    path = folder / "history"
    path.write_bytes(content)
    task = task_of(path, Ask(model), Budget(steps=2_000_000))
    found = judge(task.part, task.budget)
    assert bool(found.error) <= (found.verdict.validity is Validity.UNKNOWN)
    return found.verdict.validity, found.error


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_themselves_are_valid(name: str, tmp_path: Path) -> None:
    assert verdict_of(tmp_path, *EXAMPLES[name]) == (Validity.VALID, "")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_cut_is_noticed_or_leaves_a_shorter_history(name: str, tmp_path: Path) -> None:
    model, content = EXAMPLES[name]
    whole_lines = {at + 1 for at, byte in enumerate(content) if byte == ord("\n")} | {
        at for at, byte in enumerate(content) if byte == ord("\n") and name != "log"
    }
    step = 11 if name in ("arrow", "parquet") else 1  # every offset within the 8-byte words of these formats
    for cut in range(0, len(content), step):
        validity, error = verdict_of(tmp_path, model, content[:cut])
        if validity is Validity.VALID and name == "arrow":
            assert read_bytes(content[:cut]) in (EVENTS[:2], EVENTS[:4], EVENTS), f"cut at byte {cut}: a batch is torn"
        elif validity is Validity.VALID:
            assert cut in whole_lines, f"{name} cut at byte {cut} of {len(content)} passed for valid"
        else:
            assert error.startswith(("line ", "row ")) or not error


@pytest.mark.parametrize("name", EXAMPLES)
@given(data=st.data())
def test_flipped_bits_never_break_the_judge(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, content = EXAMPLES[name]
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    verdict_of(tmp_path_factory.getbasetemp(), model, bytes(damaged))


@given(model=st.sampled_from(MODELS), content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_noise_is_refused(model: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    validity, _ = verdict_of(tmp_path_factory.getbasetemp(), model, content)
    assert validity is Validity.UNKNOWN


FUNCTIONS = (
    *("read", "write", "cas", "put", "get", "append", "add", "inc", "enqueue", "dequeue", "drain", "acquire"),
    *("release", "generate", "txn", "send", "poll", "assign", "subscribe"),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "append", "r", "w", "send", "poll", 2**70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=30)
@given(invoked=values, answered=values, f=st.sampled_from(FUNCTIONS))
def test_values_of_the_wrong_shape_are_no_traceback(
    model: str, invoked: object, answered: object, f: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events = [
        Event(0, 0, 0, Type.INVOKE, f, None, payload=json.dumps(invoked)),
        Event(1, 0, 0, Type.OK, f, None, payload=json.dumps(answered)),
    ]
    _, error = verdict_of(tmp_path_factory.getbasetemp(), model, parquet(events_to_table(events)))
    assert "Error" not in error


def broken(change: Callable[[list[Event]], list[Event]]) -> pa.Table:
    return events_to_table(change(list(EVENTS)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "line 1: the file contains no operation"),
        (b"\n\n ; nothing here\n", "line 1: the file contains no operation"),
        (b"{:process 0}\n\x00\x00\x00\n", "line 2: a NUL byte"),
        ("{:process 0, :type :invoke}".encode("utf-16"), "line 1: the file is text in UTF-16"),
        (b"{:process 0}\n\xff\xfe", "line 2: neither Parquet, Arrow nor UTF-8"),
        (b"PAR1 and no more", "row 0: not a history of Krucible"),
        (edn(EVENTS).replace(b":process 2", b":process 99999999999999999999"), "line 5: :process must be a number"),
        (edn(EVENTS).replace(b":process 2", b":process 2.5"), "line 5: :process must be a number of 32 bits"),
        (edn(EVENTS).replace(b":process 2", b':process "2"'), "line 5: :process must be a number of 32 bits"),
        (edn(EVENTS).replace(b":process 2", b":process :c-2"), "line 5: :process must be a number of 32 bits or :n"),
        (edn(EVENTS).replace(b":f :read", b":f 7"), "line 5: an operation's :f must be a keyword"),
        (edn(EVENTS).replace(b":invoke, :f :read", b":done, :f :read"), "line 5: an operation's :type must be invoke"),
        (edn(EVENTS) + b"[1 2]", "line 7: an operation must be a map"),
        (edn(EVENTS) + b'{:process 7 :value "\\ud800"}', "line 7: an unpaired surrogate"),
        (edn(EVENTS) + b"{:process 7 :value " + b"9" * 5000 + b"}", "line 7: a number of more than 1000 digits"),
        (edn(EVENTS) + log(EVENTS), "line 1: an operation is damaged or cut off"),
        (log(EVENTS) + edn(EVENTS), "line 9: an operation is damaged or cut off"),
        (edn(EVENTS).replace(b'"a", :value 100002}', b'"b", :value 100002}'), "line 6: process 2 invoked on key a"),
        (b'{"process": 0, "type": "invoke", "f": "read"}\n[1]\n', "line 2: an operation must be a map"),
        (log(EVENTS).replace(b"\t100002", b"\t[1}"), "line 8: '[' of line 8 is closed by '}'"),
        (log(EVENTS)[:-1], "line 8: the last line has no line feed"),
        (parquet(broken(lambda e: [e[1], e[0]])), "row 1: index 0 does not come after 1"),
        (parquet(broken(lambda e: [e[0], e[0]])), "row 1: index 0 does not come after 0"),
        (parquet(broken(lambda e: [replace(e[0], process=-3)])), "row 0: process -3 is neither a client (0 or"),
        (parquet(events_to_table(EVENTS).drop_columns("f")), "row 0: not a history of Krucible"),
        (stream(EVENTS)[:-40], "row 4: from here on the stream is damaged or cut off"),
    ],
)  # fmt: skip
def test_the_line_or_row_is_named(content: bytes, complaint: str) -> None:
    assert refusal(content).startswith(complaint)


def test_types_and_payloads_of_rows_are_checked() -> None:
    table = events_to_table(EVENTS)
    types = pa.array([0, 0, 1, 3, 9, 1], pa.int8())
    assert refusal(parquet(table.set_column(3, "type", types))).startswith("row 4: type 9 is none of invoke, ok")
    payload = pa.array([None, None, None, None, "[1", None], pa.string())
    assert refusal(parquet(table.set_column(8, "payload", payload))).startswith("row 4: its payload is not JSON")


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    plain = read_bytes(edn(EVENTS))
    assert read_bytes(b"\xef\xbb\xbf" + edn(EVENTS).replace(b"\n", b"\r\n")) == plain
    assert read_bytes(log(EVENTS).replace(b"\n", b"\r\n")) == read_bytes(log(EVENTS))


def test_a_stream_whose_writer_was_killed_between_batches_is_a_shorter_history() -> None:
    assert read_bytes(stream(EVENTS[:4], ended=False)) == EVENTS[:4]


def test_characters_that_java_writes_in_two_halves_are_put_together() -> None:
    text = rb'{:process 0, :type :invoke, :f :write, :value "\uD83D\uDE00"}'
    assert read_bytes(text)[0].payload == json.dumps("\N{GRINNING FACE}")


def test_rebalances_of_a_kafka_test_are_kept() -> None:
    polled = read_bytes(KAFKA)[-1]
    assert json.loads(polled.payload or "") == [["poll", {"0": [[5, 1]]}], ["rebalance", [0]]]


def test_a_completion_that_names_no_key_is_about_the_one_that_was_invoked() -> None:
    events = read_bytes(edn(EVENTS).replace(b':info, :f :cas, :key "a"', b":info, :f :cas"))
    assert [e.key for e in events] == ["a"] * 6
