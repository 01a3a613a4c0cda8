"""Mistakes in the files of a user's own system: invalid attributes of its classes, and errors of its code.

*Attributes.*  Invalid values are rejected before nodes are created.
Otherwise they would surface late: `needs` of the wrong type while an image is built, an invalid pattern after the run.

*Code.*  An error in the author's code is no answer of the system under test.
Otherwise a misspelled name would make every read fail, and the run would end after minutes with "nothing was read".  So
an exception of the classes MISTAKES ends the run at once, if a line of the author's files raised it.  SystemExit is one
of these classes, because no answer of a system ends the program of a client.

Two kinds of such exceptions are no mistakes, because they may depend on the answer of a server: exceptions that a
library raises, and exceptions about None.  For example, `row[0]` for a row that the system has lost raises TypeError,
and this is a finding.  They count like any other exception.

This module needs only the standard library, because client nodes use it too.
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
"""Errors of a lost connection or a timeout: the request may have reached the server."""
_PROCESS_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 0.85
"""Minimum similarity of a misspelled name to the correct name: one wrong letter in a name of seven."""
_METHODS = ("install", "start", "status", "leader_of", "ready", "caught_up")


_NOT_STATED = ("client", "functions", "members", "processes", "bug", "seed", "settings", "nodes")
"""Attributes of a system that other checks cover, or that a run fills in."""
_RANGES: Mapping[str, tuple[float, float]] = {
    "port": (0, 65535),
    "failover_s": (1e-9, FAILOVER_S_MAX),
    "unavailable_s": (0, 86_400),
}


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _wrong_types(name: str, value: object, hint: Any) -> Iterator[str]:
    """Yield a message for an attribute, or a field of it, whose value does not match its annotation."""
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
    wider = {str: (str, Path), float: (int, float)}  # a path is accepted as its text
    return isinstance(value, wider.get(kind, kind))


def _wrong_values(system: System) -> Iterator[str]:
    """Yield a message for each value that has the right type but is impossible."""
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
    """Raise NoSystem, with a message of one sentence, for the first invalid attribute.

    main: file of the system
    kept: True if the file is the copy in a run folder. Judging a run does not need the files for nodes, so these may be
        missing.
    """
    for words in _wrong(system, main, kept):
        raise NoSystem(f"{main.name}: {type(system).__name__}.{words}")
    if client is None:
        return
    for words in chain(_misspelled(client, Client), _wrong_parameters(client, Client, ("__init__",))):
        raise NoSystem(f"{main.name}: {client.__name__}.{words}")
    check_refused(client, main.name, of=object)


def _wrong(system: System, main: Path, kept: bool) -> Iterator[str]:
    """Yield a message for each invalid attribute.  The checks are ordered so that each may rely on the earlier ones."""
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
    """Raise NoSystem if `refused` is not valid in an `except`, or contains a class that also covers exceptions that
    prove nothing.

    of: base class of valid entries; `object` on a machine where stand-ins may replace libraries
    """
    refused = client.refused
    if not isinstance(refused, tuple) or not all(isinstance(each, type) and issubclass(each, of) for each in refused):
        raise NoSystem(
            f"{file}: {client.__name__}.refused must be a tuple of classes of exceptions, such as (ReadOnlyError,), "
            f"not {refused!r:.60}"
        )
    for wide in refused:
        for proves_nothing in _PROVES_NOTHING:
            if issubclass(proves_nothing, wide):
                what = f"{wide.__name__}, which also covers {proves_nothing.__name__}"
                why = "after it the request may have taken effect. List what proves that it did not"
                raise NoSystem(f"{file}: {client.__name__}.refused lists {what}: {why}")


def _misspelled(kind: type, base: type) -> Iterator[str]:
    """Yield a message for each name that resembles a name of `base` that this class does not define: otherwise a
    misspelled method would silently be ignored.

    A misspelled function of a client is noticed anyway, because no workload that needs the function can run.
    """
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
    """Yield a message for each of these methods that cannot be called with the positional arguments that the harness
    passes.
    """
    for name in methods:
        parameters = inspect.signature(getattr(base, name)).parameters
        try:
            inspect.signature(getattr(kind, name)).bind(*parameters)
        except TypeError as problem:
            yield f"{name} must take ({', '.join(parameters)}): {problem}"


def _wrong_processes(processes: object) -> Iterator[str]:
    """Yield a message for each invalid name or pattern.  A name is used in `--nemesis`, where commas and colons are
    separators.
    """
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
    """Return file, line, class and text of a mistake that a file in this folder raised; "" for any other exception.

    method: method that the harness called. If it does not accept the arguments of its function, the message names its
        first line.
    """
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
    """Return, in brackets, the last line of the files in this folder in the traceback; "" if there is none."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if name := _within(folder, frame.filename):
            return f" ({name} line {frame.lineno})"
    return ""


def code_of(folder: Path, method: Callable[..., Any] | None) -> str:
    """Return the file and the first line of a method, for the beginning of a message; "" if they are unknown."""
    code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
    if code is None or not (name := _within(folder, code.co_filename)):
        return ""
    return f"{name} line {code.co_firstlineno}: "


def _within(folder: Path, filename: str) -> str:
    """Return the path of a file relative to the folder; "" for a file outside the folder."""
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else ""
