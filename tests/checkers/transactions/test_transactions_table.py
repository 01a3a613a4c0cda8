"""Histories of transactions as files: the quick reader against the slow one; verdicts in process and on Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_transactions import simulate

from checkers.base.checker import BeyondBudget, Budget, Part
from checkers.base.columns import events_to_table
from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory, Type
from checkers.base.results import as_object
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity
from checkers.catalog import BY_MODEL
from checkers.judging import judge_run, results_of
from checkers.kafka_log.judge import KAFKA, judge_kafka_log
from checkers.kafka_log.judge import judge as judge_kafka
from checkers.sealing.seal import seal
from checkers.spark.session import SparkJudge
from checkers.transactions.checker import LIST_APPEND, RW_REGISTER, SHARES, judge, read_file
from checkers.transactions.judge import judge_transactions, judge_transcript
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.transactions.tape import Tape, at_once, one_after_another


def a_file(folder: Path, events: Sequence[Event], rows_per_group: int = 100) -> str:
    path = folder / "history.parquet"
    pq.write_table(events_to_table(events), path, row_group_size=rows_per_group)
    return str(path)


def content_of(transcript: Transcript) -> list[object]:
    """What a transcript says, in the names of the history."""
    txns = transcript.txns
    return [
        (
            [transcript.micro_operation(row) for row in range(int(txns.first[t]), int(txns.first[t + 1]))],
            int(txns.process[t]),
            int(txns.status[t]),
            int(txns.invoked[t]),
            int(txns.completed[t]),
            transcript.rows(t),
        )
        for t in range(len(txns.status))
    ]


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
@pytest.mark.parametrize("isolation", ["strict-serializable", "read-committed"])
def test_a_file_is_read_as_its_events_are(tmp_path: Path, model: Model, isolation: str) -> None:
    events = simulate(Random(f"{model} {isolation}"), model, isolation, transactions=300, processes=7)
    path = a_file(tmp_path, events)
    quick = read_file(path, model)
    assert not isinstance(quick.events, list)
    assert content_of(quick) == content_of(read_transactions(events, model))
    one, other = judge_transcript(quick), judge_transactions(events, model)
    assert one.validity is other.validity
    assert set(one.details["anomalies"]) == set(other.details["anomalies"])


SMALL: dict[str, tuple[Model, list[list[object]]]] = {
    "keys of both kinds": ("list-append", [["append", "1", 1], ["append", 1, 2], ["append", -7, 3], ["r", "é", []]]),
    "values far apart": ("list-append", [["append", "x", 2_000_000_000], ["r", "x", [2_000_000_000]]]),
    "a value that was never written": ("list-append", [["r", "x", [900_000_000]], ["append", "x", 1_900_000_000]]),
    "nothing": ("list-append", []),
    "nil and a value": ("rw-register", [["r", "x", None], ["w", "x", 1_500_000_000], ["r", "y", 3]]),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("spaced", [True, False])
def test_all_shapes_of_micro_operations(tmp_path: Path, name: str, spaced: bool) -> None:
    model, done = SMALL[name]
    invoked = [[f, k, None if f == "r" else v] for f, k, v in done]
    events = [
        Event(0, 0, 3, Type.INVOKE, "txn", payload=json.dumps(invoked, ensure_ascii=False)),
        Event(1, 1, 3, Type.OK, "txn", payload=json.dumps(done, ensure_ascii=False, indent=1 if spaced else None)),
    ]
    quick = read_file(a_file(tmp_path, events), model)
    assert not isinstance(quick.events, list)
    assert content_of(quick) == content_of(read_transactions(events, model))


def test_the_same_value_that_was_never_written_is_one_value(tmp_path: Path) -> None:
    events = one_after_another("ax1", "rx19", "rx19")
    far = [replace(e, payload=(e.payload or "").replace("9", "1999999999")) for e in events]
    verdict = judge_transcript(read_file(a_file(tmp_path, far), "list-append"))
    assert list(verdict.details["anomalies"]) == ["unwritten-read"]
    assert "1999999999" in verdict.witnesses[0].summary


STRANGE = ('[["append", "x", "text"]]', '[["append", "x\\u0041", 1]]', '[["append", "x", -1]]', '[["append",[1],1]]')


@pytest.mark.parametrize("payload", STRANGE)
def test_what_kernels_do_not_read_is_read_all_the_same(tmp_path: Path, payload: str) -> None:
    events = [Event(0, 0, 0, Type.INVOKE, "txn", payload=payload), Event(1, 1, 0, Type.OK, "txn", payload=payload)]
    slow = read_file(a_file(tmp_path, events), "list-append")
    assert isinstance(slow.events, list)
    assert content_of(slow) == content_of(read_transactions(events, "list-append"))


DAMAGED = ("[", "[]]", '[["r","x"]]', '[["r","x",[1,]]]', '[["r","x",[1]]', '[["q","x",1]]', '[["r","x",1]]', "7", None)


@pytest.mark.parametrize("payload", DAMAGED)
def test_a_payload_that_is_no_transaction_is_refused_with_its_event(tmp_path: Path, payload: str | None) -> None:
    events = [replace(e, payload=payload) if e.type is Type.OK else e for e in one_after_another("rx")]
    with pytest.raises(MalformedHistory, match=r"(event|index) 1"):
        read_file(a_file(tmp_path, events), "list-append")


OTHER_ANSWERS = (
    ([["append", "x", 2], ["r", "y", []]], "micro-operation 1"),
    ([["append", "z", 1], ["r", "y", []]], "micro-operation 1"),
    ([["r", "x", []], ["r", "y", []]], "micro-operation 1"),
    ([["append", "x", 1], ["r", "x", [1]]], "micro-operation 2"),
    ([["append", "x", 1], ["append", "y", 5]], "micro-operation 2"),
    ([["append", "x", 1]], "2 micro-operations were invoked and 1 completed"),
    ([["append", "x", 1], ["r", "y", []], ["r", "z", []]], "2 micro-operations were invoked and 3 completed"),
    ([["append", "x", True], ["r", "y", []]], "micro-operation 1"),
)


@pytest.mark.parametrize(("done", "words"), OTHER_ANSWERS)
def test_an_answer_to_something_else_than_was_invoked_is_refused(
    tmp_path: Path, done: list[list[object]], words: str
) -> None:
    tape = Tape()
    for at, answer in enumerate([[["r", "w", []]], [["append", "x", 1], ["r", "y", []]]]):
        tape.record(at, Type.INVOKE, [[f, k, None if f == "r" else v] for f, k, v in answer])
        tape.record(at, Type.OK, done if at else answer)
    with pytest.raises(MalformedHistory, match=f"index 3: .*{words}"):
        read_file(a_file(tmp_path, tape.events), "list-append")


def test_an_invoke_without_a_payload_fixes_no_answer(tmp_path: Path) -> None:
    events = one_after_another("ax1", "rx1", "ay1")
    mute = [replace(e, payload=None) if e.index == 2 else e for e in events]
    quick = read_file(a_file(tmp_path, mute), "list-append")
    assert not isinstance(quick.events, list), "the kernels read it"
    assert content_of(quick) == content_of(read_transactions(mute, "list-append"))


def test_many_keys_in_many_row_groups(tmp_path: Path) -> None:
    tape = Tape()
    for i in range(3000):
        tape.record(0, Type.INVOKE, [["append", f"key-{i}", 0], ["r", i, None]])
        tape.record(0, Type.OK, [["append", f"key-{i}", 0], ["r", i, []]])
    assert content_of(read_file(a_file(tmp_path, tape.events), "list-append")) == content_of(
        read_transactions(tape.events, "list-append")
    )


def test_the_nemesis_and_set_up_are_no_transactions(tmp_path: Path) -> None:
    events = at_once("ax1", "rx1")
    others = [
        Event(0, 0, NEMESIS, Type.INFO, "cut", payload="{}"),
        Event(0, 0, 9, Type.INVOKE, CREATE, key="x"),
        Event(0, 0, 9, Type.OK, CREATE, key="x"),
    ]
    mixed = [replace(e, index=i, time_ns=i) for i, e in enumerate([*others, *events])]
    assert len(read_file(a_file(tmp_path, mixed), "list-append").txns.status) == 2
    assert len(read_transactions(mixed, "list-append").txns.status) == 2


# Used as checkers of a run


def a_run(folder: Path, events: Sequence[Event]) -> StoredRun:
    folder.mkdir()
    with pa.ipc.new_stream(folder / "history.arrows", events_to_table([]).schema) as stream:
        stream.write_table(events_to_table(events))
    seal(folder)
    return StoredRun(folder)


def as_written(results: dict[str, object]) -> str:
    """Results without what the clock and the place say."""
    text: dict[str, object] = json.loads(json.dumps(results))
    del text["judged_by"]
    for entry in text["checkers"].values():  # type: ignore[attr-defined]
        del entry["seconds"]
    return json.dumps(text, sort_keys=True)


@pytest.mark.spark
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_verdict_and_witness_are_the_same_on_spark(tmp_path: Path, model: Model, spark: SparkJudge) -> None:
    weak = simulate(Random(7), model, "read-committed", transactions=2000, processes=9)
    valid = simulate(Random(8), model, "strict-serializable", transactions=500, processes=9)
    for name, events, expected in (("weak", weak, Validity.INVALID), ("valid", valid, Validity.VALID)):
        run = a_run(tmp_path / name, events)
        here = judge_run(run, [BY_MODEL[model]])
        there = judge_run(run, [BY_MODEL[model]], spark)
        assert "Spark" in there.judged_by
        assert here[model].validity is expected
        assert as_written(as_object(results_of(here))) == as_written(as_object(results_of(there)))


@pytest.mark.spark
def test_kafka_is_judged_the_same_on_spark(tmp_path: Path, spark: SparkJudge) -> None:
    lines = [
        ("send", [["send", "k", 1]], [["send", "k", [5, 1]]]),
        ("send", [["send", "k", 2]], [["send", "k", [3, 2]]]),
        ("poll", [["poll"]], [["poll", {"k": [[5, 1]]}]]),
    ]
    events = []
    for process, (f, *payloads) in enumerate(lines):
        for type_, payload in zip((Type.INVOKE, Type.OK), payloads, strict=True):
            events.append(Event(len(events), 0, process, type_, f, payload=json.dumps(payload)))
    run = a_run(tmp_path / "run", events)
    here, there = judge_run(run, [BY_MODEL["kafka"]]), judge_run(run, [BY_MODEL["kafka"]], spark)
    assert list(here["kafka"].details["anomalies"]) == ["lost-write", "nonmonotonic-send"]
    assert here["kafka"].witnesses == judge_kafka_log(events).witnesses
    assert as_written(as_object(results_of(here))) == as_written(as_object(results_of(there)))


def test_a_run_without_transactions_and_one_too_large(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", at_once("ax1", "rx1"))
    (part,) = LIST_APPEND.split(run)
    assert judge(part, Budget()).validity is Validity.VALID
    assert judge(part, Budget(size_bytes=10)).validity is Validity.UNKNOWN
    assert judge(Part(part.paths, {**part.params, "consistency": "serializable"}), Budget()).validity is Validity.VALID
    others = a_run(tmp_path / "others", [Event(0, 0, NEMESIS, Type.INFO, "cut", payload="{}")])
    assert judge_run(others, [RW_REGISTER])["rw-register"].validity is Validity.UNKNOWN


def test_texts_that_repeat_are_counted_before_they_are_all_in_memory(tmp_path: Path) -> None:
    """A text that repeats is stored once, so the footer of the file says little about memory."""
    long_text = json.dumps([["append", "x", 1]] + [["r", "x", None]] * 400)
    events = [Event(i, i, i, Type.INVOKE, "txn", None, None, None, long_text) for i in range(2_000)]
    path = a_file(tmp_path, events)
    size_bytes = 2_000_000
    assert Path(path).stat().st_size < size_bytes < 2_000 * len(long_text)
    share = Budget(size_bytes=size_bytes // SHARES)
    for judged in (
        judge(LIST_APPEND.split(StoredRun(tmp_path))[0], share),
        judge_kafka(KAFKA.split(StoredRun(tmp_path))[0], share),
    ):
        assert judged.validity is Validity.UNKNOWN
        assert re.search(r"the first \d+00 of 2000 rows take \d+ bytes, and the budget is 2000000", judged.reason)


def test_the_slow_reader_is_not_begun_beyond_its_budget(tmp_path: Path) -> None:
    """What the kernels cannot read becomes an object a row."""
    strange = json.dumps([["append", "x", "no number"]])
    events = [Event(i, i, i, Type.INVOKE, "txn", None, None, None, strange) for i in range(2_000)]
    path = a_file(tmp_path, events)
    with pytest.raises(BeyondBudget, match="2000 rows that only the slow reader understands take 2400000 bytes"):
        read_file(path, "list-append", 2_399_999)
