"""The shell on client nodes: lines become requests, and outcomes lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkers.base.history import Type
from harness.agent.client_shell import BadLine, request_of, words_of


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("read 3\n", {"f": "read", "key": "3"}),
        ("write 3 17", {"f": "write", "key": "3", "value": 17}),
        ("cas 3 17 18", {"f": "cas", "key": "3", "value": 17, "value2": 18}),
        ('txn [["r", 1, null]]', {"f": "txn", "payload": '[["r", 1, null]]'}),
        ('put k {"a": 1}', {"f": "put", "key": "k", "payload": '{"a": 1}'}),
        ("list", {"f": "list"}),
    ],
)
def test_a_line_is_a_request(line: str, request_: dict[str, Any]) -> None:
    assert request_of(line) == request_


@pytest.mark.parametrize("line", ["write 3 x", "cas 3 1 2 3", "txn [1,"])
def test_a_line_that_is_none_is_refused_with_its_reason(line: str) -> None:
    with pytest.raises(BadLine, match=r"whole numbers|is no JSON"):
        request_of(line)


def test_an_outcome_is_one_line() -> None:
    assert words_of({"type": int(Type.OK), "value": 17, "node": "n2"}) == "ok 17  n2"
    assert words_of({"type": int(Type.INFO), "error": "timed out"}) == "info timed out"


def test_lines_are_invoked_until_the_end_of_input(tmp_path: Path) -> None:
    (tmp_path / "echoing.py").write_text(
        "from checkers.base.history import Type\n"
        "from system_under_test.client import Outcome\n"
        "class Client:\n"
        "    async def invoke(self, request, timeout_s):\n"
        "        return Outcome(Type.OK, value=request.value, node='n1')\n"
        "    async def close(self): ...\n"
        "def connect(placement, peers, config, shared): return Client()\n"
    )
    given = {"module": "echoing", "peers": {"n1": "198.18.0.2:9"}, "config": {}, "node": "c1", "keys": ["r0"]}
    (tmp_path / "clients.json").write_text(json.dumps(given))
    words = [sys.executable, "-m", "harness.agent.client_shell", str(tmp_path / "clients.json")]
    path = f"{tmp_path}:{Path(__file__).parents[3]}"
    done = subprocess.run(
        words, input="write 0 5\n\nwrite 0 x\n", capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    servers, _, keys, first, second = done.stdout.splitlines()
    assert servers == "servers: n1 198.18.0.2:9"
    assert keys == "keys: r0"
    assert first == "ok 5  n1" and "whole numbers" in second
