"""Mistakes in the author's own code: what Python raises for them is no answer of the system under test.

A misspelled name would otherwise make every read fail, and the run would end after minutes with "nothing was read".  So
such an exception ends the run at once, if a line of the author's files raised it.

Two exceptions of these classes are none, because they may depend on what a server answered: one that a library raises,
and one about None.  `row[0]` of a row that the system has lost raises TypeError, and this is a finding.  They are
counted like all others.

Needs only the standard library, because client nodes use it too.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
    called = isinstance(problem, TypeError) and f"{getattr(method, '__name__', '')}() " in words
    if called and code is not None and (name := _within(folder, code.co_filename)):
        return f"{name} line {code.co_firstlineno}: {type(problem).__name__}: {words}"
    return ""


def _within(folder: Path, filename: str) -> str:
    """The path of a file relative to the folder, "" if it lies elsewhere."""
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else ""
