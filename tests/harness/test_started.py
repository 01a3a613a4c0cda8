"""Printed commands begin as this process was started.  A Python that lacks packages is named, with a better one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.spec import Spec
from harness.started import NEEDED, STARTED_AS, advice, as_started

ROOT = Path(__file__).parents[2]


def test_a_python_that_has_everything_is_told_nothing() -> None:
    assert advice(ROOT) == ""


def test_what_is_lacking_is_named_with_what_to_do(tmp_path: Path) -> None:
    words = advice(tmp_path, ["sys", "no_such_package", "nor_this"])
    assert (
        words
        == f"krucible: {sys.executable} lacks no_such_package, nor_this: run `make setup`, and then .venv/bin/krucible"
    )
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert advice(tmp_path, ["no_such_package"]).endswith(f"lacks no_such_package: run it with {own}")


def test_a_bare_python_ends_with_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    """-S leaves out the folder of installed packages."""
    words = [sys.executable, "-S", "-m", "harness", "check", "--model", "register", "history.edn"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    bare = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert bare.returncode == 3
    assert bare.stdout == ""
    assert f"lacks {', '.join(NEEDED)}" in bare.stderr and bare.stderr.count("\n") == 1


def test_printed_commands_begin_as_this_process_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert as_started([".venv/bin/python", "-m", "harness", "run"], "/x/__main__.py") == ".venv/bin/python -m harness"
    monkeypatch.chdir(tmp_path)
    assert as_started(["python3", "x", "run"], str(tmp_path / ".venv" / "bin" / "krucible")) == ".venv/bin/krucible"
    monkeypatch.setenv("PATH", str(tmp_path))
    (script := tmp_path / "krucible").write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert as_started(["python3", str(script), "run"], str(script)) == "krucible"
    monkeypatch.setenv(STARTED_AS, "krucible")
    assert Spec(seed=3).rerun() == "krucible run --nemesis partition --seed 3", "although there is a Makefile"
    monkeypatch.setenv(STARTED_AS, "make")
    assert Spec(seed=3).rerun() == "make test-partition SEED=3"
