"""Is what the author's classes state of the right kind?  Wrong values are refused before nodes are made.

Otherwise they surface late: a needs of the wrong type while an image is built, a wrong pattern after the run.

Mistakes in the author's own code: what Python raises for them is no answer of the system under test.

A misspelled name would otherwise make every read fail, and the run would end after minutes with "nothing was read".  So
such an exception ends the run at once, if a line of the author's files raised it.

Two exceptions of these classes are none, because they may depend on what a server answered: one that a library raises,
and one about None.  `row[0]` of a row that the system has lost raises TypeError, and this is a finding.  They are
counted like all others.

Needs only the standard library, because client nodes use it too.
"""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from system_under_test.client import Client
from system_under_test.functions import FUNCTIONS, Function
from system_under_test.own.read_own_system import NoSystem
from system_under_test.subject import FAILOVER_S_MAX, Artefact, Crate, Jars, Needs
from system_under_test.system import METADATA, METADATA_FOLDER, System

_ALIKE = 0.85
"""How alike two names are, of 1, if one is taken for a slip of the pen."""
_PROVES_NOTHING = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError)
"""What the end of a connection or of patience raises: the request may have reached the server."""
_PROCESS_NAME = re.compile(r"[A-Za-z0-9_-]+")
_METHODS = ("install", "start", "status", "leader_of", "ready", "caught_up")
_FILLED_IN = ("name", "summary", "bug", "seed", "settings", "nodes")
"""Attributes of a system or client that no file must state; a name like theirs is no slip of the pen."""
_OF_SYSTEM = {"install": 2, "start": 2, "status": 1, "leader_of": 1, "ready": 1, "caught_up": 1, "complaints_in": 1}
_OF_SYSTEM |= {"trace_of": 2}
_OF_CLIENT = {"open": 1, "close": 0, "leader": 0, "deposed": 0, "create": 1}
"""Method -> how many arguments it is given besides `self`."""
_EITHER = ("leader",)
"""Methods that may take a key."""


def check_declared(system: System, client: type[Client] | None, main: Path, *, kept: bool = False) -> None:
    """Raises NoSystem, in one sentence, for the first thing that is wrong.  main: the file of the system.

    kept: the file is the copy of a stored run.  To judge it needs none of the files for nodes, so they may be missing.
    """
    wrong = (*_wrong_methods(system), *_wrong_values(system), *_wrong_needs(system), *_missing(system, main, kept))
    for words in wrong:
        raise NoSystem(f"{main.name}: {type(system).__name__}.{words}")
    if client is None:
        return
    for kind, base in ((type(system), System), (client, Client)):
        for words in _misspelled(kind, base):
            raise NoSystem(f"{main.name}: {kind.__name__}.{words}")
    for words in (*_wrong_parameters(type(system), _OF_SYSTEM, ()), *_wrong_parameters(client, _OF_CLIENT, _EITHER)):
        raise NoSystem(f"{main.name} {words}")
    refused = client.refused
    if not isinstance(refused, tuple) or not all(isinstance(each, type) for each in refused):
        raise NoSystem(_wrong_refused(client, main.name))
    _check_width(client, main.name)


def check_defined_once(main: Path, text: str) -> None:
    """Raises NoSystem for a class, or a method of one, that stands twice in the file: Python drops the first."""
    tree = ast.parse(text)
    places: list[ast.Module | ast.ClassDef] = [tree, *(each for each in tree.body if isinstance(each, ast.ClassDef))]
    for place in places:
        lines: dict[str, int] = {}
        for each in place.body:
            if not isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or each.decorator_list:
                continue
            if each.name in lines:
                words = f"{each.name} is defined again, and line {lines[each.name]} counts for nothing: rename one"
                raise NoSystem(f"{main.name} line {each.lineno}: {words}")
            lines[each.name] = each.lineno


