"""Is what the author's classes state of the right kind?  Wrong values are refused before nodes are made.

Otherwise they surface late: a needs of the wrong type while an image is built, a wrong pattern after the run.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from system_under_test.functions import FUNCTIONS
from system_under_test.own.client import Client
from system_under_test.own.read_own_system import NoSystem
from system_under_test.own.system import System
from system_under_test.subject import FAILOVER_S_MAX, Crate, Needs

_ALIKE = 0.85
"""How alike two names are, of 1, if one is taken for a slip of the pen."""
_PROVES_NOTHING = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError)
"""What the end of a connection or of patience raises: the request may have reached the server."""
_PROCESS_NAME = re.compile(r"[A-Za-z0-9_-]+")
_METHODS = ("start", "status", "ready", "caught_up")


def check_declared(system: System, client: type[Client], main: Path, *, kept: bool = False) -> None:
    """Raises NoSystem, in one sentence, for the first thing that is wrong.  main: the file of the system.

    kept: the file is the copy of a stored run.  To judge it needs none of the files for nodes, so they may be missing.
    """
    wrong = (*_wrong_methods(system), *_wrong_values(system), *_wrong_needs(system), *_missing(system, main, kept))
    for words in wrong:
        raise NoSystem(f"{main.name}: {type(system).__name__}.{words}")
    for kind, base in ((type(system), System), (client, Client)):
        for words in _misspelled(kind, base):
            raise NoSystem(f"{main.name}: {kind.__name__}.{words}")
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
    if kind.start is System.start:
        yield "start is missing: it must return the command of a node's server"
    for name in _METHODS:
        if not inspect.iscoroutinefunction(getattr(kind, name)):
            yield f"{name} must be `async def {name}(…)`"


def _misspelled(kind: type, base: type) -> Iterator[str]:
    """Names that the harness does not read, each very like one that it would read and that is missing."""
    known = [name for name in vars(base) if not name.startswith("_")]
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


def _missing(system: System, main: Path, kept: bool) -> Iterator[str]:
    if kept or not isinstance(system.needs, Needs) or not isinstance(system.needs.files, Mapping):
        return
    for here in system.needs.files.values():
        if not (main.parent / here).is_file():
            yield f"needs: files names {here}, and there is no such file beside the system"
    crates = system.needs.crates
    for crate in crates.values() if isinstance(crates, Mapping) else ():
        if not isinstance(crate, Crate):
            continue
        for here in ("Cargo.toml", "Cargo.lock", *crate.patches.values()):
            if not (main.parent / crate.folder / here).is_file():
                yield f"needs: the crate {crate.folder} lacks {here}{_ABOUT_LOCKS if here == 'Cargo.lock' else ''}"


_ABOUT_LOCKS = ", which pins what is built: run `cargo generate-lockfile` there"
_EXAMPLES = {"debian": "redis-server", "wheels": "redis==5.2.1"}
