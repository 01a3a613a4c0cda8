"""Real nodes as processes on loopback, for tests that want nothing faked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from local_node import LocalNode
from own_address import HOST, free_ports

COMMAND = ("-m", "system_under_test.kraft", "--config")


class LoopbackCluster:
    """`start` formats and starts every node; `stop` kills what still runs.  Output goes to log/output of each node.

    more: goes into every node's configuration."""

    def __init__(self, root: Path, count: int, **more: Any) -> None:
        self._peers = {f"n{number}": [number, HOST, port] for number, port in enumerate(free_ports(count), 1)}
        self.nodes = {name: LocalNode(name, HOST, root) for name in self._peers}
        self.addresses = {name: f"{host}:{port}" for name, (_, host, port) in self._peers.items()}
        self._more = {"cluster_id": "loopback-cluster", "peers": self._peers, "seed": 1, **more}

    async def start(self) -> None:
        for name, node in self.nodes.items():
            own = {"node_id": self._peers[name][0], "name": name, "listen": self.addresses[name]}
            config = {**own, "data_dir": node.data_dir, "trace_dir": node.trace_dir, **self._more}
            await node.write(f"{node.log_dir}/node.json", json.dumps(config).encode())
            done = await node.run([*node.python, *COMMAND, f"{node.log_dir}/node.json", "--format"])
            assert done.status == 0, done.stderr
        for name in self.nodes:
            await self.start_node(name)

    async def start_node(self, name: str) -> None:
        node = self.nodes[name]
        await node.start([*node.python, *COMMAND, f"{node.log_dir}/node.json"], output=f"{node.log_dir}/output")

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.signal("KILL")
