"""The questions of one witness to the search kernel.  Each question has a budget, and all together have one too.

A window is made smaller step by step.  Before each step the kernel answers one question: does the smaller history still
have no order?  If the budget ends before the answer, an order may exist, and the step is not made.  So the window stays
larger, and it is still one that no order explains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.kernels.registers import antichain
from checkers.kernels.registers.unique_values import Key

STEPS_OF_ONE = 20_000_000
"""Steps of one question."""

STEPS_BESIDES = 20_000
"""Additional steps of each question, for the time in which Python makes its arrays (0.5 ms, measured)."""

STEPS_IN_ALL, STEPS_IN_ALL_PER_POSITION = 200_000_000, 10
"""Steps of all questions of one witness: at most 5 to 10 s of a core for a history of some million operations."""

SIZE_BYTES_MAX = 1_000_000_000


class Questions:
    """The steps that are left for one witness."""

    def __init__(self, positions: int, steps_in_all: int | None = None) -> None:
        """positions: of the whole key.  The budget grows with them, so a few questions may be about a long history."""
        self._positions = positions
        in_all = STEPS_IN_ALL + STEPS_IN_ALL_PER_POSITION * positions
        self._left = in_all if steps_in_all is None else steps_in_all

    @property
    def ran_out(self) -> bool:
        """Whether no steps are left.  Then no further question gets an answer."""
        return self._left <= 0

    def code(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> int:
        """The kernel's code for the first `limit` positions of a key; OUT_OF_STEPS if no step is left.

        starts: values that the key may hold at first.  whole: the question is about the whole history, so its budget
        grows with the number of positions.
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
        """Whether it is certain that no order exists.  Parameters as of `code`."""
        return self.code(key, limit, starts, whole) == antichain.NO_ORDER
