"""The verbs of a node: public methods of the objects below, dispatched by their signatures.

A request names a verb as `Class.method`, such as `DiskVerbs.behave`.  Its values are the method's arguments by name.
A parameter of type `bytes` is the body of the request.  A parameter called `piece` is a function that sends part of a
long answer; it may be called from any thread but the loop's, and blocks while the harness is slow to read.

The harness calls the same methods by way of `AgentLink.ask`, which has their types: no name and no argument is written
twice.  What blocks runs in a thread.  Processes are started and signalled on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.agent import children, files
from harness.agent.children import Children, Commands
from harness.agent.disk.verbs import DiskVerbs
from harness.agent.files import Files
from harness.agent.frames import body_of, limit
from harness.agent.hosted_clients import ClientsApart, HostedClients
from harness.agent.lines import Lines
from harness.agent.network import BeaconVerbs, FirewallTables, SwitchVerbs, Trials
from harness.agent.server import ServerProcess
from harness.agent.wall_clock import ClockVerbs

Answer = tuple[Any, bytes]


class Verbs:
    """All verbs of one node.

    send: sends a frame that answers no request.  log: writes one line.
    without: environment variables that clients in a process of their own do not inherit.

    loop: set before the first verb; the server is signalled on its thread only.
    """

    def __init__(
        self, children: Children, send: Callable[..., None], log: Callable[[str], None], *, without: Sequence[str]
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.rules = FirewallTables(children)
        self.apart = ClientsApart(children, send, without=without)
        server = ServerProcess(children, send)
        clock, disk = ClockVerbs(), DiskVerbs(functools.partial(self._kill, server))
        node = (NodeVerbs(server, clock, disk), server, Commands(children), Lines(server.arm))
        self._on_loop = _methods(*node, HostedClients(log), self.apart, self.rules, SwitchVerbs(children), Trials())
        self._in_threads = _methods(Files(), clock, disk, BeaconVerbs())

    async def answer(self, name: str, args: Mapping[str, Any], body: bytes, piece: Callable[[bytes], None]) -> Answer:
        """Carry a verb out.  Raises what it raises, and OSError (ENOSYS) if there is no such verb."""
        verb = self._on_loop.get(name) or self._in_threads.get(name)
        if verb is None:
            raise OSError(errno.ENOSYS, f"this agent knows no {name!r}")
        given = {**args}
        if into := body_of(verb):
            given[into] = body
        if "piece" in inspect.signature(verb).parameters:
            given["piece"] = piece
        if name in self._in_threads:
            result = await _in_thread(verb, **given)
        else:
            result = verb(**given)
            result = await result if inspect.isawaitable(result) else result
        value, answer = result if type(result) is tuple and type(result[-1]) is bytes else (result, b"")
        return value, answer

    def _kill(self, server: ServerProcess, wait: bool) -> None:
        """Kill the server; called from a thread."""

        async def kill() -> None:
            if wait:
                server.signal("KILL")
            else:
                server.kill_without_waiting()

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(kill(), self.loop).result()


class NodeVerbs:
    """Verbs that concern more than one part of a node."""

    def __init__(self, server: ServerProcess, clock: ClockVerbs, disk: DiskVerbs) -> None:
        self._server = server
        self._clock = clock
        self._disk = disk

    @limit(60.0)
    def hello(self) -> dict[str, Any]:
        python = ".".join(map(str, sys.version_info[:3]))
        return {"pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), "python": python}

    @limit(15.0, beyond="within_s")
    async def kill_at_write(self, folder: str, within_s: float) -> bool:
        """Kill the server as soon as a file below `folder` changes; let it run if none does within `within_s`."""
        written = await _in_thread(files.await_write, Path(folder), within_s)
        if written:
            self._server.signal("KILL")
        return bool(written)

    @limit(60.0)
    async def read_clock(self) -> dict[str, Any]:
        """See Cluster.read_clock."""
        heeded = await _in_thread(self._clock.is_heeded_by, self._server.processes())
        return {**asdict(await _in_thread(self._clock.read)), "heeded": heeded}

    @limit(90.0)
    async def damage_disk(self, pattern: str, how: str, seed: int) -> None:
        """See `DiskVerbs.damage`.  Raises OSError (EBUSY) unless the server is dead."""
        if (state := self._server.state()) != "dead":
            raise OSError(errno.EBUSY, f"the disk of a server that is {state} cannot be damaged behind its back")
        await _in_thread(self._disk.damage, pattern, how, seed)

    def processor(self) -> dict[str, float]:
        """Return what Linux measured of processors: the sums of `checkers.record.outcome.ProcessorSums`."""
        waited_s, ran_s = children.of_processes(self._server.processes())
        sums = {"steal_s": children.steal_s(), "pressure_s": children.pressure_s()}
        return {**sums, "waited_s": waited_s, "ran_s": ran_s}


def _methods(*parts: object) -> dict[str, Callable[..., Any]]:
    """Name -> public method of each object, as `Class.method`."""
    return {
        method.__qualname__: getattr(part, name)
        for part in parts
        for name, method in vars(type(part)).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


async def _in_thread(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments, **named))
