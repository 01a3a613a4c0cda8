"""Leave the nodes of a run up after judging: `krucible run --keep`.

    krucible run ── fork ──► runs the test, judges it, prints the verdict
         │                         │ keeps: it leaves the terminal, and holds the streams to the agents
         │ ◄──── exit code ────────┘
         ▼                         until `krucible release`, or a SIGTERM: then it removes the nodes and ends
     the shell

A cluster ends when the streams to its agents end.  The process that ran the test holds these streams, so it stays alive
as the keeper, and its parent ends with the exit code.  The keeper remains the owner of the run.  So the clean-up after
a dead harness (by the reaper, the warden, or the guard of a host) also works after a dead keeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Set
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from checkers.base.results import Results, RunVerdict
from checkers.base.verdict import HARNESS_FAILED
from harness.backends.leftovers import KeptCluster, current_owner, forget, note

if TYPE_CHECKING:
    from harness.run.conductor import Conductor  # it imports every checker, which the parent does not need

Policy = Literal["never", "on-violation", "always"]
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


class Keeper:
    """Keeper of the nodes of one run, in the child process that `apart` forked.

    exit_code_to: descriptor of the pipe to the parent
    """

    def __init__(self, policy: Policy, exit_code_to: int) -> None:
        self._policy = policy
        self._exit_code_to = exit_code_to
        self._runner = asyncio.Runner()
        self._conductor: Conductor | None = None
        self._kept: KeptCluster | None = None
        self._released: asyncio.Event | None = None
        self._destroyed = False

    def conduct(self, conductor: Conductor, main: Coroutine[Any, Any, None]) -> None:
        """Run `main`, which runs the conductor, on an event loop that stays usable afterwards.  Raises as `main`
        does."""
        self._runner.run(main)
        self._conductor = conductor

    @contextlib.contextmanager
    def agents_are_heard(self) -> Iterator[None]:
        """Run the event loop in a thread inside the context, because a host that receives nothing for a minute removes
        everything."""
        if self._conductor is None:
            yield
            return
        loop = self._runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, name="agents", daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def decide(
        self, root: Path, title: str, backend: str, results: Results, say: Callable[[str], None]
    ) -> KeptCluster | None:
        """If the nodes must be kept, restart the servers, record the cluster as kept, and return the record; else
        return None.

        say: called with each error
        Raises OSError if the cluster cannot be recorded.
        """
        wanted = self._policy == "always" or results.verdict is RunVerdict.INVALID
        if self._conductor is None or not wanted:
            return None
        for words in self._runner.run(self._conductor.start_servers()):
            say(words)
        kept = KeptCluster(
            run_id=self._conductor.run_id,
            folder=str(root.resolve()),
            title=title,
            backend=backend,
            verdict=str(results.verdict),
            owner=current_owner(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            entrances=tuple(self._runner.run(self._conductor.entrances())),
        )
        self._released = self._runner.run(_sigterm())  # before another process can know this process's id
        note(kept)
        self._kept = kept
        return kept

    def end(self) -> None:
        """Remove the nodes, unless they are kept.  Safe to call twice."""
        if self._kept is None:
            self._destroy()

    def stay(self, exit_code: int) -> None:
        """If the nodes are kept, send the exit code to the parent, detach from the terminal, wait for the release, and
        remove the nodes.  Otherwise return at once.
        """
        if self._kept is None:
            return
        _leave_terminal()
        os.write(self._exit_code_to, str(exit_code).encode())
        os.close(self._exit_code_to)
        assert self._released is not None and self._conductor is not None
        self._runner.run(_wait(self._released))
        self._destroy()
        if left := tuple(self._conductor.leftovers):
            note(replace(self._kept, left=left))
        else:
            forget(self._kept.run_id)

    def _destroy(self) -> None:
        if self._conductor is not None and not self._destroyed:
            self._destroyed = True
            self._runner.run(self._conductor.destroy())
        self._runner.close()


def apart(policy: Policy) -> Keeper | int:
    """Fork a child.  Return a Keeper in the child, and the child's exit code in the parent.  The parent gets the code
    even if the child stays alive as a keeper.

    Call this before any thread is started.  Ctrl-C reaches both processes; the parent forwards SIGTERM and SIGHUP.  If
    the parent is killed, the child gets SIGTERM.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # blocked until the parent can forward them
    child = os.fork()
    if child:
        os.close(writing)
        return _exit_code_of(child, reading, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(reading)
    _end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return HARNESS_FAILED
    return Keeper(policy, writing)


def _exit_code_of(child: int, reading: int, blocked: Set[int]) -> int:
    """Wait for the exit code of the child, and forward signals to the child meanwhile.

    blocked: mask of signals before the fork"""

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, lambda *_: None)
    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if code := os.read(reading, 16):
        return int(code)
    _, status = os.waitpid(child, 0)
    code_of_child = os.waitstatus_to_exitcode(status)
    return code_of_child if code_of_child >= 0 else HARNESS_FAILED


def _end_with_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _leave_terminal() -> None:
    """Detach from the terminal, so that the terminal's signals do not arrive, and readers of the output see its end."""
    _end_with_parent(0)
    os.setsid()
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


async def _sigterm() -> asyncio.Event:
    """Return an event that is set when SIGTERM arrives."""
    came = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, came.set)
    return came


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
