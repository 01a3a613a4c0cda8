"""One reader: whole files give typed values, and every damage gives one error that names file and field."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.record.copies import Copy
from checkers.record.faults import Achieved, Card, FaultRecord, Measurement, Proof
from checkers.record.files import BrokenFile
from checkers.record.header import Header
from checkers.record.outcome import Death, Phase, RunOutcome
from checkers.record.reading import COPIES_INDEX, FAULTS, OUTCOME, TEST, RunRecord, decoded, read_json
from checkers.record.writing import as_json, write_json_whole

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


def run(folder: Path, format: int = 2, **files: Any) -> RunRecord:
    """A run folder with these small files; names without their ending."""
    header = {"run_id": "1", "started_monotonic_ns": 5, "spec": {}, "clocks": {}, "generators": 1}
    for name, content in ({"test": header | {"format": format}} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return RunRecord(folder)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.tar.xz")), ids=lambda path: path.stem)
def test_every_recorded_run_can_be_read(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    record = RunRecord(tmp_path)
    assert record.header is not None and record.header.schedule and record.outcome is not None
    assert {card.number for card in record.header.schedule} >= {fault.card.number for fault in record.faults} != set()
    assert record.outcome.recovery is not None and record.outcome.recovery.recovered is not None
    assert record.outcome.phase("main") is not None and record.outcome.stopped is None
    assert all(fault.measurements and fault.inject_proof for fault in record.faults if fault.injected_ns >= 0)
    assert {copy.node for copy in record.copies} <= {"n1", "n2", "n3", "n4", "n5"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    outcome = RunOutcome({"nodes": True}, 1.0, phases=(Phase("main", 1, 2),), deaths=(Death("n1", 7, -9, True),))
    copy = Copy(0, "final", "n1", "running", "nodes/n1/copies/0", 5, 9)
    run(tmp_path)
    for name, content in ((OUTCOME, outcome), (FAULTS, (FAULT,)), (COPIES_INDEX, (copy,))):
        write_json_whole(tmp_path / name, content)
    record = RunRecord(tmp_path)
    assert (record.outcome, record.faults, record.copies) == (outcome, (FAULT,), (copy,))


def test_what_is_missing_is_empty(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    assert (record.header, record.outcome, record.faults, record.copies) == (None, None, (), ())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "faults.json is not JSON"),
        (b"[{]", "faults.json is not JSON"),
        (b"\xff\xfe", "faults.json is not JSON"),
        (b"[NaN]", "faults.json is not JSON"),
        (b"[" * 200_000, "faults.json is not JSON"),
        (b"{}", "faults.json: expected array, got object"),
        (b"null", "faults.json: expected array, got null"),
        (b"[7]", "faults.json: [0]: expected object, got int"),
        (b"[[1" + b"0" * 30 + b"]]", "faults.json: [0][0] is an integer beyond 64 bits"),
    ],
)
def test_a_file_of_another_shape_is_broken(content: bytes, words: str, tmp_path: Path) -> None:
    record = run(tmp_path)
    (tmp_path / FAULTS).write_bytes(content)
    with pytest.raises(BrokenFile) as problem:
        _ = record.faults
    assert str(problem.value).startswith(words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": "n1"}, "faults.json: [0].nodes: expected array, got str"),
        ({"injected_ns": 1.5}, "faults.json: [0].injected_ns: expected int, got float"),
        ({"injected_ns": True}, "faults.json: [0].injected_ns: expected int, got bool"),
        ({"healed_ns": 2**63}, "faults.json: [0].healed_ns is an integer beyond 64 bits"),
        ({"achieved": "perhaps"}, "faults.json: [0].achieved: invalid enum value 'perhaps'"),
        ({"cut": [["n1"]]}, "faults.json: [0].cut[0]: expected array of length 2"),
        ({"card": {"number": 1}}, "faults.json: [0].card lacks kind"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    record = run(tmp_path, faults=[as_json(FAULT) | change])
    with pytest.raises(BrokenFile) as problem:
        _ = record.faults
    assert str(problem.value).startswith(words)


def _fields(value: Any, *at: Any) -> Iterator[tuple[Any, ...]]:
    """The places of all fields of records within this JSON."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(name, str) and at[-1:] not in (("links",), ("states",), ("settings",), ("values",)):
            yield (*at, name)
        yield from _fields(each, *at, name)


@pytest.mark.parametrize("at", list(_fields([as_json(FAULT)])), ids=str)
def test_no_field_of_todays_format_may_be_missing(at: tuple[Any, ...], tmp_path: Path) -> None:
    faults = [as_json(FAULT)]
    holder: Any = faults
    for step in at[:-1]:
        holder = holder[step]
    del holder[at[-1]]
    with pytest.raises(BrokenFile, match=f"lacks {at[-1]}, which every run of its format records"):
        _ = run(tmp_path, faults=faults).faults


def test_older_formats_may_lack_what_they_did_not_record(tmp_path: Path) -> None:
    old = {"card": as_json(FAULT.card), "achieved": "installed", "words": "n1 was killed"}
    (fault,) = run(tmp_path, 1, faults=[old]).faults
    assert not fault.impossible and fault.measured == ()
    (fault,) = run(tmp_path, 0, faults=[old]).faults
    assert fault.measured is None and fault.ordered is None
    outcome = run(tmp_path, 1, outcome={"deaths": [{"node": "n1", "time_ns": 5, "bidden": True}]}).outcome
    assert outcome is not None and outcome.deaths[0].ordered


@pytest.mark.parametrize("format", [None, "2", True, -1, 2.5, [], 3, 10**9])
def test_what_is_no_older_format_is_held_to_todays(format: Any, tmp_path: Path) -> None:
    record = run(tmp_path, format, faults=[{"card": as_json(FAULT.card)}])
    with pytest.raises(BrokenFile, match="lacks"):
        _ = record.faults


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    assert run(tmp_path, faults=[as_json(FAULT) | {"later": 1}]).faults == (FAULT,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["card", "phases", "deaths"]), inner),
)


@given(
    JSON, st.sampled_from([Header, RunOutcome, tuple[FaultRecord, ...], tuple[Copy, ...]]), st.sampled_from([0, 1, 2])
)
def test_no_json_does_anything_but_decode_or_break(raw: Any, type_: Any, format: int) -> None:
    try:
        decoded("some.json", raw, type_, format)
    except BrokenFile as problem:
        assert str(problem).startswith("some.json: ")


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_written_and_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "text.json"
    write_json_whole(path, [text])
    assert read_json(path) == [text.encode("utf-8", "replace").decode()]


def test_the_types_themselves_need_only_the_standard_library() -> None:
    import subprocess

    code = "import sys, checkers.record.header, checkers.record.copies; sys.exit('msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_header_names_file_and_field(tmp_path: Path) -> None:
    record = run(tmp_path)
    (tmp_path / TEST).write_text(json.dumps({"format": 2, "run_id": 5}))
    with pytest.raises(BrokenFile, match=r"test\.json: it lacks spec"):
        _ = record.header
