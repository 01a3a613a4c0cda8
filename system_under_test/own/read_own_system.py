"""Reader of a user's own files: a system (a file, a folder with `system.py`, an entry point) or a workload.

A file may define several systems, such as one server with two configurations: `mine.py:Other` names one of them.  The
files are executed: they are code, not data.

*Files.*  The files of a folder with `system.py` are all its Python files.  The files of another main file are the file
itself and the files beside it that it imports, directly or indirectly.  All these files are sent to client nodes and
stored with runs.

*Libraries.*  Client nodes have the wheels that a system needs.  The machine of the harness only starts servers, and
need not have them.  On that machine, while the file is read, a stand-in replaces every imported library that is not
installed.  Names of a stand-in can be listed in `refused`, and can be base classes.  Calling such a name raises
ModuleNotFoundError, because the harness must not depend on a library that is not installed.  Only names that the
author's own files import are replaced, so no other library mistakes a stand-in for the real library.

*Source only.*  Python runs the code in `__pycache__` if size and time of the source match, and does not compare the
code with the source.  The manifest of a run contains hashes of the files, but not of such compiled code, so the code
could judge a run by other rules than the stored files.  So compiled code is never used, neither for the file itself nor
for the files beside it.

This module needs only the standard library, because client nodes read these files too.
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
    """The files do not define a valid system; the message gives the reason in one sentence."""


class BrokenSystem(NotKnown):
    """A method of the author's class raised an exception; the message names file, line and method in one sentence."""


class CodeMistake(BrokenSystem):
    """The author's code contains a mistake (`mistakes.mistake_in`), so the run ends; the message begins with file and
    line.
    """


def blamed(main: Path, method: str, problem: BaseException) -> str:
    """Return a message for an exception of the author's method, with the line of the main file."""
    return f"{main.name}{_at_line(main, problem)}: {method} raised {in_words(problem)}"


def raised_in(files: Collection[Path], problem: BaseException) -> bool:
    """Return True if the exception was raised in one of these files, and not in a function of the harness that the file
    called.
    """
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
    """Return the main file that a user named, and the name of its class, "" for the first class.  Returns None if no
    system has this name.

    A name is the path of a file or of its folder, with or without a colon and a class, or an entry point.  Raises
    NoSystem for a path at which there is no system.
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
    """Return relative path -> text of all Python files of this main file."""
    if main.name == MAIN:
        found = sorted(main.parent.rglob("*.py"))
    else:
        found, waiting = [], [main]
        while waiting:
            found.append(path := waiting.pop())
            waiting += [each for each in _imported_beside(main, path) if each not in (*found, *waiting)]
    return {str(path.relative_to(main.parent)): path.read_text(encoding="utf-8") for path in sorted(found)}


def _imported_beside(main: Path, path: Path) -> Iterator[Path]:
    """Yield the modules beside the main file, and the files of packages beside it, that a file imports."""
    for name in sorted({name.partition(".")[0] for name in imported([path.read_text(encoding="utf-8")])}):
        if _stands_beside(name, main):
            yield from filter(Path.is_file, [main.with_name(f"{name}.py"), *sorted(main.with_name(name).rglob("*.py"))])


def read_files(main: Path, *, name: str = MODULE, files: Mapping[str, str] | None = None) -> ModuleType:
    """Execute a file, and return its module.  The files that belong to it can be imported, also later.  Raises NoSystem
    with the file and line.

    name: name of the module
    files: relative path -> text of its files, on a client node, where every library must be installed. None: the files
        are read from this machine, and stand-ins replace missing libraries.
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
    except (Exception, SystemExit) as problem:  # a file that calls sys.exit must not determine the exit code of a run
        where = f"{main}{_at_line(main, problem)}"
        raise NoSystem(f"{where} cannot be run: {in_words(problem)}{_what_to_do(problem)}") from problem
    return module


def _what_to_do(problem: BaseException) -> str:
    if isinstance(problem, ModuleNotFoundError):
        return "; name its library in needs.wheels"
    if isinstance(problem, FileNotFoundError):
        return "; client nodes and runs get only the Python files of a system: read this file in `start`"
    return ""


