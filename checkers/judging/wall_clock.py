"""The wall clock behind the budgets: a task that does not end is given up.

Budgets count steps, so that a history has one verdict on every machine.  The wall clock is a backstop against errors
of the checkers themselves, and lies outside that promise.  A task therefore runs in a thread of its own, and the
caller waits for it only a limited time.  Compiled kernels run without the interpreter's lock, so the caller can give
up even if a kernel hangs.  A thread that is given up gets an exception at its next step in Python.  It is a daemon, so
it never delays the end of the process.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class OutOfTime(RuntimeError):
    """A task took longer than the wall clock allows; the message contains the limit."""


def within(wall_s: float, work: Callable[[], R]) -> R:
    """The result of `work`, or the exception it raised.  Raises OutOfTime after `wall_s` seconds."""
    running = _Running(work)
    thread = threading.Thread(target=running.run, daemon=True, name="judging")
    thread.start()
    thread.join(wall_s)
    if thread.is_alive():
        _raise_in(thread)
        raise OutOfTime(f"it took longer than {wall_s:g} s of wall clock, and no budget of steps ended it")
    if running.problem is not None:
        raise running.problem
    [result] = running.results
    return result


class _Running(Generic[R]):
    """The work of one thread, and how it ended."""

    def __init__(self, work: Callable[[], R]) -> None:
        self.work = work
        self.results: list[R] = []
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self.work())
        except BaseException as problem:  # noqa: BLE001 - the caller's thread raises it again
            self.problem = problem


def _raise_in(thread: threading.Thread) -> None:
    """Raise OutOfTime in a thread, at its next step in Python."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(OutOfTime))
