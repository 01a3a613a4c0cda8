"""Clients of one's own as the agent hosts them: each in a process of its own (`one_client_process.py`), over pipes.

A slow library can hold up its own process and no other: neither the agent nor its beacons.  A client that does not
answer in time is killed and started again, so that a late answer cannot answer the next request.  The process says when
it is about to send: a request that never got so far certainly did not happen.

This host may have been stopped itself, or starved, until the time was over.  So everything that the process wrote
before it was killed is read before the outcome is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from checkers.base.history import Type
from system_under_test.client import CANNOT_BE_MADE, MISTAKE_IN_CODE, Outcome, Placement, Request
from system_under_test.functions import Function, observes

GRACE_S = 0.3
"""How long beyond its limit a process may take before it is killed."""
LAST_WORDS_S = 0.5
"""How long the end of a killed process is awaited.  With GRACE_S it stays below the patience of the harness (1 s)."""
LINE_BYTES_MAX = 1 << 26


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> OwnClient:
    """A client for one process.  config: "files" and "main" of the system, the name of its "client", "functions";
    also "own_functions" (name -> the fields of a `Function`) and "each_server", where the workload states them;
    and "through_members", where servers forward."""
    return OwnClient(placement, peers, config)


class OwnClient:
    def __init__(self, placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> None:
        self._given = {"placement": asdict(placement), "peers": dict(peers), "config": dict(config)}
        self._functions: Mapping[str, str] = config["functions"]
        self._own = {name: Function(**stated) for name, stated in config.get("own_functions", {}).items()}
        self._process = _Process(self._given)

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        if self._process.killed:
            self._process = _Process(self._given)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._process.ready)
        except TimeoutError:  # it goes on starting: the next request may find it ready
            return Outcome(Type.FAIL, error="not sent: the client is still starting")
        except (OSError, EOFError, ValueError) as problem:
            self._process.kill()
            words = str(problem)
            return Outcome(Type.FAIL, error=words if words.startswith(MISTAKE_IN_CODE) else f"not sent: {words}")
        talk = _Talk()
        try:
            self._process.write({"request": asdict(request), "timeout_s": timeout_s})
            async with asyncio.timeout(timeout_s + GRACE_S):
                return await talk.outcome(self._process)
        except (TimeoutError, OSError, EOFError, ValueError) as problem:
            if (outcome := await talk.last_words(self._process)) is not None:
                return outcome
            sent = talk.sent
            unknown = sent and not observes(self._functions.get(request.f, request.f), self._own)
            words = "timeout" if isinstance(problem, TimeoutError) else f"the client's process died: {problem}"
            return Outcome(
                Type.INFO if unknown else Type.FAIL, error=words if sent else f"not sent: {words}", node=sent.strip("?")
            )

    async def close(self) -> None:
        self._process.kill()


class _Talk:
    """Report that a process says of one request.  sent: the node it went to, "?" if that is not known, "" if it was
    not."""

    def __init__(self) -> None:
        self.sent = ""

    async def outcome(self, process: _Process) -> Outcome:
        while "sent" in (message := await process.line()):
            self.sent = message["sent"] or "?"
        return Outcome(**{**message, "type": Type(message["type"])})

    async def last_words(self, process: _Process) -> Outcome | None:
        """Kill the process and read the rest of what it wrote.  Returns the outcome in it, None if there is none."""
        try:
            process.end()
            async with asyncio.timeout(LAST_WORDS_S):
                return await self.outcome(process)
        except EOFError:
            return None
        except (TimeoutError, OSError, ValueError):  # a child of it holds the pipe, or a line that makes no sense
            self.sent = self.sent or "?"
            return None
        finally:
            process.kill()


class _Process:
    """One process.  ready: done once it has read its files and made its client; it raises EOFError if it cannot."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        argv = [sys.executable, "-m", "system_under_test.own.one_client_process"]
        # It stays in the group of its agent: a pause of the clients stops that group.
        self._popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        self._transport: asyncio.BaseTransport | None = None
        self.killed = False
        self.ready = asyncio.ensure_future(self._begin(given))

    def write(self, message: Mapping[str, Any]) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(message).encode() + b"\n")
        self._popen.stdin.flush()

    async def line(self) -> dict[str, Any]:
        """The next message.  Raises EOFError where the process has ended."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("it ended in the middle of its work")
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> None:
        """Kill the process at once.  What it has written can still be read.  The agent collects the dead process."""
        self.killed = True
        self._popen.kill()

    def kill(self) -> None:
        self.end()
        self.ready.cancel()
        if self._transport is not None:
            self._transport.close()
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    async def _begin(self, given: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), self._popen.stdout
        )
        self.write(given)
        if (message := await self.line()) != {"ready": True}:
            words = str(message.get("failed", message))
            known = words.startswith(MISTAKE_IN_CODE) or not message.get("for_good")
            raise EOFError(words if known else CANNOT_BE_MADE + words)
