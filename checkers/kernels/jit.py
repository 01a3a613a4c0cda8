"""How kernels are compiled: once per machine, without the interpreter's lock, and never in parallel.

Machine code is kept in a folder named after the text of the kernel's file and of all it imports kernels from.  The
compiler's own cache looks only at the file a kernel stands in, and would go on using old code of another file's kernel
or constant; a verdict must never depend on what was compiled last week.

`parallel=True` is not offered: with the OpenMP layer every worker forked after such a function was compiled dies when
it calls it, and Spark's workers are forked.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba

from checkers.cache_folder import cache_folder

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function over NumPy arrays; it keeps its Python signature for the type checker.

    Only compiled once and kept where its source is a file (not inside the zip that is sent to a cluster).
    """
    return cast(Callable[P, R], numba.njit(cache=_kept(function), nogil=True)(function))


def inner_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """As `kernel`, for innermost functions, which make no array and return none.

    Their arguments outlive the call, so nothing need be counted; counting is atomic, and a function that reads ten
    arrays out of tuples spends most of its time on it.
    """
    return cast(Callable[P, R], numba.njit(cache=_kept(function), nogil=True, _nrt=False)(function))


def _kept(function: Callable[P, R]) -> bool:
    """Whether machine code of a function can be kept; if so, the next one compiled is kept in the right folder."""
    source = Path(function.__code__.co_filename)
    keep = source.is_file()
    if keep:
        numba.config.CACHE_DIR = str(machine_code_folder(source))
    return keep


def machine_code_folder(source: Path) -> Path:
    """Where machine code of the kernels in one file is kept, as that file and those it imports kernels from stand."""
    text = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for file in sorted(_with_imported(source, set())):
        text.update(file.read_bytes())
    return cache_folder() / "kernels" / f"{source.stem}-{text.hexdigest()[:16]}"


def _with_imported(source: Path, seen: set[Path]) -> set[Path]:
    seen.add(source)
    for name in re.findall(r"^from checkers\.kernels\.(\w+) import", source.read_text(), re.MULTILINE):
        imported = Path(__file__).with_name(f"{name}.py")
        if imported not in seen:
            _with_imported(imported, seen)
    return seen
