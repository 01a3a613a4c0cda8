"""One node as an operating-system process: with real clock, disk and sockets; signals end it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from system_under_test.kraft.node.assembly import CannotStart, assemble
from system_under_test.kraft.node.config import Config
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import to_stderr
from system_under_test.kraft.node.trace import FILE_NAME, TraceOnDisk
from system_under_test.kraft.ports import Ports, Timer
from system_under_test.kraft.wire.channel import SocketNetwork

log = logging.getLogger(__name__)

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def run(config: Config) -> int:
    """Run the node until it ends; return its exit status (see `executor`).  Raises CannotStart if it cannot start."""
    _allow_many_files()
    lock = _lock(config.data_dir)
    try:
        return await _run(config)
    finally:
        os.close(lock)


def _allow_many_files() -> None:
    """Raise the limit of open files, because a log of many small segments keeps each of them open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run(config: Config) -> int:
    config.trace_dir.mkdir(parents=True, exist_ok=True)
    node = assemble(config, _ports(config))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _unhandled(node.quorum, context))
    await node.start()
    stopping: set[asyncio.Task[None]] = set()  # the loop keeps no reference to a task
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stopping.add(loop.create_task(node.stop())))
    gc.collect()
    gc.freeze()  # objects made at start-up live as long as the process, so the collector can skip them
    status = await node.ended
    await node.close()
    return status


def _ports(config: Config) -> Ports:
    return Ports(
        clock=LoopClock(),
        disk=RealDisk(config.data_dir),
        network=SocketNetwork(),
        trace=TraceOnDisk(config.trace_dir / FILE_NAME),
        random=lambda purpose: Random(f"{config.seed}/{config.node_id}/{purpose}"),
        say=to_stderr,
    )


def _lock(data_dir: Path) -> int:
    """Lock the directory until the process ends, for whatever reason.  Two nodes on one directory would destroy it."""
    try:
        lock = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise CannotStart(f"cannot use the data directory {data_dir}: {problem.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise CannotStart(f"another node is running on {data_dir}; stop it first") from None
    return lock


def _unhandled(node: QuorumNode, context: dict[str, Any]) -> None:
    """Handle an exception that no task awaits."""
    problem = context.get("exception")
    if isinstance(problem, OSError) and problem.errno in _OUT_OF_RESOURCES and "accept" in context.get("message", ""):
        log.warning("a connection could not be accepted: %s", problem.strerror)  # asyncio retries after a second
        return
    node.collapse(context.get("exception") or RuntimeError(context.get("message", "unknown")))


class LoopClock:
    """`ports.Clock` on the running loop.  The `time()` of a real loop is CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._loop.time()

    def now_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        if when <= self._loop.time():
            return self._loop.call_soon(callback)  # a timer would fire in the same turn, and costs more
        return self._loop.call_at(when, callback)
