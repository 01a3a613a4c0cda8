"""Nodes and clients that live in the harness' own process.

*Without nodes.*  A backend that only the canary uses.

*Simulated.*  Adapters that give a simulated machine the interface of a `Node`, and its clients that of a `ClientHost`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from checkers.base.history import Type
from checkers.record.header_and_outcome import NodesClock
from harness.backends.backend import ClusterSpec, Exit, NodesOfRun
from nemesis.cluster import CannotInject, Link
from simulation.loop import Process
from simulation.machine import Machine
from system_under_test.client import ClientFactory, Outcome, Placement, ProcessClient, Request
from system_under_test.subject import Completed, Node, ProcessState, SimulatedProgram

ORDER_S = 0.002
"""Seconds until an order of the harness reaches a node.  Orders do not use the simulated network."""
INTERPRETER_S = 0.3
"""Simulated seconds from the start of a server process to the start of its program."""
AGENT_PATIENCE_S = 1.0
"""Seconds after the time limit of an operation at which its outcome counts as unknown."""


class InProcessClientHost:
    """See `harness.backends.backend.ClientHost`."""

    _make: Callable[[Placement], ProcessClient]

    def __init__(self) -> None:
        self._clients: dict[int, ProcessClient] = {}
        self._placements: dict[int, Placement] = {}

    async def load(self, module: str) -> None:
        importlib.import_module(module)

    async def open(
        self, module: str, placements: Sequence[Placement], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        connect = cast(ClientFactory, importlib.import_module(module).connect)
        shared: dict[str, Any] = {}
        self._make = lambda placement: connect(placement, peers, config, shared)
        self._placements = {placement.thread: placement for placement in placements}
        self._clients = {placement.thread: self._made(placement) for placement in placements}

    def _made(self, placement: Placement) -> ProcessClient:
        return self._make(placement)

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        return await self._clients[thread].invoke(request, timeout_s)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


class InProcessBackend(NodesOfRun):
    """Implements `harness.backends.backend.Backend` with no servers, so every fault is refused."""

    name = "in-process"
    nodes_clock: NodesClock = "same kernel"
    notes: Sequence[str] = ("no nodes and no network: the subject lives in the harness' own process",)

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self.servers = ()
        self._hosts = {name: InProcessClientHost() for name in spec.clients}

    def client_host(self, client_node: str) -> InProcessClientHost:
        return self._hosts[client_node]

    def exits(self) -> Sequence[Exit]:
        return ()

    def node(self, name: str) -> Node:
        raise CannotInject(f"there is no node {name}: {self.notes[0]}")

    def lacks(self, capability: str) -> str:
        return self.notes[0]

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        if links:
            raise CannotInject(self.notes[0])

    async def _nothing(self, *_: Any, **__: Any) -> Any:
        return {}

    create = destroy = mend = beat = mark = arrived = _nothing

    async def _refuse(self, *_: Any, **__: Any) -> Any:
        raise CannotInject(self.notes[0])

    state = stop = pause = resume = restart = kill = kill_at_write = await_line = thaw = signal_process = (
        process_now
    ) = _refuse


class SimulatedNode:
    """A `system_under_test.subject.Node` that acts on the simulated machine that `machine()` returns."""

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
        """See Node.run.  A command that sends requests to servers runs as a separate process on this machine."""
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
        files = self._machine().files
        inside = (name for name in files if name.startswith(f"{path}/"))
        beside = {name.removeprefix(f"{path}/"): bytes(files[name]) for name in inside}
        for name, content in {**beside, **self._aside.get(path, {})}.items():
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


class SimulatedClientHost(InProcessClientHost):
    """A `harness.backends.backend.ClientHost` whose clients share one simulated process."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.process = Process(name)

    def _made(self, placement: Placement) -> ProcessClient:
        return self.process.context.copy().run(super()._made, placement)

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        task = self.process.spawn(self._clients[thread].invoke(request, timeout_s))
        await asyncio.wait([task], timeout=timeout_s + AGENT_PATIENCE_S)
        if task.done():
            return task.result()
        task.cancel()
        self._clients[thread] = self._made(self._placements[thread])
        return Outcome(Type.INFO, request.value, error="the client node does not answer")

    async def close(self) -> None:
        for client in self._clients.values():
            await self.process.spawn(client.close())
