"""A kill returns when nothing of the server can write any more, however slow its disk is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from local_agents import local_agent
from waiting import eventually, is_alive

from harness.agent.disk_verbs import DiskVerbs

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs /dev/fuse and the right to mount"
)

FSYNC_S = 1.0
FSYNCS = "import os, sys; file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.write(file, b'x'); os.fsync(file)"


@needs_fuse
async def test_a_kill_waits_for_the_children_of_the_server(tmp_path: Path) -> None:
    async with local_agent(tmp_path) as agent:
        disk, output = tmp_path / "disk", tmp_path / "server.log"
        await agent.link.ask(DiskVerbs.mount, str(disk), str(tmp_path / "root"))
        slow = [{"operations": ["fsync"], "delay_s": FSYNC_S}]
        await agent.link.ask(DiskVerbs.behave, slow, 1)
        parent = f'"$1" -c "{FSYNCS}" "$2" & echo $!; wait'
        await agent.node.start(["sh", "-c", parent, "sh", sys.executable, str(disk / "file")], output=str(output))
        await eventually(lambda: (disk / "file").exists() and (disk / "file").read_bytes() == b"x")
        await eventually(lambda: output.read_text().endswith("\n"))
        child = int(output.read_text())
        await agent.node.signal("KILL")
        assert not is_alive(child)
