"""How the command line starts."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from facts_of_runs import many
from rich.console import Console

from harness.cli import machine
from harness.cli.main import needs_no_numpy, of_another_folder
from harness.lake.lake import Lake
from harness.lake.tables import RUNS

LISTING = """
import sys
from harness.cli.main import needs_no_numpy, run_command_line
if sys.argv[1] == "without":
    sys.modules["numpy"] = None
for words in map(str.split, sys.argv[2:]):
    assert needs_no_numpy(words)
    sys.argv = ["krucible", *words]
    try:
        run_command_line()
    except SystemExit as end:
        assert end.code == 0, end.code
print(" ".join(sorted({name for name, module in sys.modules.items() if module is not None})), file=sys.stderr)
"""


def test_listings_are_the_same_without_numpy_and_load_neither_it_nor_arrows_datasets(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for facts in many(4, 2):
        lake.append(facts)
    first, second = lake.read(RUNS, ["run"])["run"].to_pylist()[:2]
    alone = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}  # hides clusters that other tests keep
    asked = [f"{words} --lake {lake.folder}" for words in ("runs", "runs --verdict valid", f"compare {first} {second}")]
    printed = {}
    for numpy in ("with", "without"):
        command = [sys.executable, "-c", LISTING, numpy, *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=alone)
        printed[numpy] = done.stdout
    assert printed["with"] == printed["without"] and printed["with"].strip()
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not loaded & {"numpy", "pyarrow.dataset", "pyarrow.acero", "checkers.record.reading", "pyspark"}


def test_a_command_that_reads_runs_has_numpy(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text("{}")
    for words in (["analyze", "x"], ["runs", "--rebuild"], ["compare", "a", str(tmp_path)], ["runs", "--store=s3://b"]):
        assert not needs_no_numpy(words)


def test_only_a_copy_is_told(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    for root in (original, copy):
        (root / "harness" / "cli").mkdir(parents=True)
        (root / "harness" / "cli" / "main.py").touch()
    assert of_another_folder(tmp_path, original) == ""
    assert of_another_folder(original, original) == ""
    (tmp_path / "link").symlink_to(original)
    assert of_another_folder(tmp_path / "link", original) == ""
    words = of_another_folder(copy, original)
    assert f"this runs the code of {original}, not of {copy}" in words and "\n" not in words


@pytest.mark.parametrize(("everything", "words"), [(False, ["prepare"]), (True, ["prepare", "--all"])])
def test_only_what_is_wanted_is_prepared(everything: bool, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(argv)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(machine.subprocess, "run", run)
    monkeypatch.setattr(machine.subprocess, "Popen", lambda *_, **__: pytest.fail("nothing may go on beside a run"))
    machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False, everything=everything)
    assert ran == [[sys.executable, "-P", "-m", "checkers.spark", *words]]


def test_a_set_up_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1))
    with pytest.raises(OSError, match="exit status 1"):
        machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False)
