"""The clients a client node hosts, and the watchdog over them.

A client promises to answer within its time limit and never to raise.  The agent does not rely on it.  The outcome of a
client that overruns is INFO, and so is that of an exception that escapes: the request may have taken effect.  Such a
client is closed and replaced, so that no late reply can answer the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from checkers.base.history import Type
from system_under_test.client import ClientFactory, Outcome, Placement, ProcessClient, Request

OVERRUN_S = 0.5
"""How long beyond its limit a client may take before the watchdog answers for it."""
_CLOSING_S = 1.0


@dataclass(slots=True)
class _Hosted:
    placement: Placement
    client: ProcessClient | None = None
    running: asyncio.Task[Outcome] | None = None


class HostedClients:
    """log: takes a sentence about each thing that goes wrong."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._connect: Callable[[Placement], ProcessClient] | None = None
        self._hosted: dict[int, _Hosted] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.overran = 0
        self.escaped = 0

    def load(self, module: str) -> None:
        """Import `module`; callable from any thread.  Raises OSError with the module's own words."""
        try:
            importlib.import_module(module)
        except Exception as error:
            raise OSError(errno.ENOEXEC, f"clients of {module} cannot be loaded: {_words(error)}") from error

    async def open(
        self, module: str, placements: Sequence[Mapping[str, Any]], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        """Import `module` and connect one client per placement.  Raises OSError with the module's own words."""
        await self.close()
        self.load(module)
        try:
            factory: ClientFactory = importlib.import_module(module).connect
            shared: dict[str, Any] = {}
            self._connect = lambda placement: factory(placement, peers, config, shared)
            for placement in (Placement(**given) for given in placements):
                self._hosted[placement.thread] = _Hosted(placement, self._connect(placement))
        except Exception as error:
            raise OSError(errno.ENOEXEC, f"clients of {module} cannot be opened: {_words(error)}") from error

    async def invoke(self, thread: int, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The outcome as JSON-ready fields, within timeout_s + OVERRUN_S.  Raises OSError for an unknown thread."""
        hosted = self._hosted.get(thread)
        if hosted is None:
            raise OSError(errno.ENOENT, f"no client was opened for thread {thread}")
        if hosted.running is not None:  # the harness gave up on it and awaits no answer
            self._replace(hosted)
        outcome = await self._ask(hosted, Request(**request), timeout_s)
        return {f.name: value for f in fields(outcome) if (value := getattr(outcome, f.name)) is not None}

    async def close(self) -> None:
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
            self.overran += 1
            self._log(f"thread {hosted.placement.thread} overran {timeout_s:g} s: replaced")
            task.cancel()
            self._replace(hosted)
            return Outcome(Type.INFO, error="client-overran")
        if task.cancelled() or (error := task.exception()) is not None:
            self.escaped += 1
            words = "cancelled itself" if task.cancelled() else _words(error)
            self._log(f"thread {hosted.placement.thread} raised after {time.monotonic() - begun_s:.3f} s: {words}")
            self._replace(hosted)
            return Outcome(Type.INFO, error=f"client-raised: {words}")
        return task.result()

    def _replace(self, hosted: _Hosted) -> bool:
        """Close the client in the background and connect a fresh one; False if that fails."""
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
