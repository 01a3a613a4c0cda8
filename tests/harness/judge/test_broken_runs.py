"""Run folders of which a piece is broken: judged as far as they go, or refused in one sentence.  Never a traceback.

A broken piece never makes a valid run of what was not looked at; but what a node printed is
not judged and may be gone, and a trace or log that was cut between two rows ended there.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from harness.cli.main import cli
from harness.run.exceptions_for_users import expected

DATA = Path(__file__).parents[2] / "data"

DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "half of it": lambda content: content[: len(content) // 2],
    "nothing": lambda content: b"",
    "noise": lambda content: bytes(range(128, 256)),
    "gone": lambda content: None,
    "a line of noise": lambda content: bytes(range(128, 256)) + b"\n" + content,
    "another object": lambda content: b"{}",
    "a list": lambda content: b'[1, {"a": null}]',
    "nulls": lambda content: b'[{"copy": null, "node": null, "when": 3, "state": [], "folder": 5}]',
}

USUAL = ("half of it", "noise", "gone", "a line of noise")

REFUSED, UNKNOWN = 3, 2
PIECES: dict[str, int] = {
    "test.json": REFUSED,
    "history.parquet": REFUSED,
    "journal.jsonl": UNKNOWN,
    "trace/n2.jsonl": UNKNOWN,
    "nodes/n3/copies/1/__cluster_metadata-0/quorum-state": UNKNOWN,
    "nodes/n3/copies/1/__cluster_metadata-0/00000000000000000000.log": UNKNOWN,
}
"""Piece of a valid run -> the exit code that analyze ends with where it is broken."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    content = lzma.decompress((DATA / "kraft-partition.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def ended(command: str, *arguments: object) -> tuple[int, str]:
    """Exit code and words of a command that may refuse, but only in words."""
    result = CliRunner().invoke(cli, [command, *map(str, arguments)])
    if isinstance(result.exception, expected()):
        assert "\n" not in str(result.exception)
        return 3, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def other_columns(run: Path) -> None:
    pq.write_table(pa.table({"surprise": [1, 2]}), run / "history.parquet")


def with_test(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    test = json.loads((run / "test.json").read_bytes())
    change(test)
    (run / "test.json").write_text(json.dumps(test))


STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a history of other columns": (other_columns, "not a Parquet history"),
    "a start that no clock shows": (
        lambda run: with_test(run, lambda test: test.update(started_monotonic_ns=10**40)),
        "started_monotonic_ns is an integer beyond 64 bits",
    ),
    "a start before the clock": (
        lambda run: with_test(run, lambda test: test.update(started_monotonic_ns=-1)),
        "does not say when the test began",
    ),
    "a planted bug that the system has not": (
        lambda run: with_test(run, lambda test: test["spec"].update(bug="lies")),
        "bug of kraft",
    ),
    "a nemesis that there is not": (
        lambda run: with_test(run, lambda test: test["spec"].update(nemesis="lies")),
        "there is no nemesis 'lies'",
    ),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_no_run_can_hold_is_refused_in_one_sentence(whole: Path, tmp_path: Path, strange: str) -> None:
    change, words = STRANGE[strange]
    run = shutil.copytree(whole, tmp_path / "run")
    change(run)
    code, shown = ended("analyze", "--in-process", run)
    assert code == REFUSED and words in shown


@pytest.mark.parametrize(
    "damage", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.nightly) for name in DAMAGE]
)
@pytest.mark.parametrize("piece", PIECES)
def test_analyze_and_check_logs_survive_a_broken_piece(whole: Path, tmp_path: Path, piece: str, damage: str) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    broken = DAMAGE[damage]((run / piece).read_bytes())
    if broken is None:
        (run / piece).unlink()
    else:
        (run / piece).write_bytes(broken)
    ended("check-logs", run)
    code, words = ended("analyze", "--in-process", run)
    refused = piece == "journal.jsonl" and damage == "a line of noise"  # an unfinished last line ends a broken-off run
    assert code == (REFUSED if refused else PIECES[piece]), words
    if code != 3:
        assert (run / "report.html").exists()
