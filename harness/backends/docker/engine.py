"""The connection to the Docker engine, and the labels by which everything of ours is found again.

Every container, network and volume carries the run it belongs to and the process that owns the run
(`harness.backends.remains.owner`).  What is removed is found by these labels and by nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException

from harness.backends.backend import BackendUnavailable

RUN_LABEL = "krucible.run"
OWNER_LABEL = "krucible.owner"
IMAGE_LABEL = "krucible.image"

REQUEST_TIMEOUT_S = 60
"""Longest wait for one answer of the engine (a stream of build output is many answers)."""


def connect(timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
    """A `docker.DockerClient` that has answered a ping.  Raises BackendUnavailable with one sentence otherwise."""
    try:
        client = docker.from_env(timeout=timeout_s, max_pool_size=20)
        client.ping()
    except (DockerException, OSError) as error:
        raise BackendUnavailable(_why_unavailable(error)) from error
    return client


def why_unavailable() -> str | None:
    """None if the engine answers, else one sentence."""
    try:
        connect(timeout_s=5.0).close()
    except BackendUnavailable as unavailable:
        return str(unavailable)
    return None


def labels(run_id: str, owner: str) -> dict[str, str]:
    return {RUN_LABEL: run_id, OWNER_LABEL: owner}


def of_run(run_id: str) -> dict[str, Any]:
    """The engine's filter for everything that carries this run's label."""
    return {"label": f"{RUN_LABEL}={run_id}"}


def _why_unavailable(error: BaseException) -> str:
    causes = _chain(error)
    words = " ".join(str(cause) for cause in causes)
    if any(isinstance(cause, PermissionError) for cause in causes) or "Permission denied" in words:
        return (
            "Docker refuses this user: add it to the `docker` group (or run as root), or choose --backend namespaces."
        )
    if any(isinstance(cause, FileNotFoundError) for cause in causes) or "No such file" in words:
        what = "its socket is missing" if Path("/usr/bin/docker").exists() else "it is not installed"
        return f"Docker does not run here ({what}): start it, set DOCKER_HOST, or choose --backend namespaces."
    return f"Docker does not answer ({str(error).splitlines()[0][:200]}): start it, or choose --backend namespaces."


def _chain(error: BaseException) -> list[BaseException]:
    """The error with all its causes, those hidden in `args` too (urllib3 wraps there)."""
    found: list[BaseException] = []
    pending: list[BaseException] = [error]
    while pending and len(found) < 20:
        cause = pending.pop()
        if cause in found:
            continue
        found.append(cause)
        hidden = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        pending += [inner for inner in hidden if isinstance(inner, BaseException)]
    return found
