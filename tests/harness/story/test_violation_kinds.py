"""The table of kinds knows every kind that a checker can give, and explains each in two sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkers.catalog import CATALOG
from checkers.kafka_log.judge import ANOMALIES
from checkers.raft.rules import RULES
from checkers.transactions.anomalies import WORST_FIRST
from harness.story.kinds import KINDS, Stage, kind_of, name_in_words

CHECKERS = Path(__file__).parents[3] / "checkers"
MAKERS = {
    "Witness": 0,
    "OrderClash": 0,
    "wrong_alone": 0,
    "Unexplained": 0,
    "_disordered": 0,
    "_tell": 0,
    "_broken": 0,
    "Contradiction": 0,
    "Decided": 0,
    "_wait": 0,
}
"""Calls that name a kind -> place of that argument."""


def test_every_kind_that_a_checker_can_give_is_explained() -> None:
    given = (
        _kinds_in_the_source() | {rule.kind for rule in RULES} | {*WORST_FIRST, *ANOMALIES}
    ) - CATALOG.keys()  # makers also take names of checkers
    assert sorted(given - set(KINDS)) == [], "add two sentences about each of these to harness/story/kinds.toml"
    assert sorted(set(KINDS) - given) == [], "no checker gives these any more"


def test_the_search_of_the_source_finds_the_kinds_it_must_find() -> None:
    found = _kinds_in_the_source()
    assert {"stale read", "lost write", "order cycle"} <= found, "kinds that a function returns"
    assert {"log has a hole", "write in a log twice"} <= found, "kinds that are constants of a module"
    assert {"committed entry lost", "voted twice in one epoch"} <= found, "kinds chosen by a condition"
    assert {"two leaders in one epoch", "impossible sum", "partition made twice"} <= found, "kinds handed to a function"


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_is_two_plain_sentences(kind: str) -> None:
    sentences = re.findall(r"[^.]+\.(?: |$)", KINDS[kind].means)
    assert len(sentences) == 2
    assert "".join(sentences) == KINDS[kind].means
    assert max(len(sentence.split()) for sentence in sentences) <= 30


def test_anomalies_carry_the_names_that_users_know_beside_the_theory() -> None:
    assert name_in_words("G0-realtime") == "acknowledged append lost (G0-realtime)"
    assert name_in_words("G-nonadjacent") == "long fork (G-nonadjacent)"
    assert name_in_words("lost-update") == "lost update"
    assert name_in_words("stale read") == "stale read"


def test_a_kind_that_is_not_in_the_table_is_an_answer_without_explanation() -> None:
    assert (kind_of("something new").stage, kind_of("something new").means) == (Stage.ANSWER, "")


def _kinds_in_the_source() -> set[str]:
    return {kind for path in CHECKERS.rglob("*.py") for kind in _kinds_in(ast.parse(path.read_text()))}


def _kinds_in(module: ast.Module) -> Iterator[str]:
    """Every text that reaches the argument `kind` of a maker: directly, through a name, or out of a function `kind`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and (maker := _name_of(node.func)) in MAKERS:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
            given = named or node.args[MAKERS[maker] : MAKERS[maker] + 1]
            yield from (text for value in given for text in _texts(value, module))
        if isinstance(node, ast.FunctionDef) and node.name == "kind":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from _texts(inner.value, module)


def _name_of(function: ast.expr) -> str:
    """Of a function, of a method of `self`, or of a class that `of` makes."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return {"self": function.attr}.get(function.value.id, function.value.id if function.attr == "of" else "")
    return function.id if isinstance(function, ast.Name) else ""


def _texts(value: ast.expr, module: ast.Module, depth: int = 0) -> set[str]:
    if isinstance(value, ast.Constant):
        return {value.value} if isinstance(value.value, str) else set()
    if isinstance(value, ast.IfExp):
        return _texts(value.body, module, depth) | _texts(value.orelse, module, depth)
    if isinstance(value, ast.Attribute) and value.attr == "kind":  # of a finding: a tuple or a table names its kind
        firsts = [t.elts[0] for t in ast.walk(module) if isinstance(t, ast.Tuple) and len(t.elts) > 2]
        firsts += [key for table in ast.walk(module) if isinstance(table, ast.Dict) for key in table.keys if key]
        return {text for first in firsts if isinstance(first, ast.Name) for text in _texts(first, module, depth + 1)}
    if isinstance(value, ast.Name) and depth < 3:
        return {text for given in _given_to(value.id, module) for text in _texts(given, module, depth + 1)}
    return set()


def _given_to(name: str, module: ast.Module) -> Iterator[ast.expr]:
    """What is assigned to a name anywhere in a module, in loops over pairs too, and where it is imported from."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("checkers.") and name.isupper():
            source = CHECKERS.parent.joinpath(*str(node.module).split(".")).with_suffix(".py")
            if source.exists() and name in {alias.name for alias in node.names}:
                yield from _given_to(name, ast.parse(source.read_text()))
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _matching(name, target, node.value)
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple | ast.List):
            for each in node.iter.elts:
                yield from _matching(name, node.target, each)


def _matching(name: str, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _matching(name, one, other)
