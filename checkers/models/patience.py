"""The budget of the explanations of one part: how often they may call a model's `step`.

An explanation minimises a window, tries answers and draws orders.  Each of these calls `step` again and again, so a
count of the calls limits all of them.  It also gives the same witness on every machine.  If an explanation runs out of
steps, a larger and simpler one replaces it.
"""

from __future__ import annotations

from dataclasses import replace

from checkers.models.model import Model, Operation, State
from checkers.models.plain_search import STEPS_PER_PYTHON_STEP

STEPS_IN_ALL, STEPS_FOR_ONE = 300_000, 250_000
"""Steps of all explanations of a part, and of one explanation.  All together take two seconds of a core (measured)."""


class OutOfPatience(RuntimeError):
    """An explanation has used up its steps."""


class Patience:
    """The steps that are left to the explanations of one part."""

    def __init__(self, steps: int = STEPS_IN_ALL, for_one: int = STEPS_FOR_ONE) -> None:
        self._steps, self._left, self._for_one, self._for_this = steps, steps, for_one, 0

    @property
    def spent(self) -> int:
        """The steps that were used so far."""
        return self._steps - self._left

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def next_one(self) -> None:
        """Begin the next explanation."""
        self._for_this = min(self._left, self._for_one)

    def counted(self, model: Model) -> Model:
        """The same model, but every call of `step` is counted and may raise OutOfPatience."""

        def step(state: State, operation: Operation) -> object:
            self.spend(1)
            return model.step(state, operation)

        return replace(model, step=step)

    def spend_compiled(self, steps: int) -> None:
        """Count steps of a compiled search.  Raises OutOfPatience."""
        self.spend(steps // STEPS_PER_PYTHON_STEP)

    def spend(self, steps: int) -> None:
        """Count steps.  Raises OutOfPatience if the explanation has used up its steps."""
        self._left -= steps
        self._for_this -= steps
        if self._for_this < 0:
            raise OutOfPatience(f"more than {self._for_one} steps for one explanation")
