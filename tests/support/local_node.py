"""A node of a system that is this machine: a process, three folders and a loopback address of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S

from system_under_test.subject import Completed


class LocalNode:
    """`system_under_test.subject.Node` without an agent."""

    python = (sys.executable,)

    def __init__(self, name: str, address: str, root: Path) -> None:
        self.name, self.address = name, address
        self.data_dir, self.trace_dir, self.log_dir = (str(root / name / d) for d in ("data", "trace", "log"))
        for folder in (self.data_dir, self.trace_dir, self.log_dir):
            Path(folder).mkdir(parents=True)
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, output: str = "") -> int:
        with open(output, "ab") as log:  # noqa: ASYNC230, PTH123
            self.process = await asyncio.create_subprocess_exec(
                *argv, stdout=log, stderr=log, env={**os.environ, **(env or {})}
            )
        return self.process.pid

    async def signal(self, name: str) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.Signals[f"SIG{name}"])
            if name == "KILL":
                await self.process.wait()
            while name == "STOP" and self._threads() != {"T"}:  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(0.001)

    async def state(self) -> Any:
        if self.process is None or self.process.returncode is not None:
            return "dead"
        return "stopped" if "T" in self._threads() else "running"

    def _threads(self) -> set[str]:
        """The states of all threads as letters of proc(5).  A signal reaches a busy machine's threads one by one."""
        assert self.process is not None
        letters = set()
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended has no state
                letters.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return letters

    async def run(self, argv: Sequence[str], *, timeout_s: float = PATIENCE_S) -> Completed:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            process.kill()
            raise OSError(f"{argv[0]} took longer than {timeout_s} s") from None
        return Completed(process.returncode or 0, out, err)

    async def write(self, path: str, data: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    async def read(self, path: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        data = Path(path).read_bytes()[offset:] if Path(path).exists() else b""
        return data if size_bytes < 0 else data[:size_bytes]

    async def copy_out(self, path: str, destination: Path) -> None:
        shutil.copytree(path, destination, dirs_exist_ok=True)

    async def remove(self, path: str) -> None:
        shutil.rmtree(path)
