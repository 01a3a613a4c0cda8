"""One meaning for a name, and few parameters.  The count of exceptions may only shrink.

The glossary (docs/glossary.md) fixes what a word means.  Here its words are held against the names in the code.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("harness", "nemesis", "checkers", "workloads", "simulation", "system_under_test", "krucible", "bench", "docs")

RESERVED: Mapping[str, tuple[str, ...]] = {
    "hunt": ("harness/campaign/", "harness/cli/campaigns.py", "docs/generate.py", "docs/ledgers.py"),
    "finding": ("checkers/", "harness/campaign/", "harness/cli/", "harness/real_systems", "harness/story/",
                "harness/report/", "docs/generate.py", "docs/ledgers.py"),
    "mark": ("checkers/", "system_under_test/kraft/raft/", "harness/exploring/", "harness/campaign/swarm/",
             *(BEACONS := ("harness/agent/", "harness/backends/", "nemesis/cluster.py")),
             *(BADGES := ("harness/report/", "harness/campaign/page.py")),
             "system_under_test/own/processes_as_one_server.py"),
    "place": ("checkers/", "harness/campaign/swarm/"),
}  # fmt: skip
"""Word of the glossary -> where files, classes and functions may bear it.  BEACONS mark when a count begins; BADGES are
the marks of a verdict on a page.  A new second meaning needs another word."""

PARAMETERS_MOST = 6
LONGER = 23
"""So many functions have more parameters.  Commands are left out: their options are parameters.  It may only shrink."""


CLAUSE = re.compile(r"(What|Where|Whether|How|As|So|Of|The same)\b")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def documented() -> dict[str, list[ast.Module | Definition]]:
    """Path of a file -> the file, its classes and functions, inner ones too."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {str(path.relative_to(ROOT)): _nodes(path.read_text()) for path in paths}


def definitions() -> dict[str, list[Definition]]:
    return {path: [node for node in nodes if isinstance(node, Definition)] for path, nodes in documented().items()}


def _nodes(text: str) -> list[ast.Module | Definition]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | Definition)]


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, defined in definitions().items():
        for node in defined:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared == {}, "give one of them another name"


@pytest.mark.parametrize("word", RESERVED)
def test_a_word_of_the_glossary_has_one_meaning(word: str) -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert re.search(rf"^\| {word} \|", glossary, re.MULTILINE), "the glossary does not fix this word"
    bearing = {path: names for path, defined in definitions().items() if (names := list(_bearing(word, path, defined)))}
    others = {path: names for path, names in bearing.items() if not path.startswith(RESERVED[word])}
    assert others == {}, f"{word!r} means something else: see docs/glossary.md"
    unused = [place for place in RESERVED[word] if not any(path.startswith(place) for path in bearing)]
    assert unused == [], "nothing there bears the word any more: take these out of RESERVED"


def test_few_functions_have_many_parameters() -> None:
    longer = [
        f"{path}:{node.lineno} {node.name}"
        for path, defined in definitions().items()
        for node in defined
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _parameter_count(node) > PARAMETERS_MOST
        and not any("click" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert len(longer) <= LONGER, "join parameters that belong together into a value:\n" + "\n".join(longer)
    assert len(longer) > LONGER - 5, f"there are {len(longer)} now: lower LONGER"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """At most one docstring in fifty may begin with a word that makes a clause its subject."""
    texts = [text for nodes in documented().values() for node in nodes if (text := ast.get_docstring(node))]
    clauses = [text for text in texts if CLAUSE.match(text)]
    assert len(clauses) * 50 <= len(texts), "begin with a verb (Return, Verify, Reject) or a noun:\n" + "\n".join(
        clauses
    )
    assert CLAUSE.match("Whether it is so.") and not CLAUSE.match("Return whether it is so.")


def _bearing(word: str, path: str, defined: Iterable[ast.AST]) -> Iterator[str]:
    """The names of files, classes and functions that bear this word, alone or as part of a compound."""
    if _bears(word, Path(path).stem):
        yield path
    for node in defined:
        if isinstance(node, Definition) and _bears(word, node.name):
            yield node.name


def _bears(word: str, name: str) -> bool:
    return any(part.lower() in (word, f"{word}s") for part in re.findall(r"[A-Z]?[a-z0-9]+", name))


def _parameter_count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = [*node.args.posonlyargs, *node.args.args]
    bound = bool(given) and given[0].arg in ("self", "cls")
    return len(given) + len(node.args.kwonlyargs) - bound


def test_files_that_docstrings_name_are_there() -> None:
    known = {path.name for room in (*ROOMS, "tests", "examples") for path in (ROOT / room).rglob("*.py")}
    gone = [
        f"{path.relative_to(ROOT)}: {name}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for name in re.findall(r"`(?:[\w.]+/)*(\w+\.py)`", path.read_text(encoding="utf-8"))
        if name not in known
    ]
    assert gone == []
