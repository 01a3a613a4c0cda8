"""The questions of one witness to the search kernel: each has a budget, and all of them together have one too.

To make a window smaller, the kernel is run again and again: does less of the history still have no order?  The answers
only make the window smaller.  So a question without an answer in time counts as "there may be an order": the window
stays larger, and it is still one that no order explains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.kernels.registers import antichain
from checkers.kernels.registers.unique_values import Key

STEPS_OF_ONE = 20_000_000
"""Steps of one question."""

STEPS_BESIDES = 20_000
"""Steps that a question costs besides its own: Python needs as long to make its arrays (measured, 0.5 ms)."""

STEPS_IN_ALL, STEPS_IN_ALL_PER_POSITION = 200_000_000, 10
"""Of all questions of one witness: 5 to 10 s of a core at most, for histories of up to some million operations."""

SIZE_BYTES_MAX = 1_000_000_000


class Questions:
    """The steps that are left for one witness."""

    def __init__(self, positions: int, steps_in_all: int | None = None) -> None:
        """positions: of the whole key, so that a few questions may be about the whole of a long history."""
        self._positions = positions
        in_all = STEPS_IN_ALL + STEPS_IN_ALL_PER_POSITION * positions
        self._left = in_all if steps_in_all is None else steps_in_all

    @property
    def ran_out(self) -> bool:
        """Whether no steps are left, so that no further question is answered."""
        return self._left <= 0

    def code(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> int:
        """The kernel's code for the first `limit` positions.  OUT_OF_STEPS where no step is left.

        whole: the history as it was judged, which needs few steps for most events, and may take as many.
        """
        if self._left <= 0:
            return antichain.OUT_OF_STEPS
        allowed = STEPS_OF_ONE + (10 * self._positions if whole else 0)
        code, _, steps = antichain.judge_key(
            key, limit, np.array(starts, np.int64), min(allowed, self._left), SIZE_BYTES_MAX
        )
        self._left -= int(steps) + STEPS_BESIDES
        return int(code)

    def has_no_order(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> bool:
        """Whether that is certain."""
        return self.code(key, limit, starts, whole) == antichain.NO_ORDER
