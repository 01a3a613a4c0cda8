"""The small files of a run: what is read, damage that is named, and one reader, so that damage has one error."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journals import write_header, write_journal

from checkers.record.faults import AT_TIMES, Achieved, Card, Copy, FaultRecord, Measurement, Proof
from checkers.record.files import BrokenFile, as_json, write_json_whole
from checkers.record.header_and_outcome import (
    UNBOUNDED_NS,
    Death,
    Header,
    Phase,
    RunOutcome,
    error_ns,
    one_clock,
    one_kernel,
    started_on,
)
from checkers.record.run_record import EVENTS, FORMAT, JOURNAL, TEST, RunRecord, decoded, number, read_json, real
from tests.support.records_of_runs import header_of

DATA = Path(__file__).parents[2] / "data"
FAULT = FaultRecord(
    Card(3, "kill", "leader", 3.0, 8.0),
    Achieved.INSTALLED,
    "n1 was killed",
    nodes=("n1",),
    injected_ns=4,
    measured=(Measurement("hold", 4, 5, {"n1>n2": (50, 0)}, (("n1", "n2"),), states={"n1": "dead"}),),
    inject_proof=Proof("as ordered"),
)


def run(folder: Path, *lines: Any) -> RunRecord:
    """A run folder whose journal has these lines."""
    write_header(folder, run_id="1")
    (folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunRecord(folder)


def of_fault(**changes: Any) -> dict[str, Any]:
    return {"time_ns": 5, "row": 0, "event": "fault", "record": as_json(FAULT) | changes}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.tar.xz")), ids=lambda path: path.stem)
def test_every_recorded_run_can_be_read(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    record = RunRecord(tmp_path)
    assert record.header is not None and record.header.schedule and record.outcome is not None
    assert {card.number for card in record.header.schedule} >= {fault.card.number for fault in record.faults} != set()
    assert record.outcome.recovery is not None and record.outcome.recovery.recovered is not None
    assert record.outcome.phase("main") is not None and record.outcome.stopped is None
    assert all(fault.measured and fault.inject_proof for fault in record.faults if fault.injected_ns >= 0)
    assert {copy.node for copy in record.copies} <= {"n1", "n2", "n3", "n4", "n5"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    phases = (Phase("main", 1, 2, 0, 4), Phase("collection", 5, 6, 4, 4, broken_off=True))
    outcome = RunOutcome({"nodes": True}, 1.0, phases=phases, deaths=(Death("n1", 7, -9, True),))
    copy = Copy(0, "final", "n1", "running", "nodes/n1/copies/0", 5, 9)
    write_journal(tmp_path, outcome=outcome, faults=[FAULT], copies=[copy])
    record = RunRecord(tmp_path)
    assert (record.outcome, record.faults, record.copies) == (outcome, (FAULT,), (copy,))


def test_the_record_of_a_fault_is_its_last_one_with_all_its_measurements(tmp_path: Path) -> None:
    later = Measurement("heal", 6, 7)
    last = of_fault(achieved="indeterminate", measured=as_json((later,)))
    (fault,) = run(tmp_path, of_fault(), last).faults
    assert fault == replace(FAULT, achieved=Achieved.INDETERMINATE, measured=(*FAULT.measured, later))


def test_what_is_missing_is_empty(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    assert (record.header, record.outcome, record.faults, record.copies) == (None, None, (), ())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[{]", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[NaN]", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"null", "not a JSON object"),
        (b"[7]", "not a JSON object"),
        (b"{}", "'None' is no event of a journal"),
        (b'{"event": "fault", "record": 1}', "time_ns and row must be whole numbers, 0 or more"),
        (b'{"event": "end", "time_ns": true, "row": 0}', "time_ns and row must be whole numbers, 0 or more"),
        (b'{"event": "end", "time_ns": 1' + b"0" * 30 + b', "row": 0}', "time_ns is an integer beyond 64 bits"),
    ],
)
def test_a_line_of_another_shape_is_broken(line: bytes, words: str, tmp_path: Path) -> None:
    record = run(tmp_path)
    (tmp_path / JOURNAL).write_bytes(line + b"\n")
    with pytest.raises(BrokenFile, match=r"^journal\.jsonl, line 1") as problem:
        _ = record.faults
    assert words in str(problem.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": "n1"}, "record.nodes: expected array, got str"),
        ({"injected_ns": 1.5}, "record.injected_ns: expected int, got float"),
        ({"injected_ns": True}, "record.injected_ns: expected int, got bool"),
        ({"healed_ns": 2**63}, "record.healed_ns is an integer beyond 64 bits"),
        ({"achieved": "perhaps"}, "record.achieved: invalid enum value 'perhaps'"),
        ({"cut": [["n1"]]}, "record.cut[0]: expected array of length 2"),
        ({"card": {"number": 1}}, "record.card: object missing required field kind"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    record = run(tmp_path, of_fault(**change))
    with pytest.raises(BrokenFile) as problem:
        _ = record.faults
    assert str(problem.value).startswith(f"journal.jsonl, line 1: {words}")


def _fields(value: Any, *at: Any) -> Iterator[tuple[Any, ...]]:
    """The places of all fields of records within this JSON."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(name, str) and at[-1:] not in (("links",), ("states",), ("settings",), ("values",)):
            yield (*at, name)
        yield from _fields(each, *at, name)


AT_TIMES_OF_CARD = {field.name for field in fields(Card) if field.metadata == AT_TIMES}


@pytest.mark.parametrize("at", [at for at in _fields(as_json(FAULT)) if at[-1] not in AT_TIMES_OF_CARD], ids=str)
def test_no_field_may_be_missing(at: tuple[Any, ...], tmp_path: Path) -> None:
    line = of_fault()
    holder: Any = line["record"]
    for step in at[:-1]:
        holder = holder[step]
    del holder[at[-1]]
    with pytest.raises(BrokenFile, match=f"(lacks|missing required field) {at[-1]}"):
        _ = run(tmp_path, line).faults


