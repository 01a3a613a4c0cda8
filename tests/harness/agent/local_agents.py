"""A real agent, spoken to over local pipes: what a node of any backend runs, without the node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S

from harness.agent.process import NodeVerbs
from harness.backends.agent_link import AgentClientHost, AgentLink, AgentNode

HERE = Path(__file__).parent


@dataclass
class LocalAgent:
    process: asyncio.subprocess.Process
    link: AgentLink
    node: AgentNode
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def client_host(self) -> AgentClientHost:
        return AgentClientHost(lambda: self.link)


@contextlib.asynccontextmanager
async def local_agent(
    folder: Path, name: str = "n1", *, environment: Mapping[str, str] | None = None, stderr: int | None = None
) -> AsyncIterator[LocalAgent]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "harness.agent",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parents[2]), str(HERE))), **(environment or {})},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    events: list[Mapping[str, Any]] = []
    link = AgentLink(name, process.stdout, process.stdin, events.append)
    folders = {place: str(folder / place) for place in ("data_dir", "trace_dir", "log_dir")}
    node = AgentNode(link, address="127.0.0.1", python=(sys.executable,), **folders)
    try:
        await link.ask(NodeVerbs.hello)
        yield LocalAgent(process, link, node, events)
    finally:
        await link.close()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
