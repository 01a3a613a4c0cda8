"""The self-description of a node of Spark: the driver reads it before judging.  This file needs nothing but Python."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerHost:
    """A place where Python workers are forked.

    problem: why no worker here can judge, in one sentence, or "".  ready_s: duration of unpacking and loading.
    compiled: kernels whose machine code did not fit this processor or these versions, so they were compiled here.
    compile_s: the part of ready_s for this.
    """

    host: str
    pid: int
    python: str
    problem: str = ""
    ready_s: float = 0.0
    compiled: int = 0
    compile_s: float = 0.0
    worker_memory_bytes: int = 0


_described: WorkerHost | None = None


def remember(node: WorkerHost) -> None:
    """Called once by the daemon, before it forks the first worker."""
    global _described
    _described = node


def ask(_: object) -> WorkerHost:
    """Run as a task: returns the description that the daemon of this worker remembered."""
    unprepared = "its workers were not forked from Krucible's daemon (is spark.python.daemon.module set elsewhere?)"
    return _described or WorkerHost(socket.gethostname(), os.getppid(), platform.python_version(), problem=unprepared)
