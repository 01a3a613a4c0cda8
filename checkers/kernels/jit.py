"""How kernels are compiled: once per machine, without the interpreter's lock, and never in parallel.

`cache=True` keeps the machine code beside the source (or under NUMBA_CACHE_DIR), so that only set-up pays for the
compiler.  `parallel=True` is not offered: with the OpenMP layer every worker forked after such a function was
compiled dies when it calls it, and Spark's workers are forked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function over NumPy arrays; it keeps its Python signature for the type checker."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))
