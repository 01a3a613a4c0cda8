"""Represents sets of slots as words of 64 bits, and provides two instructions that Python does not have."""

from __future__ import annotations

import numpy as np

from checkers.kernels.jit import instruction

ONE = np.uint64(1)
NONE = np.uint64(0)
ALL = ~np.uint64(0)


@instruction("cttz")
def trailing_zeros(word: np.uint64) -> int:
    """Return the number of the lowest set bit of a word that is not 0."""
    return (int(word) & -int(word)).bit_length() - 1


@instruction("ctpop")
def ones(word: np.uint64) -> int:
    """Return the number of set bits of a word."""
    return int(word).bit_count()
