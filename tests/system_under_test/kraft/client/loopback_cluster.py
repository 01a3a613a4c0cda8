"""Real nodes as processes on loopback, for tests that want nothing faked."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from own_address import HOST, free_ports

MODULE = "system_under_test.kraft"


@dataclass
class LoopbackCluster:
    """`start` formats and starts every node; `stop` kills what still runs.  Output goes to <root>/<node>.log.

    more: goes into every node's configuration."""

    root: Path
    count: int
    more: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self) -> None:
        ports = free_ports(self.count)
        peers = {f"n{i}": [i, HOST, port] for i, port in enumerate(ports, 1)}
        self.addresses = {name: f"{host}:{port}" for name, (_, host, port) in peers.items()}
        for name, (node_id, host, port) in peers.items():
            config = {
                "node_id": node_id,
                "name": name,
                "cluster_id": "loopback-cluster",
                "listen": f"{host}:{port}",
                "peers": peers,
                "data_dir": str(self.root / name / "data"),
                "trace_dir": str(self.root / name / "trace"),
                "seed": 1,
                "bug": None,
                **self.more,
            }
            (self.root / name).mkdir()
            self._config(name).write_text(json.dumps(config))
            formatting = await self._run(name, "--format")
            assert await formatting.wait() == 0, self.output(name)
        for name in peers:
            await self.start_node(name)

    async def start_node(self, name: str) -> None:
        self.processes[name] = await self._run(name)

    async def kill(self, name: str) -> None:
        self.processes[name].kill()
        await self.processes[name].wait()

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()

    def output(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def _config(self, name: str) -> Path:
        return self.root / name / "node.json"

    async def _run(self, name: str, *options: str) -> asyncio.subprocess.Process:
        with (self.root / f"{name}.log").open("ab") as output:
            argv = [sys.executable, "-m", MODULE, "--config", str(self._config(name)), *options]
            return await asyncio.create_subprocess_exec(*argv, stdout=output, stderr=output)
