"""The manifest: every primary file is bound, and a change of any is named."""

from collections.abc import Callable
from pathlib import Path

import pytest
from histories import Script, write_stream

from checkers.sealing.manifest import broken_bonds, is_bound, write_manifest
from checkers.sealing.seal import seal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_stream(tmp_path, Script().invoke(0, "write", 1).ok(0).events)
    for name in (
        "test.json",
        "schedule.json",
        "trace/n1.jsonl",
        "nodes/n1/copies/0/log",
        "subject/main.json",
        "subject/mine.py",
        "workload/mine.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    write_manifest(tmp_path)
    return tmp_path


def test_what_was_bound_stays_bound_when_the_run_is_sealed_and_judged(run: Path) -> None:
    assert broken_bonds(run) == []
    seal(run)
    (run / "results.json").write_text("{}")
    (run / "report.html").write_text("")
    assert broken_bonds(run) == []
    assert is_bound(run, "history.parquet") and not is_bound(run, "history.arrows")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", [Path.unlink, emptied, flipped])
@pytest.mark.parametrize(
    "name",
    [
        "test.json",
        "trace/n1.jsonl",
        "nodes/n1/copies/0/log",
        "history.parquet",
        "subject/main.json",
        "subject/mine.py",
        "workload/mine.py",
    ],
)
def test_a_file_that_was_changed_is_named(run: Path, name: str, change: Callable[[Path], None]) -> None:
    seal(run)
    change(run / name)
    [clause] = broken_bonds(run)
    assert clause.startswith(f"{name} ")


@pytest.mark.parametrize(
    ("name", "clauses"),
    [
        ("trace/n2.jsonl", ["trace/n2.jsonl was added after the run"]),
        ("subject/__pycache__/mine.cpython-311.pyc", []),
        ("manifest.json", ["manifest.json holds no JSON object"]),
    ],
)
def test_a_file_that_is_written_after_the_run_is_named_unless_python_makes_it(
    run: Path, name: str, clauses: list[str]
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("[]")
    assert broken_bonds(run) == clauses


def test_sealing_vouches_for_no_stream_that_was_changed(run: Path) -> None:
    write_stream(run, Script().invoke(0, "write", 2).ok(0).events)
    seal(run)
    assert [clause.split()[0] for clause in broken_bonds(run)] == ["history.arrows"]
    assert (run / "history.arrows").exists(), "the stream that was changed is kept"


def test_without_a_manifest_nothing_is_bound(run: Path) -> None:
    (run / "manifest.json").unlink()
    seal(run)
    [clause] = broken_bonds(run)
    assert "there is no manifest.json" in clause
