"""Represents sets of slots as words of 64 bits, and provides two instructions that Python does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ONE = np.uint64(1)
NONE = np.uint64(0)
ALL = ~np.uint64(0)


def _trailing_zeros(_context: Any, word: Any) -> Any:
    def code(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


def _ones(_context: Any, word: Any) -> Any:
    def code(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), code


trailing_zeros = cast(Callable[[np.uint64], int], intrinsic(_trailing_zeros))
"""Returns the number of the lowest set bit of a word that is not 0.  Only kernels may call it."""

ones = cast(Callable[[np.uint64], int], intrinsic(_ones))
"""Returns the number of set bits of a word.  Only kernels may call it."""
