"""Reading a system of one's own: a file, a folder with `system.py` in it, or the name of an entry point.

A file may define several systems, such as one server with two configurations: `mine.py:Other` names one of them.

The files are run: they are code, not data.  Needs only the standard library, because client nodes read them too.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Collection
from contextlib import nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from system_under_test.own import source_only
from system_under_test.own.client import Client
from system_under_test.own.libraries import imported, is_installed, stand_ins
from system_under_test.own.system import System
from system_under_test.subject import NotKnown

GROUP = "krucible.systems"
MAIN = "system.py"
MODULE = "krucible_own_system"


class NoSystem(ValueError):
    """The files are no system; the message says why in one sentence."""


class BrokenSystem(NotKnown):
    """A method of the author's class raised something; the message names file, line and method in one sentence."""


class CodeMistake(BrokenSystem):
    """The author's code is wrong (`mistakes_in_code`), so the run ends; the message begins with file and line."""


def blamed(main: Path, method: str, problem: BaseException) -> str:
    """What the author's method raised, with the line of the main file from which it came."""
    return f"{main.name}{_at_line(main, problem)}: {method} raised {in_words(problem)}"


def raised_in(files: Collection[Path], problem: BaseException) -> bool:
    """Whether one of these files raised it itself, and no function of the harness that it called."""
    frames = traceback.extract_tb(problem.__traceback__)
    return bool(frames) and Path(frames[-1].filename) in files


def in_words(problem: BaseException) -> str:
    """The type and the message of an exception, on one line."""
    words = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {words}" if words else type(problem).__name__


def _at_line(main: Path, problem: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == str(main)]
    return f" line {lines[-1]}" if lines else ""


def find(name: str) -> tuple[Path, str] | None:
    """The main file that a user named, and the class in it, "" for the first; None for a name that is no system's.

    A name is the path of a file or of its folder, with or without a class behind a colon, or an entry point.  Raises
    NoSystem where a path was meant and nothing is there.
    """
    place, _, which = name.partition(":")
    path = Path(place)
    if path.is_dir() and (path / MAIN).is_file():
        return path / MAIN, which
    if place.endswith(".py"):
        if not path.is_file():
            raise NoSystem(f"there is no file {place}")
        return path, which
    for point in entry_points(group=GROUP):
        if point.name == place and (source := inspect.getsourcefile(point.load())) is not None:
            return Path(source), which
    if "/" in place:
        raise NoSystem(f"{place} is neither a Python file nor a folder with {MAIN} in it")
    return None


def files_of(main: Path) -> dict[str, str]:
    """Relative path -> text of every Python file that belongs to a system: the file alone, or its whole folder."""
    if main.name != MAIN:
        return {main.name: main.read_text(encoding="utf-8")}
    return {str(p.relative_to(main.parent)): p.read_text(encoding="utf-8") for p in sorted(main.parent.rglob("*.py"))}


def read_files(main: Path, *, on_client: bool = False) -> ModuleType:
    """Run the main file.  Of a folder, what stands beside it can be imported.  Raises NoSystem with the file and line.

    on_client: every library must be there.  Elsewhere stand-ins take the place of those that are missing.
    """
    module = source_only.module_of(MODULE, main)
    sys.modules[MODULE] = module  # dataclasses look their module up
    if main.name != MAIN and (sibling := _imported_sibling(main)):
        where = f"{main.name} imports {sibling}, which stands beside it: of a single file nothing else is taken along"
        raise NoSystem(f"{where}.  Rename {main.name} to {MAIN}, and name its folder")
    beside = [str(main.parent.absolute())] if main.name == MAIN else []  # as Python names the packages below it
    for folder in beside:
        source_only.import_from_source(Path(folder))
    sys.path[:0] = beside
    try:
        with nullcontext() if on_client else stand_ins(files_of(main).values(), main):
            source_only.run(module)
    except SyntaxError as problem:
        raise NoSystem(f"{main} line {problem.lineno}: {problem.msg}") from problem
    except (Exception, SystemExit) as problem:  # a file that ends Python must not end a run with its own exit code
        where = f"{main}{_at_line(main, problem)}"
        raise NoSystem(f"{where} cannot be run: {in_words(problem)}{_what_to_do(problem)}") from problem
    finally:
        for folder in beside:
            sys.path.remove(folder)
    return module


def _what_to_do(problem: BaseException) -> str:
    if isinstance(problem, ModuleNotFoundError):
        return "; name its library in needs.wheels"
    if isinstance(problem, FileNotFoundError):
        return "; clients and runs hold the Python files of a system and no others: read this one in `start`"
    return ""


def _imported_sibling(main: Path) -> str:
    """The first file or package beside the main file that it imports by its name; "" if there is none."""
    for name in sorted({name.partition(".")[0] for name in imported([files_of(main)[main.name]])}):
        for sibling in (main.with_name(f"{name}.py"), main.with_name(name) / "__init__.py"):
            if sibling.is_file() and sibling.resolve() != main.resolve() and not is_installed(name, main):
                return str(sibling.relative_to(main.parent))
    return ""


def system_in(module: ModuleType, file: str, which: str = "") -> System:
    """The system of the file with this name, or its first.  Raises NoSystem."""
    kinds = {kind.__name__: kind for kind in _classes(module) if issubclass(kind, System)}
    if not kinds:
        raise NoSystem(f"{file} must define a class that derives from krucible.System")
    if which and which not in kinds:
        raise NoSystem(f"{file} defines no system {which!r}; it defines {', '.join(kinds)}")
    kind = kinds[which or next(iter(kinds))]
    try:
        return kind()
    except (Exception, SystemExit) as problem:
        path = Path(inspect.getfile(kind))
        raise NoSystem(blamed(path, f"{kind.__name__}()", problem)) from problem


def client_in(module: ModuleType, file: str, system: System) -> type[Client]:
    """The client that the system names, or the only one of the file.  Raises NoSystem."""
    if system.client is not None:
        if not (isinstance(system.client, type) and issubclass(system.client, Client)):
            wrong = f"{type(system).__name__}.client must be a class that derives from krucible.Client"
            raise NoSystem(f"{file}: {wrong}, not {system.client!r:.60}")
        return system.client
    kinds = [kind for kind in _classes(module) if issubclass(kind, Client)]
    if not kinds:
        raise NoSystem(
            f"{file} must define a class that derives from krucible.Client, or its system must name one: client = …"
        )
    if len(kinds) > 1:
        names, wanted = [kind.__name__ for kind in kinds], type(system).__name__
        raise NoSystem(
            f"{file} defines the clients {' and '.join(names)}: say which one {wanted} has, with `client = {names[-1]}`"
        )
    return kinds[0]


def _classes(module: ModuleType) -> list[type]:
    return [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
