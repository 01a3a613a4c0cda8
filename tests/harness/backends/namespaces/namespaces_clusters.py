"""Clusters in network namespaces for tests, and what is left of them, seen without the code under test."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from waiting import PATIENCE_S

from harness.backends.backend import ClusterSpec
from harness.backends.namespaces_backend import FOLDER_PREFIX, NamespacesBackend

SERVERS, CLIENTS = ("n1", "n2", "n3"), ("c1", "c2")
REPOSITORY = Path(__file__).resolve().parents[4]


SLEEP = ["sleep", "1000"]


def backend(run_id: str) -> NamespacesBackend:
    return NamespacesBackend(ClusterSpec(f"{run_id}-{os.getpid()}", SERVERS, CLIENTS, 1))


@contextlib.asynccontextmanager
async def made(run_id: str):
    cluster = backend(run_id)
    try:
        await cluster.create(lambda words: None)
        yield cluster
    finally:
        await cluster.destroy()


def processes_of(run_id: str) -> list[int]:
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"KRUCIBLE_RUN={run_id}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def folders_of(run_id: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}{run_id}-*"))


def nothing_left(run_id: str, within_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + within_s
    while processes_of(run_id) or folders_of(run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
