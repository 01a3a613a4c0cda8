"""Reader of a user's own workload: from a file of its own (`docs/your-own-workload.md` shows one), or from the file of
a user's own system, which then contains both.

The file is executed: it is code, not data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from system_under_test.client import Client
from system_under_test.functions import FUNCTIONS, wrong_function
from system_under_test.own.read_own_system import NoSystem, read_files
from workloads.workload import Workload

MODULE = "krucible_own_workload"
_STATED = ("name", "summary", "checkers", "functions", "reads", "writes", "real_test")


class NoWorkload(ValueError):
    """The file does not define a workload; the message gives the reason in one sentence."""


@lru_cache(maxsize=8)
def read_workload(path: Path) -> type[Workload]:
    """Return the only workload that a file defines.  Raises NoWorkload if it does not define exactly one valid
    workload.
    """
    if not path.is_file():
        raise NoWorkload(f"there is no file {path}")
    try:
        module = read_files(path, name=MODULE)
    except NoSystem as problem:
        raise NoWorkload(str(problem)) from problem
    kinds = [kind for kind in vars(module).values() if _is_workload(kind) and kind.__module__ == MODULE]
    if len(kinds) != 1:
        raise NoWorkload(f"{path} must define one class that derives from Workload, and it defines {len(kinds)}")
    _check(kinds[0], str(path))
    return kinds[0]


def workloads_in(module: ModuleType, file: str) -> dict[str, type[Workload]]:
    """Return name -> workload, for each workload that the file of a system defines, or imports from a file beside it.
    Raises NoWorkload.

    file: name of the file, for messages
    """
    found: dict[str, type[Workload]] = {}
    for kind in vars(module).values():
        if not _is_workload(kind) or kind.__module__.partition(".")[0] == Workload.__module__.partition(".")[0]:
            continue
        _check(kind, file)
        if found.setdefault(kind.name, kind) is not kind:
            raise NoWorkload(f"{file}: two workloads have the name {kind.name}")
    return found


def _is_workload(kind: object) -> TypeGuard[type[Workload]]:
    return isinstance(kind, type) and issubclass(kind, Workload) and kind is not Workload


def _check(kind: type[Workload], file: str) -> None:
    """Raise NoWorkload for the first invalid attribute of the class.

    file: name of the file, for messages
    """
    if missing := [name for name in _STATED if not hasattr(kind, name)]:
        raise NoWorkload(f"{file}: {kind.__name__} does not state its {' and its '.join(missing)}")
    own = kind.own_functions
    if not isinstance(own, Mapping):
        raise NoWorkload(f"{file}: {kind.__name__}.own_functions must be a dictionary from name to Function")
    for name, function in own.items():
        if not isinstance(name, str) or not name.isidentifier() or name in FUNCTIONS or hasattr(Client, name):
            why = "it stands in the table of functions" if name in FUNCTIONS else "no method of a client can have it"
            raise NoWorkload(f"{file}: {kind.__name__}.own_functions: {name!r:.60} is no name for one: {why}")
        if wrong := wrong_function(function):
            raise NoWorkload(f"{file}: {kind.__name__}.own_functions: {name} {wrong}")
    if strange := sorted(set(kind.functions.values()) - {*FUNCTIONS, *own}):
        more = "; state your own in own_functions"
        raise NoWorkload(f"{file}: no client can have the function {' or '.join(strange)}{more}")
    for name, count in kind.background.items():
        if name not in own or own[name].given not in ("nothing", "value") or not isinstance(count, int) or count < 1:
            words = "must name functions of own_functions that are given nothing or value, with a number of clients"
            raise NoWorkload(f"{file}: {kind.__name__}.background {words}, not {name!r:.60}: {count!r:.20}")
    if not set(kind.writes) & set(kind.functions):
        known = ", ".join(sorted(kind.functions)) or "none"
        raise NoWorkload(
            f"{file}: {kind.__name__} must name at least one of its functions in writes, because a workload that "
            f"changes nothing tests nothing; its functions: {known}"
        )
