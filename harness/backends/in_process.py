"""The backend without nodes: clients live in the harness itself.  For the canary alone."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from checkers.base.clocks import NodesClock
from harness.backends.backend import ClusterSpec, Exit, NodesOfRun
from nemesis.cluster import CannotInject, Link
from system_under_test.client import ClientFactory, Outcome, Placement, ProcessClient, Request
from system_under_test.subject import Node


class InProcessClientHost:
    def __init__(self) -> None:
        self._clients: dict[int, ProcessClient] = {}

    async def load(self, module: str) -> None:
        importlib.import_module(module)

    async def open(
        self, module: str, placements: Sequence[Placement], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        connect = cast(ClientFactory, importlib.import_module(module).connect)
        shared: dict[str, Any] = {}
        self._clients = {p.thread: connect(p, peers, config, shared) for p in placements}

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
