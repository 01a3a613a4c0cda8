"""What is left of a run on this machine, seen without the code under test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest
from waiting import PATIENCE_S

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
        lines = subprocess.run(listing, capture_output=True, text=True, check=False, timeout=1000).stdout.splitlines()
        found += [f"{kind} {line}" for line in lines if run_id in line or run_id.replace("-", "_") in line]
    for kind, every in (("container", ["-a"]), ("volume", []), ("network", [])):
        ours = ["docker", kind, "ls", "-q", *every, "--filter", f"label=krucible.run={run_id}"]
        lines = subprocess.run(ours, capture_output=True, text=True, check=False, timeout=1000).stdout.splitlines()
        found += [f"labelled {kind} {line}" for line in lines]
    return found


def forget_neighbours(run_id: str, node: str) -> None:
    """Empty the ARP table of a node.  It may not do that itself, so a second container does it in its namespace."""
    container = f"krucible-{run_id}-{node}"
    inspect = ["docker", "inspect", "--format", "{{.Image}}", container]
    image = subprocess.run(inspect, check=True, capture_output=True, text=True, timeout=1000).stdout.strip()
    beside = ["docker", "run", "--rm", "--network", f"container:{container}", "--cap-drop", "ALL"]
    flush = [*beside, "--cap-add", "NET_ADMIN", "--entrypoint", "ip", image, "neigh", "flush", "all"]
    subprocess.run(flush, check=True, capture_output=True, timeout=1000)


def processes_of(run_id: str) -> list[str]:
    """Processes of this machine whose command line names the run (reapers, clean-up)."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if run_id in line and "pytest" not in line]


def seconds_until(condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, "it did not come true in time"
        time.sleep(0.05)
    return time.monotonic() - began