def check_refused(client: type[Client], file: str) -> None:
    """On a client node, where no library is a stand-in: raises NoSystem for what no `except` takes."""
    refused = client.refused
    if not isinstance(refused, tuple) or not all(isinstance(e, type) and issubclass(e, BaseException) for e in refused):
        raise NoSystem(_wrong_refused(client, file))
    _check_width(client, file)


def _check_width(client: type[Client], file: str) -> None:
    """Raises NoSystem for a class of `refused` that also takes exceptions that prove nothing."""
    for wide in client.refused:
        for proves_nothing in _PROVES_NOTHING:
            if issubclass(proves_nothing, wide):
                what = f"{wide.__name__}, which also takes {proves_nothing.__name__}"
                why = "after it the request may have taken effect. List what proves that it did not"
                raise NoSystem(f"{file}: {client.__name__}.refused lists {what}: {why}")


def _wrong_refused(client: type[Client], file: str) -> str:
    return (
        f"{file}: {client.__name__}.refused must be a tuple of classes of exceptions, such as (ReadOnlyError,), "
        f"not {client.refused!r:.60}"
    )


def _wrong_methods(system: System) -> Iterator[str]:
    kind = type(system)
    if kind.start is System.start and not system.in_process:
        yield "start is missing: it must return the command of a node's server"
    for name in _METHODS:
        if not inspect.iscoroutinefunction(getattr(kind, name)):
            yield f"{name} must be `async def {name}(…)`"


def wrong_signature(client: type[Client], function: str, own: Mapping[str, Function]) -> str:
    """Return one sentence if the client's method does not take the arguments of its function, "" if it does."""
    given = (own.get(function) or FUNCTIONS[function]).given
    count = _FIELDS.get(function) if given == "fields" else 0 if given == "nothing" else len(given.split())
    if given == "perhaps key":
        count = 1
    return next(_wrong_parameters(client, {function: count} if count is not None else {}, ()), "")


_FIELDS = {"transfer": 3, "open_account": 2}


def _wrong_parameters(kind: type, given: Mapping[str, int], either: Collection[str]) -> Iterator[str]:
    """Yield one sentence for each method that does not take as many arguments as it is given."""
    for name, count in given.items():
        method = getattr(kind, name)
        try:
            signature = inspect.signature(method)
        except (TypeError, ValueError):  # of a C function, which tells only when it is called
            continue
        if not any(_binds(signature, arguments) for arguments in (count, count + (name in either))):
            code = getattr(inspect.unwrap(method), "__code__", None)
            line = f"line {code.co_firstlineno}: " if code is not None else ""
            words = f"takes {signature}, and is called with self and {count} argument{'s' if count != 1 else ''}"
            yield f"{line}{kind.__name__}.{name} {words}"


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(None, *range(count))
    except TypeError:
        return False
    return True


def _misspelled(kind: type, base: type) -> Iterator[str]:
    """Names that the harness does not read, each very like one that it would read and that is missing."""
    known = [name for name in vars(base) if not name.startswith("_") and name not in _FILLED_IN]
    own = {name for each in kind.__mro__ if issubclass(each, base) and each is not base for name in vars(each)}
    missing = [name for name in known if name not in own]
    for name in sorted(own - set(known) - set(FUNCTIONS)):
        if meant := get_close_matches(name.strip("_"), missing, n=1, cutoff=_ALIKE):
            yield f"{name} is not read by anybody: rename it to {meant[0]}, or to something less like {meant[0]}"


