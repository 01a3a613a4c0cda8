"""A judging that refuses a run leaves no verdict of before in results.json, and loses none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from canary_run import canary_run
from click.testing import CliRunner

from checkers.record.files import BrokenFile
from harness.cli.main import cli
from harness.judge.results_before import NAMES
from harness.run import session


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = canary_run(tmp_path_factory.mktemp("results"))
    assert analyze(run) == 0
    assert results(run)["verdict"] == "valid"
    return run


@pytest.fixture
def judged(valid: Path, tmp_path: Path) -> Path:
    """A run that is valid, to be broken."""
    return shutil.copytree(valid, tmp_path / "run")


def analyze(run: Path) -> int:
    """The exit code; 3 for a refusal too, which ends the command line with one sentence."""
    result = CliRunner().invoke(cli, ["analyze", "--in-process", str(run)])
    return 3 if isinstance(result.exception, Exception) else result.exit_code


def results(run: Path, name: str = "results.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / name).read_text())
    return content


def cut(run: Path) -> None:
    history = run / "history.parquet"
    history.write_bytes(history.read_bytes()[:100])


BROKEN: dict[str, Callable[[Path], None]] = {
    "half a history": cut,
    "no spec": lambda run: (run / "test.json").write_text("{}"),
    "no test.json": lambda run: (run / "test.json").unlink(),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_refused_judging_keeps_the_verdict_of_before_and_does_not_repeat_it(judged: Path, broken: str) -> None:
    BROKEN[broken](judged)
    for _ in range(2):
        assert analyze(judged) == 3
        assert results(judged)["verdict"] == "harness failed"
        assert results(judged)["exit_code"] == 3
        assert results(judged)["before"] == "results.before.json"
        assert results(judged, "results.before.json")["verdict"] == "valid"
        assert ET.parse(judged / "junit.xml").getroot()[0].get("errors") == "1"
        assert "The harness failed" in (judged / "report.html").read_text()
        assert all((judged / name).exists() for name in NAMES.values())


def test_a_judging_that_ends_removes_what_was_set_aside(judged: Path) -> None:
    whole = (judged / "history.parquet").read_bytes()
    cut(judged)
    assert analyze(judged) == 3
    (judged / "history.parquet").write_bytes(whole)
    assert analyze(judged) == 0
    assert results(judged)["verdict"] == "valid"
    assert not any((judged / name).exists() for name in NAMES.values())


@pytest.mark.parametrize("end", [KeyboardInterrupt(), BrokenFile("it is broken"), RuntimeError("a mistake")])
def test_a_judging_that_was_broken_off_leaves_no_verdict(
    judged: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    def breaks(*_: object, **__: object) -> None:
        assert not (judged / "results.json").exists()  # the state of the folder after a kill
        raise end

    monkeypatch.setattr(session, "judge", breaks)
    analyze(judged)
    assert results(judged)["verdict"] == "harness failed"
    assert results(judged, "results.before.json")["verdict"] == "valid"


@pytest.mark.parametrize("name", ["tables", "buckets", "report.html", "results.json"])
def test_judging_writes_nothing_through_a_link(judged: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if (judged / name).is_dir():
        shutil.rmtree(judged / name)
        elsewhere.mkdir()
    else:
        (judged / name).unlink(missing_ok=True)
        elsewhere.write_text("of another")
    (judged / name).symlink_to(elsewhere)
    analyze(judged)
    assert elsewhere.read_text() == "of another" if elsewhere.is_file() else not list(elsewhere.iterdir())


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"tests": 3}')
    assert analyze(tmp_path) == 3
    assert results(tmp_path) == {"tests": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


FULL_DISK = """
set -e
mount -t tmpfs -o size=1m tmpfs "$2"
cp -r "$1" "$2/run"
dd if=/dev/zero of="$2/filler" bs=4k 2>/dev/null || true
before=$(sha256sum < "$2/run/results.json")
code=0
"$3" -m harness analyze --in-process "$2/run" || code=$?
test "$before" = "$(sha256sum < "$2/run/results.json")" || echo "results.json is not what it was"
ls -A "$2/run" | grep -E "before|part" || true
exit $code
"""


def test_a_full_disk_leaves_the_results_as_they_were_and_says_how_much_is_needed(judged: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespace, in which a small disk could be mounted")
    (small := tmp_path / "small").mkdir()
    shutil.rmtree(judged / "buckets")
    words = ["unshare", "--mount", "sh", "-c", FULL_DISK, "sh", str(judged), str(small), sys.executable]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert re.search(r"is full: judging needs about \d+ MB, and 0 MB are free", ended.stderr), ended.stderr
    assert "results.json is not" not in ended.stdout and "before" not in ended.stdout, ended.stdout
