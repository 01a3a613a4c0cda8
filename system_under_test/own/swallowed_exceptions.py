"""Warns of a client that catches every exception and goes on: its failed operations would count as done.

Nothing else shows such a client.  A write that was refused is then an acknowledged write, and a read that got no answer
is a read of nothing; a checker takes both for violations of the system.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

_EVERYTHING = ("Exception", "BaseException")
_HARMLESS = ("close", "create", "leader")
"""Methods whose outcome is no part of a history."""


def swallowed(files: Mapping[str, str], client: str) -> Iterator[str]:
    """A sentence for each handler of the client that catches everything and raises nothing.

    files: relative path -> text.  client: the name of its class, whose base classes are not looked at."""
    for name, text in files.items():
        for kind in ast.walk(ast.parse(text)):
            if isinstance(kind, ast.ClassDef) and kind.name == client:
                yield from _in_class(name, kind)


def _in_class(file: str, kind: ast.ClassDef) -> Iterator[str]:
    for method in kind.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name in _HARMLESS:
            continue
        for handler in ast.walk(method):
            if isinstance(handler, ast.ExceptHandler) and _catches_everything(handler) and not _raises(handler):
                yield (
                    f"{file} line {handler.lineno}: {kind.name}.{method.name} catches every exception and raises none, "
                    "so an operation that failed counts as done: let exceptions through"
                )


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return caught is None or any(isinstance(kind, ast.Name) and kind.id in _EVERYTHING for kind in kinds)


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(each, ast.Raise) for each in ast.walk(handler))