def _wrong_values(system: System) -> Iterator[str]:
    port = system.port
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        yield f"port must be a whole number up to 65535, not {port!r:.60}"
    failover_s = system.failover_s
    if not isinstance(failover_s, int | float) or isinstance(failover_s, bool) or not 0 < failover_s <= FAILOVER_S_MAX:
        yield f"failover_s must be a number of seconds up to {FAILOVER_S_MAX:g}, not {failover_s!r:.60}"
    promised_s = system.unavailable_s
    if not isinstance(promised_s, int | float) or isinstance(promised_s, bool) or not 0 <= promised_s <= 86_400:
        yield f"unavailable_s must be a number of seconds, 0 where nothing is promised, not {promised_s!r:.60}"
    if system.elections not in (None, True, False):
        yield f"elections must be True or False, not {system.elections!r:.60}"
    yield from _wrong_processes(system.processes)
    if not isinstance(system.notices_damage, Mapping):
        yield 'notices_damage must be a dictionary such as {"flip": "*.wal"}'
    for name in ("logs", "unreachable_by", "bugs", "parameters"):
        if not isinstance(getattr(system, name), Mapping):
            yield f"{name} must be a dictionary, not {getattr(system, name)!r:.60}"
            return
    if system.logs and Path(str(system.logs.get(METADATA, ""))).name != METADATA_FOLDER:
        words = f"a log {METADATA!r} whose folder is called {METADATA_FOLDER}"
        yield f"logs must name {words}, not {dict(system.logs)!r:.90}"
    if not isinstance(system.traces, str):
        yield f"traces must be the name of a file in trace_dir, not {system.traces!r:.60}"
    if not isinstance(system.complaints, str):
        yield f"complaints must be one regular expression, not {system.complaints!r:.60}"
        return
    try:
        re.compile(system.complaints, re.MULTILINE)
    except re.error as problem:
        yield f"complaints is no regular expression: {problem}"


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


def _wrong_needs(system: System) -> Iterator[str]:
    needs = system.needs
    if not isinstance(needs, Needs):
        yield f"needs must be Needs(debian=[…], wheels=[…], …), not {needs!r:.60}"
        return
    for name in ("debian", "wheels"):
        names = getattr(needs, name)
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            yield f'needs: {name} must be a list of names such as ["{_EXAMPLES[name]}"], not {names!r:.60}'
    if not isinstance(needs.user, str):
        yield f"needs: user must be the name of a user, not {needs.user!r:.60}"
    if not isinstance(needs.image, str):
        yield f"needs: image must be the name of an image, not {needs.image!r:.60}"
    elif needs.image and needs.debian:
        yield f"needs: the image {needs.image} must have its packages already: leave out debian"
    if not isinstance(needs.files, Mapping):
        yield "needs: files must be a dictionary from path on the node to path here"
    if not isinstance(needs.crates, Mapping) or not all(isinstance(each, Crate) for each in needs.crates.values()):
        yield 'needs: crates must be a dictionary such as {"server": Crate("folder of Cargo.toml")}'
    made = needs.artefacts.values() if isinstance(needs.artefacts, Mapping) else [None]
    if not all(isinstance(each, Artefact) for each in made):
        yield 'needs: artefacts must be a dictionary such as {"server": Artefact("server 1.0", (("make",),), "server")}'
    if not isinstance(needs.jars, Jars) or isinstance(needs.jars.folders, str):
        yield f'needs: jars must be Jars(made=Artefact(…)) or Jars(folders=("…",)), not {needs.jars!r:.60}'


def _missing(system: System, main: Path, kept: bool) -> Iterator[str]:
    if kept or not isinstance(system.needs, Needs) or not isinstance(system.needs.files, Mapping):
        return
    for here in system.needs.files.values():
        if not (main.parent / here).exists():
            yield f"needs: files names {here}, and there is no such file or folder beside the system"
    crates = system.needs.crates
    for crate in crates.values() if isinstance(crates, Mapping) else ():
        if not isinstance(crate, Crate):
            continue
        for here in ("Cargo.toml", "Cargo.lock", *crate.patches.values()):
            if not (main.parent / crate.folder / here).is_file():
                yield f"needs: the crate {crate.folder} lacks {here}{_ABOUT_LOCKS if here == 'Cargo.lock' else ''}"


_ABOUT_LOCKS = ", which pins what is built: run `cargo generate-lockfile` there"
_EXAMPLES = {"debian": "redis-server", "wheels": "redis==5.2.1"}


MISTAKES = (NameError, AttributeError, TypeError, ImportError)
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
    """The path of a file relative to the folder, "" if it lies elsewhere."""
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else ""
