"""Libraries that a client needs and this machine lacks: stand-ins, so that a file can import them at its top.

The file of a system is read on two machines.  Client nodes have the wheels that it needs.  The machine of the harness
only starts servers, and need not have them.  There every library that is imported and not installed is replaced by a
stand-in while the file is read.  Its names can be listed in `refused`, and derived from.  A call of one raises
ModuleNotFoundError: nothing that the harness does can rest on a library that is not there.

Only names that the author's own files import are replaced, so no other library mistakes a stand-in for the real one.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class _NamesOfStandIns(type):
    """Every attribute of a stand-in is another one, with the name that its author wrote."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError(
            f"{cls.__module__} is not installed here: call {cls.__qualname__} in a method of the client"
        )


class _MissingModule(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # it may have modules of its own

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(self.__name__, name)


@contextmanager
def stand_ins(texts: Iterable[str], main: Path) -> Iterator[None]:
    """While it lasts, what these files import and this machine lacks can be imported.

    main: a file that carries the name of the library it imports is not that library.
    """
    added: dict[str, ModuleType] = {}
    for name in sorted(imported(texts)):
        parts = name.split(".")
        if parts[0] not in added and is_installed(parts[0], main):
            continue
        for count in range(1, len(parts) + 1):
            prefix = ".".join(parts[:count])
            added.setdefault(prefix, _MissingModule(prefix))
            if count > 1:
                setattr(added[".".join(parts[: count - 1])], parts[count - 1], added[prefix])
    before = {name: sys.modules[name] for name in added if name in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def imported(texts: Iterable[str]) -> set[str]:
    """The dotted names of all modules that these files import by their full name."""
    names: set[str] = set()
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:  # running the file raises it again, with its line
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module)
    return names


def is_installed(name: str, main: Path) -> bool:
    """Whether a module of this name can be imported here that is not the main file itself."""
    if name in sys.modules:
        return True
    spec = importlib.util.find_spec(name)
    return spec is not None and not (spec.origin and Path(spec.origin).resolve() == main.resolve())


def _stand_in(module: str, name: str) -> type:
    return _NamesOfStandIns(name, (), {"__module__": module})
