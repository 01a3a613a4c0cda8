"""The clients on a client node, and the watchdog over them.

A client promises to answer within its time limit and never to raise.  The agent does not rely on this promise.  If a
client exceeds its limit or raises, the outcome of the request is INFO, because the request may have taken effect.  Such
a client is closed and replaced, so that no late reply can answer the next request.

*Clients apart.*  If the harness must be able to pause clients, they run in a process of their own, and the agent
continues.  This process is another agent, which hosts only clients.  The agent forwards requests and answers between
the harness and this process unchanged, including their numbers.  The process ends when its stdin ends, and thus when
the agent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from checkers.base.history import Type
from harness.agent.children import (
    Child,
    Children,
    is_stopped,
    signal_group,
    wait_until,
)
from harness.agent.frames import PIECE_BYTES, Decoder, encode, limit
from system_under_test.client import ClientFactory, Outcome, Placement, ProcessClient, Request
from system_under_test.subject import ProcessState

OVERRUN_S = 0.5
"""Seconds after the limit of a request at which the watchdog answers instead of the client."""
_CLOSING_S = 1.0
LOAD_S = 60.0
"""Maximum seconds that a client node may take to import its clients.  An import takes half a second of CPU time, but on
a loaded machine many nodes start at the same time.
"""
PATIENCE_S = 1.0
"""Seconds after the limit of a request at which the harness stops waiting for the agent.  The agent's watchdog answers
earlier, after OVERRUN_S."""


@dataclass(slots=True)
class _Hosted:
    placement: Placement
    client: ProcessClient | None = None
    running: asyncio.Task[Outcome] | None = None


class HostedClients:
    """The clients on a client node.

    log: called with a sentence about each failure"""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._connect: Callable[[Placement], ProcessClient] | None = None
        self._hosted: dict[int, _Hosted] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @limit(LOAD_S)
    async def load(self, module: str) -> None:
        """Import `module` in a thread.  If that fails, raises OSError with the message of the exception."""
        try:
            await asyncio.to_thread(importlib.import_module, module)
        except Exception as error:
            raise OSError(errno.ENOEXEC, f"clients of {module} cannot be loaded: {_words(error)}") from error

    @limit(LOAD_S)
    async def open(
        self, module: str, placements: Sequence[Mapping[str, Any]], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        """Import `module` and connect one client per placement.  If that fails, raises OSError with the message of the
        exception."""
        await self.close()
        await self.load(module)
        try:
            factory: ClientFactory = importlib.import_module(module).connect
            shared: dict[str, Any] = {}
            self._connect = lambda placement: factory(placement, peers, config, shared)
            for placement in (Placement(**given) for given in placements):
                self._hosted[placement.thread] = _Hosted(placement, self._connect(placement))
        except Exception as error:
            raise OSError(errno.ENOEXEC, f"clients of {module} cannot be opened: {_words(error)}") from error
        quiet_collector()

    @limit(PATIENCE_S, beyond="timeout_s")
    async def invoke(self, thread: int, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Pass a request to the client of a thread, and return the outcome as JSON-serializable fields within
        timeout_s + OVERRUN_S.  Raises OSError if the thread has no client.
        """
        hosted = self._hosted.get(thread)
        if hosted is None:
            raise OSError(errno.ENOENT, f"no client was opened for thread {thread}")
        if hosted.running is not None:  # the harness no longer waits for the answer to the earlier request
            self._replace(hosted)
        begun_s = time.monotonic()
        outcome = await self._ask(hosted, Request(**request), timeout_s)
        outcome = replace(outcome, took_s=round(time.monotonic() - begun_s, 6))
        return {f.name: value for f in fields(outcome) if (value := getattr(outcome, f.name)) is not None}

    async def close(self) -> None:
        """Close every client."""
        for hosted in self._hosted.values():
            self._drop(hosted)
        self._hosted.clear()
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSING_S)

    async def _ask(self, hosted: _Hosted, request: Request, timeout_s: float) -> Outcome:
        if hosted.client is None and not self._replace(hosted):
            return Outcome(Type.INFO, error="client-cannot-connect")
        assert hosted.client is not None
        task = asyncio.ensure_future(hosted.client.invoke(request, timeout_s))
        hosted.running = task
        begun_s = time.monotonic()
        await asyncio.wait({task}, timeout=timeout_s + OVERRUN_S)
        if hosted.running is task:
            hosted.running = None
        else:
            return Outcome(Type.INFO, error="superseded")
        if not task.done():
            self._log(f"thread {hosted.placement.thread} overran {timeout_s:g} s: replaced")
            task.cancel()
            self._replace(hosted)
            return Outcome(Type.INFO, error="client-overran")
        if task.cancelled() or (error := task.exception()) is not None:
            words = "cancelled itself" if task.cancelled() else _words(error)
            self._log(f"thread {hosted.placement.thread} raised after {time.monotonic() - begun_s:.3f} s: {words}")
            self._replace(hosted)
            return Outcome(Type.INFO, error=f"client-raised: {words}")
        return task.result()

    def _replace(self, hosted: _Hosted) -> bool:
        """Close the client in the background and connect a new one.  Return False if the new one cannot connect."""
        self._drop(hosted)
        assert self._connect is not None
        try:
            hosted.client = self._connect(hosted.placement)
        except Exception as error:  # noqa: BLE001 - as in open
            self._log(f"thread {hosted.placement.thread} cannot connect: {_words(error)}")
            return False
        return True

    def _drop(self, hosted: _Hosted) -> None:
        if hosted.running is not None:
            hosted.running.cancel()
            hosted.running = None
        if hosted.client is not None:
            closing = asyncio.ensure_future(self._close(hosted.client))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            hosted.client = None

    async def _close(self, client: ProcessClient) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.close(), _CLOSING_S)
        except Exception as error:  # noqa: BLE001 - as in open
            self._log(f"closing a client: {_words(error)}")


