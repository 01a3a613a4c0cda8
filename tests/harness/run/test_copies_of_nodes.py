"""Copies of data directories: of a process that stands still, and that goes on as it was found."""

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.run.clock import MACHINE
from harness.run.context import Copies
from harness.run.recorder import RunFolder
from harness.spec import Spec


class LocalNode:
    """A node whose machine is this one; it writes down in which order its process was signalled and read."""

    def __init__(self, folder: Path, state: str, steps: list[str]) -> None:
        self.name = folder.name
        self.data_dir, self.trace_dir, self.log_dir = (str(folder / part) for part in ("data", "trace", "log"))
        for part in (self.data_dir, self.trace_dir, self.log_dir):
            Path(part).mkdir(parents=True)
        (Path(self.data_dir) / "00.log").write_bytes(b"records of " + self.name.encode())
        self.steps = steps
        self.alone = asyncio.Lock()
        self._state = state

    async def state(self) -> str:
        return self._state

    async def signal(self, name: str) -> None:
        self.steps.append(f"{self.name} {name}")

    async def copy_data(self, aside: str) -> int:
        self.steps.append(f"{self.name} copied")
        await asyncio.to_thread(shutil.copytree, self.data_dir, aside)
        return sum(path.stat().st_size for path in Path(self.trace_dir).glob("*.jsonl"))

    async def remove(self, path: str) -> None:
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def copy_out(self, path: str, destination: Path) -> None:
        await asyncio.to_thread(shutil.copytree, path, destination)


def copies(tmp_path: Path, states: Sequence[str]) -> tuple[Copies, list[Any], list[str]]:
    steps: list[str] = []
    nodes = [LocalNode(tmp_path / "machines" / f"n{i}", state, steps) for i, state in enumerate(states, 1)]
    run = RunFolder.create(tmp_path / "results", Spec(subject="canary"))
    return Copies(run, nodes, MACHINE, time.monotonic_ns), nodes, steps  # type: ignore[arg-type]


async def test_a_running_process_stands_still_while_it_is_copied_and_the_others_stay_as_they_are(
    tmp_path: Path,
) -> None:
    taker, nodes, steps = copies(tmp_path, ["running", "stopped", "dead"])
    (Path(nodes[0].trace_dir) / "n1.jsonl").write_text("x" * 123)
    await taker.take("before heal 1")
    assert steps == ["n1 STOP", "n1 copied", "n1 CONT", "n2 copied", "n3 copied"]
    assert [(c.node, c.state, c.trace_size_bytes) for c in taker.taken] == [
        ("n1", "running", 123),
        ("n2", "stopped", 0),
        ("n3", "dead", 0),
    ]
    assert (taker.taken[0].folder / "00.log").read_bytes() == b"records of n1"


async def test_after_the_final_copy_nothing_moves_any_more(tmp_path: Path) -> None:
    taker, _, steps = copies(tmp_path, ["running"])
    await taker.take("final", leave_stopped=True)
    assert steps == ["n1 STOP", "n1 copied"]


async def test_a_copy_that_fails_says_so_and_lets_the_process_go_on(tmp_path: Path) -> None:
    taker, nodes, steps = copies(tmp_path, ["running"])
    shutil.rmtree(nodes[0].data_dir)
    with pytest.raises(OSError, match=r"No such file"):
        await taker.take("before heal 1")
    assert steps[-1] == "n1 CONT"


async def test_a_copy_waits_for_the_fault_that_holds_its_node_and_reads_the_state_afterwards(tmp_path: Path) -> None:
    taker, nodes, steps = copies(tmp_path, ["running"])
    await nodes[0].alone.acquire()
    taking = asyncio.create_task(taker.take("before heal 1"))
    done, _ = await asyncio.wait({taking}, timeout=0.05)
    assert not done and steps == []
    nodes[0]._state = "stopped"  # a fault has paused it
    nodes[0].alone.release()
    await taking
    assert steps == ["n1 copied"], "a process that a fault stopped is not continued by a copy"
