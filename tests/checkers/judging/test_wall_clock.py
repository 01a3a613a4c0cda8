"""A task that never ends is unknown, whether it hangs in Python or in a compiled kernel."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waiting import PATIENCE_S

from checkers.base.checker import Budget, OutOfTime, Part, Task, judge_task, within
from checkers.kernels.jit import kernel


@kernel
def long_walk(steps: int) -> np.uint64:
    """A walk whose end depends on every step, so that the compiler cannot shorten it."""
    at = np.uint64(1)
    for _ in range(steps):
        at = at * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return at


def test_work_that_ends_gives_its_result_or_its_exception() -> None:
    assert within(PATIENCE_S, lambda: 7) == 7
    with pytest.raises(KeyError):
        within(PATIENCE_S, lambda: {}["missing"])


def test_a_walk_in_python_is_given_up_and_its_thread_ends() -> None:
    threads: list[threading.Thread] = []

    def endless(part: Part, budget: Budget) -> None:
        threads.append(threading.current_thread())
        while True:
            threading.Event().wait(0.01)

    judged = judge_task(Task(endless, Part(("endless.edn",)), Budget(wall_s=0.1)))
    assert judged.finding is None
    assert judged.failure.startswith("endless.edn: it took longer than 0.1 s of wall clock")
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()


def test_a_kernel_that_hangs_is_given_up() -> None:
    long_walk(1)  # compiled before the time limit starts
    with pytest.raises(OutOfTime):
        within(0.05, lambda: long_walk(1_000_000_000))
