"""A planted bug changes the outcome of one function among the decisions, and nothing else reads its name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from system_under_test.kraft import client
from system_under_test.kraft.controller import decisions as of_controller
from system_under_test.kraft.raft import decisions as of_core

KRAFT = Path(__file__).parents[3] / "system_under_test" / "kraft"
DECIDES = {KRAFT / "raft" / "decisions.py", KRAFT / "controller" / "decisions.py", KRAFT / "client.py"}
LISTS = KRAFT / "subject.py"
"""The subject names each bug once more, with the checker that finds it."""
BUGS = {
    name: value
    for module in (of_core, of_controller, client)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str) and value in {**of_core.BUGS, **of_controller.BUGS, **client.BUGS}
}


def _functions_that_read(path: Path) -> dict[str, set[str]]:
    """Return the functions of a file that read the name of a planted bug, or its text.  "": the module itself."""
    tree = ast.parse(path.read_text())
    readers: dict[str, set[str]] = defaultdict(set)
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(outer):
                name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
                if name in BUGS:
                    readers[name].add(outer.name)
    return readers


def test_every_planted_bug_has_a_constant() -> None:
    assert set(BUGS.values()) == {*of_core.BUGS, *of_controller.BUGS, *client.BUGS}


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_one_function_decides(bug: str) -> None:
    readers = {(path.name, name) for path in DECIDES for name in _functions_that_read(path).get(bug, ())}
    assert len(readers) == 1, f"{bug} must change one decision"


def test_nothing_else_reads_the_name_of_a_planted_bug() -> None:
    others = {
        str(path.relative_to(KRAFT)): dict(found)
        for path in sorted(KRAFT.rglob("*.py"))
        if path not in DECIDES | {LISTS} and (found := _functions_that_read(path))
    }
    assert others == {}
