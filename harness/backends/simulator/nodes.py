"""Simulated machines as the harness sees them: the verbs of a node, and the clients on a client node."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

from checkers.base.history import Type
from simulation.loop import Process
from simulation.machine import Machine
from system_under_test.client import ClientFactory, Outcome, Placement, ProcessClient, Request
from system_under_test.subject import Completed, ProcessState, SimulatedProgram

ORDER_S = 0.002
"""How long the harness' orders to a node take; they travel outside of the data network."""
INTERPRETER_S = 0.3
"""How long an interpreter takes to start."""
AGENT_PATIENCE_S = 1.0
"""How long beyond its limit an operation may take before its outcome is unknown."""


class SimulatedNode:
    """`system_under_test.subject.Node` over one simulated machine, which `machine` gives."""

    data_dir, trace_dir, log_dir = "/data", "/trace", "/log"
    python: tuple[str, ...] = ("python",)

    def __init__(self, name: str, machine: Callable[[], Machine], program: SimulatedProgram) -> None:
        self.name = self.address = name
        self.alone = asyncio.Lock()
        self._machine = machine
        self._program = program
        self._aside: dict[str, dict[str, bytes]] = {}

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, output: str = "") -> int:
        await asyncio.sleep(ORDER_S)
        return self._machine().start(partial(self._served, list(argv)), output or f"{self.log_dir}/server.log")

    async def _served(self, argv: Sequence[str], machine: Machine) -> int:
        await asyncio.sleep(INTERPRETER_S)
        return await self._program.serve(argv, machine)

    async def signal(self, name: Literal["STOP", "CONT", "KILL", "TERM"]) -> None:
        await asyncio.sleep(ORDER_S)
        machine = self._machine()
        {"STOP": machine.pause, "CONT": machine.resume, "KILL": machine.kill, "TERM": machine.terminate}[name]()

    async def state(self) -> ProcessState:
        return self._machine().state

    async def run(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Completed:
        """A command that talks to servers does so as a process of its own on this machine."""
        await asyncio.sleep(ORDER_S)
        done = self._program.run(argv, self._machine())
        if isinstance(done, Completed):
            return done
        task = Process(self.name).spawn(done)
        async with asyncio.timeout(timeout_s):
            return await task

    async def write(self, path: str, data: bytes) -> None:
        await asyncio.sleep(ORDER_S)
        self._machine().files[path] = bytearray(data)

    async def read(self, path: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        content: bytes | bytearray | None = self._machine().files.get(path)
        if content is None and path.startswith(f"{self.data_dir}/"):
            content = self._machine().disk.files().get(path.removeprefix(f"{self.data_dir}/"))
        end = None if size_bytes < 0 else offset + size_bytes
        return bytes((content or b"")[offset:end])

    async def copy_out(self, path: str, destination: Path) -> None:
        for name, content in self._aside.get(path, {}).items():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            (destination / name).write_bytes(content)

    async def copy_data(self, aside: str) -> int:
        await asyncio.sleep(ORDER_S)
        machine = self._machine()
        self._aside[aside] = machine.disk.files()
        traces = [content for path, content in machine.files.items() if path.startswith(f"{self.trace_dir}/")]
        return sum(map(len, traces))

    async def remove(self, path: str) -> None:
        self._aside.pop(path, None)


class SimulatedClientHost:
    """`harness.backends.backend.ClientHost`: the clients of one client node, which are one process."""

    def __init__(self, name: str) -> None:
        self.process = Process(name)
        self._clients: dict[int, ProcessClient] = {}
        self._connect: Callable[[Placement], ProcessClient] | None = None
        self._placements: dict[int, Placement] = {}

    async def load(self, module: str) -> None:
        importlib.import_module(module)

    async def open(
        self, module: str, placements: Sequence[Placement], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        factory = cast(ClientFactory, importlib.import_module(module).connect)
        shared: dict[str, Any] = {}
        context = self.process.context
        self._connect = lambda placement: context.copy().run(factory, placement, peers, config, shared)
        self._placements = {placement.thread: placement for placement in placements}
        self._clients = {placement.thread: self._connect(placement) for placement in placements}

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        task = self.process.spawn(self._clients[thread].invoke(request, timeout_s))
        await asyncio.wait([task], timeout=timeout_s + AGENT_PATIENCE_S)
        if task.done():
            return task.result()
        task.cancel()
        assert self._connect is not None
        self._clients[thread] = self._connect(self._placements[thread])
        return Outcome(Type.INFO, request.value, error="the client node does not answer")

    async def close(self) -> None:
        for client in self._clients.values():
            await self.process.spawn(client.close())


def chance(seed: int, stream: str) -> Random:
    """A stream of chance of the simulated world."""
    return Random(f"{seed}/simulator/{stream}")
