"""One meaning for a name, and few parameters.  The count of exceptions may only shrink.

The glossary (docs/glossary.md) fixes what a word means.  Here its words are held against the names in the code.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
"""Number of functions with more parameters; it may only shrink.  Commands do not count: options are parameters."""


CLAUSE = re.compile(r"(What|Where|Whether|How|As|So|Of|The same)\b")


class Named(NamedTuple):
    """A file, class or function.  name: "" of a file.  parameters: 0 of a command, whose options they are."""

    path: str
    line: int
    kind: type[ast.AST]
    name: str
    docstring: str
    parameters: int


@cache
def documented() -> list[Named]:
    """Every file with its classes and functions, inner ones too.  No syntax tree is kept: they fill the memory."""
    return [each for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) for each in _named(path)]


def _named(path: Path) -> Iterator[Named]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line, name = getattr(node, "lineno", 0), getattr(node, "name", "")
            said = ast.get_docstring(node) or ""
            yield Named(str(path.relative_to(ROOT)), line, type(node), name, said, _parameter_count(node))


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for each in documented():
        if each.kind is ast.ClassDef and not each.name.startswith("_"):
            places[each.name].append(each.path)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared == {}, "give one of them another name"


@pytest.mark.parametrize("word", RESERVED)
def test_a_word_of_the_glossary_has_one_meaning(word: str) -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert re.search(rf"^\| {word} \|", glossary, re.MULTILINE), "the glossary does not fix this word"
    bearing = [each for each in documented() if _bears(word, each.name or Path(each.path).stem)]
    others = [f"{each.path}: {each.name}" for each in bearing if not each.path.startswith(RESERVED[word])]
    assert others == [], f"{word!r} means something else: see docs/glossary.md"
    unused = [place for place in RESERVED[word] if not any(each.path.startswith(place) for each in bearing)]
    assert unused == [], "nothing there bears the word any more: take these out of RESERVED"


def test_few_functions_have_many_parameters() -> None:
    longer = [f"{each.path}:{each.line} {each.name}" for each in documented() if each.parameters > PARAMETERS_MOST]
    assert len(longer) <= LONGER, "join parameters that belong together into a value:\n" + "\n".join(longer)
    assert len(longer) > LONGER - 5, f"there are {len(longer)} now: lower LONGER"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """At most one docstring in fifty may begin with a word that makes a clause its subject."""
    texts = [each.docstring for each in documented() if each.docstring]
    clauses = [text for text in texts if CLAUSE.match(text)]
    assert len(clauses) * 50 <= len(texts), "begin with a verb (Return, Verify, Reject) or a noun:\n" + "\n".join(
        clauses
    )
    assert CLAUSE.match("Whether it is so.") and not CLAUSE.match("Return whether it is so.")


def _bears(word: str, name: str) -> bool:
    return any(part.lower() in (word, f"{word}s") for part in re.findall(r"[A-Z]?[a-z0-9]+", name))


def _parameter_count(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    if any("click" in ast.unparse(each) for each in node.decorator_list):
        return 0
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
