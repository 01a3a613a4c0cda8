"""Reading the files of a user's own: a system (a file, a folder with `system.py`, an entry point) or a workload.

A file may define several systems, such as one server with two configurations: `mine.py:Other` names one of them.  The
files are run: they are code, not data.

*What belongs to it.*  Of a folder with `system.py`, all Python files.  Of another file, those beside it that it
imports, and those that these import.  All of them travel to client nodes and are kept with runs.

*Libraries.*  Client nodes have the wheels that a system needs.  The machine of the harness only starts servers, and
need not have them.  There a stand-in replaces every library that is imported and not installed, while the file is read.
Its names can be listed in `refused`, and derived from. Calling such a name raises ModuleNotFoundError, because nothing
that the harness does may rest on a library that is not installed. Only names that the author's own files import are
replaced, so no other library mistakes a stand-in for the real one.

*Source only.*  Python runs the code in `__pycache__` if size and time of the source fit, and it does not compare the
code with the source.  The files of a run are bound by their hashes, but such compiled code is not: it could judge a run
by other rules than those that are kept.  So neither the file itself nor what stands beside it is taken from there.

Needs only the standard library, because client nodes read these files too.
"""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from system_under_test.client import Client
from system_under_test.subject import NotKnown
from system_under_test.system import System

GROUP = "krucible.systems"
MAIN = "system.py"
MODULE = "krucible_own_system"


_OURS = frozenset({"checkers", "harness", "krucible", "nemesis", "simulation", "system_under_test", "workloads"})


class NoSystem(ValueError):
    """The files are no system; the message says why in one sentence."""


class BrokenSystem(NotKnown):
    """A method of the author's class raised something; the message names file, line and method in one sentence."""


class CodeMistake(BrokenSystem):
    """The author's code is wrong (`mistakes.mistake_in`), so the run ends; the message begins with file and line."""


def blamed(main: Path, method: str, problem: BaseException) -> str:
    """Return what the author's method raised, with the line of the main file from which it came."""
    return f"{main.name}{_at_line(main, problem)}: {method} raised {in_words(problem)}"


def raised_in(files: Collection[Path], problem: BaseException) -> bool:
    """Return whether one of these files raised it itself, and no function of the harness that it called."""
    frames = traceback.extract_tb(problem.__traceback__)
    return bool(frames) and Path(frames[-1].filename) in files


def in_words(problem: BaseException) -> str:
    """Return the type and the message of an exception, on one line."""
    words = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {words}" if words else type(problem).__name__


def _at_line(main: Path, problem: BaseException) -> str:
    file = str(main.absolute())
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return f" line {lines[-1]}" if lines else ""


