"""The recorder: what was recorded can be read back, torn or whole."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.base.columns import HISTORY, read_history, read_stream
from checkers.base.history import MalformedHistory, Type
from checkers.record.faults import Achieved, Card, FaultRecord, Measurement
from checkers.record.run_record import BEGAN, ENDED, JournalEnd, PhaseChange, RunRecord
from harness.run.clock import MACHINE
from harness.run.recorder import Recorder
from system_under_test.client import Outcome, Request


def recorder(folder: Path) -> Recorder:
    return Recorder(folder / "history.arrows", MACHINE)


def test_an_operation_is_two_rows_and_the_answer_stands_in_the_second(tmp_path: Path) -> None:
    r = recorder(tmp_path)
    r.invoke(3, Request("read", "k1"))
    r.complete(3, Request("read", "k1"), Outcome(Type.OK, value=7, node="n2"))
    r.enter(PhaseChange("main", ENDED))
    r.end()
    r.close()
    invoke, answer = read_history(tmp_path).to_pylist()
    phase, end = RunRecord(tmp_path).journal
    assert (invoke["index"], invoke["type"], invoke["value"]) == (0, Type.INVOKE, None)
    assert (answer["index"], answer["type"], answer["value"], answer["node"]) == (1, Type.OK, 7, "n2")
    assert phase.row == 2 and phase.happened == PhaseChange("main", ENDED)
    assert end.happened == JournalEnd(2)
    assert invoke["time_ns"] <= answer["time_ns"] <= phase.time_ns <= end.time_ns


def test_a_fault_is_written_once_with_all_its_measurements(tmp_path: Path) -> None:
    r = recorder(tmp_path)
    first, second = Measurement("inject", 1, 2), Measurement("hold", 2, 3)
    fault = FaultRecord(Card(1, "kill", "leader", 0.0, 1.0), Achieved.INDETERMINATE, "n1 ends", measured=(first,))
    for record in (fault, replace(fault, measured=(first, second), achieved=Achieved.INSTALLED)):
        r.fault_changed(record)
    assert RunRecord(tmp_path).faults == (record,), "a harness that is killed now has recorded it"
    assert (tmp_path / "journal.jsonl").read_text().count('"inject"') == 1
    r.close()


def test_the_last_line_of_a_killed_harness_may_be_torn(tmp_path: Path) -> None:
    r = recorder(tmp_path)
    r.enter(PhaseChange("main", BEGAN))
    r.close()
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text() * 2 + path.read_text()[:-5])
    record = RunRecord(tmp_path)
    assert len(record.journal) == 2 and record.ended is None and record.outcome is None


def test_each_batch_is_handed_over_once_it_is_on_disk(tmp_path: Path) -> None:
    handed: list[tuple[int, int]] = []
    path = tmp_path / "history.arrows"
    r = Recorder(path, MACHINE, lambda batch: handed.append((batch.num_rows, len(read_stream(path)))))
    for process in range(3):
        r.invoke(process, Request("read", "k1"))
    r.flush()
    r.flush()
    r.complete(0, Request("read", "k1"), Outcome(Type.OK))
    r.close()
    assert handed == [(3, 3), (1, 4)]


@pytest.mark.parametrize("type_", [Type.FAIL, Type.INFO])
def test_without_an_answer_the_row_keeps_what_was_invoked(tmp_path: Path, type_: Type) -> None:
    r = recorder(tmp_path)
    r.invoke(0, Request("write", "k1", 5))
    r.complete(0, Request("write", "k1", 5), Outcome(type_, error="timed out", node="n1"))
    r.close()
    _, end = read_history(tmp_path).to_pylist()
    assert (end["value"], end["error"], end["type"]) == (5, "timed out", type_)


text = st.text(max_size=20)
requests = st.builds(
    Request, f=text, key=st.none() | text, value=st.none() | st.integers(-(2**63), 2**63 - 1), payload=st.none() | text
)


@settings(max_examples=40)
@given(recorded=st.lists(st.tuples(requests, st.booleans()), max_size=30))
def test_any_text_and_any_flush_pattern_survives(recorded: list[tuple[Request, bool]], tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("run")
    r = recorder(folder)
    for process, (request, flush) in enumerate(recorded):
        r.invoke(process, request)
        if flush:
            r.flush()
    r.close()
    table = read_history(folder)
    assert table.schema.equals(HISTORY)
    rows = table.to_pylist()
    assert [row["index"] for row in rows] == list(range(len(recorded)))
    for row, (request, _) in zip(rows, recorded, strict=True):
        assert {name: row[name] for name in ("f", "key", "value", "payload")}.items() <= asdict(request).items()


def test_a_torn_stream_keeps_every_whole_second(tmp_path: Path) -> None:
    """A harness killed with -9 leaves a stream without its end, cut anywhere."""
    r = recorder(tmp_path)
    sizes = []
    for second in range(4):
        for _ in range(5):
            r.invoke(second, Request("write", "k1", second))
        r.flush()
        sizes.append((tmp_path / "history.arrows").stat().st_size)
    whole = (tmp_path / "history.arrows").read_bytes()
    r.close()
    torn = tmp_path / "torn.arrows"
    for cut in range(sizes[0], len(whole) + 1, 7):
        torn.write_bytes(whole[:cut])
        kept = read_stream(torn)
        assert kept.num_rows == 5 * sum(size <= cut for size in sizes)


def test_the_clock_begins_anew_only_before_anything_was_recorded(tmp_path: Path) -> None:
    r = recorder(tmp_path)
    zero = r.started_monotonic_ns
    assert r.begin() > zero
    r.invoke(0, Request("read", "k1"))
    with pytest.raises(ValueError, match="recorded"):
        r.begin()
    r.close()


def test_what_is_no_history_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match=r"holds neither"):
        read_history(tmp_path)
    (tmp_path / "history.arrows").write_bytes(b"not arrow")
    with pytest.raises(MalformedHistory, match="not an Arrow stream"):
        read_history(tmp_path)
