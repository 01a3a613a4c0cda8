"""Clocks of a run's nodes: each node tells why its own cannot be shifted, and all may compile the library at once."""

from __future__ import annotations

import asyncio
import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.agent.disk.verbs import DiskVerbs
from harness.agent.wall_clock import ClockVerbs
from harness.backends.agent_cluster import AgentCluster
from harness.backends.backend import ClusterSpec
from harness.backends.builds import clock_library
from nemesis.cluster import CLOCK, DISK

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler for the library that shifts clocks"
)


class Link:
    """A node whose agent refuses the verbs that are named."""

    def __init__(self, name: str, *refused: Any) -> None:
        self.name = name
        self._refused = refused

    async def ask(self, verb: Any, *_: Any) -> dict[str, Any]:
        if verb in self._refused:
            raise OSError(errno.ENOTSUP, "not on this node")
        return {}


def cluster(*wanted: str) -> AgentCluster:
    spec = ClusterSpec(run_id="r", servers=("n1", "n2", "n3"), clients=("c1",), seed=1, wanted=frozenset(wanted))
    return AgentCluster(spec)


@needs_compiler
def test_nodes_that_compile_the_library_at_once_all_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        libraries = [future.result() for future in [pool.submit(clock_library) for _ in range(8)]]
    assert set(libraries) == {libraries[0]}
    assert libraries[0].startswith(b"\x7fELF")


@needs_compiler
def test_one_clock_that_cannot_be_shifted_is_not_hidden_by_later_nodes() -> None:
    made = cluster(CLOCK)
    node: Any = SimpleNamespace(log_dir="/log", environment={})

    async def install() -> None:
        for link in (Link("n1"), Link("n2", ClockVerbs.install), Link("n3")):
            await made.install_clock(link, node)  # type: ignore[arg-type]

    asyncio.run(install())
    assert made.lacks(CLOCK) == "n2: not on this node"


def test_one_disk_that_cannot_be_mounted_is_not_hidden_by_later_nodes() -> None:
    made = cluster(DISK)

    async def mount() -> None:
        for link in (Link("n1"), Link("n2", DiskVerbs.mount), Link("n3")):
            await made.data_folder(link, "/folder")  # type: ignore[arg-type]

    asyncio.run(mount())
    assert made.lacks(DISK).startswith("n2: not on this node.  It needs /dev/fuse")


@pytest.mark.parametrize("capability", [CLOCK, DISK])
def test_what_the_run_was_not_made_with_is_lacking(capability: str) -> None:
    assert cluster().lacks(capability).startswith("the run was made without")
