"""The clients of a node in a process of their own, so that they can be stopped while the agent goes on.

The process is another agent that hosts nothing else.  Requests for clients are passed on to it as they came, and its
answers go back as they come: their numbers are the harness' own.  It ends when its stdin ends, and with the agent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from harness.agent.frames import PIECE_BYTES, Decoder, encode
from harness.agent.programs.children import Child, Children, is_stopped, signal_group, wait_until

_SIGNALS = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT}


class ClientsApart:
    """send: takes each answer.  without: names that are left out of its environment.  Lives on the loop's thread."""

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
        """A no-op if the process is there.  Raises OSError if it cannot be started."""
        if self._child is not None:
            return
        argv = [sys.executable, "-m", "harness.agent"]
        env = {name: value for name, value in os.environ.items() if name not in self._without}
        child = self._children.start(argv, self._ended, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert child.process.stdin is not None
        assert child.process.stdout is not None
        self._child = child
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=4 * PIECE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), child.process.stdout)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), child.process.stdin
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        self._listening = asyncio.ensure_future(self._listen(reader))

    @property
    def started(self) -> bool:
        return self._child is not None

    def pass_on(self, header: Mapping[str, Any], body: bytes) -> None:
        """Hand a request over.  Raises OSError if the process is dead.

        While the process is stopped, requests wait for it in memory; the harness gives up on each in time."""
        if self._writer is None or self.state() == "dead":
            raise OSError(errno.ESRCH, "the process of the clients is dead")
        self._writer.write(encode(header, body))

    def signal(self, name: str) -> None:
        """STOP or CONT; returns when every thread has obeyed.  Raises OSError if they do not, or are dead."""
        if self._child is None:
            raise OSError(errno.ESRCH, "the clients do not live in a process of their own")
        pid = self._child.pid
        signal_group(pid, _SIGNALS[name])
        if not wait_until(lambda: is_stopped(pid) == (name == "STOP")):
            raise OSError(errno.ETIMEDOUT, f"the process of the clients (pid {pid}) did not obey SIG{name}")

    def state(self) -> str:
        """ "running", "stopped" or "dead"."""
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