def system_in(module: ModuleType, file: str, which: str = "") -> System:
    """Return the system with this class name, or the first system of the file.  Raises NoSystem if there is none."""
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
    """Return the client class that the system names, or the only one of the file.  Raises NoSystem if there is none."""
    if (named := system.client) is not None:
        if not (isinstance(named, type) and issubclass(named, Client)):
            wrong = f"{type(system).__name__}.client must be a class that derives from krucible.Client"
            raise NoSystem(f"{file}: {wrong}, not {named!r:.60}")
        if "." in named.__qualname__:
            wrong = f"the client {named.__qualname__} is defined inside another class or function"
            raise NoSystem(
                f"{file}: {wrong}, where client nodes cannot import it: move it to the top level of the file"
            )
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
    """Return "module:name" of a class, by which a client node imports it."""
    return f"{kind.__module__}:{kind.__name__}"


def _classes(module: ModuleType) -> list[type]:
    return [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]


class _NamesOfStandIns(type):
    """Metaclass of stand-ins.  Every attribute of a stand-in is another stand-in, with the name that the author
    wrote.
    """

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
        self.__path__ = []  # a package, so that its submodules can be imported

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(self.__name__, name)


@contextmanager
def stand_ins(texts: Iterable[str], main: Path) -> Iterator[None]:
    """Provide stand-ins for modules that these files import and that are not installed on this machine.

    main: main file; if it has the name of a library that it imports, it is not mistaken for that library
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
    """Return the spec that an import of this name finds; None if there is none, or if it is that of the main file."""
    loaded = sys.modules.get(name)
    spec = find_spec(name) if loaded is None else getattr(loaded, "__spec__", None) or ModuleSpec(name, None)
    itself = spec is not None and spec.origin is not None and Path(spec.origin).resolve() == main.resolve()
    return None if itself else spec


def _stands_beside(name: str, main: Path) -> bool:
    """Return True if an import of this name, by this file, can only find a module beside the file."""
    spec = None if name in _OURS else _spec_of(name, main)
    if spec is None or isinstance(spec.loader, _TextLoader):
        return name not in _OURS
    found = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    beside, place = main.resolve().with_name(name), Path(found or "/").resolve()
    return place == beside.with_suffix(".py") or place.is_relative_to(beside)


def _stand_in(module: str, name: str) -> type:
    return _NamesOfStandIns(name, (), {"__module__": module})


class _TextLoader(SourceFileLoader):
    """A loader that compiles a text read earlier, and writes no compiled code.

    main: name of the main module to which the file belongs
    """

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
    """A finder of the modules that belong to the module `main`.

    files: relative path below this folder -> text
    """

    def __init__(self, main: str, folder: Path, files: Mapping[str, str]) -> None:
        self.main, self._folder, self._files = main, folder, files

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        stem = fullname.replace(".", "/")
        if f"{stem}.py" in self._files:
            return self._spec(fullname, f"{stem}.py")
        if any(name.startswith(f"{stem}/") for name in self._files):  # a package without `__init__`
            return self._spec(fullname, f"{stem}/__init__.py", [str(self._folder / stem)])
        return None

    def _spec(self, name: str, file: str, within: list[str] | None = None) -> ModuleSpec | None:
        loader = _TextLoader(name, str(self._folder / file), self._files.get(file, ""), self.main)
        return spec_from_file_location(name, self._folder / file, loader=loader, submodule_search_locations=within)


def _forget(main: str) -> None:
    """Forget all imported modules that belong to this main module, because it is read again, perhaps from another
    folder.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not (isinstance(finder, _Beside) and finder.main == main)]
    for name, module in list(sys.modules.items()):
        loader = _loader_of(module)
        if isinstance(loader, _TextLoader) and loader.main == main:
            del sys.modules[name]


def _loader_of(module: ModuleType) -> object:
    return getattr(getattr(module, "__spec__", None), "loader", None)
