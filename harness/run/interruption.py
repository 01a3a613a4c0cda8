"""Ctrl-C and SIGTERM (a cancelled CI job) during a run: the run cleans up, and keeps what it has recorded."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from checkers.record.reading import TEST
from harness.judge.results_before import record_failure
from harness.plain_words import as_typed
from harness.run.conductor import Conductor
from harness.started import program
from harness.terminal.progress import Progress


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def interruptible(conductor: Conductor, interrupted: Callable[[], None]) -> None:
    """SIGTERM (a cancelled CI job) cleans up exactly as Ctrl-C does.  interrupted: called before cleaning up."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    running = asyncio.ensure_future(conductor.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        interrupted()
        running.cancel()
        await running
        raise


class Once:
    """Work in a thread of its own that begins at the first `start`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="spark-end", daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        self._thread.join()


def report_interruption(root: Path, progress: Progress) -> None:
    reason = "the run was interrupted before anything was recorded"
    if (root / TEST).exists():
        again = f"{program()} analyze {as_typed(root)}"
        progress.say("interrupted; everything that was recorded is kept.  Judge it with:")
        progress.command(again)
        reason = f"the run was interrupted; judge what was recorded with: {again}"
    record_failure(root, reason, with_plots=False)
