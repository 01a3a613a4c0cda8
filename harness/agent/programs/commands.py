"""Running a command to its end, and reading what the machine kept from its processes: CPU time and memory."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.agent.programs.children import COMMAND_MARK, Children, environment, signal_group


async def run(
    children: Children, argv: Sequence[str], timeout_s: float, given: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Status (minus the signal's number), stdout and stderr of a command that reads `given`.

    Raises OSError if argv cannot be executed, or if it takes longer than timeout_s (it is then killed).
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def note(status: int) -> None:
        if not ended.done():  # after a timeout no caller waits for it
            ended.set_result(status)

    read_end, write_end = os.pipe()
    try:
        child = children.start(
            argv,
            note,
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment({COMMAND_MARK: "1"}),
        )
    except OSError:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    feeding = loop.run_in_executor(None, _feed, write_end, given)
    assert child.process.stdout is not None
    assert child.process.stderr is not None
    everything = asyncio.gather(_read_all(child.process.stdout), _read_all(child.process.stderr), ended, feeding)
    try:
        out, err, status, _ = await asyncio.wait_for(everything, timeout_s)
    except TimeoutError:
        signal_group(child.pid, signal.SIGKILL)
        raise OSError(errno.ETIMEDOUT, f"{argv[0]} did not end within {timeout_s:g} s and was killed") from None
    return status, out, err


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel killed since boot for want of memory, of the machine or of a container on it.

    The kernel counts a kill before it sends the signal.  0 where it does not tell (before Linux 4.13).
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


async def _read_all(pipe: object) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        return await reader.read()
    finally:
        transport.close()


def _feed(descriptor: int, given: bytes) -> None:
    with os.fdopen(descriptor, "wb") as pipe:
        try:
            pipe.write(given)
            pipe.flush()
        except BrokenPipeError:
            return  # a command may end without reading what it was given
