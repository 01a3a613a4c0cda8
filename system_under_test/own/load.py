"""Reading a system of one's own: a file, a folder with `system.py` in it, or the name of an entry point.

The files are run: they are code, not data.  Needs only the standard library, because client nodes read them too.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from system_under_test.own.client import Client
from system_under_test.own.system import System

GROUP = "krucible.systems"
MAIN = "system.py"
MODULE = "krucible_own_system"


class NoSystem(ValueError):
    """The files are no system; the message says why in one sentence."""


def find(name: str) -> Path | None:
    """The main file that a user named: its path, its folder's path, or an entry point; None for none of these.

    Raises NoSystem where a path was meant and nothing is there.
    """
    path = Path(name)
    if path.is_dir() and (path / MAIN).is_file():
        return path / MAIN
    if name.endswith(".py"):
        if not path.is_file():
            raise NoSystem(f"there is no file {name}")
        return path
    for point in entry_points(group=GROUP):
        if point.name == name and (source := inspect.getsourcefile(point.load())) is not None:
            return Path(source)
    if "/" in name:
        raise NoSystem(f"{name} is neither a Python file nor a folder with {MAIN} in it")
    return None


def files_of(main: Path) -> dict[str, str]:
    """Relative path -> text of every Python file that belongs to a system: the file alone, or its whole folder."""
    if main.name != MAIN:
        return {main.name: main.read_text(encoding="utf-8")}
    return {str(p.relative_to(main.parent)): p.read_text(encoding="utf-8") for p in sorted(main.parent.rglob("*.py"))}


def read_files(main: Path) -> ModuleType:
    """Run the main file; what stands beside it can be imported.  Raises NoSystem with the file and line."""
    spec = importlib.util.spec_from_file_location(MODULE, main)
    if spec is None or spec.loader is None:
        raise NoSystem(f"{main} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look their module up
    sys.path.insert(0, str(main.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as problem:
        raise NoSystem(f"{main} line {problem.lineno}: {problem.msg}") from problem
    except Exception as problem:
        raise NoSystem(f"{main} cannot be run: {type(problem).__name__}: {problem}") from problem
    finally:
        sys.path.remove(str(main.parent))
    return module


def clients_in(module: ModuleType) -> list[type[Client]]:
    """The clients that the file itself defines, in order."""
    return [kind for kind in _classes(module) if issubclass(kind, Client)]


def system_in(module: ModuleType, file: str) -> System:
    """The one system of the file.  Raises NoSystem."""
    kinds = [kind for kind in _classes(module) if issubclass(kind, System)]
    if len(kinds) != 1:
        raise NoSystem(f"{file} must define one class that derives from krucible.System, and it defines {len(kinds)}")
    if not clients_in(module):
        raise NoSystem(f"{file} must define a class that derives from krucible.Client")
    return kinds[0]()


def _classes(module: ModuleType) -> list[type]:
    return [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
