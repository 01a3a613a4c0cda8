"""The small files of a run have one reader, so damage has one error everywhere: nothing else decodes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("harness", "nemesis", "checkers", "workloads", "simulation", "system_under_test", "krucible", "bench")
READERS = {"checkers/record/reading.py", "checkers/base/results.py"}
NAMES = {"test.json", "journal.jsonl", "results.json"}
CONSTANTS = {"TEST", "JOURNAL", "RESULTS"}
DECODERS = {"loads", "load", "decode", "read_json", "read_object", "read_objects"}


def test_nobody_else_decodes_a_small_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in READERS
        for line in raw_readers(path.read_text())
    ]
    assert found == [], "read these through checkers.record.reading.RunRecord or checkers.base.results.read_results"


def test_the_search_finds_a_raw_reader_and_leaves_others_alone() -> None:
    raw = 'def f(root):\n    return json.loads((root / "results.json").read_text())\n'
    by_constant = "def f(root):\n    return read_object(root / RESULTS)\n"
    there = 'def f(root):\n    return (root / "results.json").exists()\n'
    other = 'def f(root):\n    return json.loads((root / "campaign.json").read_text())\n'
    assert [list(raw_readers(text)) for text in (raw, by_constant, there, other)] == [[1], [1], [], []]


def _small(name: ast.AST) -> bool:
    inside = list(ast.walk(name))
    return any(
        (isinstance(each, ast.Constant) and each.value in NAMES)
        or (isinstance(each, ast.Name) and each.id in CONSTANTS)
        for each in inside
    )


def raw_readers(text: str) -> Iterator[int]:
    """The lines of functions that name a small file and decode JSON."""
    if not any(name in text for name in (*NAMES, *CONSTANTS)):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
            if _small(node) and any(_name(call.func) in DECODERS for call in calls):
                yield node.lineno


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
