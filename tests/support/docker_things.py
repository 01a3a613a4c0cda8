"""What is left of a run on this machine, seen without the code under test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
from waiting import PATIENCE_S

from harness.backends import namespaces_backend as namespaces
from harness.backends.docker_engine import why_unavailable

ENGINE_S = 120
"""Seconds that one command of the engine's client may take."""

needs_docker = [
    pytest.mark.docker,
    pytest.mark.skipif(why_unavailable() is not None, reason=f"no Docker here: {why_unavailable()}"),
]
needs_namespaces = [
    pytest.mark.namespaces,
    pytest.mark.skipif(namespaces.why_unavailable() is not None, reason=str(namespaces.why_unavailable())),
]


def left_of(run_id: str) -> list[str]:
    """Containers, networks and volumes that carry the run's label or name; in words."""
    found = []
    for kind, listing in {
        "container": ["docker", "ps", "-a", "--format", "{{.Names}}"],
        "network": ["docker", "network", "ls", "--format", "{{.Name}}"],
    }.items():
        lines = subprocess.run(
            listing, capture_output=True, text=True, check=False, timeout=ENGINE_S
        ).stdout.splitlines()
        found += [f"{kind} {line}" for line in lines if run_id in line]
    for kind, every in (("container", ["-a"]), ("volume", []), ("network", [])):
        ours = ["docker", kind, "ls", "-q", *every, "--filter", f"label=krucible.run={run_id}"]
        lines = subprocess.run(ours, capture_output=True, text=True, check=False, timeout=ENGINE_S).stdout.splitlines()
        found += [f"labelled {kind} {line}" for line in lines]
    return found


def forget_neighbours(run_id: str, node: str) -> None:
    """Empty the ARP table of a node."""
    _run_beside(run_id, node, ["--cap-add", "NET_ADMIN"], "ip neigh flush all")


def enable_ipv6(run_id: str, node: str) -> None:
    """Give a node a link-local address of IPv6, which some engines do by themselves."""
    rights = ["--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined"]
    allow = "mount -t proc proc /mnt && echo 0 >/mnt/sys/net/ipv6/conf/eth0/disable_ipv6"  # /proc/sys is read-only
    _run_beside(run_id, node, rights, allow)


def _run_beside(run_id: str, node: str, rights: Sequence[str], order: str) -> None:
    """A node has no rights to change its network.  So a second container does it in its namespace."""
    container = f"krucible-{run_id}-{node}"
    inspect = ["docker", "inspect", "--format", "{{.Image}}", container]
    image = subprocess.run(inspect, check=True, capture_output=True, text=True, timeout=ENGINE_S).stdout.strip()
    beside = ["docker", "run", "--rm", "--network", f"container:{container}", "--cap-drop", "ALL", *rights]
    words = [*beside, "--entrypoint", "sh", image, "-c", order]
    subprocess.run(words, check=True, capture_output=True, timeout=ENGINE_S)


def processes_of(run_id: str) -> list[str]:
    """Processes of this machine whose command line names the run (reapers, clean-up)."""
    everything = ["ps", "-ww", "-eo", "pid,args"]  # without -ww, ps truncates lines at COLUMNS
    listing = subprocess.run(everything, capture_output=True, text=True, check=True, timeout=ENGINE_S).stdout
    return [line for line in listing.splitlines() if run_id in line and "pytest" not in line]


def seconds_until(condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, "it did not come true in time"
        time.sleep(0.05)
    return time.monotonic() - began
