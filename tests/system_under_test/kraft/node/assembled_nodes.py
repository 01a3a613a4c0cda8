"""Nodes that are put together over the ports of simulated machines, each a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

from node_cluster import QUICK, explained
from waiting import eventually

from simulation.machine import Machine
from simulation.world import World, simulate
from system_under_test.kraft.log import small_files
from system_under_test.kraft.node import config
from system_under_test.kraft.node.assembly import KraftNode, assemble
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.simulated import _ports
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity

PORT = 9092


def fields(number: int, peers: tuple[int, ...] = (1, 2, 3), **more: Any) -> dict[str, Any]:
    """Fields of a node's configuration."""
    return {
        "node_id": number,
        "name": f"n{number}",
        "cluster_id": "c",
        "listen": f"n{number}:{PORT}",
        "peers": {f"n{peer}": [peer, f"n{peer}", PORT] for peer in peers},
        "data_dir": "data",
        "trace_dir": "trace",
        "seed": 7,
        **more,
    }


class AssembledNodes:
    """nodes: number -> the node that runs.  peers: the numbers of the voters that each node is configured with."""

    def __init__(self, world: World, peers: tuple[int, ...] = (1, 2, 3)) -> None:
        self.world = world
        self.peers = peers
        self.nodes: dict[int, KraftNode] = {}
        self.are_traces_sound = True
        """False where rows name a voter that their writer knows by its number alone, so that the model cannot."""
        self._starts = 0

    def machine(self, number: int) -> Machine:
        return self.world.machine(f"n{number}")

    async def start(self, number: int, directory: UUID | None = None, **more: Any) -> None:
        """Start a node, whose disk is formatted if it is empty.  more: fields of its configuration."""
        self._starts += 1
        parsed = config.parse(fields(number, self.peers, seed=self._starts, **more))
        if not self.machine(number).disk.exists(small_files.META_PROPERTIES):
            mine = small_files.MetaProperties("c", number, directory or UUID(int=number))
            small_files.write_properties(self.machine(number).disk, mine)

        async def serve(machine: Machine) -> int:
            node = assemble(parsed, _ports(parsed, machine), QUICK)
            machine.on_term = node.stop
            await node.start()
            self.nodes[number] = node
            status = await node.ended
            await node.close()
            return status

        self.world.start(f"n{number}", serve)
        await eventually(lambda: number in self.nodes)

    def kill(self, number: int) -> None:
        del self.nodes[number]
        self.world.kill(f"n{number}")

    async def stop(self, number: int) -> None:
        del self.nodes[number]
        self.machine(number).terminate()
        await eventually(lambda: self.machine(number).process is None)

    @property
    def active(self) -> KraftNode | None:
        return next((node for node in self.nodes.values() if node.quorum.is_active()), None)

    async def leader(self) -> KraftNode:
        await eventually(lambda: self.active is not None)
        assert self.active is not None
        return self.active

    async def of(self, number: int, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`, as a task of the node's process."""
        process = self.machine(number).process
        assert process is not None
        return await process.spawn(work)

    async def ask(self, number: int, request: Entity) -> Any:
        """Return the answer of a node to a stock client."""

        async def ask() -> Any:
            connection = Connection(f"n{number}", PORT, "stock")
            try:
                return await connection.ask(request)
            finally:
                connection.close()

        return await self.world.run("client", ask())

    def unexplained(self) -> list[str]:
        """Return what the model of KRaft cannot explain in the traces of all nodes that ever ran."""
        path = str(Path("trace") / FILE_NAME)
        machines = {int(name[1:]): machine for name, machine in self.world.machines.items()}
        traces = {n: map(json.loads, bytes(machine.files[path]).splitlines()) for n, machine in machines.items()}
        return [str(stop) for stop in explained(traces).stops]


def on_machines(scenario: Callable[[AssembledNodes], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a scenario that plays on virtual time.  In the end the traces of all nodes must be explained."""

    async def whole(world: World) -> None:
        nodes = AssembledNodes(world)
        await scenario(nodes)
        for number in sorted(nodes.nodes, reverse=True):  # brokers transfer leadership to a controller
            await nodes.stop(number)
        stops = nodes.unexplained() if nodes.are_traces_sound else []
        assert stops == [], stops

    def test() -> None:
        simulate(whole, seed=1)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test
