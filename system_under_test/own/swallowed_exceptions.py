"""Warns of a client that catches an exception and goes on: its failed operations would count as done.

Nothing else shows such a client.  A write that was refused is then an acknowledged write, and a read that got no answer
is a read of nothing; a checker takes both for violations of the system.

Looked at are the methods of the client, those that it inherits from classes in its files, and functions of its files
that these call.  Two things are warned of: to catch every exception, and to answer a broken connection or a timeout
with a value.  To catch an OSError and go on is common where a connection is closed, so only a `return` is warned of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

_EVERYTHING = ("Exception", "BaseException")
_OF_CONNECTIONS = ("OSError", "IOError", "EnvironmentError", "ConnectionError", "TimeoutError", "error", "timeout")
"""Python's own names, and `socket.error` and `socket.timeout`.  Libraries use the same names for theirs."""
_HARMLESS = ("close", "create", "leader")
"""Methods whose outcome is no part of a history."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Found:
    """A function of the files.  name: as a warning names it."""

    file: str
    name: str
    node: Function


def swallowed(files: Mapping[str, str], client: str) -> Iterator[str]:
    """A sentence for each place in which the client swallows exceptions.

    files: relative path -> text.  client: the name of its class."""
    trees = {name: ast.parse(text) for name, text in files.items()}
    left, seen = list(_methods(trees, client)), set[Function]()
    while left:
        function = left.pop(0)
        if function.node not in seen:
            seen.add(function.node)
            yield from _in_function(function)
            left += _called(trees, function)


def _methods(trees: Mapping[str, ast.Module], client: str) -> Iterator[_Found]:
    """The methods of a class and of its base classes in the files; an overridden one is left out."""
    waiting, kinds, names = [client], set[str](), set(_HARMLESS)
    while waiting:
        name = waiting.pop(0)
        if name in kinds:
            continue
        kinds.add(name)
        for file, kind in _classes(trees, name):
            own = [each for each in kind.body if isinstance(each, Function)]
            yield from (_Found(file, f"{name}.{each.name}", each) for each in own if each.name not in names)
            names |= {each.name for each in own}
            waiting += [_last_word(base) for base in kind.bases]


def _classes(trees: Mapping[str, ast.Module], name: str) -> list[tuple[str, ast.ClassDef]]:
    return [
        (file, kind)
        for file, tree in trees.items()
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and kind.name == name
    ]


def _called(trees: Mapping[str, ast.Module], function: _Found) -> Iterator[_Found]:
    """The functions of the files that a function calls by their own name, or by that of their file."""
    modules = {PurePath(file).stem for file in trees}
    calls = [each.func for each in ast.walk(function.node) if isinstance(each, ast.Call)]
    names = {each.id for each in calls if isinstance(each, ast.Name)}
    for each in calls:
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in modules:
            names.add(each.attr)
    for file, tree in trees.items():
        yield from (_Found(file, n.name, n) for n in tree.body if isinstance(n, Function) and n.name in names)


def _in_function(function: _Found) -> Iterator[str]:
    for each in ast.walk(function.node):
        if isinstance(each, ast.ExceptHandler) and not _has(each, ast.Raise):
            caught = each.type.elts if isinstance(each.type, ast.Tuple) else [each.type] if each.type else []
            if each.type is None or any(map(_is_everything, caught)):
                yield _catches_everything(function, each.lineno)
            elif _has(each, ast.Return) and (of := [_last_word(k) for k in caught if _last_word(k) in _OF_CONNECTIONS]):
                yield _sentence(function, each.lineno, f"answers where it catches {of[0]}, which may be a timeout")
        elif isinstance(each, ast.Call) and _last_word(each.func) == "suppress" and any(map(_is_everything, each.args)):
            yield _catches_everything(function, each.lineno)


def _catches_everything(function: _Found, line: int) -> str:
    return _sentence(function, line, "catches every exception and raises none")


def _sentence(function: _Found, line: int, what: str) -> str:
    why = "so an operation that failed counts as done: let exceptions through"
    return f"{function.file} line {line}: {function.name} {what}, {why}"


def _is_everything(kind: ast.expr) -> bool:
    """Whether this names every exception, with or without `builtins.`; a library's own `Exception` is another class."""
    if isinstance(kind, ast.Attribute) and not (isinstance(kind.value, ast.Name) and kind.value.id == "builtins"):
        return False
    return _last_word(kind) in _EVERYTHING


def _last_word(name: ast.expr) -> str:
    """`timeout` of `socket.timeout`; "" for what is no name."""
    return name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""


def _has(handler: ast.ExceptHandler, kind: type[ast.AST]) -> bool:
    return any(isinstance(each, kind) for each in ast.walk(handler))
