"""Mistakes in the files of a user's own system: wrong statements of its classes, and errors of its code.

*Statements.*  Wrong values are refused before nodes are made.

Otherwise they surface late: a needs of the wrong type while an image is built, a wrong pattern after the run.

*Code.*  An error that Python raises for one is no answer of the system under test.

A misspelled name would otherwise make every read fail, and the run would end after minutes with "nothing was read".  So
such an exception ends the run at once, if a line of the author's files raised it.  So does a SystemExit, because no
answer of a system ends the program of a client.

Two exceptions of these classes are none, because they may depend on what a server answered: one that a library raises,
and one about None.  `row[0]` of a row that the system has lost raises TypeError, and this is a finding.  They are
counted like all others.

Needs only the standard library, because client nodes use it too.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from system_under_test.client import Client
from system_under_test.own.read_own_system import NoSystem
from system_under_test.subject import FAILOVER_S_MAX, Needs
from system_under_test.system import METADATA, METADATA_FOLDER, System

_PROVES_NOTHING = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError)
"""Errors at the end of a connection or of a timeout: the request may have reached the server."""
_PROCESS_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 0.85
"""Similarity from which a name is taken for a misspelled one: one wrong letter in a name of seven."""
_METHODS = ("install", "start", "status", "leader_of", "ready", "caught_up")


_NOT_STATED = ("client", "functions", "members", "processes", "bug", "seed", "settings", "nodes")
"""Attributes of a system that are checked apart, or that a run fills in."""
_RANGES: Mapping[str, tuple[float, float]] = {
    "port": (0, 65535),
    "failover_s": (1e-9, FAILOVER_S_MAX),
    "unavailable_s": (0, 86_400),
}


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _wrong_types(name: str, value: object, hint: Any) -> Iterator[str]:
    """Yield what does not fit the annotation of an attribute, or of a field of it."""
    if is_dataclass(hint) and isinstance(value, hint):  # type: ignore[arg-type]  # a class
        hints = get_type_hints(hint)
        for field in fields(hint):
            yield from _wrong_types(f"{name}: {field.name}", getattr(value, field.name), hints[field.name])
    elif not _fits(value, hint):
        words = re.sub(r"[a-z_]+\.", "", str(hint if get_args(hint) else hint.__name__))
        yield f"{name} must be {words}, not {value!r:.60}"


def _fits(value: Any, hint: Any) -> bool:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (UnionType, Union):
        return any(_fits(value, each) for each in inner)
    if kind is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else [(value, value)]
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in pairs)
    if kind in (tuple, Sequence):
        return isinstance(value, list | tuple) and all(_fits(each, inner[0]) for each in value)
    wider = {str: (str, Path), float: (int, float)}  # a path stands for its text
    return isinstance(value, wider.get(kind, kind))


def _wrong_values(system: System) -> Iterator[str]:
    """Yield values of the right type that are impossible."""
    for name, (least, most) in _RANGES.items():
        if not _is_number(value := getattr(system, name), least, most):
            yield f"{name} must be a number from {least:g} to {most:g}, not {value!r:.60}"
    if wrong := [name for name, value in system.usual.items() if not _is_number(value, 0, math.inf)]:
        yield f"usual: {wrong[0]} must be a number that is not negative, not {system.usual[wrong[0]]!r:.60}"
    if system.logs and Path(system.logs.get(METADATA, "")).name != METADATA_FOLDER:
        yield f"logs must name a log {METADATA!r} whose folder is called {METADATA_FOLDER}, not {system.logs!r:.60}"
    patterns = {f"moments: {name}": pattern for name, pattern in system.moments.items()}
    for name, pattern in {"complaints": system.complaints, **patterns}.items():
        try:
            re.compile(pattern, re.MULTILINE)
        except re.error as problem:
            yield f"{name} is no regular expression: {problem}"


def check_declared(system: System, client: type[Client] | None, main: Path, *, kept: bool = False) -> None:
    """Raises NoSystem, in one sentence, for the first thing that is wrong.  main: the file of the system.

    kept: the file is the copy of a stored run.  To judge it needs none of the files for nodes, so they may be missing.
    """
    for words in _wrong(system, main, kept):
        raise NoSystem(f"{main.name}: {type(system).__name__}.{words}")
    if client is None:
        return
    for words in chain(_misspelled(client, Client), _wrong_parameters(client, Client, ("__init__",))):
        raise NoSystem(f"{main.name}: {client.__name__}.{words}")
    check_refused(client, main.name, of=object)


def _wrong(system: System, main: Path, kept: bool) -> Iterator[str]:
    """Yield what is wrong, each after what it rests on."""
    yield from _misspelled(type(system), System)
    yield from _wrong_methods(system)
    for name, hint in get_type_hints(System).items():
        if name not in _NOT_STATED:
            yield from _wrong_types(name, getattr(system, name), hint)
    yield from _wrong_values(system)
    yield from _wrong_processes(system.processes)
    needs = system.needs
    if needs.image and needs.debian:
        yield f"needs: the image {needs.image} must have its packages already: leave out debian"
    yield from () if kept else _missing(needs, main)


def check_refused(client: type[Client], file: str, of: type = BaseException) -> None:
    """Raises NoSystem for what no `except` takes, and for a class of `refused` that also takes exceptions that prove
    nothing.  of: object where a library can be a stand-in; on a client node none is."""
    refused = client.refused
    if not isinstance(refused, tuple) or not all(isinstance(each, type) and issubclass(each, of) for each in refused):
        raise NoSystem(
            f"{file}: {client.__name__}.refused must be a tuple of classes of exceptions, such as (ReadOnlyError,), "
            f"not {refused!r:.60}"
        )
    for wide in refused:
        for proves_nothing in _PROVES_NOTHING:
            if issubclass(proves_nothing, wide):
                what = f"{wide.__name__}, which also takes {proves_nothing.__name__}"
                why = "after it the request may have taken effect. List what proves that it did not"
                raise NoSystem(f"{file}: {client.__name__}.refused lists {what}: {why}")


def _misspelled(kind: type, base: type) -> Iterator[str]:
    """Yield the names that are nearly those of parts that this class leaves out: such a part would silently be missing.

    A misspelled function of a client is not missed: no workload that needs it runs."""
    own = {name for each in kind.__mro__ if not issubclass(base, each) for name in vars(each) if name[0] != "_"}
    left_out = [name for name in dir(base) if name[0] != "_" and name not in own]
    for name in sorted(own.difference(dir(base))):
        if near := get_close_matches(name, left_out, 1, _NEAR):
            yield f"{name} is no part of a {base.__name__}; did you mean {near[0]!r}?  If not, begin its name with _"


def _wrong_methods(system: System) -> Iterator[str]:
    kind = type(system)
    if kind.start is System.start and not system.in_process:
        yield "start is missing: it must return the command of a node's server"
    for name in _METHODS:
        if not inspect.iscoroutinefunction(getattr(kind, name)):
            yield f"{name} must be `async def {name}(…)`"
    yield from _wrong_parameters(kind, System, _METHODS)


def _wrong_parameters(kind: type, base: type, methods: Iterable[str]) -> Iterator[str]:
    """Yield which of these methods cannot be called with the arguments that the harness gives, by their positions."""
    for name in methods:
        parameters = inspect.signature(getattr(base, name)).parameters
        try:
            inspect.signature(getattr(kind, name)).bind(*parameters)
        except TypeError as problem:
            yield f"{name} must take ({', '.join(parameters)}): {problem}"


def _wrong_processes(processes: object) -> Iterator[str]:
    """A name stands in `--nemesis`, where commas and colons separate."""
    if isinstance(processes, str) or not isinstance(processes, Mapping | Collection):
        yield f'processes must be a list of names such as ["agent"], or name -> pattern, not {processes!r:.60}'
        return
    for name in processes:
        if not isinstance(name, str) or not _PROCESS_NAME.fullmatch(name):
            yield f"processes: {name!r:.60} is no name: letters, digits, - and _ may stand in one"
            return
    for name, pattern in processes.items() if isinstance(processes, Mapping) else ():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as problem:
            yield f"processes: {pattern!r:.60} of {name} is no regular expression: {problem}"


def _missing(needs: Needs, main: Path) -> Iterator[str]:
    for here in needs.files.values():
        if not (main.parent / here).exists():
            yield f"needs: files names {here}, and there is no such file or folder beside the system"
    for crate in needs.crates.values():
        for here in ("Cargo.toml", "Cargo.lock", *crate.patches.values()):
            if not (main.parent / crate.folder / here).is_file():
                yield f"needs: the crate {crate.folder} lacks {here}{_ABOUT_LOCKS if here == 'Cargo.lock' else ''}"


_ABOUT_LOCKS = ", which pins what is built: run `cargo generate-lockfile` there"


MISTAKES = (NameError, AttributeError, TypeError, ImportError, SystemExit)
_NONE = "NoneType"


def mistake_in(folder: Path, problem: BaseException, method: Callable[..., Any] | None = None) -> str:
    """File, line, class and text of a mistake that a file in this folder raised; "" for any other exception.

    method: what the harness called.  Where it does not take the arguments of its function, its own line is named."""
    if not isinstance(problem, MISTAKES):
        return ""
    words = " ".join(str(problem).split())
    if _NONE in words:
        return ""
    frames = traceback.extract_tb(problem.__traceback__)
    if frames and (name := _within(folder, frames[-1].filename)):
        missing = "; name its library in needs.wheels" if isinstance(problem, ModuleNotFoundError) else ""
        return f"{name} line {frames[-1].lineno}: {type(problem).__name__}: {words}{missing}"
    called = isinstance(problem, TypeError) and f"{getattr(method, '__name__', '')}() " in words
    where = code_of(folder, method) if called else ""
    return f"{where}{type(problem).__name__}: {words}" if where else ""


def line_of(folder: Path, problem: BaseException) -> str:
    """Return the last line of the files in this folder that an exception came through, in brackets; "" if none is."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if name := _within(folder, frame.filename):
            return f" ({name} line {frame.lineno})"
    return ""


def code_of(folder: Path, method: Callable[..., Any] | None) -> str:
    """Return the file and the first line of a method, for the beginning of a sentence; "" if they are not known."""
    code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
    if code is None or not (name := _within(folder, code.co_filename)):
        return ""
    return f"{name} line {code.co_firstlineno}: "


def _within(folder: Path, filename: str) -> str:
    """Return the path of a file relative to the folder, "" if it lies elsewhere."""
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else ""