def test_a_card_from_before_heals_could_wait_waits_for_no_moment(tmp_path: Path) -> None:
    line = of_fault()
    for name in AT_TIMES_OF_CARD:
        del line["record"]["card"][name]
    assert run(tmp_path, line).faults[0].card.until == ""


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    assert run(tmp_path, of_fault(later=1)).faults == (FAULT,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["card", "phases", "deaths"]), inner),
)


@given(JSON, st.sampled_from([Header, *EVENTS.values(), tuple[Copy, ...]]), st.booleans())
def test_no_json_does_anything_but_decode_or_break(raw: Any, type_: Any, whole: bool) -> None:
    try:
        decoded("some.json", raw, type_, whole=whole)
    except BrokenFile as problem:
        assert str(problem).startswith("some.json: ")


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_written_and_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "text.json"
    write_json_whole(path, [text])
    assert read_json(path) == [text.encode("utf-8", "replace").decode()]


def test_the_types_themselves_need_only_the_standard_library() -> None:
    code = "import sys, checkers.record.header_and_outcome, checkers.record.faults; sys.exit('msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_header_names_file_and_field(tmp_path: Path) -> None:
    record = run(tmp_path)
    (tmp_path / TEST).write_text(json.dumps({"format": FORMAT}))
    with pytest.raises(BrokenFile, match=r"test\.json: object missing required field spec"):
        _ = record.header


# A number that a file states is used only if it fits into 64 bits


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400, 2**63, -(2**63) - 1, 1e300, True, "1", None, []]
)
def test_what_is_no_number_of_64_bits_counts_as_missing(value: Any) -> None:
    assert (number(value, -7), real(value, -7.5)) == (-7, -7.5)


@pytest.mark.parametrize("value", [0, -(2**63), 2**63 - 1, 2.75])
def test_a_number_is_read(value: float) -> None:
    assert (number(value, -7), real(value, -7.5)) == (int(value), float(value))


# Clocks of nodes

REMOTE = header_of(
    {
        "spec": {"backend": "ssh"},
        "started_monotonic_ns": 1_000,
        "clocks": {"n1": {"ahead_ns": 500, "error_ns": 7}, "n2": {"ahead_ns": -2_000, "error_ns": 9}},
    }
)


def test_nodes_of_one_machine_share_the_clock_of_the_harness_and_others_have_their_own() -> None:
    test = header_of({"spec": {"backend": "docker"}, "started_monotonic_ns": 1_000, "clocks": {}})
    assert one_clock(test)
    assert (started_on(test)("n1"), error_ns(test, "n1")) == (1_000, 0)
    assert not one_clock(REMOTE)
    assert [started_on(REMOTE)(node) for node in ("n1", "n2", "n3")] == [1_500, -1_000, 1_000]
    assert [error_ns(REMOTE, node) for node in ("n1", "n2", "n3")] == [7, 9, UNBOUNDED_NS]


@pytest.mark.parametrize("test", [None, header_of({}), header_of({"spec": {"backend": "ssh"}})])
def test_what_was_not_measured_is_not_known(test: Header | None) -> None:
    assert not one_clock(test)
    assert (started_on(test)("n1"), error_ns(test, "n1")) == (0, UNBOUNDED_NS)


@pytest.mark.parametrize(
    ("recorded", "one", "kernel"),
    [("same kernel", True, True), ("same machine", True, False), ("own", False, False), ("mine", False, False)],
)
def test_the_clock_that_a_run_records_decides_and_not_the_name_of_its_backend(
    recorded: str, one: bool, kernel: bool
) -> None:
    for backend in ("docker", "ssh", "a backend of next year"):
        test = header_of({"spec": {"backend": backend}, "nodes_clock": recorded})
        assert (one_clock(test), one_kernel(test)) == (one, kernel)


ROOT = Path(__file__).parents[3]
ROOMS = ("harness", "nemesis", "checkers", "workloads", "simulation", "system_under_test", "krucible", "bench")
READERS = {"checkers/record/run_record.py", "checkers/base/results.py"}
NAMES = {"test.json", "journal.jsonl", "results.json"}
CONSTANTS = {"TEST", "JOURNAL", "RESULTS"}
DECODERS = {"loads", "load", "decode", "read_json", "read_object", "read_objects"}


def test_nobody_else_decodes_a_small_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in READERS
        for line in raw_readers(path.read_text())
    ]
    assert found == [], "read these through checkers.record.run_record.RunRecord or checkers.base.results.read_results"


def test_the_search_finds_a_raw_reader_and_leaves_others_alone() -> None:
    raw = 'def f(root):\n    return json.loads((root / "results.json").read_text())\n'
    by_constant = "def f(root):\n    return read_object(root / RESULTS)\n"
    there = 'def f(root):\n    return (root / "results.json").exists()\n'
    other = 'def f(root):\n    return json.loads((root / "campaign.json").read_text())\n'
    assert [list(raw_readers(text)) for text in (raw, by_constant, there, other)] == [[1], [1], [], []]


def _small(name: ast.AST) -> bool:
    inside = list(ast.walk(name))
    return any(
        (isinstance(each, ast.Constant) and each.value in NAMES)
        or (isinstance(each, ast.Name) and each.id in CONSTANTS)
        for each in inside
    )


def raw_readers(text: str) -> Iterator[int]:
    """The lines of functions that name a small file and decode JSON."""
    if not any(name in text for name in (*NAMES, *CONSTANTS)):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
            if _small(node) and any(_name(call.func) in DECODERS for call in calls):
                yield node.lineno


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
