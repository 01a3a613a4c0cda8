"""Reading a workload of one's own from a Python file (`docs/your-own-workload.md` shows one).

The file is run: it is code, not data.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from system_under_test.functions import FUNCTIONS
from system_under_test.own import source_only
from workloads.workload import Workload

_STATED = ("name", "summary", "checkers", "functions", "reads", "writes", "real_test")


class NoWorkload(ValueError):
    """The file is no workload; the message says why in one sentence."""


@lru_cache(maxsize=8)
def read_workload(path: Path) -> type[Workload]:
    """The one workload that a file defines.  Raises NoWorkload."""
    if not path.is_file():
        raise NoWorkload(f"there is no file {path}")
    module = source_only.module_of("krucible_own_workload", path)
    try:
        source_only.run(module)
    except SyntaxError as problem:
        raise NoWorkload(f"{path} line {problem.lineno}: {problem.msg}") from problem
    except (Exception, SystemExit) as problem:  # a file that ends Python must not end a run with its own exit code
        raise NoWorkload(f"{path} cannot be run: {type(problem).__name__}: {problem}") from problem
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Workload) and kind.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        raise NoWorkload(f"{path} must define one class that derives from Workload, and it defines {len(kinds)}")
    if missing := [name for name in _STATED if not hasattr(kinds[0], name)]:
        raise NoWorkload(f"{path}: {kinds[0].__name__} does not state its {' and its '.join(missing)}")
    if strange := sorted(set(kinds[0].functions.values()) - set(FUNCTIONS)):
        raise NoWorkload(f"{path}: no client can have the function {' or '.join(strange)}")
    if not set(kinds[0].writes) & set(kinds[0].functions):
        known = ", ".join(sorted(kinds[0].functions)) or "none"
        raise NoWorkload(
            f"{path}: {kinds[0].__name__} must name at least one of its functions in writes, because a workload that "
            f"changes nothing tests nothing; its functions: {known}"
        )
    return kinds[0]