def _words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:300]


_SIGNALS = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT}


class ClientsApart:
    """The process of a client node's clients.  Use it only on the event loop's thread.

    send: called with each answer
    without: environment variables that the process does not inherit"""

    def __init__(
        self, children: Children, send: Callable[[Mapping[str, Any], bytes], None], without: Collection[str] = ()
    ) -> None:
        self._children = children
        self._without = frozenset(without)
        self._send = send
        self._child: Child | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, or do nothing if it was started before.  Raises OSError if it cannot be started."""
        if self._child is not None:
            return
        argv = [sys.executable, "-P", "-m", "harness.agent"]
        env = {name: value for name, value in os.environ.items() if name not in self._without}
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = self._children.start(argv, self._ended, stdin=theirs, stdout=theirs, env=env)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=4 * PIECE_BYTES)
        self._listening = asyncio.ensure_future(self._listen(reader))

    @property
    def started(self) -> bool:
        return self._child is not None

    def pass_on(self, header: Mapping[str, Any], body: bytes) -> None:
        """Forward a request.  Raises OSError if the process is dead.

        While the process is paused, requests wait in memory, and the harness stops waiting for each at its limit.
        """
        if self._writer is None or self.state() == "dead":
            raise OSError(errno.ESRCH, "the process of the clients is dead")
        self._writer.write(encode(header, body))

    def signal(self, name: str) -> None:
        """Send STOP or CONT to the process, and return when the signal has taken effect on every thread.  Raises
        OSError if it has no effect in time, or if the process was never started.
        """
        if self._child is None:
            raise OSError(errno.ESRCH, "the clients do not have a process of their own")
        pid = self._child.pid
        signal_group(pid, _SIGNALS[name])
        if not wait_until(lambda: is_stopped(pid) == (name == "STOP")):
            raise OSError(errno.ETIMEDOUT, f"the process of the clients (pid {pid}) did not obey SIG{name}")

    def state(self) -> ProcessState:
        """Return "running", "stopped" or "dead"."""
        if self._child is None or self._child.process.returncode is not None:
            return "dead"
        return "stopped" if is_stopped(self._child.pid) else "running"

    def _ended(self, status: int) -> None:
        print(f"agent: the process of the clients ended with {status}", file=sys.stderr, flush=True)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        decoder = Decoder()
        while data := await reader.read(PIECE_BYTES):
            for header, body in decoder.feed(data):
                self._send(header, body)


def quiet_collector() -> None:
    """Exempt all current objects from garbage collection, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
