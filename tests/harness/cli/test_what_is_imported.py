"""What a check of a small file imports decides its cost: half a second of CPU, most of it for the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HISTORY = """\
{:type :invoke, :f :%(write)s, :value %(value)s, :process 0}
{:type :ok, :f :%(write)s, :value %(value)s, :process 0}
{:type :invoke, :f :%(read)s, :value nil, :process 1}
{:type :ok, :f :%(read)s, :value %(seen)s, :process 1}
"""
CHECK = """
import sys
from harness.cli.main import run_command_line
sys.argv = ["krucible", "check", "--model", sys.argv[1], sys.argv[2]]
try:
    run_command_line()
except SystemExit as end:
    assert end.code == 0, end.code
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
HEAVY = {"networkx", "pyspark", "matplotlib", "jinja2", "rich", "docker", "paramiko", "kio", "asyncio"}


@pytest.mark.parametrize(
    ("model", "write", "value", "seen", "heavy"),
    [
        ("set", "add", "1", "[1]", HEAVY | {"pyarrow"}),
        ("kv", "put", '"a"', '"a"', HEAVY | {"pyarrow"}),
        ("register", "write", "1", "1", HEAVY),
    ],
)
def test_a_check_of_four_lines_imports_nothing_that_it_does_not_need(
    model: str, write: str, value: str, seen: str, heavy: set[str], tmp_path: Path
) -> None:
    history = tmp_path / "history.edn"
    history.write_text(
        HISTORY % {"write": write, "read": "get" if model == "kv" else "read", "value": value, "seen": seen}
    )
    words = [sys.executable, "-c", CHECK, model, str(history)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("valid")
    assert not heavy & set(ended.stdout.splitlines()[-1].split())
