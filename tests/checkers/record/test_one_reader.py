"""The small files of a run have one reader and hold typed values: nothing else decodes or makes them as raw JSON.

So damage has one error everywhere, and a name that is misspelt is found by mypy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from checkers.record.faults import FaultRecord, Measurement
from checkers.record.header import Header
from checkers.record.outcome import OnlineChecks, Recovery, RunOutcome

ROOT = Path(__file__).parents[3]
ROOMS = ("harness", "nemesis", "checkers", "workloads", "simulation", "system_under_test", "krucible", "bench")
READERS = {"checkers/record/reading.py", "checkers/base/results.py"}
NAMES = {"test.json", "journal.jsonl", "results.json"}
CONSTANTS = {"TEST", "JOURNAL", "RESULTS"}
DECODERS = {"loads", "load", "decode", "read_json", "read_object", "read_objects"}
WRITERS = {"write_json", "write_json_whole"}


def _inside(hint: Any) -> Iterator[type]:
    """The classes in a type."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for each in get_args(hint):
        yield from _inside(each)


RECORDS = (FaultRecord, Header, Measurement, RunOutcome, OnlineChecks, Recovery)
FIELDS = {
    name
    for type_ in RECORDS
    for name, hint in get_type_hints(type_).items()
    if any(each.__module__.startswith("checkers.record.") for each in _inside(hint))
}
"""Fields of the small files that hold values of the record."""


def test_nobody_else_decodes_a_small_file() -> None:
    found = everywhere(raw_readers)
    assert found == [], "read these through checkers.record.reading.RunRecord or checkers.base.results.read_results"


def test_what_a_small_file_holds_is_read_by_attribute() -> None:
    assert everywhere(raw_values) == [], "these are values of checkers.record: read their attributes"


def test_what_a_small_file_holds_is_written_from_its_type() -> None:
    assert everywhere(raw_writers) == [], "make a value of checkers.record, and write it with as_json"


def test_the_search_finds_a_raw_reader_and_leaves_others_alone() -> None:
    raw = 'def f(root):\n    return json.loads((root / "results.json").read_text())\n'
    by_constant = "def f(root):\n    return read_object(root / RESULTS)\n"
    there = 'def f(root):\n    return (root / "results.json").exists()\n'
    other = 'def f(root):\n    return json.loads((root / "campaign.json").read_text())\n'
    assert [list(raw_readers(text)) for text in (raw, by_constant, there, other)] == [[1], [1], [], []]


def test_the_search_finds_raw_values_and_raw_writers() -> None:
    found = 'def f(run):\n    return run.outcome.recovery["seconds"]\n'
    with_default = 'def f(run):\n    return run.outcome.recovery.get("seconds", 0.0)\n'
    kept = "class Kept:\n    recovery: dict[str, Any]\n"
    typed = "def f(run):\n    return run.outcome.recovery.seconds\n"
    assert [list(raw_values(text)) for text in (found, with_default, kept, typed)] == [[2], [2], [2], []]
    raw = 'folder.write_json("test.json", {"spec": {}})\n'
    by_type = "folder.write_json(TEST, as_json(header))\n"
    assert [list(raw_writers(text)) for text in (raw, by_type)] == [[1], []]


@cache
def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def everywhere(search: Callable[[str], Iterator[int]]) -> list[str]:
    """The lines outside of the readers that a search finds."""
    return [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in READERS
        for line in search(path.read_text())
    ]


def raw_values(text: str) -> Iterator[int]:
    """The lines that read such a field by a key, and those that declare one as a dictionary of anything."""
    if not any(name in text for name in FIELDS):
        return
    for node in nodes_of(text):
        match node:
            case (
                ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Constant(value=str()))
                | ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr=name), attr="get"), args=[ast.Constant(value=str()), *_]
                )
            ) if name in FIELDS:
                yield node.lineno
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=declared) if (
                name in FIELDS
            ):
                if "Any]" in ast.unparse(declared) or "object]" in ast.unparse(declared):
                    yield node.lineno


def raw_writers(text: str) -> Iterator[int]:
    """The lines that write a small file from something else than a value of its type."""
    if not any(name in text for name in WRITERS):
        return
    for node in nodes_of(text):
        match node:
            case ast.Call(func=ast.Attribute(attr=function) | ast.Name(id=function), args=[name, content]) if (
                function in WRITERS and _small(name)
            ):
                if not (isinstance(content, ast.Call) and _name(content.func) == "as_json"):
                    yield node.lineno


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
    for node in nodes_of(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
            if _small(node) and any(_name(call.func) in DECODERS for call in calls):
                yield node.lineno


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
