"""A user's model that forgets to refuse would explain every answer, so its first such step is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from edn_files import judged_text, operations

from checkers.base.verdict import Validity

STALE = operations("write 1->1; read ->7")
NIL = STALE.replace(":value 1", ":value nil").replace(":value 7", ":value nil")
FLAG = STALE.replace(":value 1", ":value true").replace(":value 7", ":value true")
WRITE = "    if o.f == 'write': return o.input\n"

FORGETFUL = {
    "None by name": ("0", WRITE + "    if s != o.output: return None\n    return s\n", "None"),
    "None by a condition": ("0", WRITE + "    return s if s == o.output else None\n", "None"),
    "no return": ("0", WRITE + "    if s == o.output: return s\n", "None"),
    "no return where nil is a state": ("None", WRITE + "    if s == o.output: return s\n", "None"),
    "None where nil is a state": ("None", WRITE + "    return s if s == o.output else None\n", "None"),
    "a table without an entry": ("0", WRITE + "    return {}.get((s, o.output))\n", "None"),
    "False": ("0", WRITE + "    return s if s == o.output else False\n", "False"),
    "True": ("0", WRITE + "    return True\n", "True"),
    "a comparison": ("0", WRITE + "    return s == o.output\n", "False"),
    "a pair": ("0", WRITE + "    return s == o.output, s\n", "the pair"),
    "an exception": ("0", WRITE + "    return s if s == o.output else ValueError('stale')\n", "ValueError"),
    "a generator": ("0", "    yield s\n", "a generator"),
    "an iterator": ("0", "    return iter([s])\n", "an iterator"),
    "a function": ("0", "    return lambda: s\n", "function"),
}


def words_of(tmp_path: Path, source: str, history: str = STALE) -> str:
    found = judged_text(tmp_path, history, str(tmp_path / "model.py"), source)
    return found.error or str(found.verdict.validity)


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_result_that_is_no_state_is_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    first, body, words = FORGETFUL[name]
    said = words_of(tmp_path, f"def init(): return {first}\ndef step(s, o):\n{body}")
    assert re.search(r"model\.py line 2: step on \S+.* gave ", said)
    assert words in said


def test_coroutines_are_refused_wherever_a_value_is_needed(tmp_path: Path) -> None:
    plain = "def init(): return 0\ndef step(s, o): return s\n"
    for source in (
        plain.replace("def step", "async def step"),
        plain.replace("def init", "async def init"),
        plain + "async def partition(o): return o.key\n",
        plain + "def partition(o): yield o.key\n",
    ):
        said = words_of(tmp_path, source)
        assert "model.py" in said
        assert "a coroutine" in said or "a generator" in said


def test_a_canonical_function_that_loses_the_state_is_refused(tmp_path: Path) -> None:
    source = (
        "def init(): return 0\ndef step(s, o): return s\ndef canonical(os):\n    def one(s): pass\n    return one\n"
    )
    assert "None for the state 0" in words_of(tmp_path, source)


REFUSES = "    return s if s == o.output else REFUSED\n"
BY_IF = "    if s == o.output: return s\n    return REFUSED\n"
IN_TURN = "    if o.f == 'read': return s if s == o.output else REFUSED\n"


@pytest.mark.parametrize("history", [NIL, FLAG])
@pytest.mark.parametrize("first", ["None", "0", "False"])
@pytest.mark.parametrize("body", [WRITE + REFUSES, WRITE + BY_IF, WRITE + IN_TURN])
def test_nil_and_booleans_are_states_where_operations_bring_them(
    tmp_path: Path, body: str, first: str, history: str
) -> None:
    source = f"from krucible import REFUSED\ndef init(): return {first}\ndef step(s, o):\n{body}"
    assert words_of(tmp_path, source, history) == Validity.VALID
    assert words_of(tmp_path, source) == Validity.INVALID


def test_a_lambda_may_be_a_model(tmp_path: Path) -> None:
    step = "step = lambda s, o: o.input if o.f == 'write' else s if s == o.output else REFUSED\n"
    source = "from krucible import REFUSED\ninit = lambda: None\n" + step
    assert words_of(tmp_path, source, NIL) == Validity.VALID
    said = words_of(tmp_path, "init = lambda: None\n" + step.replace("REFUSED", "None"))
    assert re.search(r"step on \S+.* gave None", said)
