"""`check --spark-master local`: the verdicts of in process, in the order of the files, even if a worker dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import krucible

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
RIGHT = """{:process 0, :type :invoke, :f :write, :value 1}
{:process 0, :type :ok, :f :write, :value 1}
{:process 1, :type :invoke, :f :read, :value nil}
{:process 1, :type :ok, :f :read, :value 1}
"""
POISONED = """
import os, signal
from checkers.models.model import REFUSED

def init():
    return None

def step(state, operation):
    if operation.input == 666:
        os.kill(os.getpid(), signal.SIGKILL)
    if operation.f == "read":
        return state if operation.output == state else REFUSED
    return operation.input
"""


def check(*arguments: object) -> tuple[list[str], int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "check", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines(), done.returncode, done.stderr


def test_spark_says_the_same_of_every_file_in_the_same_order(tmp_path: Path) -> None:
    wrong = RIGHT.replace(":f :read, :value 1", ":f :read, :value 2")
    texts = {"right": RIGHT, "wrong": wrong, "cut": RIGHT[:-20], "empty": "", "right-again": RIGHT}
    files = [tmp_path / name for name in texts]
    for path in files:
        path.write_text(texts[path.name])
    arguments = ("--model", "register", "--json", *map(str, files), str(tmp_path / "absent"))
    here, there = krucible("check", *arguments), check("--spark-master", "local", *arguments)
    assert there == (here.stdout.splitlines(), here.returncode, here.stderr)
    verdicts = [json.loads(line)["verdict"] for line in there[0]]
    assert verdicts == ["valid", "invalid", "unknown", "unknown", "valid", "unknown"]
    assert there[1] == 3


def test_a_worker_that_dies_takes_one_verdict_with_it(tmp_path: Path) -> None:
    (tmp_path / "poisoned.py").write_text(POISONED)
    (tmp_path / "before").write_text(RIGHT)
    (tmp_path / "deadly").write_text(RIGHT.replace(":value 1", ":value 666"))
    (tmp_path / "after").write_text(RIGHT)
    files = [tmp_path / name for name in ("before", "deadly", "after")]
    lines, code, _ = check("--model", tmp_path / "poisoned.py", "--spark-master", "local", *files)
    assert [line.split()[0] for line in lines] == ["valid", "unknown", "valid"]
    assert "deadly" in lines[1] and "worker died" in lines[1]
    assert code == 2


def test_where_spark_cannot_run_the_files_are_judged_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "right").write_text(RIGHT)
    words = ("--model", "register", "--spark-master", "spark://127.0.0.1:1", str(tmp_path / "right"))
    done = krucible("check", *words)
    assert (done.stdout, done.returncode) == (f"valid    {tmp_path}/right\n", 0)
    assert done.stderr.startswith("krucible: judging in process: ")