def find(name: str) -> tuple[Path, str] | None:
    """Return the main file that a user named, and the class in it, "" for the first; None for a name that is no
    system's.

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
    """Return relative path -> text of every Python file that belongs to this one."""
    if main.name == MAIN:
        found = sorted(main.parent.rglob("*.py"))
    else:
        found, waiting = [], [main]
        while waiting:
            found.append(path := waiting.pop())
            waiting += [each for each in _imported_beside(main, path) if each not in (*found, *waiting)]
    return {str(path.relative_to(main.parent)): path.read_text(encoding="utf-8") for path in sorted(found)}


def _imported_beside(main: Path, path: Path) -> Iterator[Path]:
    """Yield the files beside the main file, and those of packages beside it, that a file imports by their name."""
    for name in sorted({name.partition(".")[0] for name in imported([path.read_text(encoding="utf-8")])}):
        if _stands_beside(name, main):
            yield from filter(Path.is_file, [main.with_name(f"{name}.py"), *sorted(main.with_name(name).rglob("*.py"))])


def read_files(main: Path, *, name: str = MODULE, files: Mapping[str, str] | None = None) -> ModuleType:
    """Run a file; what belongs to it can be imported, then and later.  Raises NoSystem with the file and line.

    name: of the module.  files: relative path -> text of what belongs to it, as a client node has it: there every
    library must be installed.  None: they are read here, and stand-ins take the place of missing libraries.
    """
    _forget(name)
    texts = files_of(main) if files is None else files
    folder = main.absolute().parent
    loader = _TextLoader(name, str(folder / main.name), texts[main.name], name)
    spec = spec_from_file_location(name, folder / main.name, loader=loader)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module here
    beside = texts if main.name == MAIN else {file: text for file, text in texts.items() if file != main.name}
    sys.meta_path.insert(0, _Beside(name, folder, beside))
    try:
        with nullcontext() if files is not None else stand_ins(texts.values(), main):
            loader.exec_module(module)
    except SyntaxError as problem:
        raise NoSystem(f"{main} line {problem.lineno}: {problem.msg}") from problem
    except (Exception, SystemExit) as problem:  # a file that calls sys.exit must not end a run with its own exit code
        where = f"{main}{_at_line(main, problem)}"
        raise NoSystem(f"{where} cannot be run: {in_words(problem)}{_what_to_do(problem)}") from problem
    return module


def _what_to_do(problem: BaseException) -> str:
    if isinstance(problem, ModuleNotFoundError):
        return "; name its library in needs.wheels"
    if isinstance(problem, FileNotFoundError):
        return "; clients and runs hold the Python files of a system and no others: read this one in `start`"
    return ""


def system_in(module: ModuleType, file: str, which: str = "") -> System:
    """Return the system of the file with this name, or its first.  Raises NoSystem."""
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
    """Return the client that the system names, or the only one of the file.  Raises NoSystem."""
    if (named := system.client) is not None:
        if not (isinstance(named, type) and issubclass(named, Client)):
            wrong = f"{type(system).__name__}.client must be a class that derives from krucible.Client"
            raise NoSystem(f"{file}: {wrong}, not {named!r:.60}")
        if "." in named.__qualname__:
            wrong = f"the client {named.__qualname__} stands inside of another class or function"
            raise NoSystem(f"{file}: {wrong}, where no client node finds it: move it out, to the file itself")
        return named
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


def import_path_of(kind: type) -> str:
    """Return module:name of a class, by which a client node finds it."""
    return f"{kind.__module__}:{kind.__name__}"


def _classes(module: ModuleType) -> list[type]:
    return [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]


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
        self.__path__ = []  # it may import modules beside it

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
        if parts[0] not in added and _spec_of(parts[0], main) is not None:
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
    """Return the dotted names of all modules that these files import by their full name."""
    names: set[str] = set()
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:  # executing the file raises it again, with its line
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module)
    return names


def _spec_of(name: str, main: Path) -> ModuleSpec | None:
    """Return what an import of this name finds; None for nothing, and for the main file itself."""
    loaded = sys.modules.get(name)
    spec = find_spec(name) if loaded is None else getattr(loaded, "__spec__", None) or ModuleSpec(name, None)
    itself = spec is not None and spec.origin is not None and Path(spec.origin).resolve() == main.resolve()
    return None if itself else spec


def _stands_beside(name: str, main: Path) -> bool:
    """Return whether an import of this name, by this file, can only find what stands beside it."""
    spec = None if name in _OURS else _spec_of(name, main)
    if spec is None or isinstance(spec.loader, _TextLoader):
        return name not in _OURS
    found = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    beside, place = main.resolve().with_name(name), Path(found or "/").resolve()
    return place == beside.with_suffix(".py") or place.is_relative_to(beside)


def _stand_in(module: str, name: str) -> type:
    return _NamesOfStandIns(name, (), {"__module__": module})


class _TextLoader(SourceFileLoader):
    """Compiles a text that was read before, and leaves nothing behind.  main: name of the module it belongs to."""

    def __init__(self, name: str, path: str, text: str, main: str) -> None:
        super().__init__(name, path)
        self.text, self.main = text, main

    def get_data(self, path: str) -> bytes:
        return self.text.encode()

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.text, path)
        return code


class _Beside(MetaPathFinder):
    """Finds the modules that belong to the module `main`.  files: relative path -> text, below this folder."""

    def __init__(self, main: str, folder: Path, files: Mapping[str, str]) -> None:
        self.main, self._folder, self._files = main, folder, files

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        stem = fullname.replace(".", "/")
        if f"{stem}.py" in self._files:
            return self._spec(fullname, f"{stem}.py")
        if any(name.startswith(f"{stem}/") for name in self._files):  # a package may lack `__init__`
            return self._spec(fullname, f"{stem}/__init__.py", [str(self._folder / stem)])
        return None

    def _spec(self, name: str, file: str, within: list[str] | None = None) -> ModuleSpec | None:
        loader = _TextLoader(name, str(self._folder / file), self._files.get(file, ""), self.main)
        return spec_from_file_location(name, self._folder / file, loader=loader, submodule_search_locations=within)


def _forget(main: str) -> None:
    """Forget all imports that belonged to this module: it is read again, perhaps from another folder."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not (isinstance(finder, _Beside) and finder.main == main)]
    for name, module in list(sys.modules.items()):
        loader = _loader_of(module)
        if isinstance(loader, _TextLoader) and loader.main == main:
            del sys.modules[name]


def _loader_of(module: ModuleType) -> object:
    return getattr(getattr(module, "__spec__", None), "loader", None)
