"""What is left of a run on this machine, seen without the code under test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from harness.backends.docker.engine import why_unavailable

needs_docker = [
    pytest.mark.docker,
    pytest.mark.skipif(why_unavailable() is not None, reason=f"no Docker here: {why_unavailable()}"),
]


def left_of(run_id: str) -> list[str]:
    """Containers, networks and volumes that carry the run's label or name, and its rules; in words."""
    found = []
    for kind, listing in {
        "container": ["docker", "ps", "-a", "--format", "{{.Names}}"],
        "network": ["docker", "network", "ls", "--format", "{{.Name}}"],
        "rules": ["nft", "list", "tables"],
    }.items():
        lines = subprocess.run(listing, capture_output=True, text=True, check=False, timeout=60).stdout.splitlines()
        found += [f"{kind} {line}" for line in lines if run_id in line or run_id.replace("-", "_") in line]
    for kind, every in (("container", ["-a"]), ("volume", []), ("network", [])):
        ours = ["docker", kind, "ls", "-q", *every, "--filter", f"label=krucible.run={run_id}"]
        lines = subprocess.run(ours, capture_output=True, text=True, check=False, timeout=60).stdout.splitlines()
        found += [f"labelled {kind} {line}" for line in lines]
    return found


def processes_of(run_id: str) -> list[str]:
    """Processes of this machine whose command line names the run (reapers, clean-up)."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if run_id in line and "pytest" not in line]


def seconds_until(condition: Callable[[], bool], limit_s: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, "it did not come true in time"
        time.sleep(0.05)
    return time.monotonic() - began
