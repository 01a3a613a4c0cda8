"""A switch as a child of the agent: started once, ordered over a socket, killed with the agent."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.agent.programs.children import Children


class SwitchVerbs:
    """Lives on the loop's thread."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._in_order = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self, ports: Sequence[Sequence[Any]], carries: bool, release: bool) -> None:
        """See `harness.agent.switch.__main__`.  Raises OSError if there is one, or if it cannot be started."""
        if self._writer is not None:
            raise OSError(errno.EEXIST, "a switch runs already")
        ours, theirs = socket.socketpair()
        plan = json.dumps({"ports": ports, "carries": carries, "release": release})
        argv = [sys.executable, "-m", "harness.agent.switch", str(theirs.fileno()), plan]
        with theirs:
            self._children.start(argv, _ended, pass_fds=(theirs.fileno(),))
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        answer = await self._line()
        if "ready" not in answer:
            raise OSError(errno.EIO, f"the switch: {answer['error']}")

    async def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """What the switch answers.  Raises OSError if it refuses, has ended, or was never started."""
        async with self._in_order:
            if self._writer is None:
                raise OSError(errno.ESRCH, "the switch was never started")
            self._writer.write(json.dumps(order).encode() + b"\n")
            answer = await self._line()
        if "refused" in answer:
            raise OSError(errno.EINVAL, f"the switch refused: {answer['refused']}")
        return answer

    async def _line(self) -> dict[str, Any]:
        assert self._reader is not None
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise OSError(errno.ESRCH, "the switch has ended")
        words: dict[str, Any] = json.loads(line)
        return words


def _ended(status: int) -> None:
    print(f"agent: the switch ended with {status}", file=sys.stderr, flush=True)
