"""How kernels are compiled: once per machine, without the interpreter's lock, and never in parallel.

Machine code is kept in a folder named after the text of *all* kernels.  A compiler's own cache looks only at the file a
kernel stands in, and would go on using old code of another kernel that was inlined into it; a verdict must never depend
on what was compiled last week.

`parallel=True` is not offered: with the OpenMP layer every worker forked after such a function was compiled dies when
it calls it, and Spark's workers are forked.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib.resources import files
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
    keep = Path(function.__code__.co_filename).is_file()
    return cast(Callable[P, R], numba.njit(cache=keep, nogil=True)(function))


def kernels_folder() -> Path:
    """Where machine code of the kernels as they now stand is kept."""
    text = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for source in sorted(files("checkers.kernels").iterdir(), key=lambda entry: entry.name):
        if source.name.endswith(".py"):
            text.update(source.name.encode() + b"\0" + source.read_bytes())
    return cache_folder() / "kernels" / text.hexdigest()[:16]


numba.config.CACHE_DIR = str(kernels_folder())
