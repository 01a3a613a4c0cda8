"""A Python without the packages of Krucible is named, with the one that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.cli.this_python import NEEDED, advice

ROOT = Path(__file__).parents[3]


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
